"""Attention on arrays: check, allocate, call the core.

The core (native/attention.hpp) is total: past `_check` nothing can fail but memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import _native
from ._arrays import any_arrays
from ._check import LSE_DTYPE, Problem, check_attention, check_gradient, check_merge
from .biases import Bias
from .masks import Mask, allowed

__all__ = [
    "AttentionWithLse",
    "Gradients",
    "attention",
    "attention_grad",
    "attention_with_lse",
    "available_isas",
    "isa",
    "merge",
    "num_threads",
    "set_num_threads",
]

Array = NDArray[Any]

_LARGE = 1 << 20  # bytes; smaller ones the C library keeps well
_MOST_KEPT = 64 << 20  # bytes, as in memory.cpp
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class AttentionWithLse(NamedTuple):
    """out (..., H, T, E) and lse (..., H, T): log of the sum of a row's exponentials, in nats."""

    out: Array
    lse: Array


class Gradients(NamedTuple):
    """Each of the shape and dtype of its argument; bias and sink None where not given as arrays."""

    q: Array
    k: Array
    v: Array
    bias: Array | None
    sink: Array | None


@any_arrays
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | Array | None = None,
    bias: Array | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Array | None = None,
) -> Array:
    """Exact softmax attention: out = softmax(scale * q k^T) v over the keys that `mask` allows.

    q        (..., H, T, D)   float64, float32, float16 or bfloat16; any strides; not modified;
                              NumPy, PyTorch or JAX on the CPU, or DLPack: the result is alike
    k        (..., G, S, D)   H % G == 0; query head h reads group h // (H // G)
    v        (..., G, S, E)   leading axes broadcast; (T, D), (S, D), (S, E) is one head
    mask     Mask, or bool broadcastable to (..., H, T, S); True = may attend; None: all
    bias     added to the scores: the dtype of q, broadcastable likewise, or alibi(slopes),
             relative_bias(values)
    scale    number, D ** -0.5 unless given
    softcap  number c: scores become c tanh(s / c), before bias and mask
    sink     the dtype of q, broadcastable to (..., H): a logit that takes weight, carries no value

    Returns (..., H, T, E), dtype of q; arithmetic in float32 (float64 for float64).

    A query that sees no key gives 0. NaN reaches exactly the rows that see it; what is hidden has
    no effect. A bias of -inf hides its key.
    Memory: inputs, output and one tile per thread; never (T, S). Same bits for any thread count.
    Time: what the mask allows; a mask of w keys a query costs T * w.
    Raises  TypeError, ValueError: the argument, what it is, what it must be.
    Source  Vaswani et al. 2017, eq. 1; online softmax, Milakov & Gimelshein 2018.
    Spec    clearhead.reference.forward

    >>> import numpy as np, clearhead as ch
    >>> rng = np.random.default_rng(0)
    >>> q = rng.normal(size=(2, 8, 128, 64)).astype("float32")
    >>> k, v = rng.normal(size=(2, 2, 2, 128, 64)).astype("float32")
    >>> ch.attention(q, k, v, mask=ch.causal()).shape
    (2, 8, 128, 64)
    """
    problem = check_attention(q, k, v, mask, bias, scale, softcap, sink)
    out = _result(problem.out_shape, q.dtype)
    _forward(problem, q, k, v, out, None, mask, bias, softcap, sink)
    return out


@any_arrays
def attention_with_lse(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | Array | None = None,
    bias: Array | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Array | None = None,
) -> AttentionWithLse:
    """`attention` and lse = log(sum over seen keys of e^score), as a named tuple (out, lse).

    lse (..., H, T) is in nats, float32 (float64 for float64); it counts the sink. A row that sees
    no key has lse -inf (with a sink: the sink). Any weight is then e^(score - lse).
    Arguments and errors are those of `attention`.

    >>> import numpy as np, clearhead as ch
    >>> q = k = v = np.zeros((4, 3))
    >>> ch.attention_with_lse(q, k, v).lse
    array([1.38629436, 1.38629436, 1.38629436, 1.38629436])
    """
    problem = check_attention(q, k, v, mask, bias, scale, softcap, sink)
    out = _result(problem.out_shape, q.dtype)
    lse = np.empty(problem.out_shape[:-1], LSE_DTYPE[q.dtype])
    _forward(problem, q, k, v, out, lse, mask, bias, softcap, sink)
    return AttentionWithLse(out, lse)


