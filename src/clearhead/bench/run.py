"""Measures cases: limits first, then each case's contenders checked and timed in turn."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

from . import limits, turns
from .cases import Case
from .report import QUIET, Measurement, Report, machine
from .worker import LIBRARIES

Progress = Callable[[str], None]

_ATTEMPTS = 3  # at a case, while other programs run
_TICKS_S = 0.05  # the system counts CPU time by hundredths of a second, for each process


def start(threads: Sequence[int], cpus: int, progress: Progress) -> Report:
    """A report that holds the machine's limits and no measurement yet."""
    from ..ops import isa

    progress("the machine's limits")
    return Report(machine(isa(), cpus), limits.measure(list(threads)))


def contenders(peers: Sequence[str]) -> dict[str, list[str]]:
    """clearhead, and of the installed peers those that are named by library or by their own name.

    Raises ValueError for a name that none has.
    """
    here = turns.installed()
    known = {*LIBRARIES, *(name for names in LIBRARIES.values() for name in names)}
    for name in peers:
        if name not in known | {"none"}:
            raise ValueError(
                f"peers: is {name!r}, must be none or one of {', '.join(sorted(known))}"
            )
    wanted = {"clearhead": ["clearhead"]}
    for library, names in here.items():
        chosen = [n for n in names if not peers or library in peers or n in peers]
        if chosen and library != "clearhead":
            wanted[library] = chosen
    return wanted


def measure(
    report: Report,
    cases: Sequence[Case],
    threads: Sequence[int],
    wanted: dict[str, list[str]],
    seconds: float,
    progress: Progress,
) -> None:
    """Adds the measurements to `report` as they are made."""
    total = len(cases) * len(threads)
    others, since = _cpu_of_others(), time.perf_counter()
    try:
        for done, n in enumerate(threads):
            with turns.workers(wanted, n) as crew:
                for i, case in enumerate(cases):
                    progress(f"{done * len(cases) + i + 1}/{total} {case.name}, {n} thread(s)")
                    report.measurements += _case(report, case, n, crew, wanted, seconds)
    finally:
        if others is not None:
            used = (_cpu_of_others() or others) - others
            report.machine["others_cpus"] = max(0.0, used / (time.perf_counter() - since))


def _cpu_of_others(crew: Iterable[turns.Worker] = ()) -> float | None:
    """Seconds of CPU that neither this process, its ended children nor the crew had (Linux)."""
    try:
        with open("/proc/stat") as lines:
            user, nice, system, _, _, irq, softirq, steal = map(int, next(lines).split()[1:9])
    except (OSError, ValueError):
        return None
    import resource

    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        own = resource.getrusage(who)
        busy -= own.ru_utime + own.ru_stime
    return busy - sum(worker.cpu_s() for worker in crew)


def _case(
    report: Report,
    case: Case,
    threads: int,
    crew: dict[str, turns.Worker],
    wanted: dict[str, list[str]],
    seconds: float,
) -> list[Measurement]:
    found = turns.prepare(crew, wanted, case, threads)
    library_of = {name: library for library, names in wanted.items() for name in names}
    rows = {name: Measurement(case.name, threads, name, **found[name]) for name in library_of}
    if rows["clearhead"].skip:  # there is nothing to compare with: the report says so
        return list(rows.values())
    ready = {name: library_of[name] for name in rows if not rows[name].skip}
    least = report.limits.least_seconds(case, threads)
    others, times = _timed_in_quiet(crew, ready, seconds)
    for name, each in times.items():
        row, own = rows[name], times["clearhead"]
        row.seconds = each
        row.others_cpus = others
        row.of_limit = least / row.median_s
        if name != "clearhead":
            pairs = [b / a for a, b in zip(own, each, strict=True) if b == b]
            row.ratio = statistics.median(pairs)
    return list(rows.values())


def _timed_in_quiet(
    crew: dict[str, turns.Worker], ready: dict[str, str], seconds: float
) -> tuple[float, dict[str, list[float]]]:
    """turns.timed, and how many CPUs other programs used meanwhile. While that is too much it is
    done again; the attempt that was disturbed least counts. One that shares a core with two threads
    makes them 1.5 times as fast as one thread instead of twice, and a long run hides it."""
    attempts = []
    for _ in range(_ATTEMPTS):
        before, since = _cpu_of_others(crew.values()), time.perf_counter()
        times = turns.timed(crew, ready, seconds)
        used, elapsed = 0.0, time.perf_counter() - since
        if before is not None:
            used = max(0.0, (_cpu_of_others(crew.values()) or before) - before - _TICKS_S)
        attempts.append((used / elapsed, times))
        if used / elapsed <= QUIET:
            break
    return min(attempts, key=lambda attempt: attempt[0])


def memory(
    report: Report,
    cases: Sequence[Case],
    threads: int,
    wanted: dict[str, list[str]],
    progress: Progress,
) -> None:
    """Adds to each measurement that was timed how much memory a call takes at the most."""
    library_of = {name: library for library, names in wanted.items() for name in names}
    for case in cases:
        for name, library in library_of.items():
            row = report.find(case.name, threads, name)
            if row is not None:
                progress(f"memory: {case.name}, {name}")
                row.peak_bytes = turns.peak_memory(library, name, case, threads)
