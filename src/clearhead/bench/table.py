"""A report as lines of text, for a terminal or for a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from textwrap import fill

from .cases import parse
from .report import QUIET, Measurement, Report

_SHORT = {
    "torch-rows": "rows",
    "ort-mha": "mha",
    "ort-gqa": "gqa",
    "ort-onnx": "onnx",
    "openvino": "ov",
    "numpy": "numpy",
}
LEGEND = """\
ms: median of a call; +-: half the distance of its quartiles; limit: the least
time that this machine's multiply-adds or memory allow, of the time taken (over
100% where tiles of bfloat16 do what multiply-adds of float32 would). Then each
peer's time divided by clearhead's: below 1, marked <, the peer is faster.
torch: PyTorch's scaled_dot_product_attention; rows: the same, grouped heads as
rows of one; mha, gqa, onnx: ONNX Runtime's MultiHeadAttention,
GroupQueryAttention and Attention; ov: OpenVINO."""


def text(report: Report) -> str:
    """Everything, in at most 80 columns where seven peers or fewer take part."""
    parts = [about(report), limits(report)]
    for title, names, rows in _groups(report):
        parts.append(title + "\n" + _aligned([_heading(names), *rows]))
    if report.measurements:
        parts += [LEGEND, disturbed(report), losses(report), skipped(report), memory(report)]
    return "\n\n".join(part for part in parts if part)


def markdown(report: Report) -> str:
    """The same as Markdown tables."""
    parts = [about(report), _code(limits(report))]
    for title, names, rows in _groups(report):
        heading = _heading(names)
        lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
        parts.append(f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    found = disturbed(report), losses(report), skipped(report), memory(report)
    parts += [LEGEND, *map(_code, found)]
    return "\n\n".join(part for part in parts if part)


def about(report: Report) -> str:
    m = report.machine
    versions = ", ".join(f"{name} {v}" for name, v in m["versions"].items())
    where = f"{m['cpu']}, {m['cpus']} CPU(s), {m['isa']}, {m['date']}"
    used = m.get("others_cpus", 0.0)
    warning = f"\nNOT QUIET: other programs used {used:.2f} CPUs meanwhile." if used > QUIET else ""
    return fill(where, 80) + "\n" + fill(versions, 80) + warning


def limits(report: Report) -> str:
    """The machine's own, by number of threads."""
    counts = sorted({n for _, n in report.limits.flops} | {n for _, n in report.limits.bandwidth})
    rows = [["limit", *(f"{n} thread{'s' * (n > 1)}" for n in counts)]]

    def row(name: str, values: Iterable[float | None]) -> list[str]:
        return [name, *("-" if x is None else f"{x / 1e9:.1f}" for x in values)]

    for what, unit, found in (
        ("products", "GFLOP/s", report.limits.flops),
        ("weights", "G/s", report.limits.weights),
    ):
        for isa in dict.fromkeys(isa for isa, _ in found):
            rows.append(row(f"{what}, {isa}, {unit}", [found.get((isa, n)) for n in counts]))
    for size in sorted({size for size, _ in report.limits.bandwidth}):
        values = (report.limits.bandwidth.get((size, n)) for n in counts)
        rows.append(row(f"reading {_size(size)}, GB/s", values))
    return _aligned(rows)


def losses(report: Report) -> str:
    """Where a peer wins."""
    lines = [
        f"  {m.ratio:.2f}  {m.who}: {m.case}, {m.threads} thread(s)"
        for m in sorted(_timed(report), key=lambda m: m.ratio or 0)
        if m.ratio is not None and m.ratio < 1
    ]
    return "\n".join(["A peer is faster (its time / clearhead's):", *lines]) if lines else ""


def disturbed(report: Report) -> str:
    """Cases to be measured again."""
    lines = [
        f"  {m.others_cpus:.2f}  {m.case}, {m.threads} thread(s)"
        for m in _timed(report)
        if m.who == "clearhead" and (m.others_cpus or 0) > QUIET
    ]
    return "\n".join(["Other programs ran meanwhile (CPUs):", *lines]) if lines else ""


def skipped(report: Report) -> str:
    """Who was not timed, and why; how many times."""
    reasons: dict[str, Counter[str]] = {}
    for m in report.measurements:
        if m.skip:
            reasons.setdefault(m.who, Counter())[m.skip] += 1
    lines = [
        fill(f"  {who}: " + "; ".join(f"{why} ({n})" for why, n in found.items()), 80)
        for who, found in reasons.items()
    ]
    return "\n".join(["Not timed, and in how many cases:", *lines]) if lines else ""


def memory(report: Report) -> str:
    """Peaks, in MiB."""
    known = [m for m in report.measurements if m.peak_bytes is not None]
    if not known:
        return ""
    names = list(dict.fromkeys(m.who for m in known))
    rows = [["case", *(_SHORT.get(name, name) for name in names)]]
    for case in dict.fromkeys(m.case for m in known):
        found = {m.who: m.peak_bytes for m in known if m.case == case}
        cells = ("-" if name not in found else f"{found[name] / 2**20:.1f}" for name in names)  # type: ignore[operator]
        rows.append([case, *cells])
    return "Memory that a call takes beyond inputs and result, MiB:\n" + _aligned(rows)


def _timed(report: Report) -> list[Measurement]:
    """The last of each that was timed."""
    last = {(m.case, m.threads, m.who): m for m in report.measurements if m.seconds}
    return list(last.values())


def _groups(report: Report) -> Iterable[tuple[str, list[str], list[list[str]]]]:
    """(title, peers, rows) of the cases that belong together."""
    timed = _timed(report)
    titles: dict[str, list[tuple[str, int]]] = {}
    for m in timed:
        if m.who == "clearhead":
            titles.setdefault(_title(m), []).append((m.case, m.threads))
    for title, keys in titles.items():
        names = [
            name
            for name in dict.fromkeys(m.who for m in timed if m.who != "clearhead")
            if any(report.find(*key, name) for key in keys)
        ]
        yield title, names, [_row(report, *key, names) for key in keys]


def _title(m: Measurement) -> str:
    case = parse(m.case)
    kind = "forward and backward" if case.grad else "decoding" if case.T < case.S else "forward"
    return f"{case.dtype} {kind}, {m.threads} thread{'s' * (m.threads > 1)}"


def _heading(names: list[str]) -> list[str]:
    return ["case", "ms", "+-", "limit", *(_SHORT.get(name, name) for name in names)]


def _row(report: Report, name: str, threads: int, peers: list[str]) -> list[str]:
    own = report.find(name, threads)
    assert own is not None and own.of_limit is not None
    low, high = own.quartiles_s
    spread = (high - low) / 2 / own.median_s
    case = parse(name)
    cells = [f"{case.mask} {case.shape}", _ms(own.median_s), f"{spread:.0%}", f"{own.of_limit:.0%}"]
    for peer in peers:
        found = report.find(name, threads, peer)
        cells.append("-" if found is None or found.ratio is None else _ratio(found.ratio))
    return cells


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.0f}" if ms >= 1000 else f"{ms:#.4g}".rstrip(".") if ms >= 1 else f"{ms:.4f}"


def _ratio(x: float) -> str:
    mark = "<" if x < 1 else ""
    return mark + (f"{x:.0f}" if x >= 99.5 else f"{x:.1f}" if x >= 9.95 else f"{x:.2f}")


def _size(n: int) -> str:
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB"


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        " ".join(
            cell.ljust(n) if i == 0 else cell.rjust(n)
            for i, (cell, n) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _code(lines: str) -> str:
    return f"```text\n{lines}\n```" if lines else ""
