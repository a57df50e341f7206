"""What heads do: for each layer and head, how much of its attention goes where, in linear memory.

    previous    the token before                        next       the token behind
    self        the token itself                        first      the first token (of its window)
    special     tokens that the tokenizer put there     duplicate  an earlier token of the same kind
    induction   an earlier token that follows one of the same kind: in `a b ... a`, from a to b
    near        all tokens at most `window - 1` away, on both sides and itself
    distance    the mean distance to what is read, in tokens
    entropy     of a row, in nats; 0 where all goes to one token

Each is a mean over the queries that had such a key to read (`distance` and `entropy`: over all that
see anything); NaN where there is none, as `next` in a causal model. A mass on a set of keys is one
forward pass under a mask (models/mass.py), so nothing here is ever T x S.

Sources: previous-token and induction heads, Elhage et al. 2021, Olsson et al. 2022; sinks, Xiao et
al. 2023; duplicate-token heads, Wang et al. 2022.
"""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..maps import AttentionMap
from ..masks import Mask, allowed, causal, documents, window
from .mass import mass, product

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

MASSES = ("previous", "next", "self", "first", "special", "duplicate", "induction", "near")
COLUMNS = (*MASSES, "distance", "entropy")
_OF_ONE_TEXT = ("previous", "next", "self", "duplicate", "induction", "near", "distance")


@dataclass(frozen=True, slots=True)
class Head:
    """One line of the table: what one head does."""

    layer: int
    head: int
    previous: float
    next: float
    self: float
    first: float
    special: float
    duplicate: float
    induction: float
    near: float
    distance: float
    entropy: float


class Sums:
    """Sums over queries of what `COLUMNS` names, and how many queries each is over, (C, H) both.

    They add up: a long text may come in pieces, as generation brings it.
    """

    def __init__(self, totals: Floats, counts: Floats) -> None:
        self.totals, self.counts = totals, counts

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.totals + other.totals, self.counts + other.counts)

    @property
    def means(self) -> Floats:
        """(C, H), NaN where there was no query."""
        with np.errstate(invalid="ignore"):
            return np.where(self.counts > 0, self.totals / np.maximum(self.counts, 1), np.nan)


def sums(
    amap: AttentionMap,
    ids: NDArray[np.int64],
    special: NDArray[np.bool_],
    *,
    starts: Sequence[int] = (0,),
    near: int = 16,
    one_text: bool = True,
) -> Sums:
    """The sums of one map (H, T, S).

    ids       (S,) what token each key is; queries are the last T of them
    special   (S,) which keys the tokenizer put there
    starts    the keys that begin a window of text
    one_text  False for cross-attention: queries have no place among the keys
    """
    H, T, S = amap.shape
    totals, counts = np.zeros((len(COLUMNS), H)), np.zeros((len(COLUMNS), H))
    for name, rule in _sets(ids, special, starts, T, S, near).items():
        if one_text or name not in _OF_ONE_TEXT:
            part, able = mass(amap, rule)
            at = COLUMNS.index(name)
            totals[at], counts[at] = part.sum(-1, dtype=np.float64), able.sum(-1)
    _, sighted = mass(amap)
    at = COLUMNS.index("distance")
    if one_text:
        totals[at], counts[at] = _distance(amap).sum(-1), sighted.sum(-1)
    at = COLUMNS.index("entropy")
    entropy = amap.observe(entropy=True).entropy
    assert entropy is not None
    totals[at], counts[at] = entropy.sum(-1, dtype=np.float64), sighted.sum(-1)
    return Sums(totals, counts)


def _sets(
    ids: NDArray[np.int64],
    special: NDArray[np.bool_],
    starts: Sequence[int],
    T: int,
    S: int,
    near: int,
) -> dict[str, Mask]:
    """Of each mass, the keys that it is on."""
    earlier = causal(offset=S - T - 1)
    own = ids[S - T :] if S >= T else np.full(T, -1)
    first = np.zeros(S, bool)
    first[list(starts)] = True
    after = np.concatenate([[-1], ids[:-1]]) if S else ids  # what stands before each key
    return {
        "previous": window(left=1) & earlier,
        "next": window(right=1) & ~causal(),
        "self": window(left=0, right=0),
        "first": allowed(first[None]),
        "special": allowed(special[None]),
        "duplicate": documents(own, ids) & earlier,
        "induction": documents(own, after) & earlier,
        "near": window(left=near - 1, right=near - 1),
    }


def _distance(amap: AttentionMap) -> Floats:
    """The mean distance of each row, (H, T): |place of the query - place of the key|."""
    T, S = amap.shape[-2:]
    own = np.arange(T, dtype=np.float64) + S - T
    places = np.arange(S, dtype=np.float64)[:, None]
    total = np.zeros(amap.shape[:-1])
    for rule, sign in ((causal(), 1.0), (~causal(), -1.0)):
        read, part = product(amap, places, rule)
        total += sign * (part * own - read[..., 0])
    whole, _ = mass(amap)
    return np.asarray(np.where(whole > 0, total / np.where(whole > 0, whole, 1), 0.0))


