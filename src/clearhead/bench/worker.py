"""One library in its own process: `python -m clearhead.bench.worker LIBRARY`.

A line of JSON in is a request, a line of JSON out its answer. What libraries print goes to stderr.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import onnx_peers, peers
from .cases import Case, parse
from .checks import of_budget
from .peers import Peer, Prepared, Skip

# Who is timed, by the library (the process) that they belong to.
LIBRARIES: dict[str, dict[str, Peer]] = {
    "clearhead": {"clearhead": peers.clearhead},
    "torch": {"torch": peers.torch_sdpa, "torch-rows": peers.torch_rows},
    "onnxruntime": {
        "ort-mha": onnx_peers.multi_head,
        "ort-gqa": onnx_peers.grouped,
        "ort-onnx": onnx_peers.attention,
    },
    "openvino": {"openvino": peers.openvino},
    "jax": {"jax": peers.jax},
    "numpy": {"numpy": peers.numpy},
}


class Stage:
    """The contenders of one library, ready for one case."""

    def __init__(self, contenders: Mapping[str, Peer]):
        self.contenders = contenders
        self.ready: dict[str, Prepared] = {}

    def prepare(self, case: Case, threads: int, who: list[str]) -> dict[str, dict[str, Any]]:
        """Makes and checks their calls: {name: {"of_budget": x} or {"skip": why}}."""
        self.clear()
        inputs = case.inputs()
        found: dict[str, dict[str, Any]] = {}
        for name in who:
            try:
                prepared = self.contenders[name](case, inputs, threads)
                error = of_budget(case, inputs, prepared.arrays(prepared.call()))
            except Exception as reason:  # whatever a library raises is why it does not take part
                found[name] = {"skip": _sentence(reason)}
                continue
            if error <= 1:
                found[name] = {"of_budget": error}
                self.ready[name] = prepared
            else:
                found[name] = {"skip": f"wrong: its error is {error:.1f} x what is allowed"}
        return found

    def time(self, name: str, calls: int) -> list[float]:
        """Seconds of each call, one after another; short ones after one that does not count."""
        call = self.ready[name].call
        if calls > 1:
            call()
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return seconds

    def memory(self, case: Case, threads: int, name: str) -> int:
        """Bytes by which one call raises this process's peak, its result left out."""
        inputs = case.inputs()
        prepared = self.contenders[name](case, inputs, threads)
        first = _smaller(case)
        if first != case:  # code and threads are loaded by a small one
            self.contenders[name](first, first.inputs(), threads).call()
        gc.collect()
        before = _reset_peak()
        result = prepared.call()
        growth = _status("VmHWM") - before
        return max(0, growth - sum(_bytes(a, case) for a in prepared.arrays(result)))

    def clear(self) -> None:
        self.ready.clear()
        gc.collect()


def _smaller(case: Case) -> Case:
    name = f"{case.mask}/1x{case.H}:{case.G}x{min(case.T, 64)}:{min(case.S, 64)}"
    name += f"x{case.D}:{case.E}/{case.dtype}" + ("/grad" if case.grad else "")
    return parse(name)


def _bytes(result: Any, case: Case) -> int:
    return int(result.size) * (4 if case.dtype == "float32" else 2)


def _reset_peak() -> int:
    """Makes the peak of this process what it uses now (Linux), and returns that."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return _status("VmRSS")
    except OSError:
        return _status("VmHWM")


def _status(key: str) -> int:
    with open("/proc/self/status") as lines:
        return int(next(line for line in lines if line.startswith(key)).split()[1]) << 10


def _sentence(reason: Exception) -> str:
    text = " ".join(str(reason).split()) or type(reason).__name__
    if not isinstance(reason, Skip):
        text = f"{type(reason).__name__}: {text}"
    return text if len(text) < 120 else text[:117] + "..."


def main() -> None:
    library = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    stage = Stage(LIBRARIES[library])
    for line in sys.stdin:
        request = json.loads(line)
        do = request.pop("do")
        if "case" in request:
            request["case"] = parse(request["case"])
        answer: Any
        try:
            answer = {"answer": getattr(stage, do)(**request)}
        except Exception as reason:
            answer = {"error": _sentence(reason)}
        print(json.dumps(answer, default=_plain), file=answers, flush=True)


def _plain(x: Any) -> Any:
    if isinstance(x, np.generic):
        return x.item()
    raise TypeError(f"{type(x).__name__} is not JSON")


if __name__ == "__main__":
    main()
