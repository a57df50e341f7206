"""Find a needle in an attention map of 131,072 x 131,072, and choose a window for a head.

    python examples/needle.py                    131,072 tokens: about a minute on two cores
    python examples/needle.py --length 8192

One head of a made-up model reads mostly what is near; a few of its queries read one key far back.
The whole matrix would be 64 GiB; here it is q, k and one number a row.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import clearhead as ch

D = 64


def made_up_head(T: int, needle: int, readers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys that turn with their position, as rotary embeddings do: near reads near."""
    rng = np.random.default_rng(0)
    angle = np.arange(T)[:, None] * np.geomspace(1.0, 1e-3, D // 2 - 1)
    around = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    noise = rng.normal(0, 0.3, (2, T, D - 2))
    q, k = np.zeros((2, T, D), np.float32)
    q[:, 2:], k[:, 2:] = 1.8 * around + noise[0], 1.8 * around + noise[1]
    k[needle, 0] = 16.0
    q[readers, 0] = 16.0
    return q, k


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--length", type=int, default=131072)
    T = parser.parse_args().length
    needle, readers = T // 3, [T // 2, T - 5]
    q, k = made_up_head(T, needle, readers)

    start = time.perf_counter()
    amap = ch.attention_map(q, k, mask=ch.causal())
    print(amap)

    def progress(done: int, total: int) -> None:
        print(f"\r{done / total:4.0%}", end="", file=sys.stderr, flush=True)

    bins = min(1024, T)
    seen = amap.observe(pool=(bins, bins), received=True, top=1, by_distance=T, progress=progress)
    print(f"\r{time.perf_counter() - start:.1f} s for {T:,} x {T:,} cells", file=sys.stderr)

    # Far from the diagonal, the strongest cell of the zoomed-out map is the needle's.
    far = seen.pool_max.copy()
    rows, cols = np.indices(far.shape)
    far[rows - cols < bins // 16] = 0
    row, col = np.unravel_index(int(far.argmax()), far.shape)
    print(f"the strongest far bin: rows from {row * T // bins:,}, keys from {col * T // bins:,}")

    # Zoom in: which query, which key.
    keys = seen.top_keys[:, 0]
    distance = np.arange(T) - keys
    found = np.flatnonzero(distance > T // 8)
    for t in found:
        print(f"query {t:,} reads key {keys[t]:,}: {amap[t, keys[t]]:.3f}")
    assert found.tolist() == readers and set(keys[found]) == {needle}

    # What would a window lose? Mass by distance, summed.
    share = np.cumsum(seen.by_distance) / T
    for window in (64, 256, 1024, 4096):
        if window < T:
            print(f"a window of {window:>5,} keys keeps {share[window - 1]:7.2%}")
    enough = int(np.searchsorted(share, 0.99)) + 1
    print(f"99 % of what this head reads lies within {enough:,} keys")


if __name__ == "__main__":
    main()
