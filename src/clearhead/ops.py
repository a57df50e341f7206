"""Attention on arrays: check, allocate, call the core.

The core (native/attention.hpp) is total: past `_check` nothing can fail but memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import _native
from ._check import LSE_DTYPE, Problem, check_attention
from .biases import Bias
from .masks import Mask, allowed

__all__ = [
    "AttentionWithLse",
    "attention",
    "attention_with_lse",
    "available_isas",
    "isa",
    "num_threads",
    "set_num_threads",
]

Array = NDArray[Any]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class AttentionWithLse(NamedTuple):
    """out (..., H, T, E) and lse (..., H, T): the log of each row's sum of exponentials, in nats."""

    out: Array
    lse: Array


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

    q        (..., H, T, D)   float64, float32, float16 or bfloat16; any strides; not modified
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
    out = np.empty(problem.out_shape, q.dtype)
    _forward(problem, q, k, v, out, None, mask, bias, softcap, sink)
    return out


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
    out = np.empty(problem.out_shape, q.dtype)
    lse = np.empty(problem.out_shape[:-1], LSE_DTYPE[q.dtype])
    _forward(problem, q, k, v, out, lse, mask, bias, softcap, sink)
    return AttentionWithLse(out, lse)


def isa() -> str:
    """The instruction set in use: the best this machine has, or CLEARHEAD_ISA.

    >>> isa() in available_isas()
    True
    """
    return _native.isa()


def available_isas() -> list[str]:
    """The instruction sets that this machine can run, best first; the last is "scalar"."""
    return _native.available_isas()


def num_threads() -> int:
    """How many threads a call may use: set_num_threads, else CLEARHEAD_NUM_THREADS, else
    OMP_NUM_THREADS, else the CPUs that this process may use."""
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
        None if mask is None else _mask_program(problem, mask),
        None if bias is None else _bias_program(problem, bias),
        None if sink is None else _as_bits(sink),
        problem.scale,
        0.0 if softcap is None else float(softcap),
    )


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
