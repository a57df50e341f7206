"""What a model read in one text: tokens, words, and of each layer the queries, keys and lse.

From these every attention weight is one exponential away (`clearhead.maps`), so a run of any length
is small, is saved as it is, and opens by memory-mapping.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..biases import Bias
from ..maps import AttentionMap
from ..masks import Mask, documents
from .tokens import Token, Word

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .certificate import Certificate, Proof
    from .heads import HeadTable
    from .segments import SegmentReading, Segments

_Floats = NDArray[np.float32]
_GIB = 1 << 30
_BLOCK_BYTES = 1 << 26  # of weights at a time, while links are sought


@dataclass(frozen=True, slots=True)
class Link:
    """One word read another: `weight` of word `source`'s attention went to word `target`."""

    layer: int
    head: int
    source: int
    target: int
    weight: float


class LayerState(NamedTuple):
    """Of one layer: q (H, T, D), k (G, S, D), lse (H, T), and what else made its scores.

    lse   float64 where it was computed so: a weight is as good as its lse
    sink  (H,) the logits that took weight and carried no value; they are counted in lse already
    v     (G, S, E) the values, in a run that has just been read; no weight needs them, and they are
          not saved
    """

    q: NDArray[Any]
    k: NDArray[Any]
    lse: NDArray[Any]
    mask: Mask | None = None
    bias: Bias | NDArray[Any] | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: NDArray[Any] | None = None
    v: NDArray[Any] | None = None


class Reading(NamedTuple):
    """A text with its tokens and words."""

    text: str
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]


