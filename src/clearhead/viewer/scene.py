"""What a page may ask about one run, each answer exact. No HTTP here, no memory that grows.

Questions, their arguments and answers (JSON and float32 arrays):

    about    {}                           the model, the text, the axes, what can be asked
    tile     picture, pool, level, row, column, near?     pyramid.py
    row      picture, index               weights over the columns, NaN where hidden
    column   picture, index               weights over the rows
    window   picture, rows, columns       weights of at most 2^20 cells
    removed  picture                      how much mass `leave` takes away, and which are sinks
    heads    {}                           the measures of `run.heads()`, (L, H) each
    across   unit, row, column, leave     one cell in every head, (L, H)
    rollout  index, unit, direction       (T,) or the units
    steps    layer, head, row, column     from q and k to the weight

A picture is heads, join, unit and leave: picture.py says what its cells are.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import pyramid, sinks, units
from .arguments import Chosen, choice, chosen, pair, place, whole
from .opening import opening_of
from .picture import Picture
from .ranking import proof_line
from .shelf import Shelf
from .sinks import Sinks
from .steps import steps
from .units import UNITS, Side

ROOM_BYTES = 256 << 20  # of one scene's tiles
_MOST_CELLS = 1 << 20
_TABLE_BYTES = 128 << 20  # of heads, pictures, sums
_SMALL = 1 << 12
_TOP_LEVEL = 40

MEASURES = {
    "previous": "mass on the token before",
    "next": "mass on the token behind",
    "self": "mass on the token itself",
    "first": "mass on the first token",
    "special": "mass on tokens that the tokenizer put there",
    "duplicate": "mass on an earlier token of the same kind",
    "induction": "mass on an earlier token that follows one of the same kind",
    "near": "mass on tokens fewer than 16 away",
    "distance": "mean distance to what is read, in tokens",
    "entropy": "of a row, in nats",
}


@dataclass(frozen=True)
class Answer:
    """JSON and arrays, as `to_bytes` sends them."""

    json: dict[str, Any]
    arrays: list[NDArray[np.float32]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """uint32 length, JSON with the arrays' shapes, zeros to a multiple of 4, the arrays."""
        shapes = [list(array.shape) for array in self.arrays]
        text = json.dumps(self.json | {"arrays": shapes}, ensure_ascii=False, allow_nan=False)
        head = text.encode()
        pad = bytes(-len(head) % 4)
        body = [np.ascontiguousarray(array, "<f4").tobytes() for array in self.arrays]
        return b"".join([len(head).to_bytes(4, "little"), head, pad, *body])