@any_arrays
def attention_grad(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    mask: Mask | Array | None = None,
    bias: Array | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Array | None = None,
) -> Gradients:
    """The gradient of sum(dout * attention(q, k, v, ...)) with respect to q, k, v, bias and sink.

    dout      (..., H, T, E)   the dtype of q
    out, lse                   what attention_with_lse returned for the same other arguments

    Returns Gradients(q, k, v, bias, sink), each of its argument's shape and dtype: summed over the
    axes along which it was broadcast, k and v over the query heads of their group. bias and sink
    are None where no array was given. Rows that see no key, and what is hidden, contribute 0.

    Memory: O(n d), weights are computed again from lse, never kept; with a bias array, its size.
    Same bits for any thread count. Arithmetic in float32 (float64 for float64).
    Source  Dao et al. 2022, algorithm 4.
    Spec    clearhead.reference.backward

    >>> import numpy as np, clearhead as ch
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 5, 4))
    >>> out, lse = ch.attention_with_lse(q, k, v)
    >>> grads = ch.attention_grad(np.ones_like(out), q, k, v, out, lse)
    >>> np.allclose(grads.v.sum(), out.size)   # every row's weights sum to 1
    True
    """
    problem = check_gradient(dout, q, k, v, out, lse, mask, bias, scale, softcap, sink)
    work = LSE_DTYPE[q.dtype]  # what the core computes in
    dq = _gradient_array(problem, q, problem.H, work)
    dk = _gradient_array(problem, k, problem.G, work)
    dv = _gradient_array(problem, v, problem.G, work)
    dbias = np.zeros(bias.shape, work) if isinstance(bias, np.ndarray) else None
    dsink = None if sink is None else np.zeros((*problem.lead, problem.H), work)
    if dq.size or dk.size or dv.size:
        _native.backward(
            _as_bits(dout),
            _as_bits(q),
            _as_bits(k),
            _as_bits(v),
            _as_bits(out),
            _as_bits(lse),
            _as_bits(dq),
            _as_bits(dk),
            _as_bits(dv),
            dbias,
            dsink,
            *_options(problem, mask, bias, softcap, sink),
        )
    return Gradients(
        _sum_to(dq, q),
        _sum_to(dk, k),
        _sum_to(dv, v),
        None if dbias is None else dbias.astype(q.dtype, copy=False),
        None if dsink is None or sink is None else _sum_to(dsink, sink),
    )


@any_arrays
def merge(outs: Sequence[Array], lses: Sequence[Array]) -> AttentionWithLse:
    """Attention over all keys from attention over disjoint shards of them.

    outs    arrays (..., T, E), one for each shard
    lses    arrays (..., T), in nats

    out = sum(e^(lse_i - lse) out_i), lse = log(sum e^lse_i). Associative, and commutative up to
    rounding; a shard that saw no key (out 0, lse -inf) is the identity. Computed in float32
    (float64 for float64), out in the dtype of the shards. A sink belongs to one shard only.
    Spec    clearhead.reference.merge

    >>> import numpy as np, clearhead as ch
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 6, 4))
    >>> parts = [ch.attention_with_lse(q, k[i::2], v[i::2]) for i in (0, 1)]
    >>> np.allclose(ch.merge(*zip(*parts)).out, ch.attention(q, k, v))
    True
    """
    check_merge(outs, lses)
    work = lses[0].dtype
    with np.errstate(invalid="ignore", divide="ignore"):
        top = np.max(lses, axis=0)
        reference = np.where(np.isneginf(top), 0, top)
        sizes = [np.exp(lse - reference) for lse in lses]
        total = np.sum(sizes, axis=0)
        lse = reference + np.log(total)
        share = np.where(total == 0, 1, total)
        # A shard of weight 0 has nothing to say, not even NaN.
        parts = [
            np.where(size == 0, 0, size / share)[..., None] * out.astype(work)
            for size, out in zip(sizes, outs, strict=True)
        ]
        parts = [
            np.where((size == 0)[..., None], 0, part)
            for size, part in zip(sizes, parts, strict=True)
        ]
    return AttentionWithLse(np.sum(parts, axis=0).astype(outs[0].dtype), lse.astype(work))


def isa() -> str:
    """The instruction set in use: the best this machine has, or CLEARHEAD_ISA.

    "amx" (AVX-512, and bfloat16 by tile products), "avx512", "avx2", "neon" or "scalar".

    >>> isa() in available_isas()
    True
    """
    return _native.isa()


