"""How much of each row of a map falls on a set of keys, in linear memory.

With lse[t] of the whole row and lse_M[t] the same over the keys that a further mask M leaves,

    sum over s in M of A[t, s] = exp(lse_M[t] - lse[t])

So the mass on any set of keys that a mask describes is one forward pass, whose cost follows the
mask; and so is A @ v over that set: the attention output, scaled by its mass.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..maps import AttentionMap
from ..masks import Mask, allowed
from ..ops import attention_with_lse

Floats = NDArray[Any]


def product(amap: AttentionMap, v: Floats, among: Mask | None = None) -> tuple[Floats, Floats]:
    """(A @ v, mass): sums over the keys that `among` allows, all if None; mass as `mass` gives it.

    v (S, E), the same for every head; returns (H, T, E) and (H, T) in the dtype of the map. Queries
    and keys of 16 bits are widened first: bfloat16 has no position 257.
    """
    q, k = (x.astype(amap.dtype, copy=False) for x in (amap.q, amap.k))
    bias = amap.bias.astype(amap.dtype) if isinstance(amap.bias, np.ndarray) else amap.bias
    values = np.broadcast_to(v.astype(amap.dtype, copy=False), (*k.shape[:-1], v.shape[-1]))
    out, lse = attention_with_lse(
        q,
        k,
        values,
        mask=_both(amap.mask, among),
        bias=bias,
        scale=amap.scale,
        softcap=amap.softcap,
    )
    with np.errstate(invalid="ignore"):  # -inf - -inf, a row that sees nothing
        part = np.exp(lse - amap.lse)
    part[np.isneginf(lse)] = 0
    return out.astype(amap.dtype, copy=False) * part[..., None], part


def mass(amap: AttentionMap, among: Mask | None = None) -> tuple[Floats, NDArray[np.bool_]]:
    """(mass, able), both (H, T): of each row, the weight on the keys that `among` allows; and
    whether it sees such a key at all.

    `among=None` gives the sums of the rows: 1, less with a sink, 0 for a row that sees nothing.
    """
    k = amap.k
    _, lse = attention_with_lse(
        amap.q,
        k,
        np.zeros((*k.shape[:-1], 1), k.dtype),
        mask=_both(amap.mask, among),
        bias=amap.bias,
        scale=amap.scale,
        softcap=amap.softcap,
    )
    able = ~np.isneginf(lse)
    with np.errstate(invalid="ignore"):
        part = np.exp(lse - amap.lse)
    part[~able] = 0
    return part, able


def _both(mask: Mask | NDArray[np.bool_] | None, among: Mask | None) -> Mask | None:
    rule = allowed(mask) if isinstance(mask, np.ndarray) else mask
    if rule is None or among is None:
        return rule if among is None else among
    return rule & among
