"""The goals of the project, as numbers that a report either reaches or does not.

A goal that covers several cases and counts of threads is judged by its worst one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from clearhead.bench.report import Measurement, Report

Found = Iterable[tuple[float, str]]  # a number, and where it was found

FORWARD_64 = ["full/1x12x2048x64/{}", "full/1x8x8192x64/{}"]
FORWARD_128 = ["full/1x8x2048x128/{}", "full/1x32:8x2048x128/{}"]
CAUSAL = ["causal/1x12x2048x64/{}", "causal/1x8x8192x64/{}", "causal/1x8x2048x128/{}"]
CAUSAL += ["causal/1x32:8x2048x128/{}"]
DECODE = "full/1x32:8x1:8192x128/{}"
ORT = ["ort-mha", "ort-gqa", "ort-onnx"]


@dataclass(frozen=True)
class Goal:
    what: str
    least: float | None  # at least this, or
    most: float | None  # at most this
    form: str  # how its number is written
    find: Callable[[Report], Found]

    def line(self, report: Report) -> str:
        found = list(self.find(report))
        bound = self.least if self.least is not None else self.most
        assert bound is not None
        sign = ">=" if self.least is not None else "<="
        wish = f"{sign} {format(bound, self.form)}"
        if not found:
            return f"{'not measured':12} {'':>8} {wish:>9}  {self.what}"
        value, where = (min if self.least is not None else max)(found)
        met = value >= bound if self.least is not None else value <= bound
        verdict = "met" if met else "NOT MET"
        line = f"{verdict:12} {format(value, self.form):>8} {wish:>9}  {self.what}"
        return line if met else f"{line}\n{'':33}{where}"


def lines(report: Report) -> str:
    heading = f"{'goal':12} {'found':>8} {'wanted':>9}"
    return "\n".join([heading, *(goal.line(report) for goal in GOALS)])


def measured(report: Report, patterns: list[str], who: str = "clearhead") -> Iterable[Measurement]:
    for m in {(m.case, m.threads): m for m in report.measurements if m.who == who}.values():
        if m.seconds and any(fnmatchcase(m.case, pattern) for pattern in patterns):
            yield m


def where(m: Measurement) -> str:
    return f"{m.case}, {m.threads} thread{'s' * (m.threads > 1)}"


def of_limit(patterns: list[str]) -> Callable[[Report], Found]:
    def find(report: Report) -> Found:
        return [(m.of_limit or 0.0, where(m)) for m in measured(report, patterns)]

    return find


def ratio(patterns: list[str], peers: list[str]) -> Callable[[Report], Found]:
    """Times of the fastest of the peers that were timed, divided by clearhead's."""

    def find(report: Report) -> Found:
        for m in measured(report, patterns):
            others = [report.find(m.case, m.threads, peer) for peer in peers]
            ratios = [(x.ratio, x.who) for x in others if x is not None and x.ratio is not None]
            if ratios:
                best, who = min(ratios)
                yield best, f"{who}: {where(m)}"

    return find


def quotient(first: str, second: str) -> Callable[[Report], Found]:
    """Time of one case divided by that of another."""

    def find(report: Report) -> Found:
        for m in measured(report, [first]):
            other = report.find(second, m.threads)
            if other is not None:
                yield m.median_s / other.median_s, where(m)

    return find


def threads_gain(patterns: list[str]) -> Callable[[Report], Found]:
    def find(report: Report) -> Found:
        for m in measured(report, patterns):
            one = report.find(m.case, 1)
            if m.threads == 2 and one is not None:
                yield one.median_s / m.median_s, m.case

    return find


def gradient_error(patterns: list[str]) -> Callable[[Report], Found]:
    """Of clearhead's largest error to PyTorch's."""

    def find(report: Report) -> Found:
        for m in measured(report, patterns):
            other = report.find(m.case, m.threads, "torch")
            if other is not None and other.of_budget and m.of_budget is not None:
                yield m.of_budget / other.of_budget, where(m)

    return find


def memory_mib(patterns: list[str]) -> Callable[[Report], Found]:
    def find(report: Report) -> Found:
        for m in measured(report, patterns):
            if m.peak_bytes is not None:
                yield m.peak_bytes / 2**20, m.case

    return find


def microseconds(patterns: list[str]) -> Callable[[Report], Found]:
    def find(report: Report) -> Found:
        return [(m.median_s * 1e6, where(m)) for m in measured(report, patterns)]

    return find


def of(patterns: list[str], dtype: str) -> list[str]:
    return [pattern.format(dtype) for pattern in patterns]


