"""Linear attention: weights f(q) f(k)^T instead of exp(q k^T), so that sums over keys factor.

    out_t = f(q_t) S_t / (f(q_t) z_t)      S_t = sum_s f(k_s)^T v_s      z_t = sum_s f(k_s)

over the keys s that t sees. (S, z) is a state of F x (E + 1) numbers: time and memory are linear in
T and S. Both passes are one product, `_sum_over_seen`, with its arguments in different places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._arrays import any_arrays
from ._check import LSE_DTYPE, Problem, check_attention

__all__ = ["LinearGradients", "linear_attention", "linear_attention_grad"]

Array = NDArray[Any]
Map = Callable[[Array], Array]
Pullback = Callable[[Array, Array], Array]
FeatureMap = str | Map | tuple[Map, Pullback]

# NaN and inf are meant where they occur.
_ieee = np.errstate(invalid="ignore", over="ignore")

# Rows at once. The triangle of a chunk costs C (F + E) a row, the state F E: about even at 64 x 64.
_CHUNK = 128
# Keys that go into the state at once: enough for a full product, few enough to stay in cache.
_ABSORB = 1024


class LinearGradients(NamedTuple):
    """The gradients of sum(dout * out), each of the shape and dtype of its argument."""

    q: Array
    k: Array
    v: Array


@any_arrays
@_ieee
def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    feature_map: FeatureMap = "elu1",
    causal: bool = False,
) -> Array:
    """Linear attention: out_t = sum_s f(q_t).f(k_s) v_s / sum_s f(q_t).f(k_s).

    q, k, v      as in `attention`: (..., H, T, D), (..., G, S, D), (..., G, S, E), or rank 2
    feature_map  "elu1": elu(x) + 1; "relu": max(x, 0); or a callable (..., n, D) -> (..., n, F),
                 that is given float32 (float64 for float64); or a pair (callable, its pullback),
                 of which `linear_attention_grad` needs the second
    causal       query t sees keys s <= t + S - T, as in `clearhead.causal()`

    Returns (..., H, T, E), dtype of q; arithmetic in float32 (float64 for float64), the state in
    float64. No scale. A row whose weights sum to 0, or that sees no key, gives 0; NaN in a query or
    a visible key gives NaN in the rows that see it; inf or NaN in a visible value gives inf or NaN.
    Time O((T + S) (F E + C (F + E))), C = 128; memory O(T + S), never (T, S).
    Raises  TypeError, ValueError: the argument, what it is, what it must be.
    Source  Katharopoulos et al. 2020, eq. 5 and 9-12.
    Spec    clearhead.reference.linear_attention

    >>> import numpy as np, clearhead as ch
    >>> q = k = v = np.ones((2, 3))
    >>> ch.linear_attention(q, k, v, causal=True)
    array([[1., 1., 1.],
           [1., 1., 1.]])
    """
    problem = check_attention(q, k, v)
    phi, _ = _feature_map(feature_map)
    offset = _offset(problem, causal)
    out, _, _, _, _ = _forward(problem, q, k, v, phi, offset)
    return out.reshape(problem.out_shape).astype(q.dtype, copy=False)


@any_arrays
@_ieee
def linear_attention_grad(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    *,
    feature_map: FeatureMap = "elu1",
    causal: bool = False,
) -> LinearGradients:
    """The gradients of sum(dout * linear_attention(q, k, v)), in linear time and memory.

    dout         (..., H, T, E), dtype of q
    feature_map  "elu1", "relu", or a pair (f, pullback): pullback(x, df) -> dx, where df
                 (..., n, F) is the gradient at f(x); of a callable alone nothing can be known

    Returns LinearGradients(q, k, v). A row that gives 0 because its weights sum to 0 passes
    nothing back. At x = 0 relu has gradient 0.
    Raises  TypeError, ValueError: the argument, what it is, what it must be.
    """
    problem = check_attention(q, k, v)
    _check_dout(dout, problem, q)
    phi, pullback = _feature_map(feature_map)
    if pullback is None:
        raise TypeError(
            "feature_map: a callable without its pullback, must be a pair (f, pullback), "
            'pullback(x, df) -> dx, or "elu1" or "relu"'
        )
    offset = _offset(problem, causal)
    out, total, fq, fk, v1 = _forward(problem, q, k, v, phi, offset)

    # out = n / z with (n, z) = a v1: the gradient at (n, z)
    dout = _grouped(dout, problem).astype(out.dtype, copy=False)
    delta = (dout * out).sum(-1, keepdims=True)
    dn = np.where(total == 0, 0, np.concatenate([dout, -delta], -1) / np.where(total, total, 1))
    # (n, z)_t = sum_s (fq_t . fk_s) v1_s over seen s; read backwards, t sees s as s is seen by t
    dfq = _sum_over_seen(dn, v1, fk, offset)
    back = problem.T - problem.S + offset
    dfk = _flip(_sum_over_seen(_flip(v1), _flip(dn), _flip(fq), back))
    dv = _flip(_sum_over_seen(_flip(fk), _flip(fq), _flip(dn[..., :-1]), back))

    x_q, x_k = (_work(x, problem) for x in (q, k))
    return LinearGradients(
        q=_like(pullback(x_q, _sum_to(dfq, (*x_q.shape[:-1], dfq.shape[-1]))), q),
        k=_like(pullback(x_k, _sum_to(dfk, (*x_k.shape[:-1], dfk.shape[-1]))), k),
        v=_like(_sum_to(dv, _grouped(v, problem).shape), v),
    )


def _forward(
    problem: Problem, q: Array, k: Array, v: Array, phi: Map, offset: int
) -> tuple[Array, Array, Array, Array, Array]:
    """out (..., G, R, T, E), the sums of weights (..., G, R, T, 1), f(q), f(k), and v beside 1."""
    fq, fk = (_features(phi, _work(x, problem), x.shape) for x in (q, k))
    if fq.shape[-1] != fk.shape[-1]:
        raise ValueError(
            f"feature_map: gave {fq.shape[-1]} features for q and {fk.shape[-1]} for k, "
            "must give as many"
        )
    v = _work(v, problem)
    v1 = np.concatenate([v, np.ones((*v.shape[:-1], 1), v.dtype)], -1)
    sums = _sum_over_seen(fq, fk, v1, offset)
    total = sums[..., -1:]
    out = np.where(total == 0, 0, sums[..., :-1] / np.where(total == 0, 1, total))
    return out, total, fq, fk, v1


def _sum_over_seen(a: Array, b: Array, c: Array, offset: int) -> Array:
    """out_t = sum over s <= t + offset of (a_t . b_s) c_s, (..., T, E).

    a (..., T, F), b (..., S, F), c (..., S, E); leading axes broadcast.
    Keys that a whole chunk of rows sees are in the state, the rest is a triangle.
    """
    T, S = a.shape[-2], b.shape[-2]
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2])
    out = np.zeros((*lead, T, c.shape[-1]), a.dtype)
    # In float64: over a million keys a float32 sum would lose three digits.
    state = np.zeros((*np.broadcast_shapes(b.shape[:-2], c.shape[:-2]), b.shape[-1], c.shape[-1]))
    absorbed = 0
    for start in range(max(0, -offset) if S else T, T, _CHUNK):
        stop = min(start + _CHUNK, T)
        whole, last = min(start + offset + 1, S), min(stop + offset, S)
        for first in range(absorbed, whole, _ABSORB):
            part = slice(first, min(first + _ABSORB, whole))
            state += b[..., part, :].mT @ c[..., part, :]
        absorbed = whole
        rows = a[..., start:stop, :]
        out[..., start:stop, :] = rows @ state.astype(a.dtype)
        if last > whole:
            weights = rows @ b[..., whole:last, :].mT
            seen = np.tri(stop - start, last - whole, start + offset - whole, dtype=bool)
            out[..., start:stop, :] += _triangle(weights, seen, c[..., whole:last, :])
    return out


def _triangle(weights: Array, seen: NDArray[np.bool_], c: Array) -> Array:
    """weights c over the seen keys, which come first in each row; what is hidden has no effect."""
    if np.isfinite(c).all():
        product: Array = np.where(seen, weights, 0) @ c
        return product
    counts = seen.sum(-1)
    rows = [weights[..., t : t + 1, :n] @ c[..., :n, :] for t, n in enumerate(counts)]
    return np.concatenate(rows, -2)


# Feature maps and their pullbacks.


def _elu1(x: Array) -> Array:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def _elu1_pullback(x: Array, df: Array) -> Array:
    return np.where(x > 0, df, df * np.exp(np.minimum(x, 0)))


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _relu_pullback(x: Array, df: Array) -> Array:
    return np.where(x > 0, df, np.where(np.isnan(x), x, 0))


_FEATURE_MAPS: dict[str, tuple[Map, Pullback]] = {
    "elu1": (_elu1, _elu1_pullback),
    "relu": (_relu, _relu_pullback),
}


def _feature_map(given: Any) -> tuple[Map, Pullback | None]:
    wanted = 'must be "elu1", "relu", a callable, or a pair (callable, pullback)'
    if isinstance(given, str):
        if given not in _FEATURE_MAPS:
            raise ValueError(f"feature_map: is {given!r}, {wanted}")
        return _FEATURE_MAPS[given]
    if callable(given):
        return given, None
    if isinstance(given, tuple) and len(given) == 2 and all(callable(f) for f in given):
        return given
    raise TypeError(f"feature_map: is {type(given).__name__}, {wanted}")


def _features(phi: Map, x: Array, shape: tuple[int, ...]) -> Array:
    f = phi(x)
    if not isinstance(f, np.ndarray) or f.dtype.kind != "f":
        kind = f.dtype if isinstance(f, np.ndarray) else type(f).__name__
        raise TypeError(f"feature_map: gave {kind}, must give an array of real floats")
    if f.shape[:-1] != x.shape[:-1] or f.ndim != x.ndim or not f.shape[-1]:
        raise ValueError(
            f"feature_map: gave {f.shape} for {x.shape}, must give (..., n, F) for (..., n, D) "
            f"with F >= 1; argument {shape}"
        )
    return f.astype(x.dtype, copy=False)


# Shapes. Inside, query heads stand as (G, R), R = H // G, and keys as (G, 1).


def _offset(problem: Problem, causal: Any) -> int:
    if not isinstance(causal, bool | np.bool_):
        raise TypeError(f"causal: is {causal!r}, must be True or False")
    return problem.S - problem.T if causal else problem.S


def _grouped(x: Array, problem: Problem) -> Array:
    """(..., H, T, n) as (..., G, R, T, n); (..., G, S, n) as (..., G, 1, S, n)."""
    heads = 1 if problem.flat else x.shape[-3]
    groups = problem.G or 1  # no heads at all: the axis of size 0 is R
    return x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:])


def _work(x: Array, problem: Problem) -> Array:
    return _grouped(x, problem).astype(LSE_DTYPE[x.dtype], copy=False)


def _flip(x: Array) -> Array:
    return x[..., ::-1, :]


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """x summed over the axes along which an array of this shape was broadcast."""
    full = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(i for i, (n, m) in enumerate(zip(full, x.shape, strict=True)) if n == 1 != m)
    total: Array = x.sum(axes, keepdims=True)
    return total.reshape(shape)


def _like(x: Array, given: Array) -> Array:
    return x.reshape(given.shape).astype(given.dtype, copy=False)


def _check_dout(dout: Any, problem: Problem, q: Array) -> None:
    if not isinstance(dout, np.ndarray):
        raise TypeError(f"dout: {type(dout).__name__}, must be an array")
    if dout.dtype != q.dtype:
        raise TypeError(f"dout: dtype is {dout.dtype}, must be {q.dtype} as q")
    if dout.shape != problem.out_shape:
        raise ValueError(f"dout: shape is {dout.shape}, must be {problem.out_shape} as the result")
