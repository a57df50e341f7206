"""Every argument error of observation, raised before anything is computed.

One sentence: the argument, what it is, what it must be. A grid that is not there is None.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_MEANS = ("batch", "head")


class Wanted(NamedTuple):
    """Valid arguments of `observe`; None where not asked for."""

    pool: tuple[int, int] | None
    group: tuple[Ints, Ints] | None
    top: int | None
    by_distance: int | None
    mean_over: frozenset[str]


def check_observe(
    T: int,
    S: int,
    pool: Any,
    group: Any,
    top: Any,
    by_distance: Any,
    mean_over: Any,
    progress: Any,
) -> Wanted:
    """The arguments of `observe` on a (T, S) map, or the error that says what is wrong."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress: is {progress!r}, must be a function of (done, total)")
    means = _means(mean_over)
    if top is not None:
        top = _count("top", top, 1)
        if top > S:
            raise ValueError(f"top: is {top}, must be at most S = {S}, the keys there are")
        if means:
            raise ValueError(
                "top: the strongest keys of one head are not those of another, must be asked for "
                f"without mean_over, which is {mean_over!r}"
            )
    if by_distance is not None:
        by_distance = _count("by_distance", by_distance, 1)
    return Wanted(
        None if pool is None else _pool(pool, T, S),
        None if group is None else _groups(group, T, S),
        top,
        by_distance,
        means,
    )


def check_bytes(what: str, shape: Sequence[int], itemsize: int, most: int, cure: str) -> None:
    """Raises where an array would take more than `most` bytes."""
    needed = itemsize
    for n in shape:
        needed *= n
    if needed > most:
        raise ValueError(
            f"{what}: {tuple(shape)} takes {needed:,} bytes, must be at most max_bytes = "
            f"{most:,}; {cure}"
        )


def labels(name: str, given: Any, n: int, axis: str) -> Ints:
    """Group labels of one axis: n whole numbers from 0; -1 is in no group."""
    try:
        array = np.asarray(given)
    except ValueError:
        raise ValueError(f"{name}: is ragged, must be {n} integers in a row") from None
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name}: dtype is {array.dtype}, must be integers, one for each of the {n}"
        )
    if array.shape != (n,):
        raise ValueError(f"{name}: shape is {array.shape}, must be ({axis},) = ({n},)")
    if n and array.min() < -1:
        raise ValueError(
            f"{name}: has {array.min()}, must be at least 0, or -1 for what is in no group"
        )
    if n and array.max() >= 2**31:
        raise ValueError(
            f"{name}: has {array.max()}, must be small numbers counted from 0; "
            "np.unique(labels, return_inverse=True)[1] makes them so"
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def _pool(pool: Any, T: int, S: int) -> tuple[int, int]:
    if not isinstance(pool, Sequence) or isinstance(pool, str) or len(pool) != 2:
        raise TypeError(
            f"pool: is {pool!r}, must be two whole numbers (R, C), bins of rows and keys"
        )
    R, C = (_count(f"pool[{i}]", n, 1) for i, n in enumerate(pool))
    if R > T or C > S:
        raise ValueError(
            f"pool: is {(R, C)}, must be at most the map's own (T, S) = {(T, S)}, "
            "where every cell is a bin"
        )
    return R, C


def _groups(group: Any, T: int, S: int) -> tuple[Ints, Ints]:
    if not isinstance(group, Sequence) or isinstance(group, str) or len(group) != 2:
        raise TypeError(
            f"group: is {type(group).__name__}, must be a pair (rows, cols) of integer labels"
        )
    return labels("group rows", group[0], T, "T"), labels("group cols", group[1], S, "S")


def _means(mean_over: Any) -> frozenset[str]:
    names = (mean_over,) if isinstance(mean_over, str) else mean_over
    if not isinstance(names, Sequence) or not all(name in _MEANS for name in names):
        raise ValueError(
            f"mean_over: is {mean_over!r}, must hold nothing but 'head' and 'batch', as ('head',)"
        )
    return frozenset(names)


def _count(name: str, x: Any, least: int) -> int:
    if isinstance(x, bool | np.bool_) or not isinstance(x, int | np.integer):
        raise TypeError(f"{name}: is {x!r}, must be a whole number")
    if x < least:
        raise ValueError(f"{name}: is {x}, must be at least {least}")
    return int(x)