class HeadTable:
    """What every head of a run does; iterates over `Head`, in the order of layer and head.

    columns   name to (L, H) float64: see clearhead.models.heads
    layers    the model's numbers of the layers, heads those of the heads
    window    what `near` is measured in

    >>> table = run.heads()
    >>> table.top("previous")[0]
    Head(layer=..., head=..., previous=..., ...)
    """

    def __init__(
        self,
        means: Floats,
        *,
        layers: Sequence[int],
        heads: Sequence[int],
        window: int,
        model: str = "",
    ) -> None:
        self.columns = {name: means[:, i] for i, name in enumerate(COLUMNS)}
        self.layers, self.heads = tuple(layers), tuple(heads)
        self.window, self.model = window, model

    def __len__(self) -> int:
        return len(self.layers) * len(self.heads)

    def __iter__(self) -> Iterator[Head]:
        for i, layer in enumerate(self.layers):
            for j, head in enumerate(self.heads):
                yield Head(layer, head, *(float(c[i, j]) for c in self.columns.values()))

    def __repr__(self) -> str:
        return f"HeadTable({len(self.layers)} layers, {len(self.heads)} heads)"

    def top(self, column: str, count: int | None = None) -> list[Head]:
        """The heads by one column, largest first, NaN last; equals by layer and head.

        Raises `ValueError` for a column that there is not.
        """
        check_column(column)
        if count is not None and (type(count) is bool or not isinstance(count, int | np.integer)):
            raise TypeError(f"count: is {count!r}, must be a whole number or None")
        if count is not None and count < 0:
            raise ValueError(f"count: is {count}, must be at least 0")
        ranked = sorted(self, key=lambda h: (-getattr(h, column), h.layer, h.head))
        known = [h for h in ranked if not np.isnan(getattr(h, column))]
        return [*known, *(h for h in ranked if np.isnan(getattr(h, column)))][:count]

    def rows(self, sort: str | None = None, count: int | None = None) -> list[dict[str, Any]]:
        """One dict for each head; None where a column has no value."""
        chosen = list(self)[:count] if sort is None else self.top(sort, count)
        names = ("layer", "head", *COLUMNS)
        return [{n: None if (v := getattr(head, n)) != v else v for n in names} for head in chosen]

    def to_json(self, sort: str | None = None, count: int | None = None) -> str:
        """`rows` as JSON, with the model and the window."""
        table = {"model": self.model, "window": self.window, "heads": self.rows(sort, count)}
        return json.dumps(table, ensure_ascii=False)

    def to_csv(self, sort: str | None = None, count: int | None = None) -> str:
        """`rows` as CSV with a header; nothing where a column has no value."""
        text = io.StringIO()
        writer = csv.DictWriter(text, ("layer", "head", *COLUMNS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows(sort, count))
        return text.getvalue()

    def to_text(self, sort: str | None = None, count: int | None = None, width: int = 80) -> str:
        """A table of `width` columns; masses in percent."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        shown = {"previous": "prev", "special": "spec", "duplicate": "dupl", "induction": "induct"}
        shown |= {"distance": "dist", "entropy": "nats"}
        for name in ("layer", "head", *COLUMNS):
            heading = shown.get(name, name)
            table.add_column(heading + ("↓" if name == sort else ""), justify="right", no_wrap=True)
        for row in self.rows(sort, count):
            numbers = (_number(name, row[name]) for name in COLUMNS)
            table.add_row(str(row["layer"]), str(row["head"]), *numbers)
        text = io.StringIO()
        Console(file=text, width=width, color_system=None).print(table)
        note = "Masses in %, means over the queries that had such a key to read; - : none had."
        near = f"near: fewer than {self.window} tokens away. dist: mean distance in tokens."
        return f"{text.getvalue().rstrip()}\n{note}\n{near}"

    def __str__(self) -> str:
        return self.to_text()

    def plot(self, column: str = "previous", ax: "Axes | None" = None) -> "Axes":
        """A picture of layers x heads, one cell a head; matplotlib, returns the axes."""
        check_column(column)
        from matplotlib.figure import Figure

        values = self.columns[column]
        if ax is None:
            size = (2.2 + 0.42 * len(self.heads), 1.6 + 0.36 * len(self.layers))
            ax = Figure(figsize=size, layout="constrained").subplots()
        top = 1.0 if column in MASSES else float(np.nanmax(values, initial=0.0)) or 1.0
        image = ax.imshow(values, vmin=0, vmax=top, cmap="viridis", aspect="equal")
        ax.set_xlabel("head")
        ax.set_ylabel("layer")
        for axis, numbers in ((ax.xaxis, self.heads), (ax.yaxis, self.layers)):
            step = max(1, len(numbers) // 16)
            axis.set_ticks(range(0, len(numbers), step), [str(n) for n in numbers[::step]])
        unit = {"distance": "mean distance, tokens", "entropy": "entropy, nats"}
        ax.set_title(f"{self.model}: {column}" if self.model else column, fontsize="medium")
        figure = ax.get_figure()
        assert figure is not None
        figure.colorbar(image, ax=ax, label=unit.get(column, f"mass on {column}"), shrink=0.8)
        return ax

    def save_plot(self, file: str | os.PathLike[str] | IO[bytes], column: str = "previous") -> None:
        """Write `plot(column)` as a PNG, to a path or an open file."""
        figure = self.plot(column).get_figure()
        assert figure is not None
        figure.savefig(file, dpi=150, format="png")  # type: ignore[union-attr]


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in MASSES:
        return f"{100 * value:.0f}" if value >= 0.0995 else f"{100 * value:.1f}"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def check_column(column: str) -> None:
    """Raises `ValueError` unless this is one of `COLUMNS`."""
    if column not in COLUMNS:
        raise ValueError(f"column: is {column!r}, must be one of {', '.join(COLUMNS)}")
