"""The mask that a model really applied to one text, kept as a rule where one says the same.

A call shows a mask as booleans (T, S), or none. Of each query only three numbers are kept, if they
tell all: the first and the last key it may see, where every key between them is seen too, padding
aside. Rows of several calls (a prompt, then token after token from a cache) are laid end to end in
positions of the whole text, and then the rule is looked for that allows exactly the same cells:

    every key | causal | causal & window(left) | window(left, right),  each with padding hidden

A rule is used only where it is equal, cell by cell. Else the booleans are kept, T x S bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..masks import Mask, allowed, causal, documents, window

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_BLOCK_CELLS = 1 << 24  # of booleans at a time


@dataclass(frozen=True, slots=True)
class Rows:
    """What the queries of one call may see, in positions of the whole text.

    first, last  (T,) the outermost keys a query may see; last is -1 where it sees none
    cells        bool (T, S) or (H, T, S), the keys from `start` on, where the two do not tell all
    start        the position of cells[..., 0]
    """

    first: Ints
    last: Ints
    cells: Bools | None = None
    start: int = 0

    def moved(self, places: int) -> "Rows":
        """The same, where key 0 is at position `places` of the whole text."""
        last = np.where(self.last < 0, -1, self.last + places)
        return Rows(self.first + places, last, self.cells, self.start + places)

    @property
    def blank(self) -> Bools:
        """(T,) the queries that see nothing."""
        if self.cells is None:
            return np.asarray(self.last < 0)
        return np.asarray(~self.cells.any(-1).reshape(-1, len(self.last)).any(0))


def rows_of(seen: Bools, padding: Bools, blank: Bools) -> Rows:
    """The rows of one call, in positions of its own keys.

    seen     (T, S), or (H, T, S) where heads differ
    padding  (S,) keys that hold no text
    blank    (T,) queries that hold no text: they see nothing
    """
    if seen.ndim == 3 and (seen == seen[:1]).all():
        seen = seen[0]
    T, S = seen.shape[-2:]
    if seen.ndim == 3:
        kept = seen & ~padding & ~blank[:, None]
        return Rows(np.zeros(T, np.int64), np.full(T, S - 1), kept)
    first, last, count = np.zeros(T, np.int64), np.full(T, -1), np.zeros(T, np.int64)
    step = max(1, _BLOCK_CELLS // max(1, S))
    for at in range(0, T, step):
        rows = slice(at, min(at + step, T))
        block = seen[rows] & ~padding & ~blank[rows, None]
        count[rows] = block.sum(-1)
        some = count[rows] > 0
        first[rows] = np.where(some, block.argmax(-1), 0)
        last[rows] = np.where(some, S - 1 - block[:, ::-1].argmax(-1), -1)
    before = np.concatenate([[0], np.cumsum(~padding)])
    between = before[last + 1] - before[first]
    if (count == np.where(count > 0, between, 0)).all():
        return Rows(first, last)
    return Rows(first, last, seen & ~padding & ~blank[:, None])


def plain_rows(T: int, S: int, *, causal: bool, blank: Bools) -> Rows:
    """The rows of a call without a mask array; causal from the first key on, as PyTorch's flag."""
    last = np.minimum(np.arange(T), S - 1) if causal else np.full(T, S - 1)
    return Rows(np.zeros(T, np.int64), np.where(blank, -1, last))


def joined(parts: Sequence[Rows], S: int, padding: Bools) -> tuple[Mask | None, str | None]:
    """The mask of all rows over S keys, and a note where it had to be kept as booleans.

    None stands for a mask that allows everything.
    """
    first = np.concatenate([rows.first for rows in parts])
    last = np.concatenate([rows.last for rows in parts])
    T = len(first)
    if all(rows.cells is None for rows in parts):
        found = _rule(first, last, S, padding)
        if found is not None:
            return (None if found == _ALL else found), None
    cells = _cells(parts, first, last, S, padding)
    note = f"its mask follows no rule known here and is kept as {cells.nbytes:,} bytes of booleans"
    return allowed(cells), f"{note}, {T} x {S}"


_ALL = window()


def _rule(first: Ints, last: Ints, S: int, padding: Bools) -> Mask | None:
    """The rule that gives exactly these rows, if there is one."""
    T = len(first)
    blank = last < 0
    own = np.arange(T) + S - T
    text = np.flatnonzero(~padding)
    if blank.all() or not len(text):
        return documents(np.ones(T, np.int64), np.zeros(S, np.int64))
    shown = ~blank
    left = int((own - first)[shown].max())
    right = int((last - own)[shown].max())
    rules: list[tuple[Mask, Ints, Ints]] = [(_ALL, np.zeros(T, np.int64), np.full(T, S - 1))]
    if T > 1 or S > 1:
        rules.append((causal(), np.zeros(T, np.int64), own))
        if left >= 0:
            rules.append((causal() & window(left=left), own - left, own))
            if right >= 0:
                rules.append((window(left=left, right=right), own - left, own + right))
    for rule, low, high in rules:
        mine = _narrowed(np.maximum(low, 0), np.minimum(high, S - 1), text)
        told = _narrowed(first, last, text)
        if all((a[shown] == b[shown]).all() for a, b in zip(mine, told, strict=True)):
            if not padding.any() and not (blank & (mine[0] <= mine[1])).any():
                return rule
            hidden = documents(blank.astype(np.int64), np.where(padding, 2, 0))
            return hidden if rule == _ALL else rule & hidden
    return None


def _narrowed(first: Ints, last: Ints, text: Ints) -> tuple[Ints, Ints]:
    """Each interval as a range of indices into the keys that hold text."""
    return np.searchsorted(text, first), np.searchsorted(text, last, "right") - 1


def _cells(parts: Sequence[Rows], first: Ints, last: Ints, S: int, padding: Bools) -> NDArray[Any]:
    heads = [
        rows.cells.shape[0] for rows in parts if rows.cells is not None and rows.cells.ndim > 2
    ]
    shape = (*heads[:1], len(first), S)
    cells = np.zeros(shape, bool)
    at = 0
    for rows in parts:
        T = len(rows.first)
        if rows.cells is None:
            keys = np.arange(S)
            own = (rows.first[:, None] <= keys) & (keys <= rows.last[:, None]) & ~padding
            cells[..., at : at + T, :] = own
        else:
            end = min(S, rows.start + rows.cells.shape[-1])
            cells[..., at : at + T, rows.start : end] = rows.cells[..., : end - rows.start]
        at += T
    return cells
