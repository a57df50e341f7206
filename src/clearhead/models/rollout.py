"""Attention rollout (Abnar and Zuidema 2020): what a position is made of, through all layers.

Of each layer the heads are averaged, the residual stream is counted as the identity, and rows are
scaled to 1:

    B_l = (mean over heads of A_l + I) / (1 + row sum),     R = B_L ... B_2 B_1

Row t of R says how much of each input token is in the last layer's position t; column s, how much
of token s is in each position. One row is a chain of x @ A, one column a chain of A @ x: linear
memory at any length, nothing (T, T).

Rollout takes values for equal and ignores the feed-forward layers: it says where information could
have come from, not what it was used for.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..maps import AttentionMap
from .mass import mass, product

Floats = NDArray[np.float64]


def rollout_row(maps: Sequence[AttentionMap], x: Floats) -> Floats:
    """x R (T,), for x (T,) over the positions of the last layer: maps from the first layer on."""
    for amap in reversed(maps):
        total = _row_sums(amap)
        x = x / (1 + total)
        x = x + _columns(amap, x)
    return x


def rollout_column(maps: Sequence[AttentionMap], x: Floats) -> Floats:
    """R x (T,), for x (T,) over the tokens: maps from the first layer on."""
    for amap in maps:
        out, part = product(amap, x[:, None])
        x = (out[..., 0].mean(0, dtype=np.float64) + x) / (1 + part.mean(0, dtype=np.float64))
    return x


def _row_sums(amap: AttentionMap) -> Floats:
    """The row sums of the mean over heads, (T,): 1 but for sinks and padding."""
    return np.asarray(mass(amap)[0].mean(0, dtype=np.float64))


def _columns(amap: AttentionMap, x: Floats) -> Floats:
    """x @ mean over heads of A, (S,)."""
    rows: Any = np.ascontiguousarray(np.broadcast_to(x, (amap.shape[0], 1, len(x))), amap.dtype)
    return np.asarray((rows @ amap)[:, 0].mean(0, dtype=np.float64))
