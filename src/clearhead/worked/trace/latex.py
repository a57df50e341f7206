"""A trace as LaTeX that `amsmath` and pdfLaTeX set without anything else."""

import math
from typing import TYPE_CHECKING

from .cell import decimals, shown
from .steps import Step
from .text import GAP, MOST, highlighted, kept, left_out

if TYPE_CHECKING:
    from . import Trace

_ESCAPED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "[": "{[}", "]": "{]}", "-": "{-}", "'": r"\textquotesingle{}", "`": r"\textasciigrave{}",
}  # fmt: skip
_PREAMBLE = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{textcomp}
\usepackage{amsmath}
\begin{document}
"""


def latex(trace: "Trace", standalone: bool = False) -> str:
    """One paragraph and one displayed matrix for each step; what made the highlight is boxed."""
    marked = highlighted(trace)
    widest = 1 + max(min(step.array.shape[2], MOST) for step in trace.steps)
    parts = [f"\\setcounter{{MaxMatrixCols}}{{{max(10, widest)}}}"]
    parts += [_text(line) for line in (trace.title, *trace.notes)]
    for number, step in enumerate(trace.steps, 1):
        title = step.name if step.formula == "given" else f"{step.name} = {step.formula}"
        parts.append(f"\\paragraph{{{number}. {_text(title)}}} {_text(step.why)}")
        for head in range(len(step.array)):
            parts.append(_matrix(trace, step, head, marked))
    body = "\n\n".join(parts) + "\n"
    return f"{_PREAMBLE}{body}\\end{{document}}\n" if standalone else body


def _matrix(trace: "Trace", step: Step, head: int, marked: set[tuple[str, int, int, int]]) -> str:
    places = decimals(step, trace.digits)
    rows, columns = kept(step.array.shape[1], MOST), kept(step.array.shape[2], MOST)
    lines = []
    for i in rows:
        entries = [
            (r"\ddots" if j == GAP else r"\vdots") if i == GAP else r"\cdots"
            if j == GAP else _entry(step, head, i, j, places, marked)
            for j in columns
        ]  # fmt: skip
        label = "" if i == GAP else f"\\text{{{_text(step.rows[i])}}}"
        lines.append(" & ".join([label, *entries]))
    body = " \\\\\n".join(lines)
    several = f"\\text{{head {head}}}\\quad " if len(step.array) > 1 else ""
    missing = left_out(step, rows, columns)
    note = f"\n\\qquad\\text{{({missing})}}" if missing else ""
    return f"\\[\n{several}\\begin{{matrix}}\n{body}\n\\end{{matrix}}{note}\n\\]"


def _entry(
    step: Step, head: int, i: int, j: int, places: int, marked: set[tuple[str, int, int, int]]
) -> str:
    value = float(step.array[head, i, j])
    number = r"-\infty" if math.isinf(value) else shown(value, places)
    mantissa, letter, exponent = number.partition("e")
    if letter:
        number = f"{mantissa} \\cdot 10^{{{int(exponent)}}}"
    return f"\\boxed{{{number}}}" if (step.name, head, i, j) in marked else number


def _text(line: str) -> str:
    """A line as LaTeX text; a character that Latin fonts lack is written as its code point."""
    return "".join(_character(c) for c in line)


def _character(c: str) -> str:
    if c in _ESCAPED:
        return _ESCAPED[c]
    if c == "…":
        return r"\dots{}"
    if c.isascii() or ("À" <= c <= "ÿ" and c not in "×÷"):
        return c
    return f"U+{ord(c):04X}"
