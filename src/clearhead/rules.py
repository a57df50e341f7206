"""What a mask is: the class Mask and its kinds, each with its meaning in NumPy and its program.

The functions of `clearhead.masks` build them; native/mask.hpp runs the programs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _native

__all__ = [
    "Allowed",
    "Band",
    "Blocks",
    "Dilated",
    "Documents",
    "FirstKeys",
    "Inverted",
    "Joined",
    "Lengths",
    "Mask",
    "Prefix",
    "whole",
]

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# A primitive or connective of a program: (kind, a, b, array, other); MaskKind in native/mask.hpp.
Step = tuple[str, int, int, NDArray[Any] | None, NDArray[Any] | None]

# "No limit" for a band; adding a row index to it stays within int64.
_FAR = 2**62


class Mask:
    """A rule that says which keys a query may attend to; `clearhead.masks` makes them.

    `a & b` allows what both allow, `a | b` what either allows, `~a` what a does not. Masks are
    equal when they were built alike, and hash accordingly; `repr(mask)` reads like the source.

    >>> from clearhead import causal, first_keys, window
    >>> causal() & (window(left=2) | first_keys(1))
    causal() & (window(left=2, right=None) | first_keys(1))
    >>> (causal() & window(left=1)).to_array(3, 3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """

    def __and__(self, other: Mask) -> Mask:
        return Joined("&", self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return Joined("|", self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return Inverted(self)

    def __bool__(self) -> bool:
        raise TypeError("mask: a mask has no truth value, it is joined by & and |, not by and, or")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def to_array(self, T: int, S: int) -> Bools:
        """The mask as booleans, (..., T, S); leading axes only where an array inside has them.

        >>> from clearhead import causal
        >>> causal().to_array(2, 3).astype(int)
        array([[1, 1, 0],
               [1, 1, 1]])
        """
        T, S = whole("T", T, 0), whole("S", S, 0)
        self.check(T, S)
        seen = self.seen(np.arange(T)[:, None], np.arange(S)[None, :], T, S)
        return np.array(np.broadcast_to(seen, (*seen.shape[:-2], T, S)))

    def allowed_count(self, T: int, S: int) -> int:
        """How many cells (t, s) the mask allows, summed over its own leading axes.

        Counted a stretch of rows at a time, in O(S) memory.

        >>> from clearhead import causal
        >>> causal().allowed_count(4, 4)
        10
        """
        T, S = whole("T", T, 0), whole("S", S, 0)
        self.check(T, S)
        s = np.arange(S)[None, :]
        step = max(1, 2**20 // max(1, S))
        total = 0
        for start in range(0, T, step):
            t = np.arange(start, min(start + step, T))[:, None]
            seen = self.seen(t, s, T, S)
            full = (*seen.shape[:-2], len(t), S)
            total += int(np.count_nonzero(np.broadcast_to(seen, full)))
        return total

    def intervals(self, rows: range, T: int, S: int) -> list[tuple[int, int, bool]]:
        """The stretches of keys that some query of `rows` sees: (start, stop, all of them).

        What attention goes by: keys outside are never read, and only where the third is False is
        each cell asked. A rule may call a stretch partly seen that turns out empty, never the
        reverse. Arrays with leading axes are asked at their first entry.

        >>> from clearhead import causal
        >>> causal().intervals(range(2, 4), 8, 8)
        [(0, 3, True), (3, 4, False)]
        """
        T, S = whole("T", T, 0), whole("S", S, 0)
        if not isinstance(rows, range) or rows.step != 1 or not 0 <= rows.start < rows.stop <= T:
            raise ValueError(f"rows: is {rows!r}, must be a range(start, stop) within range({T})")
        self.check(T, S)
        runs = _native.mask_runs(self.lower(T, S), S, rows.start, len(rows)) if S else []
        starts = [0, *(end for end, _ in runs)]
        return [
            (start, end, seen == 2)
            for start, (end, seen) in zip(starts, runs, strict=False)
            if seen
        ]

    # What each kind of mask defines.

    def _key(self) -> tuple[Any, ...]:
        """What makes two masks of one kind equal."""
        raise NotImplementedError

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        """The meaning: booleans broadcastable to (..., rows, keys); t (rows, 1), s (1, keys)."""
        raise NotImplementedError

    def lower(self, T: int, S: int) -> list[Step]:
        """The program for T queries and S keys, in postfix order."""
        raise NotImplementedError

    def check(
        self, T: int, S: int, lead: tuple[int, ...] | None = None, H: int | None = None
    ) -> None:
        """Raises ValueError where an array inside does not fit (*lead, H, T, S)."""


class Joined(Mask):
    def __init__(self, sign: str, a: Mask, b: Mask) -> None:
        self.sign, self.a, self.b = sign, a, b

    def __repr__(self) -> str:
        def inner(mask: Mask) -> str:
            mixed = isinstance(mask, Joined) and mask.sign != self.sign
            return f"({mask!r})" if mixed else repr(mask)

        return f"{inner(self.a)} {self.sign} {inner(self.b)}"

    def _key(self) -> tuple[Any, ...]:
        return self.sign, self.a, self.b

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        a, b = self.a.seen(t, s, T, S), self.b.seen(t, s, T, S)
        return a & b if self.sign == "&" else a | b

    def lower(self, T: int, S: int) -> list[Step]:
        word = "and" if self.sign == "&" else "or"
        return [*self.a.lower(T, S), *self.b.lower(T, S), (word, 0, 0, None, None)]

    def check(
        self, T: int, S: int, lead: tuple[int, ...] | None = None, H: int | None = None
    ) -> None:
        self.a.check(T, S, lead, H)
        self.b.check(T, S, lead, H)


class Inverted(Mask):
    def __init__(self, a: Mask) -> None:
        self.a = a

    def __repr__(self) -> str:
        return f"~({self.a!r})" if isinstance(self.a, Joined) else f"~{self.a!r}"

    def _key(self) -> tuple[Any, ...]:
        return (self.a,)

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        return ~self.a.seen(t, s, T, S)

    def lower(self, T: int, S: int) -> list[Step]:
        return [*self.a.lower(T, S), ("not", 0, 0, None, None)]

    def check(
        self, T: int, S: int, lead: tuple[int, ...] | None = None, H: int | None = None
    ) -> None:
        self.a.check(T, S, lead, H)


class Band(Mask):
    """t + low <= s <= t + high, each relative to `offset` (None: S - T); None: no limit."""

    def __init__(self, words: str, low: int | None, high: int | None, offset: int | None) -> None:
        self.words, self.low, self.high, self.offset = words, low, high, offset

    def __repr__(self) -> str:
        return self.words

    def _key(self) -> tuple[Any, ...]:
        return self.low, self.high, self.offset

    def _limits(self, T: int, S: int) -> tuple[int, int]:
        offset = S - T if self.offset is None else self.offset
        low = -_FAR if self.low is None else max(-_FAR, offset + self.low)
        high = _FAR if self.high is None else min(_FAR, offset + self.high)
        return low, high

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        low, high = self._limits(T, S)
        return np.asarray((t + low <= s) & (s <= t + high))

    def lower(self, T: int, S: int) -> list[Step]:
        return [("band", *self._limits(T, S), None, None)]


class FirstKeys(Mask):
    def __init__(self, n: int) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"first_keys({self.n})"

    def _key(self) -> tuple[Any, ...]:
        return (self.n,)

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        return s < self.n

    def lower(self, T: int, S: int) -> list[Step]:
        return [("first_keys", min(self.n, S), 0, None, None)]


class Prefix(Mask):
    def __init__(self, n: int) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"prefix({self.n})"

    def _key(self) -> tuple[Any, ...]:
        return (self.n,)

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        return np.asarray((t + S - T < self.n) & (s < self.n))

    def lower(self, T: int, S: int) -> list[Step]:
        return [("prefix", min(self.n, S), S - T, None, None)]


class Dilated(Mask):
    def __init__(self, step: int) -> None:
        self.step = step

    def __repr__(self) -> str:
        return f"dilated({self.step})"

    def _key(self) -> tuple[Any, ...]:
        return (self.step,)

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        return np.asarray((t + S - T - s) % self.step == 0)

    def lower(self, T: int, S: int) -> list[Step]:
        return [("dilated", self.step, S - T, None, None)]


class Lengths(Mask):
    def __init__(self, n: Ints) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"lengths({self.n.tolist()})" if self.n.size <= 8 else f"lengths({_shape(self.n)})"

    def _key(self) -> tuple[Any, ...]:
        return _bytes(self.n)

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        # Its axes are the batch's; between them and (T, S) stand the heads.
        return np.asarray(s < self.n[..., None, None, None] if self.n.ndim else s < self.n)

    def lower(self, T: int, S: int) -> list[Step]:
        return [("lengths", 0, 0, self.n, None)]

    def check(
        self, T: int, S: int, lead: tuple[int, ...] | None = None, H: int | None = None
    ) -> None:
        if lead is not None:
            _fits("mask: lengths(n_per_batch): n_per_batch", self.n.shape, lead, "(...)")


class Documents(Mask):
    def __init__(self, queries: Ints, keys: Ints | None) -> None:
        self.queries, self.keys = queries, keys

    def __repr__(self) -> str:
        def show(ids: Ints) -> str:
            return str(ids.tolist()) if ids.ndim == 1 and ids.size <= 8 else _shape(ids)

        keys = "" if self.keys is None else f", {show(self.keys)}"
        return f"documents({show(self.queries)}{keys})"

    def _key(self) -> tuple[Any, ...]:
        return _bytes(self.queries), None if self.keys is None else _bytes(self.keys)

    def _ids(self, T: int, S: int) -> tuple[Ints, Ints]:
        if self.keys is not None:
            return self.queries, self.keys
        return self.queries[..., S - T :] if S > T else self.queries, self.queries

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        queries, keys = self._ids(T, S)
        one, other = queries[..., t[:, 0], None], keys[..., None, s[0]]
        same = np.asarray(one == other)
        return same if same.ndim == 2 else same[..., None, :, :]

    def lower(self, T: int, S: int) -> list[Step]:
        queries, keys = self._ids(T, S)
        return [("documents", 0, 0, queries, keys)]

    def check(
        self, T: int, S: int, lead: tuple[int, ...] | None = None, H: int | None = None
    ) -> None:
        name = "mask: documents(query_ids, key_ids)"
        if self.keys is None and (self.queries.shape[-1] != S or T > S):
            raise ValueError(
                f"{name}: query_ids is {self.queries.shape} and serves for the keys too, "
                f"must be (..., S) with T <= S; T = {T}, S = {S}"
            )
        queries, keys = self._ids(T, S)
        for word, ids, n in (("query_ids", queries, T), ("key_ids", keys, S)):
            want = (*(ids.shape[:-1] if lead is None else lead), n)
            if ids.shape[-1] != n:
                raise ValueError(f"{name}: {word} is {ids.shape}, must end in {n}")
            _fits(f"{name}: {word}", ids.shape, want, "(..., T)" if n == T else "(..., S)")


class Blocks(Mask):
    def __init__(self, pattern: Bools, block: int) -> None:
        self.pattern, self.block = pattern, block

    def __repr__(self) -> str:
        return f"blocks({_shape(self.pattern)}, block={self.block})"

    def _key(self) -> tuple[Any, ...]:
        return *_bytes(self.pattern), self.block

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        return np.asarray(self.pattern[t // self.block, s // self.block])

    def lower(self, T: int, S: int) -> list[Step]:
        return [("pattern", self.block, 0, self.pattern, None)]

    def check(
        self, T: int, S: int, lead: tuple[int, ...] | None = None, H: int | None = None
    ) -> None:
        want = (-(-T // self.block), -(-S // self.block))
        if self.pattern.shape != want:
            raise ValueError(
                f"mask: blocks(pattern, block): pattern is {self.pattern.shape}, must be {want} "
                f"to cover T = {T}, S = {S} in blocks of {self.block}"
            )


class Allowed(Mask):
    def __init__(self, array: Bools) -> None:
        self.array = array

    def __repr__(self) -> str:
        return f"allowed({_shape(self.array)})"

    def _key(self) -> tuple[Any, ...]:
        return _bytes(self.array)

    def seen(self, t: Ints, s: Ints, T: int, S: int) -> Bools:
        rows = self.array if self.array.shape[-2] == 1 else self.array[..., t[:, 0], :]
        return rows if rows.shape[-1] == 1 else rows[..., s[0]]

    def lower(self, T: int, S: int) -> list[Step]:
        return [("array", 0, 0, self.array, None)]

    def check(
        self, T: int, S: int, lead: tuple[int, ...] | None = None, H: int | None = None
    ) -> None:
        heads = () if H is None else (H,)
        outer = self.array.shape[:-2] if lead is None else (*lead, *heads)
        _fits("mask", self.array.shape, (*outer, T, S), "(..., H, T, S)")


def whole(name: str, value: Any, least: int | None) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: is {value!r}, must be a whole number")
    if least is not None and value < least:
        raise ValueError(f"{name}: is {value}, must be at least {least}")
    if abs(int(value)) >= _FAR // 2:
        raise ValueError(f"{name}: is {value}, must be below 2**61")
    return int(value)


def _shape(array: NDArray[Any]) -> str:
    return f"{array.shape} array"


def _bytes(array: NDArray[Any]) -> tuple[Any, ...]:
    return array.shape, array.tobytes()


def _fits(name: str, given: tuple[int, ...], want: tuple[int, ...], shape: str) -> None:
    pairs = zip(given[::-1], want[::-1], strict=False)
    if len(given) > len(want) or not all(a in (1, b) for a, b in pairs):
        raise ValueError(f"{name}: is {given}, must be broadcastable to {shape} {want}")
