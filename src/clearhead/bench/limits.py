"""What the machine can do at most, measured by the same instructions that the kernels use.

Fused multiply-adds: registers only, all of them busy. Reading: an array once, and nothing done with
it. An array the size of a case's keys and values may lie in a cache that another case's does not,
so bandwidth is measured at each size that is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from .. import _native
from ..ops import available_isas, isa, num_threads, set_num_threads
from .cases import Case

_SECONDS = 0.25  # for each limit
_MEMORY_BYTES = 2**30  # far beyond the caches


@dataclass
class Limits:
    """Most that was seen; keys of `flops` are (isa, threads), of `bandwidth` (bytes, threads)."""

    flops: dict[tuple[str, int], float] = field(default_factory=dict)
    bandwidth: dict[tuple[int, int], float] = field(default_factory=dict)

    def least_seconds(self, case: Case, threads: int) -> float:
        """No attention can be faster: its operations at the peak, its keys and values once."""
        by_operations = case.operations / self.peak(case.dtype, threads)
        if by_operations > case.cache_bytes / self._bandwidth(_MEMORY_BYTES, threads):
            return by_operations
        size = 1 << max(12, (case.cache_bytes - 1).bit_length())
        return max(by_operations, case.cache_bytes / self._bandwidth(size, threads))

    def _bandwidth(self, size: int, threads: int) -> float:
        if (size, threads) not in self.bandwidth:
            self.bandwidth[size, threads] = read_bandwidth(size, threads)
        return self.bandwidth[size, threads]

    def peak(self, dtype: str, threads: int) -> float:
        """Operations a second for a dtype, on the instruction set in use."""
        if (isa(), threads) not in self.flops:
            self.flops[isa(), threads] = multiply_adds(threads)
        return self.flops[isa(), threads]


def measure(threads: list[int]) -> Limits:
    """The peak of every instruction set, and the bandwidth far beyond the caches."""
    limits = Limits()
    chosen = isa()
    try:
        for name in available_isas():
            _native.choose_isa(name)
            for n in threads:
                limits.flops[name, n] = multiply_adds(n)
    finally:
        _native.choose_isa(chosen)
    for n in threads:
        limits.bandwidth[_MEMORY_BYTES, n] = read_bandwidth(_MEMORY_BYTES, n)
    return limits


def multiply_adds(threads: int) -> float:
    """Floating-point operations a second of `threads` threads together."""
    rounds = 20_000
    with ThreadPoolExecutor(threads) as pool:

        def work() -> float:
            return sum(pool.map(_native.multiply_adds, [rounds] * threads))

        start = time.perf_counter()
        work()
        rounds = max(1, int(rounds * 0.02 / (time.perf_counter() - start)))  # 20 ms a turn
        return _best(work)


def read_bandwidth(size: int, threads: int) -> float:
    """Bytes a second of `threads` threads together, reading `size` bytes over and over."""
    data = np.ones(max(size // 4, 1024), np.float32)
    before = num_threads()
    set_num_threads(threads)
    try:
        return _best(lambda: _native.read_all(data))
    finally:
        set_num_threads(before)


def _best(work: Callable[[], float]) -> float:
    """The most work a second: what disturbs a turn says nothing about the machine."""
    best, end = 0.0, time.perf_counter() + _SECONDS
    while True:
        start = time.perf_counter()
        done = work()
        now = time.perf_counter()
        best = max(best, done / (now - start))
        if now > end:
            return best
