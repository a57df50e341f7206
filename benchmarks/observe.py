"""What looking costs: each statistic of the attention matrix, in time and in memory.

    python benchmarks/observe.py                 T = 8192, one head, one thread and all
    python benchmarks/observe.py --length 2048 --heads 4
    python benchmarks/observe.py --long          and a map of 131,072 tokens, about a minute more
    python benchmarks/observe.py --json out.json

The limit, written down before the measuring: the forward pass of a cell multiplies and adds D times
for the score and D for the value, and takes one exponential; observation leaves the values out. At
D = 64 a key against 64 queries is 128 cycles of AVX-512 for the scores, 128 for the values, and
about 24 for 2^x. So the least that a pass can take is (128 + 24) / (256 + 24) = 0.54 of a forward
pass that is itself at its limit; where the forward pass is not, less.

The way people do it now, in PyTorch: softmax materialised for a head, then reduced. Contenders take
turns; medians are shown. Memory is how far the peak of a fresh process rises in the one call. The
goals stand at the end, each with its worst number.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import clearhead as ch
from clearhead import reference

BINS, TOP, DISTANCES = 512, 8, 4096
WISHES: dict[str, dict[str, Any]] = {
    "pool 512 x 512": {"pool": (BINS, BINS)},
    "received": {"received": True},
    "entropy": {"entropy": True},
    "max": {"max": True},
    "top 8": {"top": TOP},
    "by_distance 4096": {"by_distance": DISTANCES},
    "pool, received, entropy, top 8": {
        "pool": (BINS, BINS),
        "received": True,
        "entropy": True,
        "top": TOP,
    },
}
EVERYTHING = list(WISHES)[-1]


def arrays(T: int, heads: int, D: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(heads, T, D)).astype(np.float32) for _ in range(3)]


def eager(q: Any, k: Any) -> Callable[[], Any] | None:
    """Softmax materialised head by head in PyTorch, then everything of it."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(ch.num_threads())
    tq, tk = torch.from_numpy(q), torch.from_numpy(k)
    T, S = q.shape[1], k.shape[1]

    def call() -> Any:
        found = []
        for h in range(len(q)):
            a = torch.softmax(tq[h] @ tk[h].T * q.shape[-1] ** -0.5, dim=-1)
            cells = a.view(BINS, T // BINS, BINS, S // BINS)
            entropy = -(a * a.clamp_min(1e-38).log()).sum(-1)
            best = a.topk(TOP, dim=-1)
            found.append((cells.mean((1, 3)), cells.amax((1, 3)), a.sum(0), entropy, *best))
        return found

    return call


def check(T: int, heads: int, D: int) -> None:
    """Against the specification, before anything is timed."""
    q, k, _ = (x[:, :700] for x in arrays(min(T, 1024), heads, D))
    wish = {**WISHES[EVERYTHING], "pool": (7, 5), "by_distance": 300}
    got, want = ch.attention_map(q, k).observe(**wish), reference.observe(q, k, **wish)
    for name in ("pool_mean", "pool_max", "received", "entropy", "top_weights", "by_distance"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-4, atol=1e-6)


def timed(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    for turn in range(200):
        if turn > 5 and time.perf_counter() > deadline:
            break
        for name, call in calls.items():
            time.sleep(0.002)
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: list_[1:] for name, list_ in times.items()}  # the first turn warms up


def peak_bytes(who: str, T: int, heads: int, D: int) -> int | None:
    """How far one call raises the peak of a fresh process."""
    command = [sys.executable, __file__, "--peak-of", who, "--length", str(T)]
    command += ["--heads", str(heads), "--size", str(D)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(run.stdout) if run.stdout.strip() else None


def print_peak(who: str, T: int, heads: int, D: int) -> None:
    q, k, _ = arrays(T, heads, D)
    if who == "clearhead":
        small = ch.attention_map(q[:, :128], k[:, :128])
        small.observe(**{**WISHES[EVERYTHING], "pool": (8, 8)})
        amap = ch.attention_map(q, k)

        def call() -> Any:
            return amap.observe(**WISHES[EVERYTHING])
    else:
        small_call, found = eager(q[:, :BINS], k[:, :BINS]), eager(q, k)
        if small_call is None or found is None:
            return
        small_call()
        call = found
    before = forget_peak()
    call()
    print(own_peak() - before)


def own_peak() -> int:
    """Of this process's memory alone: getrusage would count the parent's too, from before exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def forget_peak() -> int:
    """Makes what is resident now the peak, and returns it: what came before shall hide nothing."""
    Path("/proc/self/clear_refs").write_text("5")
    return own_peak()


def long_map() -> list[dict[str, Any]]:
    """A 131,072-token map, pooled: time against 16 times that of 32,768, memory, and a tile.

    In a process of its own, since the peak of its memory is asked for.
    """
    seconds = {}
    for T in (8192, 32768, 131072):  # the first one warms up
        q, k, _ = arrays(T, 1, 64)
        before = forget_peak()
        start = time.perf_counter()
        amap = ch.attention_map(q, k)
        amap.observe(pool=(1024, 1024))
        seconds[T] = time.perf_counter() - start
    rise = own_peak() - before
    tiles = []
    for i in range(20):
        start = time.perf_counter()
        amap[0, i * 6000 : i * 6000 + 256, 70_000:70_256]
        tiles.append(time.perf_counter() - start)
    return [
        {"what": "131072 / (16 x 32768)", "ratio": seconds[131072] / (16 * seconds[32768])},
        {"what": "peak at 131072", "bytes": rise},
        {"what": "a 256 x 256 tile at 131072", "median_s": statistics.median(tiles)},
    ]


def goals(records: list[dict[str, Any]]) -> str:
    """Each goal with its worst number; those that were not measured are left out."""

    def all_of(key: str, *names: str) -> list[float]:
        return [r[key] for r in records if r["what"] in names and key in r]

    one = ["pool 512 x 512", "received", "entropy"]
    rows = [
        ("one of pool, received, entropy, of forward", "<=", 0.5, all_of("of_forward", *one)),
        ("all of them and top 8, of forward", "<=", 0.8, all_of("of_forward", EVERYTHING)),
        ("time of PyTorch's", ">=", 10, all_of("ratio", "PyTorch's time")),
        ("memory of PyTorch's", ">=", 50, all_of("ratio", "PyTorch's memory")),
        ("131,072 tokens, of 16 x 32,768", "<=", 1.1, all_of("ratio", "131072 / (16 x 32768)")),
        ("their memory, MiB", "<=", 256, [x / 2**20 for x in all_of("bytes", "peak at 131072")]),
        (
            "a 256 x 256 tile of it, ms", "<=", 10,
            [x * 1e3 for x in all_of("median_s", "a 256 x 256 tile at 131072")],
        ),
    ]  # fmt: skip
    lines = [f"{'goal':8} {'found':>8} {'wanted':>8}"]
    for what, sign, bound, found in rows:
        if found:
            worst = max(found) if sign == "<=" else min(found)
            met = worst <= bound if sign == "<=" else worst >= bound
            verdict = "met" if met else "NOT MET"
            lines.append(f"{verdict:8} {worst:8.2f} {sign + format(bound, 'g'):>8}  {what}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--length", type=int, default=8192, help="T, a multiple of 512")
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--size", type=int, default=64, help="D")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--causal", action="store_true", help="without the PyTorch column")
    parser.add_argument("--long", action="store_true", help="also a map of 131,072 tokens")
    parser.add_argument("--threads", type=int, nargs="*", help="default: one, and all")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    T, heads, D = options.length, options.heads, options.size
    if options.peak_of == "long":
        return print(json.dumps(long_map()))
    if options.peak_of:
        return print_peak(options.peak_of, T, heads, D)
    check(T, heads, D)
    mask = ch.causal() if options.causal else None
    q, k, v = arrays(T, heads, D)
    records = []
    for threads in options.threads or sorted({1, len(os.sched_getaffinity(0))}):
        ch.set_num_threads(threads)
        amap = ch.attention_map(q, k, mask=mask)
        calls: dict[str, Callable[[], Any]] = {
            "forward": lambda: ch.attention(q, k, v, mask=mask),
            "lse alone": lambda: ch.attention_map(q, k, mask=mask),
        }
        for name, wish in WISHES.items():
            calls[name] = lambda amap=amap, wish=wish: amap.observe(**wish)  # type: ignore[misc]
        torch_call = None if options.causal else eager(q, k)
        if torch_call is not None:
            calls["PyTorch: softmax, then all of it"] = torch_call
        times = timed(calls, options.seconds)
        kind = "causal" if options.causal else "full"
        print(f"\n{ch.isa()}, {threads} thread(s), (H, T, D) = ({heads}, {T}, {D}), {kind}")
        print(f"{'':34} {'ms':>9} {'/ forward':>10}")
        for name, each in times.items():
            ratio = statistics.median(a / b for a, b in zip(each, times["forward"], strict=True))
            print(f"{name:34} {statistics.median(each) * 1e3:9.1f} {ratio:10.3f}", flush=True)
            records.append(
                {
                    "what": name,
                    "threads": threads,
                    "isa": ch.isa(),
                    "H, T, D, kind": [heads, T, D, kind],
                    "median_s": statistics.median(each),
                    "of_forward": ratio,
                    "rounds": len(each),
                }
            )
        if torch_call is not None:
            pairs = zip(times["PyTorch: softmax, then all of it"], times[EVERYTHING], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"PyTorch takes {ratio:.1f} x the time")
            records.append({"what": "PyTorch's time", "threads": threads, "ratio": ratio})
    if not options.causal:
        peaks = {who: peak_bytes(who, T, heads, D) for who in ("clearhead", "torch")}
        for who, n in peaks.items():
            if n is not None:
                print(f"{who}: the peak rises by {n / 2**20:.1f} MiB")
                records.append({"what": f"peak of {who}", "bytes": n})
        if peaks["torch"] and peaks["clearhead"]:
            ratio = peaks["torch"] / peaks["clearhead"]
            print(f"PyTorch takes {ratio:.0f} x the memory")
            records.append({"what": "PyTorch's memory", "ratio": ratio})
    if options.long:
        alone = subprocess.run(
            [sys.executable, __file__, "--peak-of", "long"],
            capture_output=True,
            text=True,
            check=True,
        )
        records += json.loads(alone.stdout)
    print("\n" + goals(records))
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
