"""clearhead in JAX on the CPU: attention under jit, grad and vmap.

    from clearhead.jax import attention

The core is called back from XLA's program (jax.pure_callback), forward and backward; memory stays
linear in T and S. Needs `pip install clearhead[jax]`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

try:
    import jax
except ImportError:
    raise ImportError("clearhead.jax needs JAX: pip install 'clearhead[jax]'", name="jax") from None

import jax.numpy as jnp

import clearhead

from ._check import check_attention

__all__ = ["attention"]

_Shape: Any = jax.ShapeDtypeStruct


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: clearhead.Mask | jax.Array | None = None,
    bias: clearhead.Bias | jax.Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: jax.Array | None = None,
) -> jax.Array:
    """`clearhead.attention` of JAX arrays, with gradients for q, k, v, bias and sink.

    q (..., H, T, D), k (..., G, S, D), v (..., G, S, E) and the options are as described there.
    A Mask and a Bias by rule, scale and softcap are static: a traced function is compiled for each.

    Works under jax.jit, grad, vmap and their combinations; reverse mode only, and once: jvp and a
    second derivative are errors. NumPy arrays are taken too. On the CPU.
    Raises  TypeError, ValueError: the argument, what it is, what it must be.

    >>> import jax, jax.numpy as jnp, clearhead as ch, clearhead.jax
    >>> q = jnp.ones((2, 8, 5, 4))
    >>> loss = jax.jit(lambda q: ch.jax.attention(q, q, q, mask=ch.causal()).sum())
    >>> jax.grad(loss)(q).shape
    (2, 8, 5, 4)
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, jax.Array | np.ndarray):
            raise TypeError(f"{name}: {type(x).__name__}, must be a jax.Array")
    static_mask = mask if isinstance(mask, clearhead.Mask) else None
    static_bias = bias if isinstance(bias, clearhead.Bias) else None
    static = _Static(static_mask, static_bias, scale, softcap)
    mask = None if static_mask is not None else mask
    bias = None if static_bias is not None else bias
    _check(static, q, k, v, mask, bias, sink)
    arrays = [None if x is None else jnp.asarray(x) for x in (q, k, v, bias, sink, mask)]
    out: jax.Array = _attention(static, *arrays)
    return out


class _Static(NamedTuple):
    """What is no array. Masks compare by what they allow, so that jit compiles for each once."""

    mask: Any
    bias: Any
    scale: float | None
    softcap: float | None

    def options(self, bias: Any, sink: Any, mask: Any) -> dict[str, Any]:
        return {
            "mask": mask if self.mask is None else self.mask,
            "bias": bias if self.bias is None else self.bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sink": sink,
        }


def _check(static: _Static, q: Any, k: Any, v: Any, mask: Any, bias: Any, sink: Any) -> None:
    """The errors of `clearhead.attention`, at tracing: in the callback they would be XLA's."""
    q, k, v, bias, sink, mask = (
        np.broadcast_to(np.zeros((), x.dtype), x.shape) if isinstance(x, jax.Array) else x
        for x in (q, k, v, bias, sink, mask)
    )
    problem = check_attention(q, k, v, **static.options(bias, sink, mask))
    if static.mask is not None:
        heads = None if problem.flat else problem.H
        static.mask.check(problem.T, problem.S, problem.lead, heads)
    if static.bias is not None and static.bias.heads not in (None, 1, problem.H):
        raise ValueError(
            f"bias: {static.bias!r} has {static.bias.heads} heads, must have 1 or {problem.H}"
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: _Static, *arrays: Any) -> Any:
    return _forward(static, arrays)[0]


def _keep(static: _Static, *arrays: Any) -> Any:
    out, lse = _forward(static, arrays)
    return out, (out, lse, arrays)


def _differentiate(static: _Static, kept: Any, dout: Any) -> Any:
    out, lse, arrays = kept
    mask = arrays[-1]
    shapes = [None if x is None else _Shape(x.shape, x.dtype) for x in arrays[:5]]
    found = _call_back(_gradient_on_host, static, shapes, (dout, out, lse, *arrays))
    return *found, None if mask is None else np.zeros(mask.shape, jax.dtypes.float0)


_attention.defvjp(_keep, _differentiate)


def _forward(static: _Static, arrays: Any) -> Any:
    q, k, v = arrays[:3]
    shape: tuple[int, ...] = (q.shape[-2], v.shape[-1])
    if q.ndim > 2:
        lead = np.broadcast_shapes(*(x.shape[:-3] for x in (q, k, v)))
        shape = (*lead, q.shape[-3], *shape)
    work = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
    shapes = [_Shape(shape, q.dtype), _Shape(shape[:-1], work)]
    return _call_back(_attention_on_host, static, shapes, arrays)


# On the host. Under vmap every array comes with the same axes more in front, and so goes back; they
# become leading axes, which attention has already. A missing array is None on both ways.


def _call_back(function: Any, static: _Static, shapes: Any, arrays: Any) -> Any:
    ranks = [None if x is None else x.ndim for x in arrays]
    wanted = [None if x is None else x.shape for x in shapes]
    host = functools.partial(function, static, ranks, wanted)
    return jax.pure_callback(host, tuple(shapes), *arrays, vmap_method="broadcast_all")


def _attention_on_host(static: _Static, ranks: Any, wanted: Any, *arrays: Any) -> Any:
    batch, placed = _placed(arrays, ranks, (3, 3, 3, 3, 1, 3))
    q, k, v, *options = placed
    found = clearhead.attention_with_lse(q, k, v, **static.options(*options))
    return _own_axes(found, batch, wanted)


def _gradient_on_host(static: _Static, ranks: Any, wanted: Any, *arrays: Any) -> Any:
    batch, placed = _placed(arrays, ranks, (3, 3, 2, 3, 3, 3, 3, 1, 3))
    dout, out, lse, q, k, v, *options = placed
    found = clearhead.attention_grad(dout, q, k, v, out, lse, **static.options(*options))
    return _own_axes(found, batch, wanted)


def _placed(arrays: Any, ranks: Any, inner: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The axes of vmap, and the arrays (*batch, ones, own axes) with as many ones as align them."""
    at = len(arrays) - 6  # q, k, v, bias, sink, mask come last
    lead = max(*ranks[at : at + 3], 3) - 3
    batch = np.shape(arrays[at])[: np.ndim(arrays[at]) - ranks[at]]
    placed = []
    for x, rank, n in zip(arrays, ranks, inner, strict=True):
        if x is not None:
            x = np.asarray(x)
            x = x.reshape(*batch, *(1,) * (lead + n - rank), *x.shape[len(batch) :])
        placed.append(x)
    return batch, placed


def _own_axes(found: Any, batch: tuple[int, ...], wanted: Any) -> tuple[Any, ...]:
    pairs = zip(found, wanted, strict=True)
    return tuple(None if shape is None else x.reshape(*batch, *shape) for x, shape in pairs)