F32, BF16, GRAD = "float32", "bfloat16", "float32/grad"
FULL = FORWARD_64 + FORWARD_128
LONG = ["full/1x1x32768x64/float32", "causal/1x1x32768x64/float32"]
WINDOW = "window1024/1x1x32768x64/float32"
GOALS = [
    Goal("float32, D = 64, of the limit", 0.90, None, ".0%", of_limit(of(FORWARD_64, F32))),
    Goal("float32, D = 128, of the limit", 0.94, None, ".0%", of_limit(of(FORWARD_128, F32))),
    Goal(
        "float32, x ONNX Runtime, OpenVINO", 1.18, None, ".2f",
        ratio(of(FULL, F32), [*ORT, "openvino"]),
    ),
    Goal("float32, x PyTorch", 2.5, None, ".2f", ratio(of(FULL, F32), ["torch"])),
    Goal("float32, x JAX", 5, None, ".2f", ratio(of(FULL, F32), ["jax"])),
    Goal("float32 causal, of the limit", 0.86, None, ".0%", of_limit(of(CAUSAL, F32))),
    Goal(
        "float32 causal, x the best peer", 2.4, None, ".2f",
        ratio(of(CAUSAL, F32), [*ORT, "openvino"]),
    ),
    Goal("float32 causal, x PyTorch", 3, None, ".2f", ratio(of(CAUSAL, F32), ["torch"])),
    Goal("bfloat16, D = 64, of the limit", 0.80, None, ".0%", of_limit(of(FORWARD_64, BF16))),
    Goal("bfloat16, D = 128, of the limit", 0.85, None, ".0%", of_limit(of(FORWARD_128, BF16))),
    Goal("bfloat16, x PyTorch", 4.5, None, ".2f", ratio(of(FULL, BF16), ["torch"])),
    Goal("bfloat16 causal, x PyTorch", 5.5, None, ".2f", ratio(of(CAUSAL, BF16), ["torch"])),
    Goal(
        "bfloat16, x OpenVINO", 1.3, None, ".2f", ratio(of(FULL + CAUSAL, BF16), ["openvino"])
    ),
    Goal("with gradient, of the limit", 0.85, None, ".0%", of_limit(of(FULL + CAUSAL, GRAD))),
    Goal("with gradient, x PyTorch", 2.5, None, ".2f", ratio(of(FULL, GRAD), ["torch"])),
    Goal("causal with gradient, x PyTorch", 2.9, None, ".2f", ratio(of(CAUSAL, GRAD), ["torch"])),
    Goal(
        "error of a gradient, of PyTorch's", None, 1.2, ".2f",
        gradient_error(["*/float32/grad"]),
    ),
    Goal("decode, of the limit", 0.90, None, ".0%", of_limit([DECODE.format(F32)])),
    Goal("decode, x PyTorch", 5, None, ".2f", ratio([DECODE.format(F32)], ["torch"])),
    Goal(
        "decode, x PyTorch by rows", 2, None, ".2f", ratio([DECODE.format(F32)], ["torch-rows"])
    ),
    Goal("decode bfloat16, x PyTorch", 35, None, ".2f", ratio([DECODE.format(BF16)], ["torch"])),
    Goal("(8, 12, 128, 32), x PyTorch", 4.5, None, ".2f", ratio(["full/8x12x128x32/*"], ["torch"])),
    Goal("(1, 12, 64, 32), x PyTorch", 3.5, None, ".2f", ratio(["full/1x12x64x32/*"], ["torch"])),
    Goal(
        "both, x ONNX Runtime", 1.2, None, ".2f",
        ratio(["full/8x12x128x32/*", "full/1x12x64x32/*"], ORT),
    ),
    Goal("the smallest call, microseconds", None, 10, ".1f", microseconds(["full/1x1x1x8/*"])),
    Goal(
        "two threads, x one", 1.85, None, ".2f",
        threads_gain(of([*FULL, *CAUSAL, *LONG], F32) + of([*FULL, *CAUSAL], BF16)),
    ),
    Goal("window 1024 at 32768, x causal", 14, None, ".1f", quotient(LONG[1], WINDOW)),
    Goal(
        "a boolean array mask, x unmasked", None, 1.15, ".2f",
        quotient("array/1x12x2048x64/float32", "full/1x12x2048x64/float32"),
    ),
    Goal("memory at 32768, MiB", None, 64, ".1f", memory_mib([*LONG, WINDOW])),
]  # fmt: skip
