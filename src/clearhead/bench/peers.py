"""The same computation in every library: each function here makes a call to time from a case.

A function takes (case, inputs, threads) and returns Prepared, or raises Skip with the reason why
its library cannot do the case. Layouts and copies that a library asks for are made here, untimed.
Libraries are loaded only where they are named, so none of them need be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import ops
from .cases import DTYPES, Case, Inputs

Array = NDArray[Any]


class Skip(Exception):
    """Why a library does not take part in a case."""


class Prepared(NamedTuple):
    """call() is timed; arrays(its result) are out, or dq, dk, dv, in the layout of the inputs."""

    call: Callable[[], Any]
    arrays: Callable[[Any], tuple[Array, ...]]


Peer = Callable[[Case, Inputs, int], Prepared]


def clearhead(case: Case, x: Inputs, threads: int) -> Prepared:
    ops.set_num_threads(threads)
    mask, bias = case.own_mask(x), x.bias
    if not case.grad:
        return Prepared(
            lambda: ops.attention(x.q, x.k, x.v, mask=mask, bias=bias), lambda out: (out,)
        )

    dout = x.dout
    assert dout is not None

    def both() -> Any:
        out, lse = ops.attention_with_lse(x.q, x.k, x.v, mask=mask, bias=bias)
        return ops.attention_grad(dout, x.q, x.k, x.v, out, lse, mask=mask, bias=bias)

    return Prepared(both, lambda grads: grads[:3])


def numpy(case: Case, x: Inputs, threads: int) -> Prepared:
    """The formula as one writes it, in place where that is possible; threads are its BLAS's."""
    no_gradient(case)
    if case.dtype != "float32":
        raise Skip(f"no matrix product for {case.dtype}")
    room(case)
    q = x.q.reshape(case.B, case.G, case.H // case.G, case.T, case.D)
    k, v = x.k[:, :, None], x.v[:, :, None]
    scale = np.float32(case.D**-0.5)
    bias = None if x.bias is None else x.bias.reshape((*q.shape[1:4], case.S))
    hidden = None if case.plain or bias is not None else ~case.seen(np.arange(case.T))

    def call() -> Array:
        s = (q * scale) @ k.swapaxes(-1, -2)
        if bias is not None:
            s += bias
        if hidden is not None:
            np.copyto(s, -np.inf, where=hidden)
        s -= s.max(-1, keepdims=True)
        np.exp(s, out=s)
        s /= s.sum(-1, keepdims=True)
        return np.asarray(s @ v)

    return Prepared(call, lambda out: (out.reshape(case.B, case.H, case.T, case.E),))


def torch_sdpa(case: Case, x: Inputs, threads: int) -> Prepared:
    """scaled_dot_product_attention as one calls it."""
    torch: Any = import_module("torch")
    torch.set_num_threads(threads)
    top_left = case.mask == "causal" and case.T == case.S
    options = {
        "is_causal": top_left,
        "attn_mask": None if top_left else _torch_mask(case, x),
        "enable_gqa": case.G != case.H,
    }
    q, k, v = (_torch_tensor(a) for a in x[:3])
    sdpa = torch.nn.functional.scaled_dot_product_attention
    if not case.grad:
        return Prepared(lambda: sdpa(q, k, v, **options), _from_torch)
    for a in (q, k, v):
        a.requires_grad_()
    dout = _torch_tensor(x.dout)
    return Prepared(
        lambda: torch.autograd.grad(sdpa(q, k, v, **options), (q, k, v), dout), _from_torch
    )


def torch_rows(case: Case, x: Inputs, threads: int) -> Prepared:
    """The query heads of a group as more rows of one head: each key is then read once."""
    no_gradient(case)
    if case.H == case.G:
        raise Skip("the heads are not grouped")
    torch: Any = import_module("torch")
    torch.set_num_threads(threads)
    each = case.H // case.G
    q = _torch_tensor(x.q).reshape(case.B, case.G, each * case.T, case.D)
    k, v = (_torch_tensor(a) for a in (x.k, x.v))
    mask = _torch_mask(case, x)
    if mask is not None:
        if mask.shape[1] != 1:
            raise Skip("the bias differs from head to head")
        mask = mask.repeat(1, 1, each, 1)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    shape = case.B, case.H, case.T, case.E
    return Prepared(
        lambda: sdpa(q, k, v, attn_mask=mask), lambda out: _from_torch(out.reshape(shape))
    )


def _torch_mask(case: Case, x: Inputs) -> Any:
    """(1, 1 or H, T, S), or None."""
    if x.bias is not None:
        return _torch_tensor(x.bias)[None]
    return None if case.plain else import_module("torch").from_numpy(mask_array(case))[None, None]


def _torch_tensor(a: Any) -> Any:
    torch: Any = import_module("torch")
    if a.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(a.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def _from_torch(result: Any) -> tuple[Array, ...]:
    results = result if isinstance(result, tuple) else (result,)
    return tuple(a.detach().float().numpy() for a in results)


def jax(case: Case, x: Inputs, threads: int) -> Prepared:
    """jax.nn.dot_product_attention under jit; its layout is (B, T, H, D)."""
    room(case, copies=3 + 4 * case.grad)
    jax_: Any = import_module("jax")
    jnp: Any = import_module("jax.numpy")
    top_left = case.mask == "causal" and case.T == case.S
    mask = None if top_left or case.plain or x.bias is not None else jnp.asarray(mask_array(case))
    bias = None if x.bias is None else jnp.asarray(x.bias)[None]
    q, k, v = (jnp.asarray(a.swapaxes(1, 2)) for a in x[:3])

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax_.nn.dot_product_attention(
            q, k, v, bias=bias, mask=None if mask is None else mask[None, None], is_causal=top_left
        )

    def arrays(results: Any) -> tuple[Array, ...]:
        results = results if isinstance(results, tuple) else (results,)
        return tuple(np.asarray(a).swapaxes(1, 2) for a in results)

    if not case.grad:
        forward = jax_.jit(attention)
        return Prepared(lambda: forward(q, k, v).block_until_ready(), arrays)
    dout = jnp.asarray(x.dout.swapaxes(1, 2)) if x.dout is not None else None
    both = jax_.jit(lambda *given: jax_.vjp(attention, *given)[1](dout))
    return Prepared(lambda: jax_.block_until_ready(both(q, k, v)), arrays)


def openvino(case: Case, x: Inputs, threads: int) -> Prepared:
    """Its ScaledDotProductAttention, told to compute in the dtype of the case.

    It has no grouped heads: with no mask they are rows of one head, else keys and values are
    repeated beforehand.
    """
    no_gradient(case)
    ov: Any = import_module("openvino")
    op: Any = import_module("openvino.opset13")
    element = {"float32": ov.Type.f32, "float16": ov.Type.f16, "bfloat16": ov.Type.bf16}[case.dtype]
    each = case.H // case.G
    q, k, v = x.q, x.k, x.v
    if case.plain and each > 1:
        q = q.reshape(case.B, case.G, each * case.T, case.D)
    elif each > 1:
        k, v = np.repeat(k, each, 1), np.repeat(v, each, 1)
    top_left = case.mask == "causal" and case.T == case.S
    if top_left:
        mask_room(case)  # it builds one, as the peak of its memory shows
    given = [q, k, v]
    if x.bias is not None:
        given.append(x.bias[None])
    elif not top_left and not case.plain:
        given.append(mask_array(case)[None, None])
    parameters = [
        op.parameter(list(a.shape), ov.Type.boolean if a.dtype == bool else element) for a in given
    ]
    more = {"attention_mask": parameters[3]} if len(parameters) > 3 else {}
    node = op.scaled_dot_product_attention(*parameters[:3], causal=top_left, **more)
    core = ov.Core()
    model = core.compile_model(
        ov.Model([op.result(node)], parameters),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": element.to_string(),
        },
    )
    request = model.create_infer_request()
    kept = []
    for i, a in enumerate(given):
        a = np.ascontiguousarray(a)
        kept.append(a)
        half = a.dtype == DTYPES["bfloat16"]
        tensor = ov.Tensor(a.view(np.uint16), a.shape, element) if half else ov.Tensor(a, True)
        request.set_input_tensor(i, tensor)

    def arrays(_: Any) -> tuple[Array, ...]:
        found = request.get_output_tensor(0).data
        if case.dtype == "bfloat16":
            found = found.view(DTYPES["bfloat16"])
        return (np.array(found, np.float32).reshape(case.B, case.H, case.T, case.E),)

    def call(_kept: Any = kept) -> None:
        request.infer()

    return Prepared(call, arrays)


def mask_array(case: Case) -> Array:
    """(T, S), for a library that takes a mask as an array."""
    mask_room(case)
    return case.seen(np.arange(case.T))


def mask_room(case: Case) -> None:
    if case.T * case.S >= 2**30:
        raise Skip(f"would need the {case.T} x {case.S} mask")


def no_gradient(case: Case) -> None:
    if case.grad:
        raise Skip("no gradient")


def room(case: Case, copies: int = 3) -> None:
    """Refuses where a library that keeps the matrix would fill the memory."""
    if case.T * case.S >= 2**30:
        raise Skip(f"would need the {case.T} x {case.S} matrix")
    if copies * case.matrix_bytes > available_bytes() // 2:
        raise Skip(f"would need {copies * case.matrix_bytes / 2**30:.0f} GiB for the matrix")


def available_bytes() -> int:
    try:
        with open("/proc/meminfo") as lines:
            return (
                int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
                << 10
            )
    except (OSError, StopIteration):
        return 8 << 30
