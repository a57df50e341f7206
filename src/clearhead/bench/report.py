"""What was found, and its file."""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .limits import Limits

QUIET = 0.05  # of a CPU: what other programs may use meanwhile

_PACKAGES = "clearhead", "numpy", "torch", "onnxruntime", "openvino", "jax"


@dataclass
class Measurement:
    """One contender at one case.

    seconds     of a call, one number a round; NaN where it sat the round out; empty: not timed
    ratio       its time divided by clearhead's in the same round, the median; above 1 clearhead is
                faster
    of_limit    the least time that the machine allows, divided by its median
    of_budget   its error divided by what is allowed
    peak_bytes  beyond its inputs and its result, in a process of its own
    others_cpus what other programs used meanwhile, in CPUs
    skip        why it was not timed
    """

    case: str
    threads: int
    who: str
    seconds: list[float] = field(default_factory=list)
    ratio: float | None = None
    of_limit: float | None = None
    of_budget: float | None = None
    peak_bytes: int | None = None
    others_cpus: float | None = None
    skip: str | None = None

    @property
    def median_s(self) -> float:
        return statistics.median(self._there())

    @property
    def quartiles_s(self) -> tuple[float, float]:
        there = self._there()
        if len(there) < 2:
            return there[0], there[0]
        low, _, high = statistics.quantiles(there, n=4, method="inclusive")
        return low, high

    def _there(self) -> list[float]:
        return [s for s in self.seconds if not math.isnan(s)]


@dataclass
class Report:
    """All of a run, or of several that were put together."""

    machine: dict[str, Any]
    limits: Limits
    measurements: list[Measurement] = field(default_factory=list)

    def find(self, case: str, threads: int, who: str = "clearhead") -> Measurement | None:
        """The last such measurement that was timed."""
        found = None
        for m in self.measurements:
            if (m.case, m.threads, m.who) == (case, threads, who) and m.seconds:
                found = m
        return found

    def to_json(self) -> str:
        limits = {
            "flops": [[*key, value] for key, value in self.limits.flops.items()],
            "weights": [[*key, value] for key, value in self.limits.weights.items()],
            "bandwidth": [[*key, value] for key, value in self.limits.bandwidth.items()],
        }
        rows = []
        for m in self.measurements:
            row = asdict(m)
            row["seconds"] = [None if math.isnan(s) else s for s in m.seconds]
            if m.seconds:
                row |= {"median_s": m.median_s, "quartiles_s": list(m.quartiles_s)}
            rows.append(row)
        whole = {"format": 1, "machine": self.machine, "limits": limits, "measurements": rows}
        return json.dumps(whole, indent=1)


def from_json(text: str) -> Report:
    """What to_json wrote. Raises ValueError."""
    try:
        whole = json.loads(text)
        if whole["format"] != 1:
            raise ValueError
        limits = Limits(
            {(isa, n): x for isa, n, x in whole["limits"]["flops"]},
            {(isa, n): x for isa, n, x in whole["limits"]["weights"]},
            {(size, n): x for size, n, x in whole["limits"]["bandwidth"]},
        )
        rows = []
        for row in whole["measurements"]:
            row = {k: v for k, v in row.items() if k not in ("median_s", "quartiles_s")}
            row["seconds"] = [math.nan if s is None else s for s in row["seconds"]]
            rows.append(Measurement(**row))
        return Report(whole["machine"], limits, rows)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("show: is not a file that this benchmark wrote with --json") from error


def merge(reports: Iterable[Report]) -> Report:
    """Runs of one machine put together; of a limit the most that was seen counts."""
    first, *others = reports
    disturbed = {"others_cpus": max(r.machine.get("others_cpus", 0.0) for r in (first, *others))}
    merged = Report(first.machine | disturbed, Limits(), list(first.measurements))
    for report in (first, *others):
        for kind in ("flops", "weights", "bandwidth"):
            into = getattr(merged.limits, kind)
            for key, value in getattr(report.limits, kind).items():
                into[key] = max(value, into.get(key, 0.0))
    for report in others:
        merged.measurements += report.measurements
    return merged


def machine(isa: str, cpus: int) -> dict[str, Any]:
    """Where and with what this was measured."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": _cpu(),
        "cpus": cpus,
        "isa": isa,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    """Its name, and its family and model, since a virtual machine may hide the name."""
    try:
        with open("/proc/cpuinfo") as lines:
            pairs = [line.split(":", 1) for line in lines if ":" in line]
    except OSError:
        return platform.processor() or platform.machine()
    about = {key.strip(): value.strip() for key, value in reversed(pairs)}
    if "model name" not in about:
        return platform.machine()
    return f"{about['model name']} (family {about['cpu family']}, model {about['model']})"
