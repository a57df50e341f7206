"""Contenders take turns: each library in a process of its own, one turn each, round after round.

Threads that spin after a call would slow whoever runs next, so a turn begins when all threads of
the one before sleep. A turn is a few calls, about 40 ms; its median counts as one time. The order
is rotated from round to round. A process is kept to as many CPUs as it has threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .cases import Case
from .worker import LIBRARIES

_TURN_S = 0.04
_ROUNDS = 5, 60  # at least, at most
_NEEDS = {"onnxruntime": ("onnxruntime", "onnx")}


class Worker:
    """One library's process, which this one talks to by lines."""

    def __init__(self, library: str, threads: int):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, str(threads))
        self.library = library
        self._process = subprocess.Popen(
            [sys.executable, "-m", "clearhead.bench.worker", library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        if hasattr(os, "sched_setaffinity"):  # before it has threads
            cpus = sorted(os.sched_getaffinity(0))[-threads:]
            os.sched_setaffinity(self._process.pid, cpus)

    def send(self, do: str, **request: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # receive() says that it ended
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.library}: its process ended ({self._process.wait()})")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.library}: {answer['error']}")
        return answer["answer"]

    def ask(self, do: str, **request: Any) -> Any:
        self.send(do, **request)
        return self.receive()

    def cpu_s(self) -> float:
        """Seconds of CPU that the process has had so far (Linux; elsewhere 0)."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return 0.0
        user, system = stat.rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def rest(self) -> None:
        """Returns when none of its threads runs any more."""
        tasks = Path(f"/proc/{self._process.pid}/task")
        if not tasks.exists():
            return time.sleep(0.08)
        asleep, end = 0, time.perf_counter() + 0.5
        while asleep < 3 and time.perf_counter() < end:
            asleep = 0 if any(_runs(task) for task in tasks.iterdir()) else asleep + 1
            time.sleep(0.0005)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _runs(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rsplit(")", 1)[1].split()[0] in "RD"
    except OSError:  # it has just ended
        return False


def installed() -> dict[str, list[str]]:
    """Libraries that are here, and their contenders' names."""
    return {
        library: list(contenders)
        for library, contenders in LIBRARIES.items()
        if all(find_spec(name) for name in _NEEDS.get(library, (library,)))
    }


@contextlib.contextmanager
def workers(wanted: dict[str, list[str]], threads: int) -> Iterator[dict[str, Worker]]:
    """A process for each library; they end with the block, whatever happens."""
    found: dict[str, Worker] = {}
    try:
        for library in wanted:
            found[library] = Worker(library, threads)
        yield found
    finally:
        for worker in found.values():
            worker.close()


def prepare(
    crew: dict[str, Worker], wanted: dict[str, list[str]], case: Case, threads: int
) -> dict[str, dict[str, Any]]:
    """Every contender's call made and checked: {name: {"of_budget": x} or {"skip": why}}."""
    found: dict[str, dict[str, Any]] = {}
    for library, worker in crew.items():
        worker.send("prepare", case=case.name, threads=threads, who=wanted[library])
    for library, worker in list(crew.items()):
        try:
            found.update(worker.receive())
        except RuntimeError as reason:
            found.update({name: {"skip": str(reason)} for name in wanted[library]})
            worker.close()
            crew[library] = Worker(library, threads)
    return found


def timed(crew: dict[str, Worker], ready: dict[str, str], seconds: float) -> dict[str, list[float]]:
    """Seconds by round of each contender in `ready`, {name: library}.

    The first that is named takes every round; whoever is slow sits out when his time is used up,
    after two or three. Times of one round are next to each other in time: divide them.
    """
    calls = dict.fromkeys(ready, 1)
    times: dict[str, list[float]] = {name: [] for name in ready}
    spent = dict.fromkeys(ready, 0.0)
    names = list(ready)
    end = time.perf_counter() + seconds * len(names)
    for turn in range(_ROUNDS[1]):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            used_up = spent[name] > (4 * seconds if turn == 2 else seconds)
            if turn >= 2 and used_up and name != names[0]:
                times[name].append(float("nan"))
                continue
            worker = crew[ready[name]]
            start = time.perf_counter()
            found = worker.ask("time", name=name, calls=calls[name])
            spent[name] += time.perf_counter() - start
            worker.rest()
            times[name].append(statistics.median(found))
            calls[name] = max(1, min(200, int(_TURN_S / times[name][-1])))
        if turn + 1 >= _ROUNDS[0] and time.perf_counter() > end:
            break
    return times


def peak_memory(library: str, name: str, case: Case, threads: int) -> int | None:
    """Bytes beyond inputs and result of one call, in a process of its own; None: unknown."""
    worker = Worker(library, threads)
    try:
        return int(worker.ask("memory", case=case.name, threads=threads, name=name))
    except RuntimeError:
        return None
    finally:
        worker.close()
