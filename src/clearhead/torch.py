"""clearhead in PyTorch on the CPU: attention with autograd, torch.compile and torch.func.

    from clearhead.torch import attention, scaled_dot_product_attention

`attention` is `clearhead.attention` for tensors; `scaled_dot_product_attention` takes the arguments
of torch.nn.functional.scaled_dot_product_attention and means by them what PyTorch means.

Both are one registered operator, clearhead::attention, and its gradient: memory stays linear in T
and S, forward and backward. Needs `pip install clearhead[torch]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import torch
except ImportError:
    raise ImportError(
        "clearhead.torch needs PyTorch: pip install 'clearhead[torch]'", name="torch"
    ) from None

from torch import Tensor

import clearhead

from ._check import check_attention
from ._torch_operator import Rest, Transformable

__all__ = ["attention", "scaled_dot_product_attention"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: clearhead.Mask | Tensor | None = None,
    bias: clearhead.Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """`clearhead.attention` of CPU tensors, with gradients for q, k, v, bias and sink.

    q (..., H, T, D), k (..., G, S, D), v (..., G, S, E) and the options are as described there;
    arrays are tensors, of float64, float32, float16 or bfloat16, all of one dtype.

    Works under autograd, torch.compile (fullgraph, dynamic; rules that hold arrays, alibi(...) for
    one, are made outside), torch.func.grad, vmap and jacrev.
    The gradient has no gradient of its own: a second derivative is an error.
    Raises  TypeError, ValueError: the argument, what it is, what it must be.

    >>> import torch, clearhead as ch, clearhead.torch
    >>> q = torch.ones(2, 8, 5, 4, requires_grad=True)
    >>> out = ch.torch.attention(q, q, q, mask=ch.causal())
    >>> out.sum().backward(); q.grad.shape
    torch.Size([2, 8, 5, 4])
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {type(x).__name__}, must be a torch.Tensor")
    for name, number in (("scale", scale), ("softcap", softcap)):
        if isinstance(number, Tensor):
            raise TypeError(
                f"{name}: a torch.Tensor, must be a number; multiply q by a scale to be learned"
            )
    if not torch.compiler.is_compiling():  # there the operator says it, with its arrays
        _check(q, k, v, scale, softcap)
        scale, softcap = (None if x is None else float(x) for x in (scale, softcap))
    mask_kinds, mask_numbers, mask_arrays = _lowered_mask(mask, q, k, v)
    bias_kind, bias, bias_reach = _lowered_bias(bias, q)
    if sink is not None and not isinstance(sink, Tensor):
        raise TypeError(f"sink: {type(sink).__name__}, must be a torch.Tensor")
    rest = mask_kinds, mask_numbers, bias_kind, bias_reach, scale, softcap
    out: Tensor
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        call: Any = Transformable.apply
        out, _ = call(q, k, v, bias, sink, Rest(rest), *mask_arrays)
    else:
        out, _ = torch.ops.clearhead.attention(q, k, v, bias, sink, mask_arrays, *rest)
    return out


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, argument for argument, by `attention`.

    attn_mask   boolean, True = may attend; or floating, added to the scores; either broadcastable
                to (..., L, S). A floating mask is rounded to the dtype of query
    is_causal   aligned top-left: query t sees keys s <= t, whatever L and S are
    dropout_p   must be 0: these weights are exact, and are never there to be dropped
    enable_gqa  fewer key and value heads than query heads, in groups; without it heads broadcast

    A query that sees no key gives 0 and gradient 0.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {type(x).__name__}, must be a torch.Tensor")
    if not isinstance(attn_mask, Tensor | None):
        raise TypeError(f"attn_mask: {type(attn_mask).__name__}, must be a torch.Tensor or None")
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name}: is {flag!r}, must be True or False")
    if dropout_p != 0:
        raise ValueError(
            f"dropout_p: is {dropout_p}, must be 0: attention is exact here and its weights are "
            "never stored, so none can be dropped; use PyTorch's function to train with dropout"
        )
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask, is_causal: are both given, must be one of them or none")
    rank = max(query.dim(), key.dim(), value.dim())
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(
            "query, key, value: must have two axes at least, (..., L, E); "
            f"query {_shape(query)}, key {_shape(key)}, value {_shape(value)}"
        )
    q, k, v = (x[(None,) * (rank - x.dim())] for x in (query, key, value))
    if rank > 2:
        q, k, v = _same_heads(q, k, v, enable_gqa)
    mask: clearhead.Mask | Tensor | None = clearhead.causal(offset=0) if is_causal else None
    bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            mask = attn_mask
        elif attn_mask.is_floating_point():
            bias = attn_mask.to(q.dtype)
        else:
            raise TypeError(f"attn_mask: is {attn_mask.dtype}, must be bool or floating")
    return attention(q, k, v, mask=mask, bias=bias, scale=scale)


