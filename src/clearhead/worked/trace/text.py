"""A trace as text for a terminal of 80 columns, and as Markdown."""

import textwrap
from typing import TYPE_CHECKING

from .cell import decimals, shown
from .steps import Step

if TYPE_CHECKING:
    from . import Trace

WIDTH = 80
MOST = 12  # rows and columns of a matrix that are shown
GAP = -1


def kept(count: int, most: int) -> list[int]:
    """The indices that are shown: all, or the first and last with GAP between them."""
    if count <= most:
        return list(range(count))
    first = most // 2
    last = most - 1 - first
    return [*range(first), GAP, *range(count - last, count)]


def left_out(step: Step, rows: list[int], columns: list[int]) -> str:
    """`4 of 16 rows and 2 of 14 columns left out`, or nothing."""
    parts = []
    for noun, count, kept_ in (
        ("rows", step.array.shape[1], rows),
        ("columns", step.array.shape[2], columns),
    ):
        missing = count - sum(index != GAP for index in kept_)
        if missing:
            parts.append(f"{missing} of {count} {noun}")
    return " and ".join(parts) + " left out" if parts else ""


def highlighted(trace: "Trace") -> set[tuple[str, int, int, int]]:
    """The cells in brackets, as (step, head, row, column): the chosen one and what made it."""
    if trace.highlight is None:
        return set()
    name, row, column = trace.highlight[:3]
    head = trace.highlight[3] if len(trace.highlight) > 3 else 0
    cells = {(name, head, row, column)}
    for other, at, rows, columns in trace.made_of(name, row, column, head=head):
        array = trace[other].array
        for i in range(array.shape[1]) if rows is None else rows:
            for j in range(array.shape[2]) if columns is None else columns:
                cells.add((other, at, i, j))
    return cells


def text(trace: "Trace") -> str:
    """The whole trace, at most 80 columns wide."""
    marked = highlighted(trace)
    lines = [trace.title, "=" * min(WIDTH, len(trace.title)), ""]
    for note in trace.notes:
        lines += [*textwrap.wrap(note, WIDTH), ""]
    for number, step in enumerate(trace.steps, 1):
        lines += [*_heading(step, number), ""]
        for head in range(len(step.array)):
            if len(step.array) > 1:
                lines.append(f"    head {head}")
            lines += [*_matrix(trace, step, head, marked), ""]
    return "\n".join(line.rstrip() for line in lines[:-1])


def _heading(step: Step, number: int) -> list[str]:
    size = " x ".join(str(n) for n in step.shape)
    title = step.name if step.formula == "given" else f"{step.name} = {step.formula}"
    left = f"{number:>2}  {title}"
    if len(left) + len(size) + 2 > WIDTH:
        left = f"{left[: WIDTH - len(size) - 6]} ..."
    why = textwrap.wrap(step.why, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return [left + size.rjust(WIDTH - len(left)), *why]


def _matrix(
    trace: "Trace", step: Step, head: int, marked: set[tuple[str, int, int, int]]
) -> list[str]:
    """One head's matrix with its labels, as many columns as fit."""
    places = decimals(step, trace.digits)
    rows = kept(step.array.shape[1], MOST)
    names = {i: _clipped(step.rows[i], 14) for i in rows if i != GAP}
    margin = 6 + max(map(len, names.values()))
    columns = kept(step.array.shape[2], MOST)
    while True:
        texts = {
            (i, j): _number(step, head, i, j, places, marked)
            for i in names
            for j in columns
            if j != GAP
        }
        cell = max(map(len, texts.values()))
        labels = {j: _clipped(step.columns[j], max(cell - 1, 7)) for j in columns if j != GAP}
        width = max(cell, *map(len, labels.values())) + 1
        room = (WIDTH - margin) // width
        if len(columns) <= room or room < 3:
            break
        columns = kept(step.array.shape[2], max(3, min(room, len(columns) - 1)))
    head_line = "".join(
        "... ".rjust(width) if j == GAP else f"{labels[j]} ".rjust(width) for j in columns
    )
    lines = [] if step.columns == ("1",) else [" " * margin + head_line]
    for i in rows:
        if i == GAP:
            lines.append("    " + "...")
            continue
        cells = "".join(
            "... ".rjust(width) if j == GAP else texts[i, j].rjust(width) for j in columns
        )
        lines.append(f"    {names[i]}".ljust(margin) + cells)
    missing = left_out(step, rows, columns)
    return [*lines, f"    ({missing})"] if missing else lines


def _number(
    step: Step, head: int, i: int, j: int, places: int, marked: set[tuple[str, int, int, int]]
) -> str:
    """`[0.78]` or `0.78 `: brackets stand where spaces would."""
    number = shown(float(step.array[head, i, j]), places)
    return f"[{number}]" if (step.name, head, i, j) in marked else f"{number} "


def _clipped(label: str, width: int) -> str:
    return label if len(label) <= width else label[: width - 1] + "…"


def markdown(trace: "Trace") -> str:
    """Headings, reasons and fenced matrices, in the form that `clearhead check` reads."""
    marked = highlighted(trace)
    parts = [f"# {_plain(trace.title)}", *map(_plain, trace.notes)]
    for step in trace.steps:
        parts += [f"## {step.name}", step.why]
        for head in range(len(step.array)):
            parts.append(_fence(trace, step, head, marked))
    return "\n\n".join(parts) + "\n"


def _fence(trace: "Trace", step: Step, head: int, marked: set[tuple[str, int, int, int]]) -> str:
    """One matrix; a row's label follows it as a comment."""
    places = decimals(step, trace.digits)
    rows, columns = kept(step.array.shape[1], MOST), kept(step.array.shape[2], MOST)
    several = f", head {head}" if len(step.array) > 1 else ""
    title = step.name if step.formula == "given" else f"{step.name} = {step.formula}"
    size = f"({step.array.shape[1]} x {step.array.shape[2]})"
    missing = left_out(step, rows, columns)
    lines = [f"# {title} {size}{several}" + (f"; {missing}" if missing else "")]
    for i in rows:
        if i == GAP:
            lines.append("...")
            continue
        cells = ["... " if j == GAP else _number(step, head, i, j, places, marked) for j in columns]
        width = max(len(shown(float(n), places)) for n in step.array[head].flat) + 3
        lines.append("".join(cell.rjust(width) for cell in cells) + f"  # {step.rows[i]}")
    fence = "```" if not any("```" in line for line in lines) else "~~~~"
    return "\n".join([fence, *lines, fence])


def _plain(line: str) -> str:
    """A line of prose without Markdown's signs."""
    return "".join("\\" + c if c in "\\`*_[]<>#|" else c for c in line)
