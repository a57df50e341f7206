"""clearhead::attention, an operator of PyTorch: its result, shapes, gradient and batching.

A mask or bias that is a rule reaches it as words, numbers and tensors, all that a schema can hold:
the program that the core runs (clearhead.Mask.lower), which depends on T and S.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import clearhead


class _Lowered(clearhead.Mask):
    """A mask that has been lowered to its program, and checked, before."""

    def __init__(self, kinds: str, numbers: list[int], arrays: list[Any]) -> None:
        rest = iter(arrays)
        self.steps = [
            (
                kind,
                *numbers[i : i + 2],
                *(next(rest) if n else None for n in numbers[i + 2 : i + 4]),
            )
            for kind, i in zip(kinds.split(), range(0, len(numbers), 4), strict=True)
        ]

    def lower(self, T: int, S: int) -> Any:
        return self.steps


class _LoweredBias(clearhead.Bias):
    """A bias lowered, and checked, before; or an array whose gradient is not asked for."""

    def __init__(self, kind: str, array: Tensor, reach: int) -> None:
        if array.dtype == torch.bfloat16:  # the core takes its bits
            bits = array.view(torch.int16).numpy().view(np.uint16)
        else:
            bits = array.numpy()
        self.lowered = kind, bits, reach

    def lower(self) -> Any:
        return self.lowered

    @property
    def heads(self) -> None:
        return None


_OPTIONS = (
    "Tensor? bias, Tensor? sink, Tensor[] mask_arrays, str mask_kinds, SymInt[] mask_numbers, "
    "str bias_kind, SymInt bias_reach, float? scale, float? softcap"
)


def _options(
    bias: Tensor | None,
    sink: Tensor | None,
    mask_arrays: list[Tensor],
    mask_kinds: str,
    mask_numbers: list[int],
    bias_kind: str,
    bias_reach: int,
    scale: float | None,
    softcap: float | None,
) -> dict[str, Any]:
    """The operator's options as keywords of `clearhead.attention`."""
    mask: Any = None
    if mask_kinds == "tensor":
        mask = mask_arrays[0]
    elif mask_kinds:
        mask = _Lowered(mask_kinds, mask_numbers, [x.numpy() for x in mask_arrays])
    added: Any = None if bias is None else bias.detach()
    if bias_kind:
        added = _LoweredBias(bias_kind, added, bias_reach)
    return {
        "mask": mask,
        "bias": added,
        "scale": scale,
        "softcap": softcap,
        "sink": None if sink is None else sink.detach(),
    }


# The operator: what it computes, its shapes, its gradient, its batching rule.


