"""Attention sinks: tokens that many rows give much of their mass, whatever they are.

    share_s = sum over rows t that see s of A[t, s] / how many these are
    even_s  = the mean over the same rows of 1 / (how many keys the row sees)

A token is a sink where share_s >= 5 % and share_s >= 4 even_s, and at least 8 rows see it, or half
of them all: so a newline is found as well as the first token, and the last token of a causal map,
which only itself reads, is not. Of long texts a sample of rows is asked, in stretches laid evenly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..maps import AttentionMap
from ..observation import add_received, part_lse
from .sight import sight

Floats = NDArray[np.float64]

LEAST_SHARE = 0.05
TIMES_EVEN = 4.0
LEAST_ROWS = 8
_STRETCH = 64  # rows
_PRODUCTS = 1 << 33  # of a sample, some 200 ms
RULE = (
    f"at least {LEAST_SHARE:.0%} of the mass of the rows that see it, "
    f"and {TIMES_EVEN:g} times what even reading would give"
)


class Sinks(NamedTuple):
    """keys strongest first, the share of each, and of how many rows they were found."""

    keys: list[int]
    shares: list[float]
    rows_asked: int


def find(maps: Sequence[AttentionMap]) -> Sinks:
    """The sinks of the mean over some heads (1, T, S)."""
    T, S = maps[0].shape[-2:]
    stretches = _sample(T, len(maps) * S * maps[0].q.shape[-1])
    received, seen, even = np.zeros(S), np.zeros(S), np.zeros(S)
    view = sight(maps)
    for begin, end in stretches:
        part = begin, end, 0, S
        for amap in maps:
            add_received(amap._call(), part, received)
        if view is None:
            seen += end - begin
            even += (end - begin) / S
            continue
        add_received(view._call(), part, seen)
        # Ones, each row divided by its sum: e^(0 - log n) of a row that sees n keys.
        lse = np.zeros((1, T))
        part_lse(view._call(), part, lse[0])
        add_received(
            AttentionMap(view.q, view.k, lse, mask=view.mask, scale=1.0)._call(), part, even
        )
    share = received / (len(maps) * np.maximum(seen, 1))
    asked = sum(end - begin for begin, end in stretches)
    enough = seen >= min(LEAST_ROWS, asked / 2)
    found = enough & (share >= LEAST_SHARE) & (share >= TIMES_EVEN * even / np.maximum(seen, 1))
    order = np.flatnonzero(found)[np.argsort(-share[found], kind="stable")]
    return Sinks(order.tolist(), share[order].tolist(), asked)


def _sample(T: int, products_of_row: int) -> list[tuple[int, int]]:
    """All rows, or as many as the time allows, in stretches laid evenly."""
    room = max(4 * _STRETCH, _PRODUCTS // max(1, products_of_row))
    step = max(1, -(-T // room)) * _STRETCH
    return [(at, min(T, at + _STRETCH)) for at in range(0, T, step)]
