"""One attention head as a layer: the mechanism with nothing around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .masks import Mask
from .ops import attention_grad, attention_with_lse
from .parameters import Pullback, check_input, float_dtype, glorot, rows, size

if TYPE_CHECKING:
    from .maps import AttentionMap

__all__ = ["SingleHeadAttention"]

Array = NDArray[Any]


class SingleHeadAttention:
    """One head without biases: softmax(x Wq (c Wk)^T / sqrt(d_head)) c Wv, c = context or x.

    parameters: {"query", "key", "value"}, each (d_model, d_head), drawn uniformly (Glorot & Bengio
    2010) from `seed`, a number or a numpy.random.Generator. dtype is float32 or float64.

    >>> import numpy as np, clearhead as ch
    >>> head = ch.SingleHeadAttention(3, seed=0)
    >>> head(np.ones((2, 3), "float32")).shape
    (2, 3)
    """

    def __init__(
        self,
        d_model: int,
        d_head: int | None = None,
        *,
        dtype: DTypeLike = "float32",
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.d_model = size("d_model", d_model)
        self.d_head = self.d_model if d_head is None else size("d_head", d_head)
        self.dtype = float_dtype(dtype)
        rng = np.random.default_rng(seed)
        shape = (self.d_model, self.d_head)
        self.parameters: dict[str, Array] = {
            name: glorot(rng, shape, self.dtype) for name in ("query", "key", "value")
        }

    def __repr__(self) -> str:
        return f"SingleHeadAttention(d_model={self.d_model}, d_head={self.d_head})"

    def __call__(
        self, x: Array, context: Array | None = None, *, mask: Mask | Array | None = None
    ) -> Array:
        """x (..., T, d_model), context (..., S, d_model) or None: x itself; (..., T, d_head)."""
        q, k, v = self._project(x, context)
        return attention_with_lse(q, k, v, mask=mask).out[..., 0, :, :]

    def weights(
        self, x: Array, context: Array | None = None, *, mask: Mask | Array | None = None
    ) -> AttentionMap:
        """Who reads whom: an AttentionMap (..., 1, T, S)."""
        from .maps import AttentionMap

        q, k, v = self._project(x, context)
        return AttentionMap(q, k, attention_with_lse(q, k, v, mask=mask).lse, mask=mask)

    def vjp(
        self, x: Array, context: Array | None = None, *, mask: Mask | Array | None = None
    ) -> tuple[Array, Pullback]:
        """The result y, and pullback(dy) -> (dx, grads), or (dx, dcontext, grads) with a context.

        These are the gradients of sum(dy * y); grads has the names of `parameters`.
        """
        q, k, v = self._project(x, context)
        out, lse = attention_with_lse(q, k, v, mask=mask)
        source = x if context is None else context

        def pullback(dy: Array) -> tuple[Any, ...]:
            check_input("dy", dy, self.dtype, self.d_head, out.shape[:-3] + out.shape[-2:])
            found = attention_grad(dy[..., None, :, :], q, k, v, out, lse, mask=mask)[:3]
            inputs, grads = [], {}
            for name, given, dz in zip(self.parameters, (x, source, source), found, strict=True):
                dz = dz[..., 0, :, :]  # the one head
                inputs.append(dz @ self.parameters[name].T)
                grads[name] = rows(given).T @ rows(dz)
            dx, dcontext = inputs[0], inputs[1] + inputs[2]
            return (dx + dcontext, grads) if context is None else (dx, dcontext, grads)

        return out[..., 0, :, :], pullback

    def _project(self, x: Array, context: Array | None) -> list[Array]:
        """q (..., 1, T, d_head), k and v (..., 1, S, d_head)."""
        check_input("x", x, self.dtype, self.d_model)
        if context is not None:
            check_input("context", context, self.dtype, self.d_model)
        source = x if context is None else context
        pairs = zip((x, source, source), self.parameters.values(), strict=True)
        return [(given @ weight)[..., None, :, :] for given, weight in pairs]
