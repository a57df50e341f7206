"""How much memory attention takes beyond its inputs: measured in a process of its own.

    python -m clearhead.worked.why.memory tiled 4096 64
    python -m clearhead.worked.why.memory direct 4096 64

prints one number, the growth of the peak resident memory in bytes. A process of its own, because a
peak that an earlier step reached would hide a lower one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def direct(
    q: NDArray[np.float32], k: NDArray[np.float32], v: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The formula as it is written: the T x S matrix exists."""
    s = q @ k.T * np.float32(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.asarray(p @ v / p.sum(axis=-1, keepdims=True))


def peak_extra_bytes(kind: str, length: int, size: int) -> int:
    """Runs this file as a script; ValueError where the platform has no /proc to read."""
    if not Path("/proc/self/clear_refs").exists():
        raise ValueError(
            "platform: has no /proc/self/clear_refs, must be Linux to measure the peak"
        )
    command = [sys.executable, "-m", "clearhead.worked.why.memory", kind, str(length), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"memory: the measuring process failed with {done.returncode}: {last}")
    return int(done.stdout)


def _resident_kilobytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise ValueError(f"/proc/self/status: has no {field}")


def _measure(kind: str, length: int, size: int) -> int:
    from ...ops import attention

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((length, size), dtype=np.float32) for _ in range(3))
    kinds: dict[str, Callable[..., Any]] = {"tiled": attention, "direct": direct}
    run = kinds[kind]
    run(q[:64], k[:64], v[:64])  # threads and libraries are there before the measurement
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident
    before = _resident_kilobytes("VmRSS")
    run(q, k, v)
    return 1024 * max(_resident_kilobytes("VmHWM") - before, 0)


if __name__ == "__main__":
    print(_measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
