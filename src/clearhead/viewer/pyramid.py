"""The tiles of a picture at every zoom: computed when they are asked for, in strips, and kept.

A cell of level l covers 2^l x 2^l units, a tile 256 x 256 cells. Up to the level at which the whole
picture is `_BASE` cells wide, a tile is a *block* of its own: one pass over its part of the map.
Tiles farther out are reduced from the blocks of that level, so that one pass over the map gives all
of them. A block is computed in strips of rows, those nearest to what is looked at first; when the
time that a request may take is over, it gets what there is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .picture import Cells, Picture, reduced
from .shelf import Shelf

CELLS = 256  # a side of a tile
_BASE = 11  # 2^11 cells: up to 64 blocks give all that is farther out
_STRIP_PRODUCTS = 1 << 31  # multiply-adds, some 20 ms of two cores
PATIENCE_S = 0.06  # how long one request for a tile computes

Rectangle = tuple[int, int, int, int]


@dataclass
class Block:
    """Sums of the cells of one tile, as far as its strips are done."""

    total: NDArray[np.float64] | None
    most: Cells | None
    count: NDArray[np.float64]
    strip: int  # rows of cells
    done: NDArray[np.bool_]  # of each strip
    # Once all is done: by pool and step, the sums or maxima in bins of 2^step, and their counts.
    coarse: dict[tuple[str, int], tuple[NDArray[Any], NDArray[np.float64]]] = field(
        default_factory=dict
    )

    def reduced(self, pool: str, step: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """The sums or the maxima in bins of 2^step cells, and how many cells these are of."""
        own = self.total if pool == "mean" else self.most
        assert own is not None
        if (pool, step) in self.coarse:
            return self.coarse[pool, step]
        add = np.add if pool == "mean" else np.maximum
        found = reduced(add, own, step), reduced(np.add, self.count, step)
        if step and self.done.all():
            self.coarse[pool, step] = found
        return found


@dataclass(frozen=True)
class Tile:
    """values (R, C), NaN where hidden or still to come; `pending` says where the latter is."""

    values: Cells
    pending: list[Rectangle]


class Pyramid:
    """All tiles of one picture.

    key    what tells this picture from all others on the shelf
    """

    def __init__(self, picture: Picture, key: Any, shelf: Shelf) -> None:
        self.picture, self._key, self._shelf = picture, key, shelf
        self.base = max(0, (max(picture.shape) - 1).bit_length() - _BASE)

    def tile(
        self,
        pool: str,
        level: int,
        row: int,
        column: int,
        *,
        near: tuple[float, float] | None = None,
        patience_s: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Tile:
        """Tile (row, column) of a level.

        near        the unit that is looked at, (row, column); None: the middle of the tile
        patience_s  how long to compute, at least one strip; None: as long as one request may
        cancelled   asked between strips
        """
        fine = min(level, self.base)
        step = level - fine
        R, C = self.picture.shape
        side = CELLS << level
        a, c = row * side, column * side
        b, d = min(R, a + side), min(C, c + side)
        if near is None:
            near = (a + b) / 2, (c + d) / 2
        whole = CELLS << fine
        names = [
            (r, s)
            for r in range(a // whole, -(-b // whole))
            for s in range(c // whole, -(-d // whole))
        ]
        blocks = {name: self._block(pool, fine, *name) for name in names}
        patience_s = PATIENCE_S if patience_s is None else patience_s
        self._work(blocks, pool, fine, near, patience_s, cancelled)
        return self._gathered(blocks, pool, fine, step, (a, b, c, d))

    def _block(self, pool: str, level: int, row: int, column: int) -> Block:
        kind = "both" if len(self.picture.heads) == 1 else pool
        found: Block = self._shelf.get(
            ("block", self._key, kind, level, row, column),
            lambda: self._empty(pool, level, row, column),
        )
        return found

    def _bounds(self, level: int, row: int, column: int) -> Rectangle:
        R, C = self.picture.shape
        side = CELLS << level
        return row * side, min(R, (row + 1) * side), column * side, min(C, (column + 1) * side)

    def _empty(self, pool: str, level: int, row: int, column: int) -> tuple[Block, int]:
        a, b, c, d = self._bounds(level, row, column)
        shape = -(-(b - a) >> level), -(-(d - c) >> level)
        of_row = max(1, self.picture.cost * (d - c)) << level  # products of a row of cells
        strip = int(np.clip(_STRIP_PRODUCTS // of_row, 1, CELLS))
        one = len(self.picture.heads) == 1
        total = np.zeros(shape) if one or pool == "mean" else None
        most = np.zeros(shape, np.float32) if one or pool == "max" else None
        block = Block(total, most, np.zeros(shape), strip, np.zeros(-(-shape[0] // strip), bool))
        size = sum(x.nbytes for x in (total, most, block.count) if x is not None)
        return block, size * 4 // 3  # with what is reduced from it

    def _work(
        self,
        blocks: dict[tuple[int, int], Block],
        pool: str,
        level: int,
        near: tuple[float, float],
        patience_s: float,
        cancelled: Callable[[], bool],
    ) -> None:
        """Compute strips that are not done, the nearest first, until the time is over."""
        todo = []
        for (row, column), block in blocks.items():
            a, _, c, d = self._bounds(level, row, column)
            for number in np.flatnonzero(~block.done).tolist():
                height = block.strip << level
                away = _distance(near[0], a + number * height, a + (number + 1) * height)
                todo.append((max(away, _distance(near[1], c, d)), away, row, column, number))
        until = monotonic() + patience_s
        for _, _, row, column, number in sorted(todo):
            if cancelled():
                return
            self._strip(blocks[row, column], pool, level, row, column, number)
            if monotonic() >= until:
                return

    def _strip(
        self, block: Block, pool: str, level: int, row: int, column: int, number: int
    ) -> None:
        a, b, c, d = self._bounds(level, row, column)
        begin = number * block.strip
        end = min(len(block.count), begin + block.strip)
        top, bottom = a + (begin << level), min(b, a + (end << level))
        found = self.picture.pool(top, bottom, c, d, level, pool)
        for out, x in ((block.total, found.total), (block.most, found.most)):
            if out is not None and x is not None:
                out[begin:end] = x
        block.count[begin:end] = found.cells
        block.done[number] = True

    def _gathered(
        self,
        blocks: dict[tuple[int, int], Block],
        pool: str,
        level: int,
        step: int,
        bounds: Rectangle,
    ) -> Tile:
        """The blocks of a tile side by side, each bin of 2^step cells as one."""
        a, b, c, d = bounds
        shape = -(-(b - a) >> (level + step)), -(-(d - c) >> (level + step))
        values = np.zeros(shape, np.float64 if pool == "mean" else np.float32)
        count, ready = np.zeros(shape), np.ones(shape, bool)
        add = np.add if pool == "mean" else np.maximum
        for (row, column), block in blocks.items():
            top, _, left, _ = self._bounds(level, row, column)
            coarse, cells = block.reduced(pool, step)
            known = np.repeat(block.done, block.strip)[: len(block.count)]
            r, s = (top - a) >> (level + step), (left - c) >> (level + step)
            at = slice(r, r + coarse.shape[0]), slice(s, s + coarse.shape[1])
            values[at] = add(values[at], coarse)
            count[at] += cells
            ready[at] &= reduced(np.logical_and, known, step)[:, None]
        if pool == "mean":
            values /= np.maximum(count, 1)
        values[(count == 0) | ~ready] = np.nan
        return Tile(values.astype(np.float32, copy=False), _rectangles(~ready))


def _distance(x: float, begin: float, end: float) -> float:
    return max(begin - x, x - end, 0.0)


def _rectangles(cells: NDArray[np.bool_]) -> list[Rectangle]:
    """The true cells as [top, bottom) x [left, right): runs of rows that are alike."""
    out: list[Rectangle] = []
    if not cells.any():
        return out
    open_: dict[tuple[int, int], int] = {}
    for row in range(len(cells) + 1):
        runs: set[tuple[int, int]] = set()
        if row < len(cells):
            edges = np.flatnonzero(np.diff(np.pad(cells[row].astype(np.int8), 1)))
            runs = set(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        for run in [run for run in open_ if run not in runs]:
            out.append((open_.pop(run), row, *run))
        for run in runs:
            open_.setdefault(run, row)
    return out
