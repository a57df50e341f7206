"""ONNX Runtime's three attentions, each as a model of one node."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from .cases import Case, Inputs
from .peers import Prepared, Skip, mask_array, no_gradient, room


def multi_head(case: Case, x: Inputs, threads: int) -> Prepared:
    """com.microsoft MultiHeadAttention: (B, T, H D) in and out."""
    no_gradient(case)
    _known(case)
    if case.G != case.H:
        raise Skip("no grouped heads")
    causal = case.mask == "causal" and not case.plain
    if causal and case.T != case.S:
        raise Skip("causal only with T = S")
    given = {name: _flat(a) for name, a in zip("qkv", x[:3], strict=True)}
    if not case.plain:  # these ways keep the matrix
        room(case)
    names = list("qkv")
    if x.bias is not None:
        given["bias"] = x.bias[None]
    elif not case.plain and not causal:
        given["bias"] = np.where(mask_array(case), 0, -np.inf).astype(x.q.dtype)[None, None]
    if "bias" in given:
        names += ["", "", "bias"]
    node = _node("MultiHeadAttention", names, num_heads=case.H, unidirectional=int(causal))
    session = _session(node, given, [("o", x.q, (case.B, case.T, case.H * case.E))], threads)
    return _prepared(case, session, given, flat=True)


def grouped(case: Case, x: Inputs, threads: int) -> Prepared:
    """com.microsoft GroupQueryAttention, causal, over a cache that stays where it is."""
    no_gradient(case)
    _known(case)
    if case.mask != "causal" and not case.plain:
        raise Skip("causal only")
    if case.T > 1 and case.mask == "full":
        raise Skip("causal only")
    if case.D != case.E:
        raise Skip("D = E only")
    past = case.S - case.T
    if past < 0 or (past and case.T > 1 and case.B > 1):
        raise Skip("one new token a batch entry only")
    ort: Any = import_module("onnxruntime")
    new = {name: _flat(a[:, :, past:]) for name, a in zip("kv", x[1:3], strict=True)}
    given = {
        "q": _flat(x.q),
        **new,
        "pk": x.k,
        "pv": x.v,
        "lengths": np.full(case.B, case.S - 1, np.int32),
        "total": np.array(case.S, np.int32),
    }
    results = ["o", "nk", "nv"]
    node = _node("GroupQueryAttention", list(given), results, num_heads=case.H, kv_num_heads=case.G)
    outputs = [
        ("o", x.q, (case.B, case.T, case.H * case.E)),
        ("nk", x.k, x.k.shape),
        ("nv", x.v, x.v.shape),
    ]
    session = _session(node, given, outputs, threads)
    values = {name: ort.OrtValue.ortvalue_from_numpy(a) for name, a in given.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    out = ort.OrtValue.ortvalue_from_numpy(np.empty(outputs[0][2], x.q.dtype))
    for name, value in (("o", out), ("nk", values["pk"]), ("nv", values["pv"])):
        binding.bind_ortvalue_output(name, value)  # the cache grows in place
    return Prepared(
        lambda: session.run_with_iobinding(binding),
        lambda _: (_heads(case, out.numpy()),),
    )


def attention(case: Case, x: Inputs, threads: int) -> Prepared:
    """ONNX's own Attention, opset 24: (B, H, T, D)."""
    no_gradient(case)
    _known(case)
    room(case)
    given = dict(zip("qkv", x[:3], strict=True))
    causal = case.mask == "causal" and case.T == case.S
    if x.bias is not None:
        given["mask"] = x.bias
    elif not causal and not case.plain:
        given["mask"] = mask_array(case)
    node = _node("Attention", list(given), domain="", is_causal=int(causal))
    session = _session(node, given, [("o", x.q, (case.B, case.H, case.T, case.E))], threads)
    return _prepared(case, session, given, flat=False)


def _prepared(case: Case, session: Any, given: dict[str, Any], flat: bool) -> Prepared:
    def arrays(results: Any) -> tuple[Any, ...]:
        return (_heads(case, results[0]) if flat else results[0],)

    return Prepared(lambda: session.run(None, given), arrays)


def _node(
    kind: str,
    inputs: list[str],
    outputs: tuple[str, ...] | list[str] = ("o",),
    domain: str = "com.microsoft",
    **attributes: int,
) -> Any:
    helper: Any = import_module("onnx").helper
    return helper.make_node(kind, inputs, list(outputs), domain=domain, **attributes)


def _session(
    node: Any, given: dict[str, Any], outputs: list[tuple[str, Any, tuple[int, ...]]], threads: int
) -> Any:
    helper: Any = import_module("onnx").helper
    ort: Any = import_module("onnxruntime")

    def info(name: str, like: Any, shape: tuple[int, ...]) -> Any:
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(like.dtype), shape
        )

    graph = helper.make_graph(
        [node],
        "attention",
        [info(name, a, a.shape) for name, a in given.items()],
        [info(*output) for output in outputs],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def _known(case: Case) -> None:
    if case.dtype == "bfloat16":
        raise Skip("no kernel for bfloat16")


def _flat(a: Any) -> Any:
    """(B, H, T, D) to (B, T, H D)."""
    return np.ascontiguousarray(a.swapaxes(1, 2)).reshape(a.shape[0], a.shape[2], -1)


def _heads(case: Case, a: Any) -> Any:
    """(B, T, H E) to (B, H, T, E)."""
    return a.reshape(case.B, case.T, case.H, case.E).swapaxes(1, 2)
