"""What the machine can do at most, measured by the same instructions that the kernels use.

Products: fused multiply-adds, or what the instruction set has for bfloat16, in registers only, all
of them busy. Weights: all that stands between the products. Reading: an array once, and no more; an
array the size of a case's keys and values may lie in a cache that another's does not, so bandwidth
is measured at each size that is asked for.
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

_SECONDS = 0.2  # for each limit
_MEMORY_BYTES = 2**30  # far beyond the caches


@dataclass
class Limits:
    """Most that was seen.

    flops      operations of products a second, by (instruction set, threads); "amx bfloat16" and
               the like where there are instructions for that dtype. float32 and float16 are
               held against multiply-adds of float32 everywhere, also where sums of bfloat16
               products are quicker
    weights    scores made into weights a second, likewise: factor, reference, 2^x and sum
    bandwidth  bytes read a second, by (bytes of the array, threads)
    """

    flops: dict[tuple[str, int], float] = field(default_factory=dict)
    weights: dict[tuple[str, int], float] = field(default_factory=dict)
    bandwidth: dict[tuple[int, int], float] = field(default_factory=dict)

    def least_seconds(self, case: Case, threads: int) -> float:
        """No attention can be faster: its products at the peak, its keys and values once."""
        by_operations = case.operations / self.peak(case.dtype, threads)
        read = case.cache_bytes
        if read < 2**20 or by_operations > read / self._bandwidth(_MEMORY_BYTES, threads):
            return by_operations
        size = 1 << (read - 1).bit_length()
        return max(by_operations, read / self._bandwidth(size, threads))

    def peak(self, dtype: str, threads: int) -> float:
        """Operations a second for a dtype, on the instruction set in use."""
        if (isa(), threads) not in self.flops:
            self._measure(isa(), threads)
        plain = self.flops[isa(), threads]
        return self.flops.get((f"{isa()} {dtype}", threads), plain)

    def _measure(self, name: str, threads: int) -> None:
        """On the instruction set of that name, which is in use."""
        self.flops[name, threads] = rate(_native.multiply_adds, threads)
        self.weights[name, threads] = rate(_native.weights, threads)
        if _native.dot_products(1):
            self.flops[f"{name} bfloat16", threads] = rate(_native.dot_products, threads)

    def _bandwidth(self, size: int, threads: int) -> float:
        if (size, threads) not in self.bandwidth:
            self.bandwidth[size, threads] = read_bandwidth(size, threads)
        return self.bandwidth[size, threads]


def measure(threads: list[int]) -> Limits:
    """The rates of every instruction set, and the bandwidth far beyond the caches."""
    limits = Limits()
    chosen = isa()
    try:
        for name in available_isas():
            _native.choose_isa(name)
            for n in threads:
                limits._measure(name, n)
    finally:
        _native.choose_isa(chosen)
    for n in threads:
        limits.bandwidth[_MEMORY_BYTES, n] = read_bandwidth(_MEMORY_BYTES, n)
    return limits


def rate(probe: Callable[[int], int], threads: int) -> float:
    """What `threads` threads do of a probe's work together in a second."""
    rounds = 20_000
    with ThreadPoolExecutor(threads) as pool:

        def work() -> float:
            return sum(pool.map(probe, [rounds] * threads))

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
