"""How fast attention is, against the machine's own limit and against whoever else is installed.

    python benchmarks/attention.py                 the default cases, one thread and all
    python benchmarks/attention.py --quick         three cases
    python benchmarks/attention.py --json out.json

The limit is measured in the same run: fused multiply-adds a second, registers only, by the same
instruction set. Each result is checked against clearhead.reference before it is timed. Contenders
take turns, one call each, round after round, with a pause so that no one's spinning threads slow
the next; medians and quartiles are shown. A ratio above 1 says that clearhead is faster.

Operations are counted on what the mask allows: 2 D + 2 E for each allowed pair.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import clearhead as ch
from clearhead import _native, reference

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    B: int
    H: int
    G: int
    T: int
    S: int
    D: int
    causal: bool
    grad: bool = False

    @property
    def name(self) -> str:
        heads = f"{self.H}" if self.G == self.H else f"{self.H}/{self.G}"
        keys = "" if self.S == self.T else f"x{self.S}"
        kind = ("causal" if self.causal else "full") + (" +grad" if self.grad else "")
        return f"({self.B},{heads},{self.T}{keys},{self.D}) {kind}"

    @property
    def operations(self) -> float:
        pairs = ch.causal().allowed_count(self.T, self.S) if self.causal else self.T * self.S
        # Backward: four products, and the scores once more.
        return 4.0 * self.B * self.H * self.D * pairs * (3.5 if self.grad else 1.0)


SHAPES = [
    (1, 12, 12, 512, 512, 64),
    (1, 12, 12, 2048, 2048, 64),
    (1, 8, 8, 2048, 2048, 128),
    (1, 32, 8, 2048, 2048, 128),
    (1, 2, 2, 8192, 8192, 64),
    (8, 12, 12, 128, 128, 32),
    (1, 12, 12, 64, 64, 32),
    (1, 4, 4, 1000, 1000, 80),
]
CASES = [Case(*shape, causal=c) for shape in SHAPES for c in (False, True)]
CASES += [Case(1, 12, 12, 2048, 2048, 64, causal=c, grad=True) for c in (False, True)]
CASES += [Case(1, 32, 8, T, 8192, 128, causal=T > 1) for T in (1, 8)]
QUICK = [CASES[2], CASES[3], CASES[10]]


def contenders(case: Case, threads: int) -> dict[str, Call]:
    """The calls to time, clearhead's first; peers that are not installed are left out."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(case.B, case.H, case.T, case.D)).astype(np.float32)
    k, v = rng.normal(size=(2, case.B, case.G, case.S, case.D)).astype(np.float32)
    mask = ch.causal() if case.causal else None
    ch.set_num_threads(threads)
    check(case, q, k, v)
    calls: dict[str, Call] = {}
    if case.grad:
        calls["clearhead"] = lambda: own_gradient(q, k, v, mask)
    else:
        calls["clearhead"] = lambda: ch.attention(q, k, v, mask=mask)
    add_torch(calls, case, threads, q, k, v)
    if not case.grad and case.G == case.H and not case.causal:
        add_onnxruntime(calls, case, threads, q, k, v)
        if case.B * case.H * case.T * case.S <= 2**27:
            calls["numpy"] = lambda: naive(q, k, v)
    return calls


def own_gradient(q: Any, k: Any, v: Any, mask: Any) -> Any:
    out, lse = ch.attention_with_lse(q, k, v, mask=mask)
    return ch.attention_grad(out, q, k, v, out, lse, mask=mask)


