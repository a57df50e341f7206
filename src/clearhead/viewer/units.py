"""What a picture's rows and columns are: tokens, words, sentences or documents.

A unit reads as the mean of its tokens and is read as their sum, as in `AttentionRun.word_weights`
and `AttentionMap.group`, so that a row still says how an attention of 1 is spread.

    words      the run's own
    sentences  stretches that end with . ! ? or a sign like them before a space, or with a line
    documents  the documents of a packed sequence; else the windows in which a long text was read;
               else what blank lines divide

A special token is a unit of its own at every level.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ranking import Reading

Ints = NDArray[np.int64]
Spans = list[tuple[int, int]]

UNITS = ("tokens", "words", "sentences", "documents")
_CLOSING = "\"'”’»)]}】」』）"
_END = re.compile(
    rf"[.!?…]+[{re.escape(_CLOSING)}]*(?=\s|$)|[。！？｡؟।॥۔]+[{re.escape(_CLOSING)}]*|\n+"
)
_INITIAL = re.compile(r"(?:^|[\s(])(?:[^\W\d_]|Dr|Mr|Mrs|Ms|Prof|St|vs|etc|[^\W\d_]\.[^\W\d_])\.$")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")


@dataclass(frozen=True, eq=False)
class Side:
    """One axis of a picture.

    count   how many units there are
    label   (n,) the unit of each token, -1 for none
    sizes   (count,) how many tokens each has
    first   (count,) its first token
    end     (count,) behind its last
    """

    count: int
    label: Ints
    sizes: Ints
    first: Ints
    end: Ints

    @cached_property
    def plain(self) -> bool:
        """Whether units are the tokens themselves."""
        return self.count == len(self.label) and bool((self.sizes == 1).all())

    def extent(self, begin: int, end: int) -> tuple[int, int]:
        """The tokens [a, b) among which units [begin, end) lie."""
        if self.plain:
            return begin, end
        has = self.sizes[begin:end] > 0
        if not has.any():
            return 0, 0
        return int(self.first[begin:end][has].min()), int(self.end[begin:end][has].max())

    def cells(self, begin: int, end: int, level: int) -> Ints:
        """The cell, of 2^level units from `begin` on, of each token of `extent`; else -1."""
        a, b = self.extent(begin, end)
        own = self.label[a:b]
        return np.where((own >= begin) & (own < end), (own - begin) >> level, -1)


def side(label: Ints, count: int) -> Side:
    """A side of the labels (n,) of its tokens."""
    sizes = np.bincount(label[label >= 0], minlength=count).astype(np.int64)
    first, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    at = np.flatnonzero(label >= 0)
    end[label[at]] = at + 1  # the last one stays
    first[label[at[::-1]]] = at[::-1]
    return Side(count, label, sizes, first, end)


def tokens(n: int) -> Side:
    """Every token a unit."""
    return side(np.arange(n), n)


def word_sides(run: Any) -> tuple[Side, Side]:
    """Words as they read, and as they are read: in windows a word reads from one of them only."""
    own = np.full(len(run.tokens), -1, np.int64)
    for number, word in enumerate(run.words):
        own[list(word.tokens)] = number
    read = np.array([token.word for token in run.keys.tokens], np.int64)
    return side(own, len(run.words)), side(read, len(run.keys.words))


def of_spans(spans: Spans, n: int) -> Side:
    """The units of stretches of tokens."""
    label = np.full(n, -1, np.int64)
    for number, (begin, end) in enumerate(spans):
        label[begin:end] = number
    return side(label, len(spans))


def sentence_ends(text: str) -> list[int]:
    """Where sentences end, as offsets into the text; the last is its length.

    A point does not end one before a small letter, nor after an initial or a title.

    >>> sentence_ends("It rained. Dr. A. Lee saw 3.14 frogs! 東京は雨。Yes")
    [10, 37, 43, 46]
    """
    ends = []
    begin = 0
    for found in _END.finditer(text):
        end = found.end()
        if found[0].startswith("."):
            after = text[end : end + 2].strip()
            if after[:1].islower() or _INITIAL.search(text, begin, found.start() + 1):
                continue
        if text[begin:end].strip():
            ends.append(end)
        begin = end
    if text[begin:].strip() or not ends:
        ends.append(len(text))
    return ends


def divided(reading: Reading, ends: Sequence[int], starts: Sequence[int]) -> Spans:
    """Stretches of tokens that begin in the same part of the text: [(first, end), ...]."""
    part = np.searchsorted(ends, [token.start for token in reading.tokens], side="right")
    opens = set(starts)
    cuts = [
        i
        for i, token in enumerate(reading.tokens)
        if i == 0
        or i in opens
        or token.special
        or reading.tokens[i - 1].special
        or part[i] != part[i - 1]
    ]
    return list(zip(cuts, [*cuts[1:], len(reading.tokens)], strict=True))


def sentences(reading: Reading, starts: Sequence[int]) -> Spans:
    """The sentences of a reading; one that two windows share counts in each."""
    return divided(reading, sentence_ends(reading.text), starts)


def document_spans(reading: Reading, ids: Ints | None, starts: Sequence[int]) -> Spans:
    """The documents of a reading: see above. `ids` are a packed sequence's, (n,)."""
    n = len(reading.tokens)
    if ids is not None and len(ids) == n and n:
        cuts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist()]
        if len(cuts) > 1:
            return list(zip(cuts, [*cuts[1:], n], strict=True))
    if len(starts) > 1:
        return list(zip(starts, [*starts[1:], n], strict=True))
    ends = [found.end() for found in _BLANK_LINE.finditer(reading.text)]
    return divided(reading, [*ends, len(reading.text)], starts)


def packed_ids(mask: Any, T: int, S: int) -> tuple[Ints | None, Ints | None]:
    """The document ids of queries and keys where a mask has them, in one row each."""
    inside = [mask]
    while inside:
        one = inside.pop()
        inside += [x for x in (getattr(one, "a", None), getattr(one, "b", None)) if x is not None]
        ids = getattr(one, "_ids", None)
        if ids is None:
            continue
        queries, keys = ids(T, S)
        if queries.shape == (T,) and keys.shape == (S,) and len(np.unique(queries)) > 1:
            return queries, keys
    return None, None


def axis(reading: Reading, sentence: Spans, document: Spans) -> dict[str, Any]:
    """What a page needs to know of an axis."""
    return {
        "text": reading.text,
        "tokens": [[t.text, t.raw, t.start, t.end, t.word, t.special] for t in reading.tokens],
        "words": [[w.text, w.start, w.end, list(w.tokens), w.special] for w in reading.words],
        "sentences": sentence,
        "documents": document,
    }
