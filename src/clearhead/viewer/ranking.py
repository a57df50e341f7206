"""Who reads whom: the weights of a run between words, and the head where each link is strongest.

A run's weights are between tokens. Here they are between *units*: the words of the text, or the
tokenizer's pieces, with or without the special tokens. The weight of a link from unit a to unit b
in one head is

    w[a, b] = mean over the tokens t of a of (sum over the tokens s of b of A[t, s])

so that a row still says how one unit's attention, 1 in all, is spread over the others. A text that
was read in windows is taken window by window: a unit reads only within its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]
Index = NDArray[np.intp]
Heads = Sequence[tuple[int, int]]
_ROWS = 512  # of weights at a time, while a picture is made


class Token(Protocol):
    """A token of a run: the tokenizer's piece and the user's characters it stands for."""

    @property
    def raw(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def word(self) -> int: ...
    @property
    def special(self) -> bool: ...


class Word(Protocol):
    """A word of the user's text, or a special token, and the tokens it was cut into."""

    @property
    def text(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def special(self) -> bool: ...


class Weights(Protocol):
    """The weights of one layer, (H, T, S), indexed as an array."""

    def __getitem__(self, at: Any, /) -> Float: ...


class Run(Protocol):
    """What the viewer needs of `clearhead.AttentionRun`."""

    @property
    def model(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> Sequence[Token]: ...
    @property
    def words(self) -> Sequence[Word]: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def starts(self) -> Sequence[int]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    def weights(self) -> Float: ...
    def map(self, layer: int) -> Weights: ...


@dataclass(frozen=True)
class Units:
    """What is ranked, in the order of the run.

    labels  what each is called
    index   where each stands in the run's words, or in its tokens
    tokens  the tokens that read for each
    owner   (T,) the unit that each token of the run is read as; -1 where it is left out
    """

    labels: tuple[str, ...]
    index: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    owner: Index

    def __len__(self) -> int:
        return len(self.labels)


class Ranking(NamedTuple):
    """Every link between two units, in its strongest head; strongest first, (N,) each."""

    units: Units
    source: Index
    target: Index
    weight: Float
    layer: Index
    head: Index
    left_out: float  # the share of the units' reading that goes to no unit, the mean over heads


class Profile(NamedTuple):
    """One unit's links in every head asked for; arrays (heads, U)."""

    reads: Float  # what it reads of each unit
    read_by: Float  # what each unit reads of it
    others_read: Float  # what the other units read of each unit, on average
    others_read_it: Float  # what the units but this one read of it, on average
    left_out: float  # as in a ranking, of this unit's own reading


class _Block(NamedTuple):
    """The weights (R, C) between the units that read in a window and those that are read there."""

    at: int  # which of the heads
    sources: Index
    targets: Index
    weights: Float


def words(run: Run, *, special: bool) -> Units:
    """The words of the text; with `special`, tokens such as [CLS] too, each where it stands."""
    kept = [at for at, word in enumerate(run.words) if special or not word.special]
    unit = np.full(len(run.words), -1)
    unit[kept] = np.arange(len(kept))
    return Units(
        tuple(run.words[at].text for at in kept),
        tuple(kept),
        tuple(run.words[at].tokens for at in kept),
        unit[[token.word for token in run.tokens]],
    )


def pieces(run: Run, *, special: bool) -> Units:
    """The tokenizer's own pieces, `##ing` and all, one unit each."""
    kept = [at for at, token in enumerate(run.tokens) if special or not token.special]
    unit = np.full(len(run.tokens), -1)
    unit[kept] = np.arange(len(kept))
    labels = tuple(run.tokens[at].raw for at in kept)
    return Units(labels, tuple(kept), tuple((at,) for at in kept), unit)


def all_heads(run: Run) -> list[tuple[int, int]]:
    """Every (layer, head) of a run, counted from 0."""
    return [(layer, head) for layer in range(run.num_layers) for head in range(run.num_heads)]


def blocks(run: Run, units: Units, heads: Heads) -> Iterator[_Block]:
    """The weights between units, a window and a head at a time: keys summed, queries averaged."""
    for begin, end in zip(run.starts, [*run.starts[1:], len(run.tokens)], strict=True):
        here = [at for at, own in enumerate(units.tokens) if begin <= own[0] < end]
        if not here:
            continue
        rows = np.concatenate([units.tokens[at] for at in here]) - begin
        sizes = np.array([len(units.tokens[at]) for at in here])
        owner = units.owner[begin:end]
        keys = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
        targets, firsts = np.unique(owner[keys], return_index=True)
        for at, (layer, head) in enumerate(heads):
            weights = run.map(layer)[head, begin:end, begin:end][rows]
            summed = np.add.reduceat(weights[:, keys], firsts, axis=1)
            mean = np.add.reduceat(summed, np.cumsum(sizes) - sizes, axis=0) / sizes[:, None]
            yield _Block(at, np.array(here), targets, mean.astype(np.float32, copy=False))


def rank(run: Run, units: Units, heads: Heads, *, include_self: bool) -> Ranking:
    """Every link with a weight above 0, in the one of `heads` where it is strongest.

    Ties are in the order of the text. Beside the result it holds one window at a time.
    """
    columns: list[list[NDArray[Any]]] = []
    kept = 0.0
    for block in blocks(run, units, heads):
        kept += float(block.weights.sum(dtype=np.float64)) / (len(heads) * len(units))
        if block.at == 0:
            best, best_at = block.weights.copy(), np.zeros(block.weights.shape, np.intp)
            columns.append([])
        else:
            better = block.weights > best
            best[better], best_at[better] = block.weights[better], block.at
        if block.at == len(heads) - 1:
            keep = best > 0
            if not include_self:
                keep &= block.sources[:, None] != block.targets
            row, column = np.nonzero(keep)
            columns[-1] = [block.sources[row], block.targets[column], best[keep], best_at[keep]]
    source, target, weight, at = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.argsort(-weight, kind="stable")
    layer, head = np.array(heads, np.intp).reshape(-1, 2)[at[order]].T
    return Ranking(units, source[order], target[order], weight[order], layer, head, 1 - kept)


def profile(run: Run, units: Units, unit: int, heads: Heads) -> Profile:
    """What one unit reads and who reads it, head by head, beside what the other units do."""
    shape = (len(heads), len(units))
    reads, read_by, total = (np.zeros(shape, np.float32) for _ in range(3))
    readers = np.zeros(len(units), np.float32)  # of each unit: those that could see it
    for block in blocks(run, units, heads):
        total[block.at, block.targets] += block.weights.sum(0)
        reads[block.at, block.targets] += block.weights[block.sources == unit].sum(0)
        read_by[block.at, block.sources] += block.weights[:, block.targets == unit].sum(1)
        if block.at == 0:
            readers[block.targets] += len(block.sources)
    others = np.maximum(readers - 1, np.float32(1))
    others_read = np.asarray((total - reads) / others, np.float32)
    others_read_it = np.asarray((total[:, [unit]] - read_by) / others[unit], np.float32)
    return Profile(reads, read_by, others_read, others_read_it, 1 - float(reads.sum(1).mean()))


def pooled(run: Run, layer: int, head: int, squares: int) -> tuple[Float, int]:
    """One head in at most `squares` x `squares` squares of tokens, each its largest weight.

    Returns the picture and how many tokens a side of a square is: 1 if none had to be joined.
    Holds a few rows of weights at a time, however long the text is.
    """
    count = len(run.tokens)
    side = -(-count // squares)
    edges = np.arange(0, count, side)
    out = np.zeros((len(edges), len(edges)), np.float32)
    for begin in range(0, count, _ROWS):
        rows = np.arange(begin, min(begin + _ROWS, count))
        weights = run.map(layer)[head, begin : begin + _ROWS, :]
        np.maximum.at(out, rows // side, np.maximum.reduceat(weights, edges, axis=1))
    return out, side
