"""One picture of a run: chosen heads joined, in chosen units, with columns left out. Exact.

Of one head, in tokens, the picture is its map A, (T, S). From there, in this order:

    left out   columns R are removed and the rows renormalised over the keys that stay,
               lse' = lse + log(1 - r), r = sum over R of A: found as the log-sum-exp of those keys,
               so that nothing cancels where r is nearly 1
    units      rows of a unit averaged, columns summed
    joined     the mean or the largest over the heads; a cell that some of them hide counts there
               as 0, one that all of them hide is hidden
    pooled     over the cells of a bin that are not hidden: their mean or their largest; the bin is
               hidden only if all of it is

Hidden is NaN here and 0 in `AttentionMap`: what may not be read is not what was not read.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..maps import AttentionMap
from ..masks import Mask, documents
from ..observation import add_part, part_lse
from .sight import both, sees, sight
from .units import Side

Floats = NDArray[np.float64]
Cells = NDArray[np.float32]
Bools = NDArray[np.bool_]

_ROWS = 256  # of renormalised rows at a time
_CELLS = 1 << 21  # held at a time, of each of few arrays
_UNKNOWN_SINK = 1e-3  # nats that rounding does not explain


class Pool(NamedTuple):
    """Of each bin: the sum, the largest and the number of cells that are not hidden, (R, C) each.

    A `total` or `most` that was not asked for is None.
    """

    total: Floats | None
    most: Cells | None
    cells: Floats


class Leaving:
    """Keys that are left out: as booleans, and as masks of what stays and of what goes."""

    def __init__(self, keep: Bools, T: int) -> None:
        self.keep = keep
        queries = np.zeros(T, np.int64)
        self.stays = documents(queries, np.where(keep, 0, 1))
        self.goes = documents(queries, np.where(keep, 1, 0))


class Head:
    """One head with its columns left out: weights of any part of it, never (T, S)."""

    def __init__(self, amap: AttentionMap, leaving: Leaving | None) -> None:
        self.original, self.map = amap, amap
        self._leaving = leaving
        if leaving is None:
            return
        T = amap.shape[-2]
        self._lse, self._ready = np.full((1, T), np.nan), np.zeros(-(-T // _ROWS), bool)
        self._stays = _with(amap, amap.lse, both(amap.mask, leaving.stays), amap.sink)
        self._goes = _with(amap, amap.lse, both(amap.mask, leaving.goes), None)
        self.map = _with(amap, self._lse, amap.mask, amap.sink)

    def prepare(self, begin: int, end: int) -> None:
        """Find lse' of rows [begin, end), where it is not known."""
        if self._leaving is None:
            return
        for block in range(begin // _ROWS, -(-end // _ROWS)):
            if not self._ready[block]:
                self._renormalise(block * _ROWS, min(len(self._lse[0]), (block + 1) * _ROWS))
                self._ready[block] = True

    def _renormalise(self, begin: int, end: int) -> None:
        T, S = self.map.shape[-2:]
        stays, goes = np.empty(T), np.empty(T)
        for one, out in ((self._stays, stays), (self._goes, goes)):
            part_lse(one._call(), (begin, end, 0, S), out)
        own = slice(begin, end)
        stays, goes, old = stays[own], goes[own], self.original.lse[0, own].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Where a row's mass is not all on its keys, a sink that nobody knows of has the rest.
            rest = old - np.logaddexp(stays, goes) > _UNKNOWN_SINK
            found = np.where(rest, old + np.log1p(-np.exp(goes - old)), stays)
        self._lse[0, own] = np.where(np.isnan(old), np.nan, found)

    def removed(self, begin: int, end: int) -> Floats:
        """The mass of rows [begin, end) that was left out: 1 - e^(lse' - lse)."""
        if self._leaving is None:
            return np.zeros(end - begin)
        self.prepare(begin, end)
        old = self.original.lse[0, begin:end].astype(np.float64)
        with np.errstate(invalid="ignore"):
            out = -np.expm1(self._lse[0, begin:end] - old)
        return np.clip(np.where(np.isneginf(old), 0.0, out), 0.0, 1.0)

    def weights(self, rows: slice, cols: slice) -> Cells:
        """Weights of a part; what is hidden or left out is 0."""
        self.prepare(rows.start, rows.stop)
        out = cast(Cells, self.map[0, rows, cols].astype(np.float32, copy=False))
        if self._leaving is not None:
            out[:, ~self._leaving.keep[cols]] = 0
        return out


class Picture:
    """The joined weights of some heads; see above.

    heads       the maps (1, T, S) of the heads
    join        "mean" or "max"
    rows, cols  the units
    keep        (S,) False for tokens whose columns are left out; None: none
    """

    def __init__(
        self,
        heads: Sequence[AttentionMap],
        join: str,
        rows: Side,
        cols: Side,
        keep: Bools | None,
    ) -> None:
        leaving = None if keep is None else Leaving(keep, len(rows.label))
        self.heads = [Head(amap, leaving) for amap in heads]
        self.join, self.rows, self.cols, self.keep = join, rows, cols, keep
        self.plain = rows.plain and cols.plain
        label = cols.label if keep is None else np.where(keep, cols.label, -1)
        self._cols = Side(cols.count, label, cols.sizes, cols.first, cols.end)
        self._sight = sight([head.original for head in self.heads])

    @property
    def nbytes(self) -> int:
        """What it holds beside the run, about."""
        kept = 0 if self.keep is None else 8 * (len(self.heads) * len(self.rows.label))
        return (1 << 12) + kept + (0 if self.keep is None else 40 * len(self.keep))

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of units, down and across."""
        return self.rows.count, self.cols.count

    @property
    def cost(self) -> int:
        """Multiply-adds of one cell of the picture, on average."""
        q = self.heads[0].map.q
        tokens = len(self.rows.label) * len(self.cols.label)
        of_cell = tokens // max(1, self.rows.count * self.cols.count)
        return max(1, len(self.heads) * int(q.shape[-1]) * of_cell)

    def cells(self, a: int, b: int, c: int, d: int) -> Cells:
        """Cells of rows [a, b) and columns [c, d), NaN where hidden."""
        values, seen = self._cells(a, b, c, d)
        out = values.astype(np.float32, copy=False)
        out[~seen] = np.nan
        return out

    def which(self, a: int, b: int, c: int, d: int) -> Cells:
        """The first of the heads that has the largest weight of each of these cells."""
        best = np.zeros((b - a, d - c), np.float32)
        most = self._own(self.heads[0], a, b, c, d)
        for number, head in enumerate(self.heads[1:], 1):
            own = self._own(head, a, b, c, d)
            best[own > most] = number
            np.maximum(most, own, out=most)
        return best

    def _cells(self, a: int, b: int, c: int, d: int) -> tuple[NDArray[Any], Bools]:
        """Cells, 0 where hidden, and which are not."""
        total = self._own(self.heads[0], a, b, c, d)
        if len(self.heads) > 1:
            total = total.astype(np.float64)
        add = np.add if self.join == "mean" else np.maximum
        for head in self.heads[1:]:
            add(total, self._own(head, a, b, c, d), out=total)
        if self.join == "mean" and len(self.heads) > 1:
            total /= len(self.heads)
        return total, self.visible(a, b, c, d)

    def visible(self, a: int, b: int, c: int, d: int) -> Bools:
        """Which of these cells is not hidden and not left out."""
        if not self.plain or self._sight is None:
            return self._count(a, b, c, d, 0) > 0
        mask, (T, S) = cast(Mask, self._sight.mask), self._sight.shape[-2:]
        seen = mask.seen(np.arange(a, b)[:, None], np.arange(c, d)[None], T, S)
        out = np.array(np.broadcast_to(seen, (1, b - a, d - c))[0])
        if self.keep is not None:
            out[:, ~self.keep[c:d]] = False
        return out

    def removed(self, begin: int, end: int) -> Floats:
        """The mass that units [begin, end) lost: the mean over their tokens and the heads."""
        a, b = self.rows.extent(begin, end)
        own = self.rows.label[a:b]
        here = (own >= begin) & (own < end)
        out = np.zeros(end - begin)
        for head in self.heads:
            gone = np.nan_to_num(head.removed(a, b))
            out += np.bincount(own[here] - begin, gone[here], end - begin)
        tokens = np.maximum(self.rows.sizes[begin:end], 1)
        return np.asarray(out / (tokens * len(self.heads)))

    def left_out(self) -> list[int]:
        """The columns of which every token is left out."""
        if self.keep is None:
            return []
        return np.flatnonzero(
            (_held(self._cols, 0, self.cols.count) == 0) & (self.cols.sizes > 0)
        ).tolist()

    def pool(self, a: int, b: int, c: int, d: int, level: int, pool: str) -> Pool:
        """Bins of 2^level x 2^level cells of the picture, from cell (a, c) on; cut at (b, d)."""
        shape = -(-(b - a) >> level), -(-(d - c) >> level)
        if self.plain and sees(self._sight, (a, b, c, d)) is False:
            zero = np.zeros(shape)
            return Pool(zero, zero.astype(np.float32), zero)
        direct = self.plain and (len(self.heads) == 1 or pool == self.join) and level > 0
        if not direct:
            return self._pool_of_cells(a, b, c, d, level, shape)
        total, most = np.zeros(shape), np.zeros(shape, np.float32)
        rows, cols = self.rows.cells(a, b, level), self._cols.cells(c, d, level)
        for head in self.heads:
            head.prepare(a, b)
            _add(head.map, (a, b, c, d), rows, cols, total, most)
        return Pool(
            total / len(self.heads) if len(self.heads) == 1 or self.join == "mean" else None,
            most if len(self.heads) == 1 or self.join == "max" else None,
            self._count(a, b, c, d, level),
        )

    def _pool_of_cells(
        self, a: int, b: int, c: int, d: int, level: int, shape: tuple[int, int]
    ) -> Pool:
        """The same where cells must be known before they are pooled: units, maxima of means."""
        total, most, count = np.zeros(shape), np.zeros(shape, np.float32), np.zeros(shape)
        side = 1 << level
        step = max(side, _CELLS // max(1, d - c) // side * side)
        for at in range(a, b, step):
            until = min(b, at + step)
            values, seen = self._cells(at, until, c, d)
            rows = slice((at - a) >> level, ((at - a) >> level) - (-(until - at) >> level))
            total[rows] = reduced(np.add, values.astype(np.float64), level)
            most[rows] = reduced(np.maximum, values.astype(np.float32, copy=False), level)
            count[rows] = reduced(np.add, seen.astype(np.float64), level)
        return Pool(total, most, count)

    def _own(self, head: Head, a: int, b: int, c: int, d: int) -> NDArray[Any]:
        """The cells of one head, 0 where hidden."""
        if self.plain:
            return head.weights(slice(a, b), slice(c, d))
        t0, t1 = self.rows.extent(a, b)
        head.prepare(t0, t1)
        out = np.zeros((b - a, d - c))
        part = (t0, t1, *self._cols.extent(c, d))
        _add(head.map, part, self.rows.cells(a, b, 0), self._cols.cells(c, d, 0), out, None)
        return out / np.maximum(self.rows.sizes[a:b], 1)[:, None]

    def _count(self, a: int, b: int, c: int, d: int, level: int) -> Floats:
        """How many cells of each bin are not hidden; of units, those of which any token is not."""
        assert level == 0 or self.plain or self._sight is None  # units are counted cell by cell
        part = (*self.rows.extent(a, b), *self._cols.extent(c, d))
        view = sees(self._sight, part)
        if view is False:
            return np.zeros((-(-(b - a) >> level), -(-(d - c) >> level)))
        down = reduced(np.add, _held(self.rows, a, b), level)
        across = reduced(np.add, _held(self._cols, c, d), level)
        if view or self._sight is None:
            return np.outer(down, across)
        out = np.zeros((len(down), len(across)))
        rows, cols = self.rows.cells(a, b, level), self._cols.cells(c, d, level)
        _add(self._sight, part, rows, cols, out, None)
        return out


def reduced(add: np.ufunc, x: NDArray[Any], level: int) -> NDArray[Any]:
    """x in bins of 2^level along each axis, the last ones cut.

    First along the last axis, by steps of two: halves of a row are added as vectors are.
    """
    for axis in range(x.ndim - 1, -1, -1):
        for _ in range(level):
            n = x.shape[axis]
            if n <= 1:
                break
            at = (slice(None),) * axis
            even, odd = x[(*at, slice(0, n - n % 2, 2))], x[(*at, slice(1, None, 2))]
            half = add(even, odd)
            x = np.concatenate([half, x[(*at, slice(n - 1, None))]], axis) if n % 2 else half
    return x


def _with(amap: AttentionMap, lse: NDArray[Any], mask: Any, sink: Any) -> AttentionMap:
    """The same map with another lse, mask and sink."""
    return AttentionMap(
        amap.q,
        amap.k,
        lse,
        mask=mask,
        bias=amap.bias,
        scale=amap.scale,
        softcap=amap.softcap,
        sink=sink,
    )


def _held(side: Side, begin: int, end: int) -> Floats:
    """(end - begin,) 1 for each unit that has a token."""
    a, b = side.extent(begin, end)
    own = side.label[a:b]
    out = np.zeros(end - begin)
    out[own[(own >= begin) & (own < end)] - begin] = 1
    return out


def _add(
    amap: AttentionMap,
    part: tuple[int, int, int, int],
    rows: NDArray[np.int64],
    cols: NDArray[np.int64],
    total: Floats,
    most: Cells | None,
) -> None:
    """`add_part`, whose largest weights are in the map's own precision."""
    if part[0] >= part[1] or part[2] >= part[3]:
        return
    own = most
    if most is not None and amap.dtype != most.dtype:
        own = most.astype(amap.dtype)
    add_part(amap._call(), part, rows, cols, total, own)
    if most is not None and own is not most:
        most[...] = own
