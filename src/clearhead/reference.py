"""What attention is: the executable specification, in NumPy float64. Everything else must agree.

    out = softmax(scale * q k^T) v        over the keys that each query may attend to

    B  batch: any leading axes, broadcast as in NumPy          T  queries    D  query and key size
    H  query heads    G  key/value heads, H % G == 0           S  keys       E  value size

    q (..., H, T, D)   k (..., G, S, D)   v (..., G, S, E)   out (..., H, T, E)   lse (..., H, T)
    mask     bool, broadcastable to (..., H, T, S); True = may attend
    bias     float, the same; added to the scores
    scale    number, D ** -0.5 unless given
    softcap  number c: scores become c tanh(s / c)
    sink     float, broadcastable to (..., H): a logit that takes weight and carries no value

Arrays of rank 2 are one head without its axis: q (T, D), mask (T, S), sink ().

What is decided here, once:
- Query head h reads group h // (H // G).
- Order: scale, softcap, bias, mask, softmax with the sink. lse is in nats and counts the sink.
- The mask hides a key, and so does a bias of -inf. No score does, however negative: one that comes
  out as -inf, of an infinite query or key, is a weight of 0, and 0 times infinity is NaN.
- What is hidden has no effect, NaN and inf included: neither on a result nor on a gradient.
- A row that sees no key: out 0, lse -inf (with a sink: lse = sink), gradients 0.
- NaN in a query or a visible key makes NaN of exactly the rows that see it; NaN or inf in a visible
  value follows IEEE arithmetic in its column of those rows and leaves lse alone.

This file checks no arguments and holds whole (T, S) matrices: it is for reading and for testing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# NaN, inf and log 0 are meant where they occur.
_ieee = np.errstate(invalid="ignore", over="ignore", divide="ignore")


class Gradients(NamedTuple):
    """Each of the shape of its argument; None where that was not given."""

    q: Floats
    k: Floats
    v: Floats
    bias: Floats | None
    sink: Floats | None


@_ieee
def weights(
    q: ArrayLike,
    k: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: ArrayLike | None = None,
) -> Floats:
    """The attention matrix (..., H, T, S): how much each query reads each key.

    A row sums to 1, to 1 minus the share of the sink, or to 0 if it sees no key.
    """
    q, k = _expand(q, k)
    return _softmax(*_hide(_logits(q, k, scale, softcap), bias, mask), sink)[0]


@_ieee
def forward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """Attention: out (..., H, T, E) and lse = log(sum(exp(s)) + exp(sink)), (..., H, T)."""
    q, k, v = _expand(q, k, v)
    s, seen = _hide(_logits(q, k, scale, softcap), bias, mask)
    p, _, lse = _softmax(s, seen, sink)
    return _sum_of_seen(p, seen, v), lse


@_ieee
def backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: ArrayLike | None = None,
) -> Gradients:
    """The gradients of sum(dout * out), dout (..., H, T, E)."""
    dout = np.asarray(dout, np.float64)
    shape_q, shape_k, shape_v = np.shape(q), np.shape(k), np.shape(v)
    q, k, v = _expand(q, k, v)
    scale = shape_q[-1] ** -0.5 if scale is None else scale

    # forward again
    logits = _logits(q, k, scale, softcap)
    s, seen = _hide(logits, bias, mask)
    p, p_sink, _ = _softmax(s, seen, sink)
    out = _sum_of_seen(p, seen, v)

    # out = p v
    dv = _sum_of_seen(p.mT, seen.mT, dout)
    dp = dout @ v.mT
    # p = softmax(s)
    delta = (dout * out).sum(-1, keepdims=True)  # sum(dp * p), the sink's value being 0
    ds = np.where(seen, p * (dp - delta), 0.0)
    no_sink = sink is None or np.asarray(sink, np.float64) == -np.inf
    dsink = np.where(no_sink, 0.0, -(p_sink * delta).sum((-2, -1)))
    # s = softcap tanh(scale q k^T / softcap) + bias
    dlogits = ds if softcap is None else np.where(seen, ds * (1 - (logits / softcap) ** 2), 0.0)
    dq = scale * _sum_of_seen(dlogits, seen, k)
    dk = scale * _sum_of_seen(dlogits.mT, seen.mT, q)

    return Gradients(
        q=_sum_to(dq, shape_q),
        k=_sum_to(_sum_heads(dk, shape_k), shape_k),
        v=_sum_to(_sum_heads(dv, shape_v), shape_v),
        bias=None if bias is None else _sum_to(ds, np.shape(bias)),
        sink=None if sink is None else _sum_to(dsink, np.shape(sink)),
    )


class Observation(NamedTuple):
    """What can be said of the matrix without keeping it; None where not asked for."""

    pool_mean: Floats | None  # (..., H, R, C)
    pool_max: Floats | None  # (..., H, R, C)
    group: Floats | None  # (..., H, row groups, column groups)
    top_weights: Floats | None  # (..., H, T, k), strongest first
    top_keys: Ints | None  # (..., H, T, k)
    received: Floats | None  # (..., H, S)
    entropy: Floats | None  # (..., H, T), nats
    max: Floats | None  # (..., H, T)
    by_distance: Floats | None  # (..., H, distances)


@_ieee
def observe(
    q: ArrayLike,
    k: ArrayLike,
    *,
    pool: tuple[int, int] | None = None,
    group: tuple[ArrayLike, ArrayLike] | None = None,
    top: int | None = None,
    received: bool = False,
    entropy: bool = False,
    max: bool = False,
    by_distance: int | None = None,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: ArrayLike | None = None,
) -> Observation:
    """Statistics of the attention matrix A.

    pool         (R, C): mean and largest weight of each cell of a grid of R x C bins; bin r holds
                 rows [r T // R, (r + 1) T // R). A grid finer than the matrix is cut to its size.
    group        (rows (T,), cols (S,)), ids from 0, negative = in no group: rows averaged, columns
                 summed: how much a query of one group reads the keys of another. No row gives 0.
    top          the k largest weights of each row and their keys; of equals the lower key first.
                 Weight 0 and key -1 where a row sees fewer; a NaN row has weights NaN, keys -1.
    received     the column sums of A
    entropy      -sum(A log A) of each row, over keys alone: the sink's share is not a term
    max          the largest weight of each row, 0 if there is none
    by_distance  n: for each d < n the sum over queries t of A[t, t + S - T - d], the mass that they
                 put on the key d places before their own (aligned as `causal` is)
    """
    q, k = _expand(q, k)
    s, seen = _hide(_logits(q, k, scale, softcap), bias, mask)
    a = _softmax(s, seen, sink)[0]
    pool_mean, pool_max = (None, None) if pool is None else _pools(a, *pool)
    top_weights, top_keys = (None, None) if top is None else _top(a, s, top)
    return Observation(
        pool_mean=pool_mean,
        pool_max=pool_max,
        group=None if group is None else _grouped(a, np.asarray(group[0]), np.asarray(group[1])),
        top_weights=top_weights,
        top_keys=top_keys,
        received=a.sum(-2) if received else None,
        entropy=-np.where(a == 0, 0.0, a * np.log(a)).sum(-1) if entropy else None,
        max=a.max(-1, initial=0.0) if max else None,
        by_distance=None if by_distance is None else _by_distance(a, by_distance),
    )


@_ieee
def merge(outs: Sequence[ArrayLike], lses: Sequence[ArrayLike]) -> tuple[Floats, Floats]:
    """Attention over all keys from attention over disjoint shards of them.

    (out, lse) is a row's state in a commutative monoid, (0, -inf) its identity. A sink belongs to
    one of the shards only.
    """
    out, lse = np.asarray(outs, np.float64), np.asarray(lses, np.float64)  # (shards, ..., T[, E])
    s = np.moveaxis(lse, 0, -1)[..., None, :]  # (..., T, 1, shards)
    seen = s != -np.inf
    share, _, total = _softmax(s, seen, None)
    return _sum_of_seen(share, seen, np.moveaxis(out, 0, -2))[..., 0, :], total[..., 0]


FEATURE_MAPS: dict[str, Callable[[Floats], Floats]] = {
    "elu1": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
}


@_ieee
def linear_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    feature_map: str | Callable[[Floats], Floats] = "elu1",
    causal: bool = False,
) -> Floats:
    """Attention with weights f(q) f(k)^T / row sum instead of softmax; 0 where the sum is 0.

    No scale. `causal` is aligned bottom-right. Source: Katharopoulos et al. 2020.
    """
    f = feature_map if callable(feature_map) else FEATURE_MAPS[feature_map]
    q, k, v = _expand(q, k, v)
    a = f(q) @ f(k).mT
    T, S = a.shape[-2:]
    seen = np.tri(T, S, S - T, dtype=bool) if causal else np.ones((T, S), bool)
    total = np.where(seen, a, 0.0).sum(-1, keepdims=True)
    return np.where(total == 0, 0.0, _sum_of_seen(np.where(seen, a, 0.0), seen, v) / total)


@_ieee
def kernel_regression(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    *,
    kernel: str | Callable[[Floats, Floats], ArrayLike] = "softmax",
    bandwidth: float = 1.0,
) -> Floats:
    """Nadaraya-Watson: sum_s K(q, k_s) v_s / sum_s K(q, k_s), and 0 where K sums to 0.

    softmax   K = exp(q . k / bandwidth): attention with scale 1 / bandwidth
    gaussian  K = exp(-|q - k|^2 / (2 bandwidth^2))
    callable  K(queries (T, D), keys (S, D)) -> (T, S), none negative; takes no bandwidth
    """
    q, k, v = _expand(queries, keys, values)
    if callable(kernel):
        logits = np.log(np.asarray(kernel(q, k), np.float64))
    elif kernel == "gaussian":
        logits = -((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1) / (2 * bandwidth**2)
    else:
        logits = _logits(q, k, 1 / bandwidth, None)
    seen = logits != -np.inf
    return _sum_of_seen(_softmax(logits, seen, None)[0], seen, v)


# The pieces, in the order of the formula.


def _expand(*arrays: ArrayLike) -> list[Floats]:
    """q, k and perhaps v in float64, with H heads each and the same leading axes."""
    q, *rest = (np.asarray(x, np.float64) for x in arrays)
    if q.ndim > 2:
        H = q.shape[-3]
        rest = [np.repeat(x, H // (x.shape[-3] or 1), axis=-3) for x in rest]
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in (q, *rest)))
    return [np.broadcast_to(x, lead + x.shape[-2:]) for x in (q, *rest)]


def _logits(q: Floats, k: Floats, scale: float | None, softcap: float | None) -> Floats:
    """softcap tanh(scale q k^T / softcap), (..., H, T, S)."""
    s: Floats = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ k.mT)
    return s if softcap is None else softcap * np.tanh(s / softcap)


def _hide(s: Floats, bias: ArrayLike | None, mask: ArrayLike | None) -> tuple[Floats, Bools]:
    """Scores with the bias, -inf where a key is hidden, whatever stood there; and which are not."""
    seen = np.ones(s.shape, bool)
    if bias is not None:
        bias = np.asarray(bias, np.float64)
        seen = seen & (bias != -np.inf)
        s = s + bias
    if mask is not None:
        seen = seen & np.asarray(mask, bool)
    return np.where(seen, s, -np.inf), seen


def _softmax(s: Floats, seen: Bools, sink: ArrayLike | None) -> tuple[Floats, Floats, Floats]:
    """Weights (..., T, S), the share of the sink (..., T, 1) and lse (..., T)."""
    # No sink is a sink of -inf. One head may give it as () or (1,).
    sink = np.asarray(-np.inf if sink is None else sink, np.float64)
    sink = (sink.reshape(()) if s.ndim == 2 else sink)[..., None, None]
    m = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), sink)  # keeps NaN
    m = np.where(m == -np.inf, 0.0, m)  # an empty row: exp(-inf - 0) = 0
    e, e_sink = np.exp(s - m), np.exp(sink - m)
    total = e.sum(-1, keepdims=True) + e_sink
    # Not exp(s - lse): for scores of 1e30, lse has no digits left for log(total).
    p = np.where(seen & (total != 0), e / total, 0.0)
    return p, np.where(total == 0, 0.0, e_sink / total), (m + np.log(total))[..., 0]


def _sum_of_seen(p: Floats, seen: Bools, v: Floats) -> Floats:
    """p v, (..., T, E), in which a key that is not seen adds nothing, not even 0 * inf = NaN."""
    if np.isfinite(v).all():
        out: Floats = p @ v
    else:
        out = np.where(seen[..., None], p[..., None] * v[..., None, :, :], 0.0).sum(-2)
    return out


def _sum_heads(x: Floats, shape: tuple[int, ...]) -> Floats:
    """The query heads of each key/value head summed: (..., H, S, n) -> (..., G, S, n)."""
    if len(shape) == 2:
        return x
    *lead, H, S, n = x.shape
    G = shape[-3]
    grouped: Floats = x.reshape(*lead, G, H // (G or 1), S, n).sum(-3)
    return grouped


def _sum_to(x: Floats, shape: tuple[int, ...]) -> Floats:
    """x summed over the axes along which an array of this shape was broadcast."""
    extra = x.ndim - len(shape)
    spread = [*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1)]
    total: Floats = np.sum(x, tuple(i for i in spread if i >= 0), keepdims=True)
    return total.reshape(shape)


# The pieces of `observe`.


def _pools(a: Floats, R: int, C: int) -> tuple[Floats, Floats]:
    """Mean and maximum over a grid of bins, (..., R, C) each."""
    T, S = a.shape[-2:]
    R, C = min(R, T), min(C, S)
    row, col = np.arange(R) * T // max(R, 1), np.arange(C) * S // max(C, 1)
    if R == 0 or C == 0:
        return (np.zeros((*a.shape[:-2], R, C)),) * 2
    size = np.outer(np.diff(row, append=T), np.diff(col, append=S))
    total = np.add.reduceat(np.add.reduceat(a, row, -2), col, -1)
    return total / size, np.maximum.reduceat(np.maximum.reduceat(a, row, -2), col, -1)


def _grouped(a: Floats, rows: NDArray[np.int_], cols: NDArray[np.int_]) -> Floats:
    """Rows averaged and columns summed by group: M_rows A M_cols^T with 0/1 memberships M."""
    in_row, in_col = (ids == np.arange(ids.max(initial=-1) + 1)[:, None] for ids in (rows, cols))
    share = in_row / np.maximum(in_row.sum(-1, keepdims=True), 1)
    by_row = _sum_of_seen(share, in_row, a)
    return _sum_of_seen(in_col * 1.0, in_col, by_row.mT).mT


def _top(a: Floats, s: Floats, k: int) -> tuple[Floats, Ints]:
    """The k strongest keys of each row, by score: weights that underflow keep their order."""
    order = np.argsort(-s, axis=-1, kind="stable")[..., :k]
    found = np.take_along_axis(a, order, -1)
    nameless = (np.take_along_axis(s, order, -1) == -np.inf) | np.isnan(a).any(-1, keepdims=True)
    pad = [(0, 0)] * (a.ndim - 1) + [(0, k - order.shape[-1])]
    keys = np.where(nameless, -1, order)
    found = np.where(np.isnan(a).any(-1, keepdims=True), np.nan, found)
    return np.pad(found, pad), np.pad(keys, pad, constant_values=-1)


def _by_distance(a: Floats, n: int) -> Floats:
    """The sums of n diagonals of A, from the one that ends bottom-right downwards: (..., n)."""
    T, S = a.shape[-2:]
    sums = [np.trace(a, S - T - d, -2, -1) for d in range(n)]
    return np.stack(sums, -1) if sums else np.zeros((*a.shape[:-2], 0))