class AttentionRun:
    """What every head of a model read in a text.

    model    the name of the model
    text     the text that was read; offsets of tokens and words count its characters
    tokens   every position of the input, special tokens included, in order
    words    every token belongs to one, special tokens to words of their own (`Word.special`)
    layers   q, k and lse of each layer
    starts   where each window begins in `tokens`; (0,) if the text was read in one
    notes    what a reader of the run must know: that the text was cut, or read in windows
    keys     what is read, where that is not what reads: of cross-attention, or of a recording that
             began within a text; a `Reading` of its own text, tokens and words
    layer_numbers, head_numbers
             what the model calls the layers and heads that are here; all of them if None
    proofs   what is known of each layer (models/certificate.py)

    >>> run = ch.read("The animal crossed the road because it was tired.")
    >>> run
    AttentionRun('all-MiniLM-L6-v2', 12 tokens, 12 words, 6 layers, 12 heads)
    """

    def __init__(
        self,
        model: str,
        text: str,
        tokens: Sequence[Token],
        words: Sequence[Word],
        layers: Sequence[LayerState],
        *,
        starts: Sequence[int] = (0,),
        notes: Sequence[str] = (),
        keys: "Reading | None" = None,
        layer_numbers: Sequence[int] | None = None,
        head_numbers: Sequence[int] | None = None,
        proofs: "Sequence[Proof]" = (),
    ) -> None:
        self.model, self.text = model, text
        self.tokens, self.words = tuple(tokens), tuple(words)
        self.layers, self.starts, self.notes = tuple(layers), tuple(starts), tuple(notes)
        self.keys = Reading(text, self.tokens, self.words) if keys is None else keys
        self.layer_numbers = tuple(range(len(layers)) if layer_numbers is None else layer_numbers)
        heads = range(self.num_heads) if head_numbers is None else head_numbers
        self.head_numbers, self.proofs = tuple(heads), tuple(proofs)
        self._word_of = np.array([token.word for token in self.keys.tokens])

    @property
    def num_layers(self) -> int:
        """How many layers were recorded."""
        return len(self.layers)

    @property
    def num_heads(self) -> int:
        """How many heads each layer has."""
        return int(self.layers[0].q.shape[0])

    def __repr__(self) -> str:
        text = f"{len(self.tokens)} tokens, {len(self.words)} words"
        sizes = f"{text}, {self.num_layers} layers, {self.num_heads} heads"
        return f"AttentionRun({self.model!r}, {sizes})"

    def map(self, layer: int) -> AttentionMap:
        """The weights of one layer, (H, T, S), computed as they are indexed.

        Raises `ValueError` for a layer that the run does not have; -1 is the last.
        """
        state = self.layers[_number("layer", layer, self.num_layers)]
        q, k, lse, mask, bias, scale, softcap, sink, _ = state
        if len(self.starts) > 1:  # a token sees its own window
            mask = documents(np.searchsorted(self.starts, np.arange(len(self.tokens)), "right"))
        sink = None if sink is None else sink.astype(q.dtype, copy=False)
        return AttentionMap(
            q, k, lse, mask=mask, bias=bias, scale=scale, softcap=softcap, sink=sink
        )

    def weights(self, *, max_bytes: int = _GIB) -> _Floats:
        """Every weight, (L, H, T, S) float32. Raises `ValueError` above `max_bytes`."""
        shape = (self.num_layers, self.num_heads, len(self.tokens), len(self.keys.tokens))
        _check_bytes("weights", shape, max_bytes, "take run.map(layer)[head, rows, columns]")
        out = np.empty(shape, np.float32)
        for layer in range(self.num_layers):
            out[layer] = self.map(layer)[...]
        return out

    def word_weights(self, layer: int, *, max_bytes: int = _GIB) -> _Floats:
        """How much each word read each word of `keys`, (H, W, V) float32: row reads column.

        The keys of a word are summed and its queries averaged, so every row sums to 1.
        Raises `ValueError` for an unknown layer and above `max_bytes`.
        """
        W, V = len(self.words), len(self.keys.words)
        _check_bytes("word_weights", (self.num_heads, W, V), max_bytes, "take run.links(word)")
        out = np.zeros((self.num_heads, W, V), np.float32)
        for sources, targets, block in self._word_rows(layer, range(W)):
            out[:, sources[:, None], targets] = block
        return out

    def find(self, word: str | int) -> list[int]:
        """The indices of a word in `words`: as it is written or, failing that, in any case.

        Raises `ValueError` if the text does not hold it, `TypeError` if it is neither str nor int.
        """
        if isinstance(word, int | np.integer):
            return [_number("word", word, len(self.words))]
        if not isinstance(word, str):
            raise TypeError(f"word: is {type(word).__name__}, must be str or int")
        for same in (str, str.casefold):
            found = [i for i, one in enumerate(self.words) if same(one.text) == same(word)]
            if found:
                return found
        known = list(dict.fromkeys(one.text for one in self.words if not one.special))
        shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        raise ValueError(f"word: {word!r} is not in the text, whose words are {shown}")

    def links(
        self,
        word: str | int | None = None,
        *,
        special: bool = False,
        include_self: bool = False,
        top: int | None = None,
    ) -> list[Link]:
        """What `word` read, or every word if None, in every layer and head; strongest first.

        special       also links from and to special tokens
        include_self  also what a word reads of itself
        top           the strongest only; None: all, which for W words are L * H * W * W

        Equal weights are in the order of layer, head, source, target. The weight is that of
        `word_weights`: left-out links still count in the sum that makes a row 1.
        Raises `ValueError` if the text does not hold `word`, or `top` is negative.
        """
        if top is not None:
            _check_count("top", top)
        is_special = np.array([one.special for one in self.keys.words])
        same_text = self.keys.words == self.words
        wanted = range(len(self.words)) if word is None else self.find(word)
        if word is None and not special:
            wanted = [i for i in wanted if not self.words[i].special]
        best = np.empty((5, 0))  # layer, head, source, target, weight; a column for each link
        parts = [best]
        for layer in range(self.num_layers):
            for sources, targets, block in self._word_rows(layer, wanted):
                if not special:
                    block[:, :, is_special[targets]] = -1  # left out
                if not include_self and same_text:
                    block[:, sources[:, None] == targets] = -1
                least = 0 if top is None else _least(block, best, top)
                head, row, column = np.nonzero(block >= least)
                found = (head, sources[row], targets[column], block[head, row, column])
                parts.append(np.stack([np.full(len(head), layer, float), *found]))
                if top is not None:
                    best = _strongest(np.concatenate([best, parts.pop()], axis=1), top)
        if top is None:
            best = _strongest(np.concatenate(parts, axis=1), None)
        return [
            Link(int(layer), int(head), int(source), int(target), weight)
            for layer, head, source, target, weight in best.T.tolist()
        ]

    def top(self, layer: int, head: int, count: int = 8) -> tuple[_Floats, NDArray[np.int64]]:
        """The strongest keys of every query: weights (T, count) and their token indices.

        A query that sees fewer has weight 0 and key -1 for the rest. Linear memory.
        Raises `ValueError` for a layer, head or count that there is not.
        """
        from .answers import one_head

        h = _number("head", head, self.num_heads)
        seen = one_head(self.map(layer), h).observe(top=count)
        assert seen.top_weights is not None and seen.top_keys is not None
        return seen.top_weights[0], seen.top_keys[0]

    def heads(self, *, near: int = 16) -> "HeadTable":
        """What each head does (`clearhead.models.heads`): masses, distance, entropy, (L, H) each.

        near  the window of `near`: keys at most near - 1 away, on both sides
        """
        from .answers import head_table

        return head_table(self, near)

    def group_by(self, segments: "Segments") -> "SegmentReading":
        """How much each segment of the text read each other (`clearhead.models.segments`).

        segments  {name: (start, end)} in characters of the text, {name: "a passage that is there
                  once"}, or a marker such as "## " that begins each segment
        """
        from .segments import read_segments

        return read_segments(self, segments)

    def rollout_to(self, word: "str | int | slice") -> NDArray[np.float64]:
        """What `word` is made of: (T,), for every token its share in the last layer's `word`.

        word  as it is written, its index in `words`, or a slice of them; the mean of their tokens
        See `clearhead.models.rollout` for the formula. Raises `ValueError` for cross-attention.
        """
        from .answers import rollout_to

        return rollout_to(self, word)

    def rollout_from(self, word: "str | int | slice") -> NDArray[np.float64]:
        """What became of `word`: (T,), its share in every position of the last layer."""
        from .answers import rollout_from

        return rollout_from(self, word)

    def mean(self, layers: Sequence[int] | None = None) -> _Floats:
        """The mean weight over heads and layers, (T, S): sum_l sum_h A[l, h] / (L * H)."""
        from .answers import summary

        return summary(self, layers, largest=False)

    def maximum(self, layers: Sequence[int] | None = None) -> _Floats:
        """The largest weight of any head and layer, (T, S): max_l max_h A[l, h]."""
        from .answers import summary

        return summary(self, layers, largest=True)

    def certificate(self) -> "Certificate":
        """The proof that this is what the model computed (`clearhead.models.certificate`)."""
        from .answers import certificate

        return certificate(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run as one safetensors file (docs/format.md); all of it or nothing."""
        from .runfile import save

        save(self, path)

    def check_one_text(self) -> None:
        """Raises `ValueError` unless the tokens that read are those that are read."""
        if self.keys.tokens != self.tokens:
            raise ValueError(
                f"run: {len(self.tokens)} tokens read {len(self.keys.tokens)} others, which "
                "pictures do not show; ask run.links(word), run.to_html(path) or "
                "run.map(layer).plot(head)"
            )

    # The viewer draws runs and imports none of this; it is called from here only for convenience.

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the run as one HTML file that needs nothing else: its text, maps and heads.

        Raises `ValueError` above 2^25 weights, which are too many for a page.
        """
        from ..viewer.html import write

        write(self, path)

    def view(self) -> Any:
        """The app of `clearhead view`: a widget in a notebook, with `clearhead[widget]`.

        Without the extra the picture of one head; outside of a notebook a sentence that says how
        to open it.
        """
        from ..notebook import view

        return view(self)

    def plot(self, layer: int, head: int, ax: "Axes | None" = None) -> "Axes":
        """Draw one head as a heat map with matplotlib; returns the axes.

        Raises `ValueError` where queries and keys are not the same tokens, as in cross-attention.
        """
        self.check_one_text()
        from ..viewer.plot import heat_map

        return heat_map(self, layer, head, ax=ax)

    def _word_rows(
        self, layer: int, words: Sequence[int]
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], _Floats]]:
        """Rows of the word matrix in blocks: (sources (n,), targets (m,), weights (H, n, m)).

        Targets are the words of the sources' window: the others, they could not see.
        """
        whole = self.map(layer)
        edges = [*self.starts, len(self.tokens)]
        window_of = np.searchsorted(self.starts, [self.words[w].tokens[0] for w in words], "right")
        for window in sorted(set(window_of.tolist())):
            begin, end = edges[window - 1], edges[window]
            amap = whole
            if len(self.starts) > 1:  # of its window alone, which is much smaller than the text
                at = slice(begin, end)
                amap = AttentionMap(whole.q[:, at], whole.k[:, at], whole.lse[:, at])
            else:
                end = len(self.keys.tokens)
            own = self._word_of[begin:end]
            order = np.argsort(own, kind="stable")
            targets, firsts = np.unique(own[order], return_index=True)
            in_order = bool((order[1:] > order[:-1]).all())
            sources = [w for w, at in zip(words, window_of, strict=True) if at == window]
            for block in _blocks(sources, self.words, self.num_heads * (end - begin)):
                rows = np.concatenate([self.words[w].tokens for w in block]) - begin
                sizes = np.array([len(self.words[w].tokens) for w in block])
                p = amap[:, rows]  # (H, rows, keys)
                if not in_order:
                    p = p[:, :, order]
                p = np.add.reduceat(p, firsts, axis=2)  # keys of a word summed
                p = np.add.reduceat(p, np.cumsum(sizes) - sizes, axis=1) / sizes[:, None]
                yield np.array(block), targets, p.astype(np.float32, copy=False)


