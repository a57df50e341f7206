"""The steps of `clearhead bench`, and of benchmarks/attention.py: choose, measure, print, write."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .._writing import replacing
from . import run, table
from .cases import choose
from .report import Report

# The short form: what most programs do, a model's decoding, and a small problem.
SHORT = [
    "full/1x12x2048x64/float32",
    "causal/1x12x2048x64/float32",
    "causal/1x12x2048x64/bfloat16",
    "causal/1x12x2048x64/float32/grad",
    "full/1x32:8x1:8192x128/float32",
    "full/8x12x128x32/float32",
]


def cpus() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check(threads: Sequence[int], seconds: float) -> list[int]:
    """The counts of threads, one and all unless given. Raises ValueError."""
    for n in threads:
        if not 1 <= n <= cpus():
            raise ValueError(
                f"threads: is {n}, must be from 1 to the {cpus()} CPUs of this process"
            )
    if not 0 < seconds <= 3600:
        raise ValueError(f"seconds: is {seconds}, must be above 0 and at most 3600")
    return list(dict.fromkeys(threads)) or sorted({1, cpus()})


def bench(
    *,
    cases: Sequence[str],
    peers: Sequence[str],
    threads: Sequence[int],
    seconds: float,
    json: str | None,
    listed: Sequence[str] = SHORT,
    memory: bool = False,
    show: Callable[[Report], str] = table.text,
) -> int:
    """Measures, prints what `show` makes of it, and writes the JSON; the exit code.

    Ctrl-C prints and writes what is there, and the code is 130; it is 1 where a result of
    clearhead is wrong.
    """
    chosen = choose(list(cases), list(listed))
    counts = check(threads, seconds)
    wanted = run.contenders(peers)
    if json is not None:
        check_writable(json)
    report, code = run.start(counts, cpus(), progress), 0
    try:
        run.measure(report, chosen, counts, wanted, seconds, progress)
        if memory:
            run.memory(report, chosen, counts[-1], wanted, progress)
    except KeyboardInterrupt:
        progress("stopped; this is what was measured")
        code = 130
    if any(m.skip for m in report.measurements if m.who == "clearhead"):
        code = code or 1
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    if json != "-":
        print(show(report))
    if json == "-":
        print(report.to_json())
    elif json is not None:
        with replacing(json) as out:
            out.write(report.to_json() + "\n")
    return code


def check_writable(path: str) -> None:
    """Before the work: the folder is there."""
    if path != "-" and not Path(path).absolute().parent.is_dir():
        raise ValueError(f"json: {path} cannot be written, its folder is not there")


def progress(what: str) -> None:
    """One line on stderr: in a terminal the same one over and over."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what[:79]}", end="", file=sys.stderr, flush=True)
    else:
        print(what, file=sys.stderr, flush=True)
