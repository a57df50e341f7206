"""A trace as one HTML page: point at a cell, or walk there with the arrow keys, and the cells that
made it light up, with the arithmetic below.

Nothing comes from elsewhere, and the page's own policy forbids it: `default-src 'none'`, and
lets in one style and one script by their hashes.
"""

import base64
import hashlib
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from .cell import Place, Writer, decimals, shown
from .steps import Step
from .text import GAP, MOST, highlighted, kept, left_out

if TYPE_CHECKING:
    from . import Trace


def html(trace: "Trace") -> str:
    """The page, complete."""
    style, script = (_read(name) for name in ("trace.css", "trace.js"))
    policy = (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; "
        f"script-src 'sha256-{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    writer = Writer({step.name: step for step in trace.steps}, trace.digits)
    marked = highlighted(trace)
    sections = "".join(
        _section(trace, number, step, writer, marked) for number, step in enumerate(trace.steps)
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in trace.notes)
    title = escape(trace.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{title}</h1>{notes}<p>Point at a number, or move with the arrow keys: the "
        "numbers that made it light up.</p></header>\n"
        f'<main>{sections}</main>\n<output id="arithmetic" aria-live="polite"></output>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _read(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _section(
    trace: "Trace",
    number: int,
    step: Step,
    writer: Writer,
    marked: set[tuple[str, int, int, int]],
) -> str:
    """One step: its heading, its reason, and a table for each head."""
    formula = "" if step.formula == "given" else f"<code>= {escape(step.formula)}</code>"
    size = " × ".join(str(n) for n in step.shape)
    tables = "".join(
        _table(trace, number, step, head, writer, marked) for head in range(len(step.array))
    )
    return (
        f'<section><h2><span class="number">{number + 1}</span> {escape(step.name)} {formula}'
        f'<span class="size">{size}</span></h2>'
        f'<p>{escape(step.why)}</p><div class="heads">{tables}</div></section>\n'
    )


def _table(
    trace: "Trace",
    number: int,
    step: Step,
    head: int,
    writer: Writer,
    marked: set[tuple[str, int, int, int]],
) -> str:
    places = decimals(step, trace.digits)
    rows, columns = kept(step.array.shape[1], MOST), kept(step.array.shape[2], MOST)
    missing = left_out(step, rows, columns)
    caption = ([f"head {head}"] if len(step.array) > 1 else []) + ([missing] if missing else [])
    parts = ["<table>", f"<caption>{escape(', '.join(caption))}</caption>" if caption else ""]
    labels = "".join(
        "<td>…</td>" if j == GAP else f'<th scope="col">{escape(step.columns[j])}</th>'
        for j in columns
    )
    parts.append(f"<tr><td></td>{labels}</tr>")
    for i in rows:
        if i == GAP:
            parts.append(f"<tr><td>⋮</td>{'<td></td>' * len(columns)}</tr>")
            continue
        cells = []
        for j in columns:
            if j == GAP:
                cells.append("<td>…</td>")
                continue
            key = f"{number}.{head}.{i}.{j}"
            made = " ".join(
                _reference(trace, place) for place in trace.made_of(step.name, i, j, head=head)
            )
            told = escape(writer.write(step, i, j, head), quote=True)
            chosen = ' class="chosen"' if (step.name, head, i, j) in marked else ""
            text = shown(float(step.array[head, i, j]), places).replace("-", "−")
            cells.append(
                f'<td{chosen} tabindex="-1" data-at="{key}" data-of="{made}" data-told="{told}">'
                f"{text}</td>"
            )
        parts.append(f'<tr><th scope="row">{escape(step.rows[i])}</th>{"".join(cells)}</tr>')
    return "".join([*parts, "</table>"])


def _reference(trace: "Trace", place: Place) -> str:
    """`step.head.row.column`, with * for all rows or columns."""
    name, head, rows, columns = place
    number = next(n for n, step in enumerate(trace.steps) if step.name == name)
    row = "*" if rows is None else rows[0]
    return f"{number}.{head}.{row}.{'*' if columns is None else columns[0]}"