def _blocks(words: Sequence[int], table: Sequence[Word], row_cells: int) -> Iterator[list[int]]:
    """`words` in blocks whose rows of weights take about `_BLOCK_BYTES`."""
    room = max(1, _BLOCK_BYTES // (4 * row_cells))
    block: list[int] = []
    rows = 0
    for word in words:
        block.append(word)
        rows += len(table[word].tokens)
        if rows >= room:
            yield block
            block, rows = [], 0
    if block:
        yield block


def _least(block: _Floats, best: NDArray[Any], top: int) -> float:
    """A weight below which no link of `block` can be among the `top` strongest."""
    if top == 0:
        return np.inf
    if best.shape[1] >= top:
        return max(0.0, float(best[4].min()))
    if block.size <= top:
        return 0.0
    return max(0.0, float(np.partition(block, block.size - top, axis=None)[block.size - top]))


def _strongest(links: NDArray[Any], count: int | None) -> NDArray[Any]:
    """The first `count` of links (5, n) in the order that `AttentionRun.links` promises."""
    layer, head, source, target, weight = links
    order = np.lexsort((target, source, head, layer, -weight))
    return links[:, order[:count]]


def _number(what: str, value: int, count: int) -> int:
    """An index from 0, or from -1 backwards, as one from 0."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{what}: is {type(value).__name__}, must be an integer")
    if not -count <= value < count:
        raise ValueError(f"{what}: is {value}, must be from 0 to {count - 1}")
    return int(value) % count


def _check_count(what: str, value: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{what}: is {type(value).__name__}, must be an integer")
    if value < 0:
        raise ValueError(f"{what}: is {value}, must be at least 0")


def _check_bytes(what: str, shape: tuple[int, ...], max_bytes: int, instead: str) -> None:
    _check_count("max_bytes", max_bytes)
    needed = 4 * int(np.prod(shape, dtype=object))
    if needed > max_bytes:
        raise ValueError(
            f"{what}: {shape} takes {needed:,} bytes, max_bytes is {max_bytes:,}; {instead}"
        )
