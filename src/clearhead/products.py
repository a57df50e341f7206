"""The attention matrix A times something, without A: `amap @ v` and `x @ amap`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .observation import Map, weighted_columns
from .ops import attention

Array = NDArray[Any]


def times_values(amap: Map, v: Array) -> Array:
    """A @ v: attention. See `AttentionMap.__matmul__`."""
    S = amap.shape[-1]
    if v.ndim == 0 or v.shape[max(v.ndim - 2, 0)] != S:
        raise ValueError(f"amap @ v: v is {v.shape}, must be (S,) or (..., S, E) with S = {S}")
    if v.ndim == 1:
        return times_values(amap, v[:, None])[..., 0]
    dtype = _dtype("amap @ v", amap, v)
    q, k, v, bias, sink = (
        x.astype(dtype, copy=False) if isinstance(x, np.ndarray) else x
        for x in (amap.q, amap.k, v, amap.bias, amap.sink)
    )
    options = {
        "mask": amap.mask,
        "bias": bias,
        "scale": amap.scale,
        "softcap": amap.softcap,
        "sink": sink,
    }
    if amap.ndim == 2:
        if v.ndim == 2:
            return attention(q, k, v, **options)
        return attention(q[None], k[None], v[..., None, :, :], **options)[..., 0, :, :]
    H, G = q.shape[-3], k.shape[-3]
    heads = 1 if v.ndim == 2 else v.shape[-3]
    if heads not in (1, G, H):
        counts = f"{G} as k has" if G == H else f"{G} as k has, or {H}"
        raise ValueError(f"amap @ v: v is {v.shape}, must have 1 head, {counts}")
    if heads == 1:
        v = np.broadcast_to(v, (*v.shape[:-3], G, *v.shape[-2:]))
    elif heads == H:
        k = np.repeat(k, H // G, axis=-3) if G != H else k
    return attention(q, k, v, **options)


def times_weights(amap: Map, x: Array) -> Array:
    """x @ A: weighted sums of the rows. See `AttentionMap.__rmatmul__`."""
    T = amap.shape[-2]
    if x.ndim == 0 or x.shape[-1] != T:
        raise ValueError(f"x @ amap: x is {x.shape}, must be (T,) or (..., n, T) with T = {T}")
    dtype = _dtype("x @ amap", amap, x)
    given, S = x, amap.shape[-1]
    x = x.astype(amap.dtype, copy=False)
    if x.ndim == 1:
        x = x[None]
    if amap.ndim == 2:  # one matrix: any further axes of x are more vectors
        rows = x.shape[:-1]
        out = weighted_columns(amap._call(), x.reshape(-1, T)).reshape(*rows, S)
    else:
        outer = amap.shape[:-2]
        try:
            x = np.broadcast_to(x, (*outer, *x.shape[-2:]))
        except ValueError:
            raise ValueError(
                f"x @ amap: x is {given.shape}, must be broadcastable to (..., H, n, T) = "
                f"{(*outer, 'n', T)}".replace("'", "")
            ) from None
        out = weighted_columns(amap._call(), x).reshape(*outer, x.shape[-2], S)
    out = out.astype(dtype, copy=False)
    return out[..., 0, :] if given.ndim == 1 else out


def _dtype(what: str, amap: Map, x: Array) -> np.dtype[Any]:
    try:
        dtype = np.result_type(amap.dtype, x.dtype)
    except TypeError:
        dtype = x.dtype
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"{what}: dtype is {x.dtype}, must be real numbers")
    return dtype
