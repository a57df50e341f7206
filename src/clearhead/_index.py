"""Indexes of NumPy taken apart, for an array whose cells do not exist yet."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.intp]


def axes_of(shape: tuple[int, ...]) -> list[_Ints]:
    """For each axis an array of `shape` that holds every cell's index along it, in no memory."""
    return [
        np.broadcast_to(
            np.arange(n).reshape([-1 if i == j else 1 for j in range(len(shape))]), shape
        )
        for i, n in enumerate(shape)
    ]


def expanded(index: Any, ndim: int) -> tuple[list[Any] | None, tuple[None, ...]]:
    """An index as one item per axis (new axes aside), and the new axes at its end.

    None instead of the items where that cannot be said: boolean arrays, too many indices.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    if any(_is_boolean(item) for item in items):
        return None, ()
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    taken = sum(item is not None for item in items) - 1
    if taken > ndim or sum(item is Ellipsis for item in items) > 1:
        return None, ()  # NumPy will say what is wrong
    items[at : at + 1] = [slice(None)] * (ndim - taken)
    new_axes = 0
    while items[-1] is None:
        items.pop()
        new_axes += 1
    return items, (None,) * new_axes


def is_integer(item: Any) -> bool:
    return isinstance(item, int | np.integer)


def integer_in(item: Any, axis: int, n: int) -> int:
    """An index of one axis, from 0; IndexError in NumPy's words if it is out of range."""
    if not -n <= item < n:
        raise IndexError(f"index {item} is out of bounds for axis {axis} with size {n}")
    return int(item) % n


def _is_boolean(item: Any) -> bool:
    return isinstance(item, bool | np.bool_) or (is_array(item) and np.asarray(item).dtype == bool)


def is_array(item: Any) -> bool:
    return not (item is None or item is Ellipsis or isinstance(item, slice) or is_integer(item))
