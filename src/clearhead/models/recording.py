"""What `clearhead.hf.record` yields: the runs of everything that the model read."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .certificate import Certificate
from .heads import COLUMNS, HeadTable
from .recorded import Layer, Text, finished, proof
from .run import AttentionRun, LayerState, Reading, _number
from .spelling import numbered, spell

if TYPE_CHECKING:
    from .capture import Capture

Array = NDArray[Any]


class Recording(Sequence[Any]):
    """The runs of one recording, in the order in which they began.

    `recording[i]` is a run, `recording["cross"]` the run of that name; where there is only one, the
    recording answers as that run does: `recording.links("it")`.

    names  one for each run: its part of the model (`self`, `encoder`, `decoder`, `cross`, ...), and
           `call 0`, `text 2` before it where there are several
    runs   the runs: `AttentionRun`s, or `ObservedRun`s if only statistics were kept
    """

    def __init__(self) -> None:
        self._runs: dict[str, Any] | None = None

    def fill(self, runs: dict[str, Any]) -> None:
        """Take in the finished runs."""
        self._runs = runs

    @property
    def names(self) -> list[str]:
        """The names of the runs."""
        return list(self._filled())

    @property
    def runs(self) -> list[Any]:
        """The runs themselves."""
        return list(self._filled().values())

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            runs = self._filled()
            if which not in runs:
                raise ValueError(f"recording: has no run {which!r}, has {', '.join(runs)}")
            return runs[which]
        return self.runs[which]

    def __len__(self) -> int:
        return len(self._filled())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.runs)

    def __repr__(self) -> str:
        if self._runs is None:
            return "Recording(going on)"
        return f"Recording({', '.join(f'{name!r}: {run!r}' for name, run in self._runs.items())})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        runs = self._filled()
        if len(runs) > 1:
            if not hasattr(next(iter(runs.values())), name):
                raise AttributeError(f"recording: has no {name!r}")
            raise ValueError(
                f"recording: holds {len(runs)} runs, ask one of them for its {name}: "
                + ", ".join(f"recording[{one!r}]" for one in list(runs)[:4])
                + (", ..." if len(runs) > 4 else "")
            )
        return getattr(next(iter(runs.values())), name)

    def _filled(self) -> dict[str, Any]:
        if self._runs is None:
            raise ValueError("recording: is going on; it is filled when its `with` block ends")
        return self._runs


class ObservedRun:
    """The statistics of one text, kept without its queries and keys (`stats_only=True`).

    model, text, tokens, words  as of `AttentionRun`
    """

    def __init__(
        self, model: str, reading: Reading, layers: Sequence[Layer], heads: Sequence[int]
    ) -> None:
        self.model = model
        self.text, self.tokens, self.words = reading
        self._layers, self._heads = tuple(layers), tuple(heads)

    def __repr__(self) -> str:
        sizes = f"{len(self.tokens)} tokens, {len(self._layers)} layers, {len(self._heads)} heads"
        return f"ObservedRun({self.model!r}, {sizes})"

    def __getattr__(self, name: str) -> Any:
        if hasattr(AttentionRun, name):
            raise AttributeError(
                f"{name}: was not kept, stats_only=True keeps heads(), received(layer) and "
                "certificate(); record without it"
            )
        raise AttributeError(f"'ObservedRun' object has no attribute {name!r}")

    def heads(self) -> HeadTable:
        """What each head does; as of `AttentionRun`, within 16 tokens."""
        nothing = np.full((len(COLUMNS), len(self._heads)), np.nan)
        means = [nothing if one.sums is None else one.sums.means for one in self._layers]
        numbers = [one.number for one in self._layers]
        return HeadTable(
            np.array(means), layers=numbers, heads=self._heads, window=16, model=self.model
        )

    def received(self, layer: int) -> Array:
        """(H, S) how much each token was read in all, by every head: the column sums."""
        found = self._layers[_number("layer", layer, len(self._layers))].received
        assert found is not None
        return found

    def certificate(self) -> Certificate:
        """The proof that this is what the model computed."""
        return Certificate(
            [proof(one, "as applied, not kept", one.row_deviation or 0.0) for one in self._layers],
            model=self.model,
        )


def runs_of(capture: "Capture") -> dict[str, Any]:
    """The runs of everything that a capture kept, by name."""
    parts = capture.texts
    runs: dict[str, Any] = {}
    many_calls = any(len(calls) > 1 for calls in parts.values())
    many_texts = any(len(texts) > 1 for calls in parts.values() for texts in calls)
    texts = [text for calls in parts.values() for call in calls for text in call if text.layers]
    for text in sorted(texts, key=lambda one: (one.call, one.number)):
        words = [f"call {text.call}"] if many_calls else []
        words += [f"text {text.number}"] if many_texts else []
        words += [text.part] if len(parts) > 1 or not words else []
        name = " ".join(words)
        run = _run(capture, text)
        folder = capture.wanted.folder
        if folder is not None and isinstance(run, AttentionRun):
            from .runfile import load

            folder.mkdir(parents=True, exist_ok=True)
            path = (
                folder / f"{name.replace(' ', '-').replace('/', '-').replace('*', 'n')}.safetensors"
            )
            run.save(path)
            run = load(path)
        runs[name] = run
        text.layers.clear()
    return runs


def _run(capture: "Capture", text: Text) -> Any:
    """One text as a run."""
    layers = [text.layers[key] for key in text.layers]
    layers.sort(key=lambda layer: layer.number)
    padding = layers[0].hidden
    wanted = capture.wanted
    if wanted.stats_only:
        rows: Array = next(one.received for one in layers if one.received is not None)
        ids = text.all_ids
        own = padding if len(padding) == len(ids) else np.zeros(len(ids), bool)
        return ObservedRun(
            capture.model, _spelled(capture, ids, own), layers, _heads(capture, len(rows))
        )
    cache: dict[Any, Any] = {}
    done = [finished(layer, cache) for layer in layers]
    notes = sorted(
        {f"layer {la.number}: {note}" for la, (_, note) in zip(layers, done, strict=True) if note}
    )
    states = [
        LayerState(r.q, r.k, r.lse, r.mask, r.bias, r.scale, r.softcap, r.sink) for r, _ in done
    ]
    ids, T = text.all_ids, states[0].q.shape[1]
    if text.key_ids is None:
        whole = _spelled(capture, ids, padding)
        mine = whole if T == len(ids) else _last(whole, T)
        keys = None if T == len(ids) else whole
    else:
        ids = ids[len(ids) - T :]
        mine = _spelled(capture, ids, np.zeros(len(ids), bool))
        keys = _spelled(capture, text.key_ids, padding)
    if padding.any():
        notes.append(f"{int(padding.sum())} of {len(padding)} keys are padding and read by nothing")
    proofs = [proof(layer, "", 0.0) for layer in layers]
    return AttentionRun(
        capture.model,
        mine.text,
        mine.tokens,
        mine.words,
        states,
        notes=notes,
        keys=keys,
        layer_numbers=[layer.number for layer in layers],
        head_numbers=_heads(capture, states[0].q.shape[0]),
        proofs=proofs,
    )


def _heads(capture: "Capture", kept: int) -> list[int]:
    """The model's numbers of the heads that are kept."""
    wanted = capture.wanted.heads
    if wanted is None or capture.num_heads is None:
        return list(range(kept))
    return sorted({h % capture.num_heads for h in wanted})


