"""What a model added to its scores, kept as numbers by distance where the distance says it all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..biases import Bias, relative_bias

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Added:
    """The bias of one call: by distance, or every number of it.

    values  (H, T + S - 1) from distance `first` (query - key) upwards, or (H, T, S) in full
    first   None: values are (H, T, S), for keys from position `start` on
    """

    values: Floats
    first: int | None
    start: int

    def rule(self, T: int, S: int, place: int) -> Bias | Floats:
        """For the call itself: T queries from position `place` on, S keys from `start` on."""
        if self.first is None:
            return self.values
        # A bias counts distance from the last key backwards: query t stands at t + S - T.
        return relative_bias(self.values, self.first - (place - self.start) + S - T)


def added(bias: Floats, place: int, start: int) -> Added | None:
    """The bias (H, T, S) of queries from `place` on and keys from `start` on; None if it is 0."""
    if not bias.any():
        return None
    if (bias[:, 1:, 1:] == bias[:, :-1, :-1]).all():
        values = np.concatenate([bias[:, 0, ::-1], bias[:, 1:, 0]], axis=1)
        return Added(values.copy(), place - start - (bias.shape[2] - 1), start)
    return Added(bias.copy(), None, start)


def joined(parts: Sequence[Added | None], counts: Sequence[int], S: int) -> Bias | Floats | None:
    """The bias of all calls over S keys; counts are their queries, the last of them at S - 1."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    T = sum(counts)
    if len(known) == len(parts):
        by_distance = _by_distance(known)
        if by_distance is not None:
            return by_distance
    H = known[0].values.shape[0]
    whole = np.zeros((H, T, S), np.float32)
    at = 0
    for part, count in zip(parts, counts, strict=True):
        if part is not None:
            keys = np.arange(part.start, S)
            if part.first is None:
                width = min(len(keys), part.values.shape[-1])
                whole[:, at : at + count, part.start : part.start + width] = part.values[
                    ..., :width
                ]
            else:
                place = np.arange(at, at + count) + S - T
                entry = np.clip(place[:, None] - keys - part.first, 0, part.values.shape[1] - 1)
                whole[:, at : at + count, part.start :] = part.values[:, entry]
        at += count
    return whole


def _by_distance(parts: Sequence[Added]) -> Bias | None:
    """One rule for all calls, if they are rules and agree."""
    if any(part.first is None for part in parts):
        return None
    firsts = [int(part.first or 0) for part in parts]
    low = min(firsts)
    high = max(f + part.values.shape[1] for f, part in zip(firsts, parts, strict=True))
    values: NDArray[Any] = np.full((parts[0].values.shape[0], high - low), np.nan, np.float32)
    for first, part in zip(firsts, parts, strict=True):
        own = values[:, first - low : first - low + part.values.shape[1]]
        if not (np.isnan(own) | (own == part.values)).all():
            return None
        own[...] = part.values
    return None if np.isnan(values).any() else relative_bias(values, low)
