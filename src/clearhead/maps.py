"""The attention matrix as a lazy array: any cell, row or window, computed when it is asked for.

A row's weights are exp(s - lse), with s the scores and lse the log-sum-exp that the forward pass
has already found. So a (T, S) matrix is a function of q (T, D), k (S, D) and lse (T,), and that is
all an `AttentionMap` holds: a window of it costs what the window costs, whatever T and S are.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .biases import Bias
from .masks import Mask
from .ops import attention_with_lse

_Ints = NDArray[np.intp]
_GIB = 1 << 30
_BLOCK_BYTES = 1 << 25  # of scores at a time: temporaries stay small beside the result


class AttentionMap:
    """The weights softmax(scale * q k^T + bias) of every head, (..., H, T, S), computed on demand.

    q          (..., H, T, D)  float64, float32, float16 or bfloat16; (T, D) means one head
    k          (..., G, S, D)  H % G == 0; query head h reads group h // (H // G)
    lse        (..., H, T)     natural logarithm, as `attention_with_lse` returns it; a float64 one
                               makes the arithmetic float64: a float32 one of 80 is good to 1e-5
    mask       Mask, or bool, broadcastable to (..., H, T, S); True = may attend
    bias       added to the scores: an array broadcastable likewise, or alibi(...) and its like
    scale      default D ** -0.5
    softcap    c * tanh(s / c) on the scores before the bias
    max_bytes  the most that one index, or `np.asarray`, may compute

    Indexing is NumPy's: integers, slices, index arrays, boolean arrays, `...`, `None`. The result
    is a new array, float64 for float64 queries and float32 otherwise; hidden cells are 0 and a
    query that sees no key gives a row of 0. NaN in a visible query or key gives NaN in the row.

    Memory  q, k, lse and the mask, which are kept as they are, never copied, never (T, S). Raises
    ValueError for shapes that do not fit and for more than `max_bytes`; IndexError as NumPy.
    Source  FlashAttention's backward recomputation (Dao et al. 2022, section 3.1).
    Spec    clearhead.reference.weights

    >>> amap = ch.attention_map(q, k)
    >>> amap[0, 3, 100:110].shape
    (10, 128)
    """

    def __init__(
        self,
        q: NDArray[Any],
        k: NDArray[Any],
        lse: NDArray[Any],
        *,
        mask: Mask | NDArray[np.bool_] | None = None,
        bias: NDArray[Any] | Bias | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        max_bytes: int = _GIB,
    ) -> None:
        self.shape = _shape(q, k, lse)
        self.q, self.k, self.lse, self.mask, self.bias = q, k, lse, mask, bias
        self.scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        self.softcap = softcap
        self.max_bytes = max_bytes
        self.dtype = np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
        self._work = np.promote_types(self.dtype, lse.dtype)  # of the scores
        if isinstance(mask, Mask):
            T, S = self.shape[-2:]
            mask.check(T, S, self.shape[:-3], self.shape[-3] if self.ndim > 2 else 1)
        elif mask is not None:
            _check_broadcasts("mask", mask, self.shape)
        if isinstance(bias, Bias):
            if bias.heads not in (None, 1, self.shape[-3] if self.ndim > 2 else 1):
                raise ValueError(f"bias: is for {bias.heads} heads, the map is {self.shape}")
        elif bias is not None:
            _check_broadcasts("bias", bias, self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes: 2 for one head, 3 with heads, more with a batch."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of cells."""
        return prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        axes = ["H", "T", "S"][-self.ndim :]
        axes = [f"B{i}" for i in range(self.ndim - len(axes))] + axes
        sizes = ", ".join(f"{axis}={n}" for axis, n in zip(axes, self.shape, strict=True))
        mask = "" if self.mask is None else f", mask={_brief(self.mask)}"
        return f"AttentionMap({sizes}, D={self.q.shape[-1]}, {self.dtype}{mask})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Every cell, if they take no more than `max_bytes`."""
        if copy is False:
            raise ValueError("AttentionMap: holds no matrix to share; copy must not be False")
        whole: NDArray[Any] = self[...]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __getitem__(self, index: Any) -> Any:
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and inf in q or k are the caller's
            return self._indexed(index)

    def _indexed(self, index: Any) -> Any:
        items, new_axes = _expanded(index, self.ndim)
        if items is not None and isinstance(items[-1], slice):
            out = self._rows(tuple(items[:-1]), items[-1])
        elif items is not None and _is_integer(items[-1]) and not any(map(_is_array, items)):
            last = range(self.shape[-1])[items[-1]]  # IndexError if out of range
            out = self._rows(tuple(items[:-1]), slice(last, last + 1))[..., 0]
        else:
            return self._cells(index)
        return out[(..., *new_axes)] if new_axes else out[()]

    def _rows(self, index: tuple[Any, ...], columns: slice) -> NDArray[Any]:
        """The rows that `index` takes from (..., H, T), each over a range of keys."""
        where = [axis[index] for axis in _axes(self.shape[:-1])]
        shape = (*where[0].shape, len(range(self.shape[-1])[columns]))
        self._check_size(shape)
        out = np.empty((prod(shape[:-1]), shape[-1]), self.dtype)
        *lead, t = (axis.reshape(-1) for axis in where)
        group = np.ravel_multi_index(lead, self.shape[:-2]) if lead else np.zeros_like(t)
        order = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[order])) + 1
        step = max(1, _BLOCK_BYTES // max(1, shape[-1] * self.dtype.itemsize))
        for rows in np.split(order, cuts):  # each of one batch entry and head
            for at in range(0, len(rows), step):
                own = rows[at : at + step]
                one = tuple(int(axis[own[0]]) for axis in lead)
                out[own] = self._block(one, t[own], columns)
        return out.reshape(shape)

    def _block(self, one: tuple[int, ...], t: _Ints, columns: slice) -> NDArray[Any]:
        """Weights (n, m) of n queries of one head over a range of m keys."""
        q, k = self._head(one)
        dots = q[t].astype(self._work, copy=False) @ k[columns].astype(self._work, copy=False).T
        s = np.arange(self.shape[-1])[columns]
        block = (*self.shape[:-2], *dots.shape)  # what rules of (t, s) are broadcast to
        bias = seen = None
        if isinstance(self.bias, Bias):
            bias = np.broadcast_to(self.bias._at(self._distance(t[:, None], s)), block)[one]
        elif self.bias is not None:
            bias = np.broadcast_to(self.bias, self.shape)[one][t, columns]
        if isinstance(self.mask, Mask):
            allowed = self.mask._seen(t[:, None], s[None, :], *self.shape[-2:])
            seen = np.broadcast_to(allowed, block)[one]
        elif self.mask is not None:
            seen = np.broadcast_to(self.mask, self.shape)[one][t, columns]
        return self._weights(dots, self.lse[one][t][:, None], bias, seen)

    def _cells(self, index: Any) -> Any:
        """Single cells: for indexes that do not take whole ranges of keys."""
        where = [axis[index] for axis in _axes(self.shape)]
        shape = where[0].shape
        self._check_size(shape)
        out = np.empty(prod(shape), self.dtype)
        flat = [axis.reshape(-1) for axis in where]
        step = max(1, _BLOCK_BYTES // (self.q.shape[-1] * self.dtype.itemsize))
        if isinstance(self.mask, Mask):
            step = min(step, 2048)  # `_allowed` asks for up to step x step cells
        for at in range(0, len(out), step):
            *one, t, s = (axis[at : at + step] for axis in flat)
            q, k = self._leading(one, t, self.q), self._leading(one, s, self.k)
            dots = np.einsum(
                "nd,nd->n", q.astype(self._work, copy=False), k.astype(self._work, copy=False)
            )
            bias = None if self.bias is None else self._added(self.bias, one, t, s)
            seen = None if self.mask is None else self._allowed(self.mask, one, t, s)
            out[at : at + step] = self._weights(dots, self.lse[(*one, t)], bias, seen)
        return out.reshape(shape)[()]

    def _head(self, one: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
        """q (T, D) and k (S, D) of one batch entry and head."""
        if not one:
            return self.q, self.k
        *batch, h = one
        q = np.broadcast_to(self.q, (*self.shape[:-3], *self.q.shape[-3:]))
        k = np.broadcast_to(self.k, (*self.shape[:-3], *self.k.shape[-3:]))
        group = h * self.k.shape[-3] // self.q.shape[-3]
        return q[(*batch, h)], k[(*batch, group)]

    def _leading(self, one: list[_Ints], at: _Ints, array: NDArray[Any]) -> NDArray[Any]:
        """The vectors (n, D) of q or k for n cells."""
        if not one:
            return array[at]
        *batch, h = one
        whole = np.broadcast_to(array, (*self.shape[:-3], *array.shape[-3:]))
        group = h * array.shape[-3] // self.q.shape[-3]  # h itself for q
        return cast(NDArray[Any], whole[(*batch, group, at)])

    def _weights(
        self,
        s: NDArray[Any],
        lse: NDArray[Any],
        bias: NDArray[Any] | None,
        seen: NDArray[np.bool_] | None,
    ) -> NDArray[Any]:
        """exp(scores - lse) from raw dot products, for any set of cells."""
        s *= self.scale
        if self.softcap is not None:
            s = self.softcap * np.tanh(s / self.softcap)
        if bias is not None:
            s += bias
        hidden = None if bias is None else np.isneginf(s)
        s -= lse  # -inf - -inf, a row that sees nothing, is NaN here
        # lse is the logarithm of a sum with exp(s) among its terms: only rounding makes this > 0.
        p: NDArray[Any] = np.minimum(s, 0, out=s).astype(self.dtype, copy=False)
        np.exp(p, out=p)
        if hidden is not None:
            p[hidden] = 0
        if seen is not None:
            p[~seen] = 0
        return p

    def _distance(self, t: _Ints, s: _Ints) -> _Ints:
        """How far key s lies before query t, whose position is t + S - T."""
        return t + (self.shape[-1] - self.shape[-2]) - s

    def _added(
        self, bias: NDArray[Any] | Bias, one: list[_Ints], t: _Ints, s: _Ints
    ) -> NDArray[Any]:
        """What the bias adds to each of n cells."""
        if isinstance(bias, np.ndarray):
            return cast(NDArray[Any], np.broadcast_to(bias, self.shape)[(*one, t, s)])
        rows = bias._at(self._distance(t, s)[None, :]).reshape(-1, len(t))  # (H or 1, n)
        return cast(NDArray[Any], rows[one[-1] if len(rows) > 1 else 0, np.arange(len(t))])

    def _allowed(
        self, mask: Mask | NDArray[np.bool_], one: list[_Ints], t: _Ints, s: _Ints
    ) -> NDArray[np.bool_]:
        """Which of n cells the mask allows: a Mask is asked for the rows and keys they are in."""
        if isinstance(mask, np.ndarray):
            return cast(NDArray[np.bool_], np.broadcast_to(mask, self.shape)[(*one, t, s)])
        rows, row = np.unique(t, return_inverse=True)
        keys, key = np.unique(s, return_inverse=True)
        tile = mask._seen(rows[:, None], keys[None, :], *self.shape[-2:])
        whole = np.broadcast_to(tile, (*self.shape[:-2], len(rows), len(keys)))
        return cast(NDArray[np.bool_], whole[(*one, row, key)])

    def _check_size(self, shape: tuple[int, ...]) -> None:
        needed = prod(shape) * self.dtype.itemsize
        if needed > self.max_bytes:
            window = ", ".join(["0"] * (self.ndim - 2) + [":1024", ":1024"])
            raise ValueError(
                f"AttentionMap {self.shape}: {shape} takes {needed:,} bytes, max_bytes is "
                f"{self.max_bytes:,}; ask for a window, as in amap[{window}]"
            )


def attention_map(
    q: NDArray[Any],
    k: NDArray[Any],
    *,
    mask: Mask | NDArray[np.bool_] | None = None,
    bias: NDArray[Any] | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: NDArray[Any] | None = None,
    max_bytes: int = _GIB,
) -> AttentionMap:
    """The attention weights of q and k as a lazy array: one pass for the lse, nothing (T, S).

    q          (..., H, T, D)  float64, float32, float16 or bfloat16; (T, D) means one head
    k          (..., G, S, D)  H % G == 0; query head h reads group h // (H // G)
    and mask, bias, scale, softcap, sink as `attention` takes them.

    Returns an `AttentionMap` of shape (..., H, T, S). With a sink, its rows sum to less than 1.
    Raises  ValueError, TypeError: the argument, what it is, what it must be.
    Spec    clearhead.reference.weights

    >>> ch.attention_map(q, k, mask=ch.causal())
    AttentionMap(B0=1, H=8, T=128, S=128, D=64, float32, mask=causal())
    """
    v = np.zeros((*k.shape[:-1], 1), k.dtype)  # the forward pass needs values; these cost least
    _, lse = attention_with_lse(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sink=sink
    )
    return AttentionMap(
        q, k, lse, mask=mask, bias=bias, scale=scale, softcap=softcap, max_bytes=max_bytes
    )


def _shape(q: NDArray[Any], k: NDArray[Any], lse: NDArray[Any]) -> tuple[int, ...]:
    """(..., H, T, S), or (T, S) of one head."""
    shapes = f"q {q.shape}, k {k.shape}, lse {lse.shape}"
    if q.ndim < 2 or (q.ndim == 2) != (k.ndim == 2):
        raise ValueError(f"q, k: must both be (T, D) or both have heads; {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"k: D is {k.shape[-1]} but q has D = {q.shape[-1]}; {shapes}")
    lead: tuple[int, ...] = ()
    if q.ndim > 2:
        H, G = q.shape[-3], k.shape[-3]
        if G == 0 or H % G:
            raise ValueError(f"k: {H} query heads are not a multiple of {G} key heads; {shapes}")
        try:
            lead = (*np.broadcast_shapes(q.shape[:-3], k.shape[:-3]), H)
        except ValueError:
            raise ValueError(f"q, k: their batches do not broadcast; {shapes}") from None
    rows = (*lead, q.shape[-2])
    if lse.shape != rows:
        raise ValueError(f"lse: must be {rows}; {shapes}")
    return (*rows, k.shape[-2])


def _check_broadcasts(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    try:
        np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name}: {array.shape} does not broadcast to {shape}") from None


def _axes(shape: tuple[int, ...]) -> list[_Ints]:
    """For each axis an array of `shape` that holds every cell's index along it, in no memory."""
    return [
        np.broadcast_to(
            np.arange(n).reshape([-1 if i == j else 1 for j in range(len(shape))]), shape
        )
        for i, n in enumerate(shape)
    ]


def _expanded(index: Any, ndim: int) -> tuple[list[Any] | None, tuple[None, ...]]:
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


def _is_integer(item: Any) -> bool:
    return isinstance(item, int | np.integer)


def _is_boolean(item: Any) -> bool:
    return isinstance(item, bool | np.bool_) or (_is_array(item) and np.asarray(item).dtype == bool)


def _is_array(item: Any) -> bool:
    return not (item is None or item is Ellipsis or isinstance(item, slice) or _is_integer(item))


def _brief(mask: Mask | NDArray[np.bool_]) -> str:
    return f"bool {mask.shape}" if isinstance(mask, np.ndarray) else repr(mask)