class Scene:
    """One run, asked.

    run    an `AttentionRun`
    shelf  where tiles are kept; None: one of its own
    """

    def __init__(self, run: Any, *, shelf: Shelf | None = None) -> None:
        self.run = run
        self._shelf = Shelf(ROOM_BYTES) if shelf is None else shelf
        self._own = object()  # tells this scene's tiles from others'
        self._tables = Shelf(_TABLE_BYTES)

    def answer(
        self,
        question: str,
        arguments: Mapping[str, Any],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """The answer; ValueError or TypeError, one sentence, for what cannot be asked."""
        questions: dict[str, Callable[..., Answer]] = {
            "about": self._about,
            "tile": self._tile,
            "row": self._row,
            "column": self._column,
            "window": self._window,
            "removed": self._removed,
            "heads": self._heads,
            "across": self._across,
            "rollout": self._rollout,
            "steps": self._steps,
        }
        if not isinstance(question, str) or question not in questions:
            raise ValueError(f"question: must be one of {', '.join(questions)}")
        if not isinstance(arguments, Mapping):
            raise TypeError("arguments: must be an object")
        if question == "tile":
            return self._tile(arguments, cancelled)
        return questions[question](arguments)

    def forget(self) -> None:
        """Let go of this scene's tiles on a shelf that it shares."""
        self._shelf.drop(lambda key: key[1][0] is self._own)

    @property
    def title(self) -> str:
        """The first words of the text."""
        return " ".join(self.run.text.split())[:80] or self.run.model

    @cached_property
    def square(self) -> bool:
        """Whether what reads is what is read."""
        return bool(self.run.keys.tokens == self.run.tokens)

    @cached_property
    def _spans(self) -> dict[str, tuple[units.Spans, units.Spans]]:
        """Sentences and documents, of rows and columns."""
        run = self.run
        T, S = len(run.tokens), len(run.keys.tokens)
        starts = run.starts if self.square else (0,)
        rows, cols = units.packed_ids(run.map(0).mask if len(starts) == 1 else None, T, S)
        return {
            "sentences": (units.sentences(run, starts), units.sentences(run.keys, starts)),
            "documents": (
                units.document_spans(run, rows, starts),
                units.document_spans(run.keys, cols, starts),
            ),
        }

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The units that say more than tokens do."""
        several = {
            "words": len(self.run.words) < len(self.run.tokens)
            or len(self.run.keys.words) < len(self.run.keys.tokens),
            "sentences": self._several("sentences"),
            "documents": self._several("documents"),
        }
        return ("tokens", *(name for name in UNITS[1:] if several[name]))

    def _several(self, name: str) -> bool:
        special = sum(token.special for token in self.run.keys.tokens)
        return any(len(spans) - special > 1 for spans in self._spans[name])

    @cached_property
    def _sides(self) -> dict[str, tuple[Side, Side]]:
        run = self.run
        T, S = len(run.tokens), len(run.keys.tokens)
        found = {"tokens": (units.tokens(T), units.tokens(S)), "words": units.word_sides(run)}
        for name, (rows, cols) in self._spans.items():
            found[name] = units.of_spans(rows, T), units.of_spans(cols, S)
        return found

    def _head(self, layer: int, head: int) -> Any:
        """The map (1, T, S) of one head."""
        from ..models.answers import one_head

        return self._tables.get(
            ("head", layer, head), lambda: (one_head(self.run.map(layer), head), _SMALL)
        )

    def _sinks(self, heads: tuple[tuple[int, int], ...]) -> Sinks:
        found: Sinks = self._tables.get(
            ("sinks", heads), lambda: (sinks.find([self._head(*one) for one in heads]), _SMALL)
        )
        return found

    def _keep(self, asked: Chosen) -> NDArray[np.bool_] | None:
        """(S,) False for tokens that are left out; None: none is."""
        leave, keys = asked.leave, self.run.keys.tokens
        out = np.zeros(len(keys), bool)
        if leave.special:
            out |= np.array([token.special for token in keys], bool)
        if leave.sinks:
            out[self._sinks(asked.heads).keys] = True
        if leave.columns:
            side = self._sides[asked.unit][1]
            for column in leave.columns:
                whole("leave: a column", column, side.count)
            out |= np.isin(side.label, leave.columns)
        return ~out if out.any() else None

    def _picture(self, arguments: Mapping[str, Any]) -> tuple[Chosen, Picture]:
        asked = chosen(arguments, self.run.num_layers, self.run.num_heads, self.units)

        def make() -> tuple[Picture, int]:
            maps = [self._head(*one) for one in asked.heads]
            rows, cols = self._sides[asked.unit]
            made = Picture(maps, asked.join, rows, cols, self._keep(asked))
            return made, made.nbytes

        return asked, self._tables.get(("picture", asked), make)

    def _about(self, arguments: Mapping[str, Any]) -> Answer:
        run = self.run
        sentences, documents = self._spans["sentences"], self._spans["documents"]
        masks = [run.map(layer).mask for layer in range(run.num_layers)]
        return Answer(
            {
                "model": run.model,
                "title": self.title,
                "text": run.text,
                "notes": list(run.notes),
                "proof": proof_line(run),
                "layers": list(run.layer_numbers),
                "heads": list(run.head_numbers),
                "square": self.square,
                "causal": any("causal" in repr(mask) for mask in masks if mask is not None),
                "masks": sorted({_brief(mask) for mask in masks}),
                "decimals": None,
                "windows": list(run.starts),
                "units": list(self.units),
                "rows": units.axis(run, sentences[0], documents[0]),
                "columns": None
                if self.square
                else units.axis(run.keys, sentences[1], documents[1]),
                "can": {
                    "read": False,
                    "steps": True,
                    "rollout": self.square and _in_a_row(run.layer_numbers),
                },
                "opening": opening_of(self),
            }
        )

    def _tile(self, arguments: Mapping[str, Any], cancelled: Callable[[], bool]) -> Answer:
        asked, picture = self._picture(arguments)
        pool = choice("pool", arguments.get("pool", "max"), ("mean", "max"))
        level = whole("level", arguments.get("level"), _TOP_LEVEL)
        R, C = picture.shape
        side = pyramid.CELLS << level
        row = whole("row", arguments.get("row"), max(1, -(-R // side)))
        column = whole("column", arguments.get("column"), max(1, -(-C // side)))
        near = place("near", arguments.get("near"))
        tiles = pyramid.Pyramid(picture, (self._own, asked), self._shelf)
        tile = tiles.tile(pool, level, row, column, near=near, cancelled=cancelled)
        known = tile.values[~np.isnan(tile.values)]
        return Answer(
            {
                "rows": tile.values.shape[0],
                "columns": tile.values.shape[1],
                "done": not tile.pending,
                "pending": [list(one) for one in tile.pending],
                "top": float(known.max()) if known.size else None,
            },
            [tile.values],
        )

    def _row(self, arguments: Mapping[str, Any]) -> Answer:
        asked, picture = self._picture(arguments)
        R, C = picture.shape
        index = whole("index", arguments.get("index"), R)
        several = asked.join == "max" and len(asked.heads) > 1
        arrays = [picture.cells(index, index + 1, 0, C)[0]]
        if several:
            arrays.append(picture.which(index, index + 1, 0, C)[0])
        return Answer({"removed": float(picture.removed(index, index + 1)[0])}, arrays)

    def _column(self, arguments: Mapping[str, Any]) -> Answer:
        asked, picture = self._picture(arguments)
        R, C = picture.shape
        index = whole("index", arguments.get("index"), C)
        several = asked.join == "max" and len(asked.heads) > 1
        arrays = [picture.cells(0, R, index, index + 1)[:, 0]]
        if several:
            arrays.append(picture.which(0, R, index, index + 1)[:, 0])
        return Answer({}, arrays)

    def _window(self, arguments: Mapping[str, Any]) -> Answer:
        _, picture = self._picture(arguments)
        R, C = picture.shape
        rows = pair("rows", arguments.get("rows"), R)
        columns = pair("columns", arguments.get("columns"), C)
        cells = (rows[1] - rows[0]) * (columns[1] - columns[0])
        if cells > _MOST_CELLS:
            raise ValueError(f"window: is {cells:,} cells, must be at most {_MOST_CELLS:,}")
        return Answer({}, [picture.cells(*rows, *columns)])

    def _removed(self, arguments: Mapping[str, Any]) -> Answer:
        asked, picture = self._picture(arguments)
        gone = picture.removed(0, picture.shape[0])
        gone = np.nan_to_num(gone)
        found = self._sinks(asked.heads)
        return Answer(
            {
                "mean": float(gone.mean()) if gone.size else 0.0,
                "most": float(gone.max(initial=0)),
                "row_of_most": int(gone.argmax()) if gone.size else None,
                "columns": picture.left_out(),
                "sinks": [list(one) for one in zip(found.keys, found.shares, strict=True)],
                "rule": sinks.RULE,
                "rows_asked": found.rows_asked,
            }
        )

    def _heads(self, arguments: Mapping[str, Any]) -> Answer:
        def make() -> tuple[Any, int]:
            table = self.run.heads()
            return [table.columns[name].astype(np.float32) for name in MEASURES], _SMALL

        return Answer({"measures": MEASURES}, self._tables.get(("heads",), make))

    def _across(self, arguments: Mapping[str, Any]) -> Answer:
        run = self.run
        out = np.empty((run.num_layers, run.num_heads), np.float32)
        for layer, head in np.ndindex(*out.shape):
            one = {**arguments, "heads": [[layer, head]], "join": "mean"}
            _, picture = self._picture(one)
            row = whole("row", arguments.get("row"), picture.shape[0])
            column = whole("column", arguments.get("column"), picture.shape[1])
            out[layer, head] = picture.cells(row, row + 1, column, column + 1)[0, 0]
        return Answer({}, [out])

    def _rollout(self, arguments: Mapping[str, Any]) -> Answer:
        from ..models.rollout import rollout_column, rollout_row

        unit = choice("unit", arguments.get("unit", "tokens"), self.units)
        direction = choice("direction", arguments.get("direction", "to"), ("to", "from"))
        run = self.run
        if not self.square or not _in_a_row(run.layer_numbers):
            raise ValueError(
                "rollout: must be asked of the self-attention of a whole text, of layers in a row"
            )
        rows, cols = self._sides[unit]
        index = whole("index", arguments.get("index"), rows.count)
        side = rows if direction == "to" else cols
        x = (side.label == index).astype(np.float64)
        if not x.any():
            raise ValueError(f"index: {index} stands for no token")

        def make() -> tuple[NDArray[np.float32], int]:
            maps = [run.map(layer) for layer in range(run.num_layers)]
            if direction == "to":
                found = _by_unit(cols, rollout_row(maps, x / x.sum()))
            else:
                found = _by_unit(rows, rollout_column(maps, x)) / np.maximum(rows.sizes, 1)
            return found.astype(np.float32), found.nbytes

        return Answer({}, [self._tables.get(("rollout", unit, direction, index), make)])

    def _steps(self, arguments: Mapping[str, Any]) -> Answer:
        run = self.run
        layer = whole("layer", arguments.get("layer"), run.num_layers)
        head = whole("head", arguments.get("head"), run.num_heads)
        row = whole("row", arguments.get("row"), len(run.tokens))
        column = whole("column", arguments.get("column"), len(run.keys.tokens))
        v = run.layers[layer].v
        if v is not None:
            v = v[head // (run.num_heads // v.shape[0])]
        return Answer(steps(self._head(layer, head), v, row, column))


def _by_unit(side: Side, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) summed over the tokens of each unit."""
    own = side.label >= 0
    return np.bincount(side.label[own], x[own], side.count).astype(np.float64)


def _in_a_row(numbers: Any) -> bool:
    return list(numbers) == list(range(numbers[0], numbers[0] + len(numbers)))


def _brief(mask: Any) -> str:
    if mask is None:
        return "every key"
    return "an array of booleans" if isinstance(mask, np.ndarray) else repr(mask)