def available_isas() -> list[str]:
    """The instruction sets that this machine can run, best first; the last is "scalar"."""
    return _native.available_isas()


def num_threads() -> int:
    """How many threads a call may use: set_num_threads, else CLEARHEAD_NUM_THREADS, else
    OMP_NUM_THREADS, else the CPUs that this process may use; but 1 in a forked process, whose
    brothers have the other CPUs (a worker of multiprocessing or of torch's DataLoader)."""
    return _native.num_threads()


def set_num_threads(count: int) -> None:
    """Sets how many threads a call may use, 1 to 1024. Results do not depend on it."""
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
        raise TypeError(f"count: is {count!r}, must be a whole number from 1 to 1024")
    if not 1 <= count <= 1024:
        raise ValueError(f"count: is {count}, must be a whole number from 1 to 1024")
    _native.set_num_threads(int(count))


def _forward(
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array | None,
    mask: Mask | Array | None,
    bias: Array | Bias | None,
    softcap: float | None,
    sink: Array | None,
) -> None:
    _native.forward(
        _as_bits(q),
        _as_bits(k),
        _as_bits(v),
        _as_bits(out),
        lse,
        *_options(problem, mask, bias, softcap, sink),
    )


def _options(
    problem: Problem,
    mask: Mask | Array | None,
    bias: Array | Bias | None,
    softcap: float | None,
    sink: Array | None,
) -> tuple[list[Any] | None, tuple[str, Array, int] | None, Array | None, float, float]:
    """The last arguments of every native call."""
    return (
        None if mask is None else _mask_program(problem, mask),
        None if bias is None else _bias_program(problem, bias),
        None if sink is None else _as_bits(sink),
        problem.scale,
        0.0 if softcap is None else float(softcap),
    )


def _gradient_array(problem: Problem, x: Array, heads: int, work: np.dtype[Any]) -> Array:
    """Where the core writes the gradient of x: of its own shape, or, where x was broadcast, of the
    full leading shape and in the precision of the sums still to come."""
    if problem.flat or x.shape[:-3] == problem.lead:
        return _result(x.shape, x.dtype)
    return _result((*problem.lead, heads, *x.shape[-2:]), work)


def _result(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array for the core to write. A large one takes the memory of one that is gone: new pages
    are zeroed by the system first, which costs up to a tenth of the call that fills them."""
    bytes_ = math.prod(shape) * dtype.itemsize
    if bytes_ < _LARGE:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, _native.result_memory(bytes_))


def _filled(shape: tuple[int, ...], dtype: np.dtype[Any], value: float) -> Array:
    """A result that the core adds to. One of zeros too large to be kept gets pages when it needs
    them: of a window's map many are never touched."""
    if value == 0 and math.prod(shape) * dtype.itemsize > _MOST_KEPT:
        return np.zeros(shape, dtype)
    result = _result(shape, dtype)
    result.fill(value)
    return result


def _sum_to(full: Array, x: Array) -> Array:
    """`full` summed over the axes along which x was broadcast to it."""
    if full.shape != x.shape:
        extra = full.ndim - x.ndim
        axes = [i for i, n in enumerate(full.shape) if i < extra or x.shape[i - extra] != n]
        full = full.sum(axis=tuple(axes), keepdims=True).reshape(x.shape)
    return full.astype(x.dtype, copy=False)


def _as_bits(x: Array) -> Array:
    """The array as the core takes it: aligned, bfloat16 as its 16 bits."""
    if not x.flags.aligned:
        x = x.copy()
    return x.view(np.uint16) if x.dtype == _BFLOAT16 else x


def _mask_program(problem: Problem, mask: Mask | Array) -> list[Any]:
    rule = mask if isinstance(mask, Mask) else allowed(mask)
    rule.check(problem.T, problem.S, problem.lead, None if problem.flat else problem.H)
    return rule.lower(problem.T, problem.S)


def _bias_program(problem: Problem, bias: Array | Bias) -> tuple[str, Array, int]:
    if not isinstance(bias, Bias):
        return "array", _as_bits(bias), 0
    if bias.heads not in (None, 1, problem.H):
        raise ValueError(f"bias: {bias!r} has {bias.heads} heads, must have 1 or {problem.H}")
    return bias.lower()
