"""Statistics of the attention matrix in one pass and linear memory: `AttentionMap.observe`.

The core computes each block of weights once, while it is in cache, and adds it to whatever was
asked for. Sums are kept in float64. The reference is `clearhead.reference.observe`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._check import LSE_DTYPE, Problem
from ._check_map import Ints, Wanted, check_bytes
from .ops import _as_bits, _filled, _result

Array = NDArray[Any]
Floats = NDArray[np.float64]


# What a native pass over a map needs: its sizes, (q, k, lse), and the last arguments of a native
# call: mask, bias, sink (which counts in lse already), scale, softcap.
Call = tuple[Problem, tuple[Array, Array, Array], tuple[Any, Any, Any, float, float]]


# (first row, row end, first key, key end) of what is looked at; None: all.
Part = tuple[int, int, int, int]

# Cells of the matrix for the core: labels of the rows and of the keys; sums of the weights; the
# largest of them; whether the sums are to become means, whatever stood there.
Grid = tuple[Ints, Ints, Array, Array | None, bool]

# Where the core adds: column sums, entropies, largest weights, (top weights, top keys), distances.
Sums = tuple[Array | None, Array | None, Array | None, tuple[Array, Array] | None, Array | None]


class Map(Protocol):
    """What a product or a picture of an `AttentionMap` needs of it."""

    q: Array
    k: Array
    lse: Array
    mask: Any
    bias: Any
    scale: float
    softcap: float | None
    sink: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int: ...
    def _call(self) -> Call: ...
    def _like(self, q: Array, k: Array, lse: Array) -> Map: ...
    def __getitem__(self, index: Any) -> Any: ...


@dataclass(frozen=True, repr=False, eq=False)
class Observation:
    """What is known of an attention matrix (..., H, T, S); None where it was not asked for.

    pool_mean, pool_max    (..., H, R, C)   mean and largest weight in each bin of a grid
    group                  (..., H, rows, cols)   rows averaged, columns summed
    top_weights, top_keys  (..., H, T, k)   strongest first; 0 and -1 where a row sees fewer keys
    received               (..., H, S)      column sums: how much each key was read
    entropy                (..., H, T)      nats; 0 for one key, log n for n alike
    max                    (..., H, T)      the largest weight
    by_distance            (..., H, n)      sum over queries of the weight d keys before their own

    Weights are float32 (float64 for float64 queries), sums and means float64. An axis that was
    averaged over has length 1. A row with NaN gives NaN in what it adds to, and top keys -1.
    """

    pool_mean: Floats | None = None
    pool_max: Array | None = None
    group: Floats | None = None
    top_weights: Array | None = None
    top_keys: Ints | None = None
    received: Floats | None = None
    entropy: Floats | None = None
    max: Array | None = None
    by_distance: Floats | None = None

    def __repr__(self) -> str:
        shapes = {field.name: getattr(self, field.name) for field in fields(self)}
        known = [f"{name} {x.shape}" for name, x in shapes.items() if x is not None]
        return f"Observation({', '.join(known) or 'nothing asked for'})"


def bin_labels(n: int, bins: int) -> Ints:
    """For each of n places its bin: bin r holds [r n // bins, (r + 1) n // bins)."""
    edges = np.arange(bins + 1) * n // bins
    return np.repeat(np.arange(bins, dtype=np.int64), np.diff(edges))


def observe(
    call: Call,
    wanted: Wanted,
    *,
    received: bool,
    entropy: bool,
    max: bool,
    max_bytes: int,
    progress: Callable[[int, int], object] | None,
) -> Observation:
    """One pass over (q, k, lse)."""
    problem, arrays, _ = call
    lead, H, T, S = problem.lead, problem.H, problem.T, problem.S
    kept = tuple(1 if "batch" in wanted.mean_over else n for n in lead)
    heads = 1 if "head" in wanted.mean_over else H
    outer = () if problem.flat else (*kept, heads)
    N, merged = prod(kept) * heads, prod(lead) * H // (prod(kept) * heads or 1)
    targets = np.broadcast_to(np.arange(N).reshape(*kept, heads), (*lead, H))
    real = LSE_DTYPE[arrays[0].dtype]

    # What the core writes whole needs no fill, unless there is no head to write it.
    whole = None if merged else 0

    def results(name: str, *sizes: int, dtype: Any = np.float64, fill: float | None = 0) -> Array:
        cure = "ask for fewer, or for mean_over=('head',)"
        check_bytes(name, (*outer, *sizes), np.dtype(dtype).itemsize, max_bytes, cure)
        shape, kind = (N, *sizes), np.dtype(dtype)
        return _result(shape, kind) if fill is None else _filled(shape, kind, fill)

    grids: list[Grid] = []
    if wanted.pool:
        rows, cols = bin_labels(T, wanted.pool[0]), bin_labels(S, wanted.pool[1])
        means = results("pool", *wanted.pool, fill=whole)
        largest = results("pool", *wanted.pool, dtype=real, fill=whole)
        grids.append((rows, cols, means, largest, True))
    if wanted.group:
        shape = [int(ids.max(initial=-1)) + 1 for ids in wanted.group]
        grids.append((*wanted.group, results("group", *shape), None, False))
    k = wanted.top or 0
    top_weights = results("top", T, k, dtype=real, fill=whole) if k else None
    top_keys = results("top", T, k, dtype=np.int64, fill=whole) if k else None
    columns = results("received", 1, S) if received else None
    entropies = results("entropy", T) if entropy else None
    most = results("max", T, dtype=real) if max else None
    distances = results("by_distance", wanted.by_distance) if wanted.by_distance else None

    top = None if top_weights is None or top_keys is None else (top_weights, top_keys)
    sums = (columns, entropies, most, top, distances)
    _run(call, targets, grids, None, sums, progress)

    def shaped(x: Array | None) -> Any:
        return None if x is None else x.reshape(*outer, *x.shape[1:])

    def mean(x: Array | None) -> Any:
        return None if x is None else shaped(x / merged if merged > 1 else x)

    pool = grids[0] if wanted.pool else None
    return Observation(
        pool_mean=shaped(None if pool is None else pool[2]),
        pool_max=shaped(None if pool is None else pool[3]),
        group=mean(grids[-1][2] / _rows(grids[-1][0], grids[-1][2])) if wanted.group else None,
        top_weights=shaped(top_weights),
        top_keys=shaped(top_keys),
        received=mean(None if columns is None else columns[:, 0]),
        entropy=mean(entropies),
        max=shaped(most),
        by_distance=mean(distances),
    )


def largest_in(
    call: Call,
    rows: Ints,
    cols: Ints,
) -> Array:
    """The largest weight of each cell of a grid, (..., H, R, C): labels as for `group`."""
    problem, arrays, _ = call
    outer = () if problem.flat else (*problem.lead, problem.H)
    shape = (prod(outer), int(rows.max(initial=-1)) + 1, int(cols.max(initial=-1)) + 1)
    largest = np.zeros(shape, LSE_DTYPE[arrays[0].dtype])
    targets = np.arange(prod(outer))
    grid = (rows.astype(np.int64), cols.astype(np.int64), np.zeros(shape), largest, False)
    _run(call, targets, [grid], None, (None, None, None, None, None), None)
    return largest.reshape(*outer, *shape[1:])


def add_part(
    call: Call,
    part: Part,
    rows: Ints,
    cols: Ints,
    sums: Floats,
    largest: Array | None = None,
) -> None:
    """Add the weights of a part of one head, (T, S) or (1, T, S), to a grid of cells.

    part           of the rows and keys; all else adds nothing and costs nothing
    rows, cols     int64 labels of the part's rows and keys, from 0, -1 for none
    sums, largest  (R, C), sums float64, largest in the dtype of the map's lse; added to, raised
    """
    grid = (rows, cols, sums[None], None if largest is None else largest[None], False)
    _run(call, np.zeros(1, np.int64), [grid], None, (None, None, None, None, None), None, part)


def add_received(call: Call, part: Part, sums: Floats) -> None:
    """Add the column sums of a part of one head to `sums` (S,) float64."""
    columns = sums.reshape(1, 1, -1)
    _run(call, np.zeros(1, np.int64), [], None, (columns, None, None, None, None), None, part)


def part_lse(call: Call, part: Part, lse: Floats) -> None:
    """Write the log-sum-exp of a part's rows of one head over the part's keys to `lse` (T,)."""
    _, (q, k, _), options = call
    _native.row_lse(_as_bits(q), _as_bits(k), lse, *options, part)


def weighted_columns(
    call: Call,
    x: Array,
) -> Floats:
    """x @ A for x (lead..., H, n, T) in the dtype of the map: (lead * H, n, S) float64."""
    problem, _, _ = call
    N = prod(problem.lead) * problem.H
    out = np.zeros((N, x.shape[-2], problem.S))
    targets = np.arange(N)
    _run(call, targets, [], x, (out, None, None, None, None), None)
    return out


def _run(
    call: Call,
    targets: Array,
    grids: list[Grid],
    weights: Array | None,
    sums: Sums,
    progress: Callable[[int, int], object] | None,
    part: Part | None = None,
) -> None:
    problem, (q, k, lse), options = call
    if not problem.flat:
        q = np.broadcast_to(q, (*problem.lead, *q.shape[-3:]))
    mask, bias, _, scale, softcap = options
    _native.observe(
        _as_bits(q),
        _as_bits(k),
        lse,
        mask,
        bias,
        scale,
        softcap,
        np.ascontiguousarray(targets, dtype=np.int64).reshape(-1),
        grids,
        weights,
        *sums,
        progress,
        part,
    )


def _rows(rows: Ints, grid: Array) -> Array:
    """How many rows each group averages, (R, 1); a group without rows stays 0."""
    return np.maximum(np.bincount(rows[rows >= 0], minlength=grid.shape[-2]), 1)[:, None]
