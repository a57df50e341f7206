"""Matrices in brackets: printed NumPy arrays, tensors, nested Python lists, LaTeX environments.

NumPy pads a column of an array to one number of decimals (`1.` beside `0.25`), so there a short
number is known to the decimals of the longest.
"""

import re
from dataclasses import dataclass, replace

from .numbers import Cell, Matrix, Problem, read_number, uneven

LONGEST = 400_000  # characters of one array; beyond it nobody reads the numbers
LONGEST_LATEX = 50_000
_OPEN = re.compile(r"\[\s*\[")
_ATOM = re.compile(r"[\[\]]|[^\s,\[\]]+")
_ASSIGNED = re.compile(r"(?:>>>\s*)?([A-Za-zα-ω_][\w .^ᵀ]{0,60}?)\s*[=:]\s*(?:[\w.]+\()?\s*$")
_BEGIN = re.compile(
    r"\\begin\{((?:[bpBvV]|small)?matrix|array)\}(?:\s*\[[^\]]{0,20}\])?(\{[^}]{0,60}\})?"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Turns an offset in the whole text into a line (from 1) and a column (from 0)."""

    starts: list[int]

    def __call__(self, offset: int) -> tuple[int, int]:
        from bisect import bisect_right

        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1]


@dataclass(frozen=True, slots=True)
class Span:
    """A matrix and the part of the text [start, end) that holds it."""

    start: int
    end: int
    matrix: Matrix


def bracket_arrays(text: str, place: Place) -> tuple[list[Span], list[Problem]]:
    """Every `[[...], [...]]` of the text, with or without commas, and what only looks like one."""
    spans: list[Span] = []
    problems: list[Problem] = []
    at = 0
    while found := _OPEN.search(text, at):
        start = found.start()
        end, rows, trouble = _nested_rows(text, start, place)
        line = place(start)[0]
        at = max(end, found.end())
        if trouble and rows:
            problems.append(Problem(trouble.line or line, trouble.sentence))
        elif not trouble and rows:
            before = text[text.rfind("\n", 0, start) + 1 : start]
            name = _ASSIGNED.search(before)
            caption = name[1].strip() if name else ""
            whole = _padded(rows)
            matrix = Matrix(whole, line, kind="array", name=caption)
            spans.append(Span(start, end, matrix))
    return spans, problems


def _nested_rows(
    text: str, start: int, place: Place
) -> tuple[int, list[list[Cell]], Problem | None]:
    """Read one nested list: its end, its rows, and what is wrong with it if anything is.

    No rows and no problem: brackets that hold something other than numbers.
    """
    rows: list[list[Cell]] = []
    row: list[Cell] = []
    depth, deepest = 0, 0
    blank = text.find("\n\n", start, start + LONGEST)  # no array goes on after an empty line
    stop = blank if blank >= 0 else min(len(text), start + LONGEST)
    for match in _ATOM.finditer(text, start, stop):
        piece = match[0]
        if piece == "[":
            depth += 1
            deepest = max(deepest, depth)
            continue
        if piece == "]":
            depth -= 1
            if row:
                rows.append(row)
                row = []
            if depth == 0:
                return match.end(), *_judged(rows, deepest, place(start)[0])
            continue
        line, column = place(match.start())
        if piece.lower() in ("nan", "-nan") and (rows or row):
            return match.end(), rows or [row], Problem(line, "NaN in a matrix; it has no value")
        if piece in ("...", "…"):
            return match.end(), rows or [row], Problem(line, "a matrix abbreviated with ...")
        cell = read_number(piece, line, column)
        if cell is None:
            trouble = Problem(line, f"{piece[:20]!r} in a matrix, which must hold numbers only")
            return match.end(), ([*rows, row] if rows or len(row) > 1 else []), trouble
        row.append(cell)
    return (
        stop,
        rows or ([row] if len(row) > 1 else []),
        Problem(place(start)[0], "a '[[' that is never closed"),
    )


def _judged(
    rows: list[list[Cell]], deepest: int, line: int
) -> tuple[list[list[Cell]], Problem | None]:
    """The rows, or what makes them no matrix."""
    if not rows:
        return [], None
    if deepest > 3:
        return rows, Problem(line, f"an array with {deepest} axes; matrices have two")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            return rows, Problem(row[0].line, uneven(number, len(row), len(rows[0])))
    if len(rows) > 512 or len(rows[0]) > 512:
        return rows, Problem(line, f"{len(rows)} x {len(rows[0])} numbers; up to 512 x 512")
    return rows, None


def _padded(rows: list[list[Cell]]) -> list[list[Cell]]:
    """Give `1.` and `0.5` the decimals of the longest number beside them, as NumPy prints them."""
    fixed = [c for row in rows for c in row if c.half > 0 and "." in c.text]
    if not any(c.text.endswith(".") for c in fixed) or any("e" in c.text for c in fixed):
        return rows
    finest = min(c.half for c in fixed)
    return [
        [replace(c, half=min(c.half, finest)) if "." in c.text else c for c in row] for row in rows
    ]


def latex_matrices(text: str, place: Place) -> tuple[list[Span], list[Problem]]:
    """Every matrix environment of the text whose entries are numbers."""
    spans: list[Span] = []
    problems: list[Problem] = []
    at = 0
    while found := _BEGIN.search(text, at):
        start, body = found.start(), found.end()
        line = place(start)[0]
        closing = f"\\end{{{found[1]}}}"
        stop = text.find(closing, body, body + LONGEST_LATEX)
        again = text.find(found[0], body, stop if stop >= 0 else body)
        if stop < 0 or again >= 0:
            problems.append(Problem(line, f"{found[0][:30]} is never closed by {closing}"))
            at = body
            continue
        at = stop + len(closing)
        rows, trouble = _latex_rows(text, body, stop, place)
        if trouble:
            problems.append(trouble)
        elif rows:
            spans.append(Span(start, at, Matrix(rows, line, kind="latex")))
    return spans, problems


_WRAPPED = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|boxed|textbf|underline|text|mathrm|fbox)\s*\{|\\(?:color|textcolor)\{[^}]{0,20}\}\s*\{?|\\(?:hline|bf)\b"
)


def _latex_rows(
    text: str, start: int, stop: int, place: Place
) -> tuple[list[list[Cell]], Problem | None]:
    """Entries between & and \\\\. A matrix of letters alone is neither rows nor a problem."""
    rows: list[list[Cell]] = []
    symbolic, at = False, start
    for line_text in re.split(r"(\\\\(?:\[[^\]]{0,20}\])?)", text[start:stop]):
        row: list[Cell] = []
        offset = at
        for entry in line_text.split("&"):
            cell = _latex_entry(entry, offset, place)
            offset += len(entry) + 1
            plain = entry.strip()
            if cell:
                row.append(cell)
            elif plain and not plain.startswith("\\\\"):
                symbolic = True
                if plain.lower() == "nan":
                    return [], Problem(place(offset - 1)[0], "NaN in a matrix; it has no value")
        at += len(line_text)
        if row:
            rows.append(row)
    if symbolic:
        mixed = any(len(row) > 1 for row in rows)
        line = place(start)[0]
        return [], Problem(line, "a matrix with entries that are not numbers") if mixed else None
    judged, trouble = _judged(rows, 2, place(start)[0])
    return judged, trouble


def _latex_entry(entry: str, offset: int, place: Place) -> Cell | None:
    """The number of one entry, out of its \\mathbf{} or \\boxed{}."""
    wrapped = _WRAPPED.search(entry)
    begin = wrapped.end() if wrapped else 0
    inner = entry[begin:]
    lead = len(inner) - len(inner.lstrip(" \n\t{"))
    core = inner.strip(" \n\t{}")
    line, column = place(offset + begin + lead)
    if core in ("-\\infty", "- \\infty"):
        return Cell(core, -float("inf"), 0.0, line, column, column + len(core))
    return read_number(core, line, column, highlighted=wrapped is not None)
