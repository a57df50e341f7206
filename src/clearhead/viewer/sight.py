"""What may be read at all: masks, and what a bias of -inf hides, as a map of ones."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..maps import AttentionMap
from ..masks import Mask, allowed, causal
from ..rules import Band

Bools = NDArray[np.bool_]


def sight(maps: Sequence[AttentionMap]) -> AttentionMap | None:
    """A map that is 1 where any of these may read and 0 where all of them may not.

    None where each may read everything. Queries and keys are broadcast zeros: no memory.
    """
    masks = list(dict.fromkeys(_rule(amap) for amap in maps))
    whole = masks[0]
    for mask in masks[1:]:
        whole = None if whole is None or mask is None else whole | mask
    if whole is None:
        return None
    T, S = maps[0].shape[-2:]
    zero = np.float32(0)
    return AttentionMap(
        np.broadcast_to(zero, (1, T, 1)),
        np.broadcast_to(zero, (1, S, 1)),
        np.broadcast_to(zero, (1, T)),
        mask=whole,
        scale=1.0,
    )


def sees(view: AttentionMap | None, part: tuple[int, int, int, int]) -> bool | None:
    """Whether every row of a part sees every key of it, or none does; None: it differs."""
    if view is None:
        return True
    t0, t1, s0, s1 = part
    if t0 >= t1 or s0 >= s1:
        return False
    runs = cast(Mask, view.mask).intervals(range(t0, t1), *view.shape[-2:])
    met = [(begin, end, every) for begin, end, every in runs if begin < s1 and end > s0]
    if not met:
        return False
    whole = all(every for _, _, every in met)
    covered = sum(min(end, s1) - max(begin, s0) for begin, end, _ in met)
    return True if whole and covered == s1 - s0 else None


def _rule(amap: AttentionMap) -> Mask | None:
    """The mask of a head with what a bias of -inf hides; None: it sees all."""
    rule: Any = amap.mask
    if isinstance(rule, np.ndarray):
        rule = allowed(rule)
    bias: Any = amap.bias
    if isinstance(bias, np.ndarray) and np.isneginf(bias).any():
        rule = both(rule, allowed(~np.isneginf(bias)))
    elif getattr(bias, "values", None) is not None and np.isneginf(bias.values).any():
        rule = both(rule, _at_distances(~np.isneginf(bias.values.reshape(-1)), bias.first))
    return cast("Mask | None", rule)


def _at_distances(seen: Bools, first: int) -> Mask:
    """The keys at distances first + i with seen[i]; the ends go on for ever."""
    edges = np.flatnonzero(np.diff(np.pad(seen.astype(np.int8), 1)))
    bands: list[Mask] = []
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        nearest = None if begin == 0 else -(first + begin)
        farthest = None if end == len(seen) else -(first + end - 1)
        bands.append(Band(f"distances({first + begin}, {first + end})", farthest, nearest, None))
    whole = bands[0] if bands else ~causal() & causal()
    for band in bands[1:]:
        whole = whole | band
    return whole


def both(mask: Any, other: Mask) -> Mask:
    if mask is None:
        return other
    return (allowed(mask) if isinstance(mask, np.ndarray) else cast(Mask, mask)) & other
