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
from ..masks import Mask, allowed, documents
from ..observation import add_part, part_lse
from .units import Side

Floats = NDArray[np.float64]
Cells = NDArray[np.float32]
Bools = NDArray[np.bool_]

_ROWS = 256  # of renormalised rows at a time
_FEW = 1 << 16  # cells up to which NumPy is as fast as the core's grid


class Pool(NamedTuple):
    """Of each bin: the sum, the largest and the number of cells that are not hidden, (R, C) each.

    A `total` or `most` that was not asked for is None.
    """

    total: Floats | None
    most: Cells | None
    cells: Floats


class Head:
    """One head with its columns left out: weights of any part of it, never (T, S)."""

    def __init__(self, amap: AttentionMap, keep: Bools | None) -> None:
        self.original = amap
        self._keep = keep
        self.map = amap
        if keep is None:
            return
        T = amap.shape[-2]
        self._lse = np.full((1, T), np.nan)
        self._ready = np.zeros(-(-T // _ROWS), bool)
        inside = documents(np.zeros(T, np.int64), np.where(keep, 0, 1))
        self._kept = _with(amap, amap.lse, _both(amap.mask, inside))
        self.map = _with(amap, self._lse, amap.mask)

    def prepare(self, begin: int, end: int) -> None:
        """Find lse' of rows [begin, end), where it is not known."""
        if self._keep is None:
            return
        T, S = self.map.shape[-2:]
        for block in range(begin // _ROWS, -(-end // _ROWS)):
            if not self._ready[block]:
                at = block * _ROWS, min(T, (block + 1) * _ROWS)
                part_lse(self._kept._call(), (*at, 0, S), self._lse[0])
                blank = np.isnan(self.original.lse[0, slice(*at)])
                self._lse[0, slice(*at)][blank] = np.nan
                self._ready[block] = True

    def removed(self, begin: int, end: int) -> Floats:
        """The mass of rows [begin, end) that was left out: 1 - e^(lse' - lse)."""
        if self._keep is None:
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
        if self._keep is not None:
            out[:, ~self._keep[cols]] = 0
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
        self.heads = [Head(amap, keep) for amap in heads]
        self.join, self.rows, self.cols, self.keep = join, rows, cols, keep
        self.plain = rows.plain and cols.plain
        label = cols.label if keep is None else np.where(keep, cols.label, -1)
        self._cols = Side(cols.count, label, cols.sizes, cols.first, cols.end)
        self._sight = sight([head.original for head in self.heads])

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

    def cells(
        self, a: int, b: int, c: int, d: int, *, which: bool = False
    ) -> tuple[Cells, Cells | None]:
        """Cells [a, b) x [c, d), NaN where hidden; with `which`, the head that each is of."""
        total: NDArray[Any] | None = None
        best = np.zeros((b - a, d - c), np.float32) if which else None
        for number, head in enumerate(self.heads):
            own = self._own(head, a, b, c, d)
            if total is None:
                total = own.astype(np.float64) if self.join == "mean" else own
            elif self.join == "mean":
                total += own
            else:
                if best is not None:
                    best[own > total] = number
                np.maximum(total, own, out=total)
        assert total is not None
        if self.join == "mean" and len(self.heads) > 1:
            total /= len(self.heads)
        out = total.astype(np.float32, copy=False)
        out[~self.visible(a, b, c, d)] = np.nan
        return out, best

    def visible(self, a: int, b: int, c: int, d: int) -> Bools:
        """Which of these cells is not hidden and not left out."""
        count = self._count(a, b, c, d, 0)
        return count > 0

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
        direct = self.plain and (len(self.heads) == 1 or pool == self.join) and level > 0
        shape = -(-(b - a) >> level), -(-(d - c) >> level)
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
        step = max(side, (1 << 21) // max(1, d - c) // side * side)
        for at in range(a, b, step):
            until = min(b, at + step)
            values, _ = self.cells(at, until, c, d)
            seen = ~np.isnan(values) | self.visible(at, until, c, d)
            rows = slice((at - a) >> level, ((at - a) >> level) - (-(until - at) >> level))
            for out, x, add in (
                (total, np.where(seen, values, 0), np.add),
                (most, np.where(seen, values, 0), np.maximum),
                (count, seen, np.add),
            ):
                out[rows] = reduced(add, np.asarray(x, out.dtype), level)
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
        shape = -(-(b - a) >> level), -(-(d - c) >> level)
        if self._sight is None:
            down = _held(self.rows, a, b)
            across = _held(self._cols, c, d)
            return np.outer(reduced(np.add, down, level), reduced(np.add, across, level))
        assert level == 0 or self.plain  # units are counted cell by cell
        out = np.zeros(shape)
        part = (*self.rows.extent(a, b), *self._cols.extent(c, d))
        _add(
            self._sight,
            part,
            self.rows.cells(a, b, level),
            self._cols.cells(c, d, level),
            out,
            None,
        )
        return out


def sight(maps: Sequence[AttentionMap]) -> AttentionMap | None:
    """A map that is 1 where any of these may read and 0 where all of them may not.

    None where each may read everything. Queries and keys are broadcast zeros: no memory.
    """
    rules: dict[tuple[int, int], Mask | None] = {}
    for amap in maps:
        rules.setdefault((id(amap.mask), id(amap.bias)), _rule(amap))
    masks = list(rules.values())
    if any(mask is None for mask in masks):
        return None
    whole = masks[0]
    for mask in masks[1:]:
        assert whole is not None and mask is not None
        whole = whole | mask
    T, S = maps[0].shape[-2:]
    zero = np.float32(0)
    return AttentionMap(
        np.broadcast_to(zero, (1, T, 1)),
        np.broadcast_to(zero, (1, S, 1)),
        np.broadcast_to(zero, (1, T)),
        mask=whole,
        scale=1.0,
    )


def reduced(add: np.ufunc, x: NDArray[Any], level: int) -> NDArray[Any]:
    """x in bins of 2^level along each axis, the last ones cut."""
    for axis in range(x.ndim):
        n = x.shape[axis]
        if n and level:
            x = add.reduceat(x, np.arange(0, n, 1 << level), axis=axis)
    return x


def _rule(amap: AttentionMap) -> Mask | None:
    """The mask of a head with what a bias of -inf hides; None: it sees all."""
    rule: Any = amap.mask
    if isinstance(rule, np.ndarray):
        rule = allowed(rule)
    bias: Any = amap.bias
    if isinstance(bias, np.ndarray) and np.isneginf(bias).any():
        rule = _both(rule, allowed(~np.isneginf(bias)))
    elif getattr(bias, "values", None) is not None and np.isneginf(bias.values).any():
        T, S = amap.shape[-2:]
        rule = _both(rule, allowed(~np.isneginf(bias.to_array(T, S))))
    return cast("Mask | None", rule)


def _both(mask: Any, other: Mask) -> Mask:
    if mask is None:
        return other
    return (allowed(mask) if isinstance(mask, np.ndarray) else cast(Mask, mask)) & other


def _with(amap: AttentionMap, lse: NDArray[Any], mask: Any) -> AttentionMap:
    """The same map with another lse and mask."""
    return AttentionMap(
        amap.q,
        amap.k,
        lse,
        mask=mask,
        bias=amap.bias,
        scale=amap.scale,
        softcap=amap.softcap,
        sink=amap.sink,
    )


def _held(side: Side, begin: int, end: int) -> Floats:
    """(end - begin,) 1 for each unit that has a token."""
    sizes = np.bincount(side.label[side.label >= 0], minlength=side.count)
    return (sizes[begin:end] > 0).astype(np.float64)


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
