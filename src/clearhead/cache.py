"""The keys and values of a sequence that grows: what decoding has already read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["KeyValueCache"]

Array = NDArray[Any]


class KeyValueCache:
    """Keys (..., G, S, D) and values (..., G, S, E), S growing by `append`.

    The first append decides dtype, leading axes, G, D and E. Room doubles when it runs out, so
    that n appends of one key cost O(n) copies in all. `keys` and `values` are views: an append
    does not change the numbers of earlier ones.

    >>> import numpy as np, clearhead as ch
    >>> cache = ch.KeyValueCache()
    >>> k, v = cache.append(np.ones((2, 3, 4)), np.ones((2, 3, 5)))
    >>> k, v = cache.append(np.ones((2, 1, 4)), np.ones((2, 1, 5)))
    >>> len(cache), k.shape, v.shape
    (4, (2, 4, 4), (2, 4, 5))
    """

    def __init__(self) -> None:
        self._room: tuple[Array, Array] | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        if self._room is None:
            return "KeyValueCache(empty)"
        return f"KeyValueCache(keys {self.keys.shape}, values {self.values.shape})"

    @property
    def keys(self) -> Array:
        """All keys so far, (..., G, S, D)."""
        return self._filled(0)

    @property
    def values(self) -> Array:
        """All values so far, (..., G, S, E)."""
        return self._filled(1)

    def append(self, k: Array, v: Array) -> tuple[Array, Array]:
        """Adds keys (..., G, n, D) and values (..., G, n, E); returns all of both."""
        for name, x in (("k", k), ("v", v)):
            if not isinstance(x, np.ndarray):
                raise TypeError(f"{name}: {type(x).__name__}, must be a NumPy array")
            if x.ndim < 2:
                raise ValueError(f"{name}: shape is {x.shape}, must be (..., G, n, size)")
        if k.shape[:-1] != v.shape[:-1] or k.dtype != v.dtype:
            raise ValueError(
                f"k, v: are {k.dtype} {k.shape} and {v.dtype} {v.shape}, "
                "must be alike but for the last axis"
            )
        room = self._room if self._room is not None else (k[..., :0, :], v[..., :0, :])
        for name, x, old in zip("kv", (k, v), room, strict=True):
            same = x.shape[:-2] == old.shape[:-2] and x.shape[-1] == old.shape[-1]
            if not same or x.dtype != old.dtype:
                want = (*old.shape[:-2], "n", old.shape[-1])
                raise ValueError(
                    f"{name}: is {x.dtype} {x.shape}, must be {old.dtype} "
                    f"({', '.join(map(str, want))}) as what the cache holds"
                )
        length = self._length + k.shape[-2]
        self._room = _grown(room[0], length, self._length), _grown(room[1], length, self._length)
        for new, kept in zip((k, v), self._room, strict=True):
            kept[..., self._length : length, :] = new
        self._length = length
        return self.keys, self.values

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` keys: back to an earlier point of the sequence."""
        if isinstance(length, bool) or not isinstance(length, int | np.integer):
            raise TypeError(f"length: is {length!r}, must be a whole number")
        if not 0 <= length <= self._length:
            raise ValueError(f"length: is {length}, must be from 0 to {self._length}")
        if self._room is not None and length < self._length:
            # What was handed out before keeps its numbers: what follows is written elsewhere.
            k, v = self._room
            self._room = k[..., :length, :].copy(), v[..., :length, :].copy()
        self._length = int(length)

    def _filled(self, which: int) -> Array:
        if self._room is None:
            raise ValueError("cache: is empty, must have been appended to")
        view = self._room[which][..., : self._length, :].view()
        view.flags.writeable = False
        return view


def _grown(room: Array, length: int, used: int) -> Array:
    """The same numbers with room for `length` keys at least."""
    if room.shape[-2] >= length and room.base is None:
        return room
    grown = np.empty((*room.shape[:-2], max(length, 2 * used, 16), room.shape[-1]), room.dtype)
    grown[..., :used, :] = room[..., :used, :]
    return grown