def _same_heads(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Heads as `attention` takes them: those of k and v equal, and dividing those of q."""
    H, K, V = q.shape[-3], k.shape[-3], v.shape[-3]
    if enable_gqa and H and K and V and H % K == 0 == H % V:
        if K != V:
            k, v = (x.repeat_interleave(H // x.shape[-3], -3) for x in (k, v))
        return q, k, v
    n = max(H, K, V)
    if any(heads not in (1, n) for heads in (H, K, V)):
        hint = "" if enable_gqa else "; enable_gqa=True lets heads share keys in groups"
        raise ValueError(f"query, key, value: have {H}, {K} and {V} heads, must broadcast{hint}")
    q, k, v = (x.expand(*x.shape[:-3], n, *x.shape[-2:]) for x in (q, k, v))
    return q, k, v


_ZERO = np.zeros(1, np.float32)


def _check(q: Tensor, k: Tensor, v: Tensor, scale: Any, softcap: Any) -> None:
    """Ranks, sizes and numbers in the words of `clearhead.attention`, before PyTorch sees them."""
    shapes = [tuple(x.shape) for x in (q, k, v)]
    x, y, z = (np.ndarray(n, np.float32, _ZERO, 0, (0,) * len(n)) for n in shapes)
    check_attention(x, y, z, scale=scale, softcap=softcap)


# Masks and biases that are rules reach the operator as words, numbers and tensors: all that an
# operator's schema can hold.


def _lowered_mask(
    mask: Any, q: Tensor, k: Tensor, v: Tensor
) -> tuple[str, list[int], list[Tensor]]:
    if mask is None:
        return "", [], []
    if isinstance(mask, Tensor):
        return "tensor", [], [mask]
    if not isinstance(mask, clearhead.Mask):
        raise TypeError(f"mask: {type(mask).__name__}, must be a Mask or a boolean torch.Tensor")
    T, S = q.shape[-2], k.shape[-2]
    lead: tuple[int, ...] = ()
    if q.dim() > 2:
        leads = (x.shape[:-3] for x in (q, k, v))
        lead = tuple(torch.broadcast_shapes(*leads))  # type: ignore[no-untyped-call]
    mask.check(T, S, lead, q.shape[-3] if q.dim() > 2 else None)
    kinds, numbers, arrays = [], [], []
    for kind, a, b, *pair in mask.lower(T, S):
        kinds.append(kind)
        numbers += [a, b, *(int(x is not None) for x in pair)]
        arrays += [torch.as_tensor(x) for x in pair if x is not None]
    return " ".join(kinds), numbers, arrays


def _lowered_bias(bias: Any, q: Tensor) -> tuple[str, Tensor | None, int]:
    if bias is None or isinstance(bias, Tensor):
        return "", bias, 0
    if not isinstance(bias, clearhead.Bias):
        raise TypeError(f"bias: {type(bias).__name__}, must be a torch.Tensor or a rule")
    H = q.shape[-3] if q.dim() > 2 else 1
    if bias.heads not in (None, 1, H):
        raise ValueError(f"bias: {bias!r} has {bias.heads} heads, must have 1 or {H}")
    kind, array, reach = bias.lower()
    return kind, torch.as_tensor(array), reach


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)