def _spelled(capture: "Capture", ids: NDArray[np.int64], padding: NDArray[np.bool_]) -> Reading:
    """Token ids as a text with tokens and words."""
    tokenizer, own = capture.tokenizer, [int(one) for one in ids]
    special = [bool(p) or i in capture.special for p, i in zip(padding, own, strict=True)]
    if tokenizer is None or any(one < 0 for one in own):
        names = [str(one) if one >= 0 else f"#{at}" for at, one in enumerate(own)]
        names = [f"{name}(pad)" if p else name for name, p in zip(names, padding, strict=True)]
        return Reading(*numbered(names, special, own))

    def decode(some: Sequence[int]) -> str:
        return str(
            tokenizer.decode(
                list(some), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(own)]
    return Reading(*spell(own, pieces, special, decode))


def _last(whole: Reading, count: int) -> Reading:
    """The last tokens of a reading, with the words that they are in."""
    from dataclasses import replace

    skip = len(whole.tokens) - count
    kept = [w for w, word in enumerate(whole.words) if any(t >= skip for t in word.tokens)]
    number = {w: i for i, w in enumerate(kept)}
    words = [
        replace(whole.words[w], tokens=tuple(t - skip for t in whole.words[w].tokens if t >= skip))
        for w in kept
    ]
    tokens = [replace(token, word=number[token.word]) for token in whole.tokens[skip:]]
    return Reading(whole.text, tuple(tokens), tuple(words))
