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
_BLOCK_CELLS = 1 << 22  # of weights at a time, while links are ranked
_MOST_LINKS = 1 << 19  # that a ranking holds beside the strongest of each unit
_OF_EACH = 3  # links of each unit that a ranking holds, however weak


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
    def __matmul__(self, v: Any, /) -> Float: ...
    def __rmatmul__(self, x: Any, /) -> Float: ...


class Reading(Protocol):
    """A text with its tokens and words."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> Sequence[Token]: ...
    @property
    def words(self) -> Sequence[Word]: ...


class Run(Reading, Protocol):
    """What the viewer needs of `clearhead.AttentionRun`."""

    @property
    def model(self) -> str: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def starts(self) -> Sequence[int]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def proofs(self) -> Sequence[Any]: ...
    def certificate(self) -> Any: ...
    def weights(self) -> Float: ...
    def map(self, layer: int) -> Weights: ...


def proof_line(run: Run) -> str:
    """Which computation a recording is of, and whether it is proven; "" for other runs."""
    return str(run.certificate().line) if run.proofs else ""


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
    """The links between two units, each in its strongest head; strongest first, (N,) each.

    Every link with a weight above 0 while they are few; of a long text the half million
    that are strongest, and in any case the three strongest of each unit.
    """

    units: Units
    source: Index
    target: Index
    weight: Float
    layer: Index
    head: Index
    left_out: float  # the share of the units' reading that goes to no unit, the mean over heads
    weaker: int  # links of a long text that are too many to hold


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
    """The weights between units, keys summed and queries averaged.

    A window at a time, of it some of the units that read, of them a head at a time.
    """
    for begin, end in zip(run.starts, [*run.starts[1:], len(run.tokens)], strict=True):
        owner = units.owner[begin:end]
        keys = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
        targets, firsts = np.unique(owner[keys], return_index=True)
        for here in _readers(units, begin, end):
            rows = np.concatenate([units.tokens[at] for at in here])
            first, last = int(rows.min()), int(rows.max()) + 1
            sizes = np.array([len(units.tokens[at]) for at in here])
            for at, (layer, head) in enumerate(heads):
                weights = run.map(layer)[head, first:last, begin:end]
                mean = weights[rows - first][:, keys]
                if len(firsts) < len(keys):
                    mean = np.add.reduceat(mean, firsts, axis=1)
                if len(rows) > len(here):
                    mean = np.add.reduceat(mean, np.cumsum(sizes) - sizes, axis=0)
                    mean /= sizes[:, None]
                yield _Block(at, np.array(here), targets, mean.astype(np.float32, copy=False))


def _readers(units: Units, begin: int, end: int) -> Iterator[list[int]]:
    """The units of a window, so many at a time that their rows are about `_BLOCK_CELLS`."""
    here: list[int] = []
    rows, room = 0, max(1, _BLOCK_CELLS // (end - begin))
    for at, own in enumerate(units.tokens):
        if begin <= own[0] < end:
            here.append(at)
            rows += len(own)
        if rows >= room:
            yield here
            here, rows = [], 0
    if here:
        yield here


def rank(run: Run, units: Units, heads: Heads, *, include_self: bool) -> Ranking:
    """The links with a weight above 0, in the one of `heads` where they are strongest.

    Ties are in the order of the text. Beside the result it holds one block at a time.
    """
    none = np.zeros(0, np.intp)
    links: list[NDArray[Any]] = [none, none, np.zeros(0, np.float32), none]
    kept, found = 0.0, 0
    for block in blocks(run, units, heads):
        kept += float(block.weights.sum(dtype=np.float64)) / (len(heads) * len(units))
        if block.at == 0:
            best, best_at = block.weights.copy(), np.zeros(block.weights.shape, np.intp)
        else:
            better = block.weights > best
            best[better], best_at[better] = block.weights[better], block.at
        if block.at == len(heads) - 1:
            keep = best > 0
            if not include_self:
                keep &= block.sources[:, None] != block.targets
            row, column = np.nonzero(keep)
            found += len(row)
            new = block.sources[row], block.targets[column], best[keep], best_at[keep]
            links = _fewer([np.concatenate([links[i], x]) for i, x in enumerate(new)])
    order = np.lexsort((links[1], links[0], -links[2]))
    source, target, weight, at = (x[order] for x in links)
    layer, head = np.array(heads, np.intp).reshape(-1, 2)[at].T
    weaker = found - len(weight)
    return Ranking(units, source, target, weight, layer, head, 1 - kept, weaker)


def _fewer(links: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Links without those that are too many: see `Ranking`."""
    source, target, weight, _ = links
    if len(weight) <= 2 * _MOST_LINKS:
        return links
    keep = np.zeros(len(weight), bool)
    keep[np.argpartition(-weight, _MOST_LINKS)[:_MOST_LINKS]] = True
    order = np.lexsort((target, -weight, source))  # a unit's links together, strongest first
    begins = np.searchsorted(source[order], source[order], side="left")
    keep[order[np.arange(len(order)) - begins < _OF_EACH]] = True
    return [x[keep] for x in links]


def profile(run: Run, units: Units, unit: int, heads: Heads) -> Profile:
    """What one unit reads and who reads it, head by head, beside what the other units do.

    Two products of a layer's map with a vector, and one row of it: linear memory at any length.
    """
    T, U = len(run.tokens), len(units)
    sizes = np.array([len(own) for own in units.tokens])
    reader = np.repeat(np.arange(U), sizes)
    rows = np.concatenate([np.asarray(own) for own in units.tokens])
    share = np.zeros(T, np.float32)  # of a token in what its unit reads
    share[rows] = 1 / sizes[reader]
    is_read = (units.owner == unit).astype(np.float32)
    mine = list(units.tokens[unit])
    reads, read_by, total = (np.zeros((len(heads), U), np.float32) for _ in range(3))
    for layer in sorted({layer for layer, _ in heads}):
        weights = run.map(layer)
        columns, among = share @ weights, weights @ is_read
        for at, (_, head) in ((at, one) for at, one in enumerate(heads) if one[0] == layer):
            reads[at] = _by_owner(units, weights[head, mine].mean(0))
            total[at] = _by_owner(units, columns[head])
            read_by[at] = np.bincount(reader, among[head][rows], U) / sizes
    others = np.maximum(_readers_of(run, units) - 1, np.float32(1))
    others_read = np.asarray((total - reads) / others, np.float32)
    others_read_it = np.asarray((total[:, [unit]] - read_by) / others[unit], np.float32)
    return Profile(reads, read_by, others_read, others_read_it, 1 - float(reads.sum(1).mean()))


def _by_owner(units: Units, row: Float) -> Float:
    """(T,) summed over the tokens that are read as each unit, (U,)."""
    kept = units.owner >= 0
    found = np.bincount(units.owner[kept], row[kept], len(units))
    return found.astype(np.float32)


def _readers_of(run: Run, units: Units) -> Float:
    """(U,) how many units could see each: those that read in a window where it stands."""
    readers = np.zeros(len(units), np.float32)
    first = np.array([own[0] for own in units.tokens])
    for begin, end in zip(run.starts, [*run.starts[1:], len(run.tokens)], strict=True):
        there = np.unique(units.owner[begin:end])
        readers[there[there >= 0]] += np.count_nonzero((begin <= first) & (first < end))
    return readers


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