@torch.library.custom_op(
    "clearhead::attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
)
def _attention(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    arrays: Any = (q.detach(), k.detach(), v.detach())
    out, lse = clearhead.attention_with_lse(*arrays, **_options(*options))
    return cast(Tensor, out), cast(Tensor, lse)


def _result_shapes(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    shape = [q.shape[-2], v.shape[-1]]
    if q.dim() > 2:
        leads = (x.shape[:-3] for x in (q, k, v))
        lead = torch.broadcast_shapes(*leads)  # type: ignore[no-untyped-call]
        shape = [*lead, q.shape[-3], *shape]
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(shape), q.new_empty(shape[:-1], dtype=work)


torch.library.register_fake("clearhead::attention", _result_shapes)


@torch.library.custom_op(
    "clearhead::attention_grad",
    mutates_args=(),
    schema="(Tensor dout, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, "
    f"{_OPTIONS}, bool want_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _attention_grad(
    dout: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *options: Any
) -> tuple[Tensor, ...]:
    *options_, want_bias = options
    keywords = _options(*options_)
    if not want_bias and isinstance(keywords["bias"], Tensor):
        keywords["bias"] = _LoweredBias("array", keywords["bias"], 0)
    arrays: Any = [x.detach() for x in (dout, q, k, v, out, lse)]
    found: Any = clearhead.attention_grad(*arrays, **keywords)
    return tuple(q.new_empty(0) if x is None else x for x in found)


def _gradient_shapes(*args: Any) -> tuple[Tensor, ...]:
    q, k, v, bias, sink = args[3:8]
    shapes = [(0,) if x is None else x.shape for x in (q, k, v, bias if args[-1] else None, sink)]
    return tuple(q.new_empty(shape) for shape in shapes)


torch.library.register_fake("clearhead::attention_grad", _gradient_shapes)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, sink, mask_arrays, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, bias, sink, *mask_arrays)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    # None for each option; a list of tensors, as which PyTorch counts any empty list, stays a list.
    nothing = [[None] * (len(ctx.saved_tensors) - 7), *([] if x == [] else None for x in ctx.rest)]
    return *_gradients(ctx, dout, torch.ops.clearhead.attention_grad), *nothing


def _gradients(ctx: Any, dout: Tensor | None, operator: Any) -> tuple[Tensor | None, ...]:
    """Those of q, k, v, bias and sink; None where there is none or it is not asked for."""
    q, k, v, out, lse, bias, sink, *mask_arrays = ctx.saved_tensors
    if dout is None:
        return (None,) * 5
    want_bias = bias is not None and ctx.needs_input_grad[3]
    dq, dk, dv, dbias, dsink = operator(
        dout, out, lse, q, k, v, bias, sink, mask_arrays, *ctx.rest, want_bias
    )
    return dq, dk, dv, dbias if want_bias else None, None if sink is None else dsink


torch.library.register_autograd("clearhead::attention", _differentiate, setup_context=_keep)


# vmap: its axis becomes the outermost leading axis, which attention has already. Arrays of numbers
# all get it, so that each example has its own gradient; arrays of masks only where they have one.

# The axes behind the leading ones, by the kind of a mask's step.
_INNER = {"lengths": 0, "documents": 1, "tensor": 3, "array": 3}


def _outermost(x: Tensor, dim: int | None, size: int, inner: int, lead: int) -> Tensor:
    """(size, ones, own axes), as many ones as make `lead` axes between size and the inner axes."""
    x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.reshape(size, *(1,) * (lead + inner + 1 - x.dim()), *x.shape[1:])


def _batch(
    size: int, in_dims: Any, arrays: tuple[Any, ...], inner: tuple[int, ...], options: Any
) -> tuple[int, list[Any], list[Any]]:
    """The rank of q, and the arrays and the mask's arrays with the axis of vmap outermost."""
    dims, mask_dims = in_dims[: len(arrays)], in_dims[len(arrays)]
    mask_arrays, kinds, numbers, *_ = options
    at = len(arrays) - 5  # q, k, v, bias, sink come last
    ranks = [arrays[i].dim() - (dims[i] is not None) for i in (at, at + 1, at + 2)]
    lead = max(max(ranks) - 3, 0)
    placed = [
        None if x is None else _outermost(x, dim, size, n, lead)
        for x, dim, n in zip(arrays, dims, inner, strict=True)
    ]
    words = kinds.split()
    if kinds != "tensor":
        words = [
            word
            for i, word in enumerate(words)
            for present in numbers[4 * i + 2 : 4 * i + 4]
            if present
        ]
    masks = []
    for x, dim, word in zip(mask_arrays, mask_dims or [None] * len(words), words, strict=True):
        if dim is not None and word == "pattern":
            raise ValueError("mask: blocks(pattern): pattern is under vmap, must be one for all")
        masks.append(x if dim is None else _outermost(x, dim, size, _INNER[word], lead))
    return ranks[0], placed, masks


def _batched(info: Any, in_dims: Any, *args: Any) -> tuple[Any, Any]:
    arrays, options = args[:5], args[5:]
    rank, arrays_, masks = _batch(info.batch_size, in_dims, arrays, (3, 3, 3, 3, 1), options)
    out, lse = torch.ops.clearhead.attention(*arrays_, masks, *options[1:])
    return (out.squeeze(1), lse.squeeze(1)) if rank == 2 else (out, lse), (0, 0)


torch.library.register_vmap("clearhead::attention", _batched)


def _batched_grad(info: Any, in_dims: Any, *args: Any) -> tuple[Any, Any]:
    return _batched_gradient(info.batch_size, in_dims, args, torch.ops.clearhead.attention_grad)


torch.library.register_vmap("clearhead::attention_grad", _batched_grad)


def _batched_gradient(size: int, in_dims: Any, args: Any, operator: Any) -> tuple[Any, Any]:
    arrays, options = args[:8], args[8:]
    _, placed, masks = _batch(size, in_dims, arrays, (3, 3, 2, 3, 3, 3, 3, 1), options)
    found = operator(*placed, masks, *options[1:])
    present = [True, True, True, options[-1], arrays[7] is not None]
    results = [
        _own_axes(x, given, dim) if there else x
        for x, given, dim, there in zip(found, arrays[3:], in_dims[3:8], present, strict=True)
    ]
    return tuple(results), tuple(0 if there else None for there in present)


def _own_axes(x: Tensor, given: Tensor, dim: int | None) -> Tensor:
    """x (size, ones, own axes) without the ones that `_outermost` has put in."""
    shape = given.shape if dim is None else given.movedim(dim, 0).shape[1:]
    return x.reshape(x.shape[0], *shape)


# torch.func.grad and its like refuse the gradient of a registered operator (PyTorch 2.13: "must
# override the setup_context staticmethod"), so under them the same steps are a Function.


@dataclass(frozen=True)
class Rest:
    """The options of the operator that are no tensors, as one: a Function takes it as it is."""

    options: tuple[Any, ...]


class Transformable(torch.autograd.Function):
    """apply(q, k, v, bias, sink, rest, *mask_arrays) -> (out, lse) under torch.func."""

    @staticmethod
    def forward(*args: Any) -> Any:
        arrays, rest, mask_arrays = args[:5], args[5], args[6:]
        return torch.ops.clearhead.attention(*arrays, list(mask_arrays), *rest.options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.rest = inputs[5].options
        ctx.save_for_backward(*inputs[:3], *output, *inputs[3:5], *inputs[6:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *_gradients(ctx, grads[0], _gradient), *(None,) * (len(ctx.saved_tensors) - 6)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        arrays, rest, mask_arrays = args[:5], args[5], args[6:]
        dims = (*in_dims[:5], in_dims[6:])
        options = (mask_arrays, *rest.options)
        rank, placed, masks = _batch(info.batch_size, dims, arrays, (3, 3, 3, 3, 1), options)
        out, lse = Transformable.apply(*placed, rest, *masks)  # type: ignore[no-untyped-call]
        return (out.squeeze(1), lse.squeeze(1)) if rank == 2 else (out, lse), (0, 0)


class _TransformableGradient(torch.autograd.Function):
    """apply(dout, out, lse, q, k, v, bias, sink, rest, *mask_arrays) under torch.func."""

    @staticmethod
    def forward(*args: Any) -> Any:
        arrays, rest, mask_arrays = args[:8], args[8], args[9:]
        return torch.ops.clearhead.attention_grad(*arrays, list(mask_arrays), *rest.options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("clearhead.torch.attention has no second derivative")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        dims = (*in_dims[:8], in_dims[9:])
        args = (*args[:8], args[9:], *args[8].options)
        return _batched_gradient(info.batch_size, dims, args, _gradient)


def _gradient(*args: Any) -> Any:
    """The operator attention_grad by way of the Function."""
    call: Any = _TransformableGradient.apply
    return call(*args[:8], Rest(args[9:]), *args[8])