def naive(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(-1, keepdims=True)
    return s @ v


def add_torch(calls: dict[str, Call], case: Case, threads: int, q: Any, k: Any, v: Any) -> None:
    try:
        import torch
        from torch.nn.functional import scaled_dot_product_attention as sdpa
    except ImportError:
        return
    torch.set_num_threads(threads)
    tq, tk, tv = (torch.from_numpy(x.copy()) for x in (q, k, v))
    # torch's flag is top-left; ours and a cache's alignment need an explicit mask where T != S.
    mask = None
    if case.causal and case.T != case.S:
        mask = torch.from_numpy(ch.causal().to_array(case.T, case.S))
    options = {"is_causal": case.causal and mask is None, "attn_mask": mask}
    options["enable_gqa"] = case.G != case.H
    if not case.grad:
        calls["torch"] = lambda: sdpa(tq, tk, tv, **options)
        return
    for x in (tq, tk, tv):
        x.requires_grad_()

    def both() -> Any:
        out = sdpa(tq, tk, tv, **options)
        return torch.autograd.grad(out, (tq, tk, tv), out.detach())

    calls["torch"] = both


def add_onnxruntime(
    calls: dict[str, Call], case: Case, threads: int, q: Any, k: Any, v: Any
) -> None:
    try:
        import onnx
        import onnxruntime as ort
    except ImportError:
        return
    node = onnx.helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft", num_heads=case.H
    )
    flat = [
        np.ascontiguousarray(x.swapaxes(1, 2)).reshape(case.B, -1, case.H * case.D)
        for x in (q, k, v)
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "attention",
        [value(n, 1, x.shape) for n, x in zip("qkv", flat, strict=True)],
        [value("o", 1, flat[0].shape)],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    feeds = dict(zip("qkv", flat, strict=True))
    calls["onnxruntime"] = lambda: session.run(None, feeds)


def check(case: Case, q: Any, k: Any, v: Any) -> None:
    """One head against the specification, on its first and last rows."""
    rows = np.r_[: min(16, case.T), max(0, case.T - 16) : case.T]
    mask = ch.causal().to_array(case.T, case.S)[rows] if case.causal else None
    got = ch.attention(q, k, v, mask=ch.causal() if case.causal else None)[0, -1][rows]
    want = reference.forward(q[0, -1][rows], k[0, -1], v[0, -1], mask=mask)[0]
    error = np.abs(got - want).max()
    assert error < 1e-5, f"{case.name}: off by {error}"


def peak(threads: int) -> float:
    """Multiply-adds a second that `threads` threads reach together, as operations."""
    from concurrent.futures import ThreadPoolExecutor

    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(15):
            start = time.perf_counter()
            done = sum(pool.map(_native.multiply_adds, [500_000] * threads))
            best = max(best, done / (time.perf_counter() - start))
    return best


def timed(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """Times of each contender, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    deadline = time.perf_counter() + seconds
    while len(times["clearhead"]) < 5 or time.perf_counter() < deadline:
        for name, call in calls.items():
            time.sleep(0.002)
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
        if len(times["clearhead"]) >= 200:
            break
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three cases only")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case (default 3)")
    parser.add_argument("--threads", type=int, nargs="*", help="default: one, and all")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    everyone = len(os.sched_getaffinity(0))
    counts = options.threads or sorted({1, everyone})
    print(f"{platform.processor() or platform.machine()}, {ch.isa()}, clearhead {ch.__version__}")
    records = []
    for threads in counts:
        limit = peak(threads)
        print(f"\n{threads} thread(s): {limit / 1e9:.0f} GFLOP/s of fused multiply-adds")
        print(f"{'case':30} {'ms':>9} {'quartiles':>17} {'of peak':>8}  clearhead is faster than")
        for case in QUICK if options.quick else CASES:
            times = timed(contenders(case, threads), options.seconds)
            own = statistics.median(times["clearhead"])
            low, _, high = statistics.quantiles(times["clearhead"], n=4)
            ratios = {
                name: statistics.median(b / a for a, b in zip(times["clearhead"], t, strict=True))
                for name, t in times.items()
                if name != "clearhead"
            }
            share = case.operations / own / limit
            shown = "  ".join(f"{name} x{ratio:.2f}" for name, ratio in ratios.items())
            spread = f"{low * 1e3:.3f}-{high * 1e3:.3f}"
            print(f"{case.name:30} {own * 1e3:9.3f} {spread:>17} {share:8.0%}  {shown}", flush=True)
            records.append(
                {
                    "case": case.name,
                    "threads": threads,
                    "isa": ch.isa(),
                    "peak_flops": limit,
                    "median_s": own,
                    "quartiles_s": [low, high],
                    "share_of_peak": share,
                    "ratios": ratios,
                    "rounds": len(times["clearhead"]),
                }
            )
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
