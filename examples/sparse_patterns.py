"""Three published sparse patterns in the mask algebra: what they allow, and what they save.

    python examples/sparse_patterns.py
    python examples/sparse_patterns.py --length 16384

Printed for each: a small picture, the share of the matrix that it allows at the given length, and
the time of attention with it beside the time without a mask.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter

import numpy as np

import clearhead as ch


def longformer(length: int, reach: int, global_tokens: Sequence[int] = (0,)) -> ch.Mask:
    """Beltagy et al. 2020: a window on both sides; global tokens see, and are seen by, all."""
    # "Documents" are any two lists of numbers: a query sees the keys whose number is its own. From
    # them the core finds intervals of keys; arrays of booleans it would have to test cell by cell.
    some, everyone = np.ones(length, int), np.zeros(length, int)
    some[list(global_tokens)] = 0
    seen_by_all, sees_all = ch.documents(everyone, some), ch.documents(some, everyone)
    return ch.window(left=reach, right=reach) | seen_by_all | sees_all


def dilated_longformer(reach: int, step: int) -> ch.Mask:
    """The same paper's higher layers: every `step`-th key, over a window `step` times as wide."""
    return ch.window(left=reach * step, right=reach * step) & ch.dilated(step)


def big_bird(
    length: int, block: int, random_blocks: int, global_blocks: int = 1, seed: int = 0
) -> ch.Mask:
    """Zaheer et al. 2020: neighbouring blocks, global blocks, and a few blocks drawn at random."""
    count = -(-length // block)
    row, col = np.arange(count)[:, None], np.arange(count)[None, :]
    near = abs(row - col) <= 1
    everywhere = (row < global_blocks) | (col < global_blocks)
    drawn = np.zeros((count, count), bool)
    rng = np.random.default_rng(seed)
    for i in range(count):
        drawn[i, rng.choice(count, size=min(random_blocks, count), replace=False)] = True
    return ch.blocks(near | everywhere | drawn, block)


def streaming_llm(recent: int, sinks: int = 4) -> ch.Mask:
    """Xiao et al. 2024: the last `recent` keys, and the first few, on which idle heads rest."""
    return ch.causal() & (ch.window(left=recent - 1) | ch.first_keys(sinks))


def picture(mask: ch.Mask, length: int) -> str:
    """One line a query, one mark a key."""
    return "\n".join(
        "    " + "".join("##" if seen else " ." for seen in row)
        for row in mask.to_array(length, length)
    )


def seconds(mask: ch.Mask | None, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> float:
    """The best of three calls."""
    times = []
    for _ in range(3):
        start = perf_counter()
        ch.attention(q, k, v, mask=mask)
        times.append(perf_counter() - start)
    return min(times)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Sparse attention patterns: what they save.")
    parser.add_argument("--length", type=int, default=4096, help="tokens (default: %(default)s)")
    n = parser.parse_args(arguments).length
    if n < 16:
        parser.error("--length: must be at least 16")
    small, reach, block = 16, max(1, n // 64), max(1, n // 64)
    patterns = {
        "Longformer": (longformer(small, 2), longformer(n, reach)),
        "Longformer, dilated": (dilated_longformer(2, 3), dilated_longformer(reach, 4)),
        "BigBird": (big_bird(small, 2, 1), big_bird(n, block, 3)),
        "StreamingLLM": (streaming_llm(4, 1), streaming_llm(2 * reach)),
    }
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 4, n, 64), dtype=np.float32)
    full = seconds(None, q, k, v)
    for name, (shown, mask) in patterns.items():
        print(f"{name}: {mask!r}\n{picture(shown, small)}")
        share, took = mask.allowed_count(n, n) / n**2, seconds(mask, q, k, v)
        print(f"    {share:.1%} of {n} x {n} allowed; {took:.3f} s, {took / full:.0%} of no mask\n")


if __name__ == "__main__":
    main()
