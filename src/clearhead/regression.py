"""Attention as what it always was: a weighted mean of values, weighted by how near their keys are.

kernel_regression(queries, keys, values)    Nadaraya and Watson, 1964
SoftLookup(keys, values, vectors)           a dictionary that can be asked for what lies between
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import any_arrays, plain_array
from ._check import LSE_DTYPE, Problem, check_attention
from .ops import attention

__all__ = ["Match", "SoftLookup", "kernel_regression"]

Array = NDArray[Any]
Floats = NDArray[np.float64]
Kernel = str | Callable[[Array, Array], Array]

# NaN and inf are meant where they occur.
_ieee = np.errstate(invalid="ignore", over="ignore", divide="ignore")

# A callable kernel is asked for at most so many queries by so many keys at once: 4 MiB of float32.
_ROWS, _KEYS = 256, 4096


@any_arrays
@_ieee
def kernel_regression(
    queries: Array,
    keys: Array,
    values: Array,
    *,
    kernel: Kernel = "softmax",
    bandwidth: float | None = None,
) -> Array:
    """The kernel-weighted mean of the values: out_t = sum_s K(q_t, k_s) v_s / sum_s K(q_t, k_s).

    queries    (..., H, T, D)  or (T, D); dtypes as in `attention`
    keys       (..., G, S, D)  or (S, D)
    values     (..., G, S, E)  or (S, E)
    kernel     "softmax":  K = exp(q . k / bandwidth), which is attention with scale 1 / bandwidth
               "gaussian": K = exp(-|q - k|^2 / (2 bandwidth^2)), which is attention with scale
                           1 / bandwidth^2 and bias -|k|^2 / (2 bandwidth^2): |q|^2 cancels
               callable:   K(queries (t, D), keys (s, D)) -> (t, s), real, none negative; it is
                           asked for a block at a time, in float32 (float64 for float64)
    bandwidth  positive, 1 unless given; not with a callable, which has its own

    Returns (..., H, T, E), dtype of queries. Where K sums to 0 the result is 0; a key of weight
    exactly 0 has no effect. "gaussian" is computed in float64 about the mean key, because the
    squares cancel; far from every key the nearest one still counts.
    Memory O((T + S) (D + E)), never (T, S).
    Raises  TypeError, ValueError: the argument, what it is, what it must be.
    Source  Nadaraya 1964; Watson 1964.
    Spec    clearhead.reference.kernel_regression

    >>> import numpy as np, clearhead as ch
    >>> x = np.array([[0.0], [1.0], [2.0]])
    >>> ch.kernel_regression(np.array([[1.0]]), x, 10 * x, kernel="gaussian", bandwidth=0.5)
    array([[10.]])
    """
    problem = check_attention(queries, keys, values)
    if callable(kernel):
        if bandwidth is not None:
            raise TypeError("bandwidth: is given beside a callable kernel, which has its own")
        return _by_callable(problem, queries, keys, values, kernel)
    h = 1.0 if bandwidth is None else _positive("bandwidth", bandwidth)
    wanted = 'must be "softmax", "gaussian" or a callable'
    if not isinstance(kernel, str):
        raise TypeError(f"kernel: is {type(kernel).__name__}, {wanted}")
    if kernel == "softmax":
        return attention(queries, keys, values, scale=1 / h)
    if kernel == "gaussian":
        return _gaussian(problem, queries, keys, values, h)
    raise ValueError(f"kernel: is {kernel!r}, {wanted}")


def _gaussian(problem: Problem, q: Array, k: Array, v: Array, h: float) -> Array:
    dtype = q.dtype
    if not problem.S:
        return np.zeros(problem.out_shape, dtype)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    centre = k.mean(-2, keepdims=True)
    centre = np.where(np.isfinite(centre), centre, 0.0)
    k = (k - centre) / h
    q = (q - _per_query_head(centre, problem)) / h
    # At infinity K is 0 for every key.
    beyond = np.isinf(q).any(-1, keepdims=True) & ~np.isnan(q).any(-1, keepdims=True)
    q = np.where(beyond, 0.0, q)
    bias = -0.5 * _per_query_head((k * k).sum(-1, keepdims=True), problem).mT  # (..., H, 1, S)
    out = attention(q, k, v, bias=bias, scale=1.0)
    if beyond.any():
        out = np.where(beyond & ~np.isnan(out), 0.0, out)
    return out.astype(dtype, copy=False)


def _per_query_head(x: Array, problem: Problem) -> Array:
    """(..., G, n, m) as (..., H, n, m)."""
    return x if problem.flat or not problem.G else np.repeat(x, problem.H // problem.G, -3)


def _by_callable(
    problem: Problem, q: Array, k: Array, v: Array, kernel: Callable[[Array, Array], Array]
) -> Array:
    work = LSE_DTYPE[q.dtype]
    out = np.zeros((*problem.lead, problem.H, problem.T, problem.E), q.dtype)

    def heads(x: Array) -> Array:
        x = x[None] if problem.flat else x
        return np.broadcast_to(x, (*problem.lead, *x.shape[-3:]))

    q, k, v = heads(q), heads(k), heads(v)
    per_group = problem.H // (problem.G or 1)
    for head in product(*map(range, out.shape[:-2])):
        group = (*head[:-1], head[-1] // per_group)
        for start in range(0, problem.T, _ROWS):
            rows = q[head][start : start + _ROWS].astype(work)
            out[head][start : start + _ROWS] = _mean(kernel, rows, k[group], v[group])
    return out.reshape(problem.out_shape)


def _mean(kernel: Callable[[Array, Array], Array], q: Array, k: Array, v: Array) -> Floats:
    """sum(K v) / sum(K) for a few queries, over all keys, summed in float64."""
    total = np.zeros((len(q), 1))
    sums = np.zeros((len(q), v.shape[-1]))
    for start in range(0, len(k), _KEYS):
        part = slice(start, start + _KEYS)
        weights = _weights_of(kernel, q, k[part].astype(q.dtype))
        values = v[part].astype(np.float64)
        total += weights.sum(-1, keepdims=True)
        finite = np.isfinite(values)
        sums += weights @ np.where(finite, values, 0.0)
        for s in np.flatnonzero(~finite.all(-1)):  # by IEEE rules, but unseen at weight 0
            odd = np.where(finite[s], 0.0, values[s])
            sums += np.where(weights[:, s, None] == 0, 0.0, weights[:, s, None] * odd)
    return np.where(total == 0, 0.0, sums / np.where(total == 0, 1.0, total))


def _weights_of(kernel: Callable[[Array, Array], Array], q: Array, k: Array) -> Floats:
    given = np.asarray(kernel(q, k))
    if given.dtype.kind not in "fiub":
        raise TypeError(f"kernel: gave {given.dtype}, must give real numbers")
    if given.shape != (len(q), len(k)):
        raise ValueError(
            f"kernel: gave {given.shape} for {len(q)} queries and {len(k)} keys, "
            f"must give {(len(q), len(k))}"
        )
    if (given < 0).any():
        raise ValueError(f"kernel: gave {given.min()}, must give nothing negative")
    return given.astype(np.float64)


class Match(NamedTuple):
    """One entry of a `SoftLookup` and how much of the answer it is."""

    key: Hashable
    weight: float
    value: Any


class SoftLookup:
    """A dictionary that answers between its keys: a weighted mean of values instead of a miss.

    keys       S different hashable names
    values     S numbers or arrays of one shape, (S, ...)
    vectors    (S, D), where each key lies; needed to look up by a vector, not by name or weights
    kernel, bandwidth    as in `kernel_regression`

    lookup[key]            the value of exactly this key, as a dictionary; KeyError without it
    lookup.mix(weights)    the mean by given weights {key: weight}, divided by their sum
    lookup(vector)         the mean by nearness of the keys' vectors: attention with one query
    lookup.weights(vector) the weights of that mean, {key: weight}, which sum to 1 (or are all 0)
    lookup.top(vector, n)  the n strongest entries as Match(key, weight, value)

    >>> import clearhead as ch
    >>> colours = ch.SoftLookup(["red", "yellow"], [[255, 0, 0], [255, 255, 0]], [[0.0], [1.0]])
    >>> colours["red"]
    array([255.,   0.,   0.])
    >>> colours.mix({"red": 3, "yellow": 1})
    array([255.  ,  63.75,   0.  ])
    >>> colours([0.5], ).round(2)
    array([255.  , 158.73,   0.  ])
    """

    def __init__(
        self,
        keys: Sequence[Hashable],
        values: ArrayLike,
        vectors: ArrayLike | None = None,
        *,
        kernel: Kernel = "softmax",
        bandwidth: float | None = None,
    ) -> None:
        try:
            keys = list(keys)
            self._index = {key: i for i, key in enumerate(keys)}
        except TypeError as error:
            raise TypeError(f"keys: {error}, must be names that can be hashed") from None
        if len(self._index) != len(keys):
            twice = next(key for i, key in enumerate(keys) if self._index[key] != i)
            raise ValueError(f"keys: {twice!r} is there twice, must be different")
        if not self._index:
            raise ValueError("keys: there is none, must be one at least")
        self._values = _entries("values", values, len(keys))
        self._vectors = None if vectors is None else _entries("vectors", vectors, len(keys))
        if self._vectors is not None and (self._vectors.ndim != 2 or not self._vectors.shape[1]):
            raise ValueError(f"vectors: shape is {self._vectors.shape}, must be (S, D), D >= 1")
        self._kernel, self._bandwidth = kernel, bandwidth
        # A wrong kernel or bandwidth is named now, not at the first question.
        kernel_regression(np.zeros((0, 1)), np.zeros((0, 1)), np.zeros((0, 1)), **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"kernel": self._kernel, "bandwidth": self._bandwidth}

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._index)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._index

    def __repr__(self) -> str:
        shape = "" if self._vectors is None else f", vectors {self._vectors.shape}"
        return f"SoftLookup({len(self)} keys, values {self._values.shape}{shape})"

    def __getitem__(self, key: Hashable) -> Any:
        """The value of exactly this key."""
        return _value(self._values[self._index[key]])

    def mix(self, weights: Mapping[Any, float]) -> Any:
        """The mean of the values by these weights, {key: weight}; keys left out weigh 0."""
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights: {type(weights).__name__}, must be a mapping {{key: weight}}")
        share = np.zeros(len(self))
        for key, weight in weights.items():
            if key not in self._index:
                raise KeyError(key)
            real = isinstance(weight, int | float | np.integer | np.floating)
            if not (real and 0 <= weight < math.inf):
                raise ValueError(
                    f"weights: {key!r} has {weight!r}, must be a number of at least 0, finite"
                )
            share[self._index[key]] = weight
        total = share.sum()
        if total == 0:
            raise ValueError("weights: sum to 0, must have one above 0")
        seen = share > 0  # a value of weight 0 has no effect, NaN included
        return _value(np.tensordot(share[seen] / total, self._values[seen], 1))

    def __call__(self, vector: ArrayLike) -> Any:
        """The mean of the values by nearness of their keys to this vector (D,)."""
        flat = self._values.reshape(len(self), -1)
        if not flat.shape[1]:
            return self._values[0]  # values of no numbers
        return _value(self._ask(vector, flat).reshape(self._values.shape[1:]))

    def weights(self, vector: ArrayLike) -> dict[Any, float]:
        """How much of the answer each key is: {key: weight}, in the order of the keys."""
        share = self._ask(vector, np.eye(len(self)))
        return dict(zip(self._index, share.tolist(), strict=True))

    def top(self, vector: ArrayLike, n: int = 3) -> list[Match]:
        """The n strongest entries, strongest first; of equals the earlier one first."""
        if isinstance(n, bool) or not isinstance(n, int | np.integer):
            raise TypeError(f"n: is {n!r}, must be a whole number")
        if n < 1:
            raise ValueError(f"n: is {n}, must be at least 1")
        share = self.weights(vector)
        strongest = sorted(share, key=lambda key: -share[key])[: int(n)]
        return [Match(key, share[key], self[key]) for key in strongest]

    def _ask(self, vector: ArrayLike, values: Floats) -> Floats:
        if self._vectors is None:
            raise ValueError("vectors: there are none, must be given to look up by a vector")
        query = plain_array("vector", vector)
        if query.dtype.kind not in "fiub":
            raise TypeError(f"vector: is {query.dtype}, must be real numbers")
        if query.shape != self._vectors.shape[1:]:
            raise ValueError(f"vector: shape is {query.shape}, must be {self._vectors.shape[1:]}")
        queries = query[None].astype(np.float64)
        answer: Floats = kernel_regression(queries, self._vectors, values, **self._options)
        return np.asarray(answer[0])


def _entries(name: str, given: ArrayLike, count: int) -> Floats:
    array = plain_array(name, given)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name}: are {array.dtype}, must be real numbers")
    if array.ndim == 0 or len(array) != count:
        raise ValueError(f"{name}: shape is {array.shape}, must be ({count}, ...), one per key")
    return np.array(array, np.float64)


def _value(x: Floats) -> Any:
    """A number where values are numbers, else an array."""
    return float(x) if x.ndim == 0 else x


def _positive(name: str, x: Any) -> float:
    if isinstance(x, bool) or not isinstance(x, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: is {x!r}, must be a number")
    if not 1e-15 <= x <= 1e15:
        raise ValueError(f"{name}: is {x}, must be positive, from 1e-15 to 1e15")
    return float(x)
