"""What is added to a score by a rule of position, without a T x S array.

The distance of key s from query t is (t + S - T) - s: positive towards the past.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import plain_array

__all__ = ["Bias", "alibi", "relative_bias"]

Floats = NDArray[np.float64]


class Bias:
    """A rule that gives each score its bias; `alibi` and `relative_bias` make one."""

    def to_array(self, T: int, S: int) -> Floats:
        """The bias as an array, (H, T, S), or (T, S) where the rule is one for all heads."""
        distance = np.arange(T)[:, None] + S - T - np.arange(S)[None, :]
        return self.at(distance)

    def at(self, distance: NDArray[np.int64]) -> Floats:
        """The bias at these distances, any shape (...): (H, ...) or (...)."""
        raise NotImplementedError

    def lower(self) -> tuple[str, Floats, int]:
        """What native/problem.hpp needs of it: (kind, array, reach)."""
        raise NotImplementedError

    @property
    def heads(self) -> int | None:
        """How many heads it has numbers for; None: one rule for all."""
        raise NotImplementedError


class _Alibi(Bias):
    def __init__(self, slopes: Floats) -> None:
        self.slopes = slopes

    def __repr__(self) -> str:
        return f"alibi({np.array2string(self.slopes, threshold=8, separator=', ')})"

    def at(self, distance: NDArray[np.int64]) -> Floats:
        return np.asarray(-self.slopes[..., None, None] * np.abs(distance))

    def lower(self) -> tuple[str, Floats, int]:
        return "alibi", self.slopes, 0

    @property
    def heads(self) -> int | None:
        return self.slopes.shape[0] if self.slopes.ndim else None


class _Relative(Bias):
    def __init__(self, values: Floats, first: int) -> None:
        self.values, self.first = values, first

    def __repr__(self) -> str:
        return f"relative_bias({self.values.shape} array, first={self.first})"

    def at(self, distance: NDArray[np.int64]) -> Floats:
        entry = np.clip(distance - self.first, 0, self.values.shape[-1] - 1)
        return np.asarray(self.values[..., entry])

    def lower(self) -> tuple[str, Floats, int]:
        return "distance", self.values, -self.first

    @property
    def heads(self) -> int | None:
        return self.values.shape[0] if self.values.ndim == 2 else None


def alibi(slopes: ArrayLike) -> Bias:
    """-slope * |distance|: attention with linear biases (Press et al. 2022). No array is built.

    slopes    one number, or one for each query head (H,)

    >>> alibi([0.5]).to_array(2, 2)
    array([[[-0. , -0.5],
            [-0.5, -0. ]]])
    """
    array = _floats("slopes", slopes)
    if not np.isfinite(array).all():
        raise ValueError("slopes: has NaN or inf, must be finite")
    if array.ndim > 1:
        raise ValueError(f"slopes: shape is {array.shape}, must be () or (H,)")
    return _Alibi(array)


def relative_bias(values: ArrayLike, first: int = 0) -> Bias:
    """values[h, distance - first], the ends repeated beyond: T5's bias as a function of distance.

    values    (R,) for all heads or (H, R)
    first     the distance of values[..., 0]; negative where keys behind the query count too

    >>> relative_bias([0.0, -1.0, -2.0]).to_array(3, 3)
    array([[ 0.,  0.,  0.],
           [-1.,  0.,  0.],
           [-2., -1.,  0.]])
    """
    array = _floats("values", values)
    if array.ndim not in (1, 2) or array.shape[-1] == 0:
        raise ValueError(f"values: shape is {array.shape}, must be (R,) or (H, R) with R >= 1")
    if isinstance(first, bool) or not isinstance(first, (int, np.integer)):
        raise TypeError(f"first: is {first!r}, must be a whole number")
    if abs(int(first)) >= 2**61:
        raise ValueError(f"first: is {first}, must be below 2**61")
    return _Relative(array, int(first))


def _floats(name: str, value: Any) -> Floats:
    array = plain_array(name, value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name}: is {array.dtype}, must be real numbers")
    return np.array(array, dtype=np.float64)
