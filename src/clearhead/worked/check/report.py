"""What the checker found, as data, as text and as JSON, and the corrected article."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ..._writing import replacing
from .numbers import Cell, Problem


@dataclass(frozen=True, slots=True)
class Finding:
    """One printed number that is not what it should be. Rows and columns count from 1.

    kind       "wrong": by itself; "inherited": right for the article's own wrong number;
               "row": a row of weights whose printed digits cannot sum to 1
    where      the matrix or the calculation
    row, column   0 where the finding is not about a cell of a matrix
    should_be  written with the digits that the article uses
    because    the arithmetic, or the lines that an inherited cell comes from
    """

    kind: str
    line: int
    where: str
    row: int
    column: int
    printed: str
    should_be: str
    because: str = ""
    from_lines: tuple[int, ...] = ()
    cell: Cell | None = None

    @property
    def place(self) -> str:
        if not self.row:
            return self.where
        column = f", column {self.column}" if self.column else ""
        return f"{self.where}, row {self.row}{column}"

    def __str__(self) -> str:
        if self.kind == "row":
            return f"{self.line}: {self.place}: sums to {self.printed}, should sum to 1"
        text = f"{self.line}: {self.place}: printed {self.printed}, should be {self.should_be}"
        return text + (f"  ({self.because})" if self.because else "")


@dataclass(frozen=True, slots=True)
class Claimed:
    """A matrix that was checked: what it is, and how many of its cells were right."""

    line: int
    name: str
    formula: str
    stated: bool
    cells: int
    right: int


@dataclass(frozen=True)
class CheckReport:
    """The result of `clearhead.check`. `print(report)` is what the command prints.

    findings      wrong and inherited cells, in the order of the article
    claims        the matrices that were checked, each with its formula
    equations     how many equations between numbers were checked
    given         (line, name) of matrices that nothing is claimed of: taken as they are
    unread        what could not be interpreted, with the line
    malformed     what is no matrix although it looks like one: ragged rows, NaN, an open \\\\begin
    hints         remarks that change no verdict
    """

    name: str
    findings: tuple[Finding, ...]
    claims: tuple[Claimed, ...]
    equations: int
    given: tuple[tuple[int, str], ...]
    unread: tuple[Problem, ...]
    malformed: tuple[Problem, ...]
    hints: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Nothing is wrong and nothing is malformed."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0: nothing wrong; 1: something is; 2: bad input (and nothing wrong besides)."""
        if self.findings:
            return 1
        return 2 if self.malformed else 0

    def __str__(self) -> str:
        lines = [f"{self.name}:{finding}" for finding in self.findings]
        lines += [f"{self.name}:{p.line}: {p.sentence}" for p in self.malformed]
        lines += [f"{self.name}:{p.line}: note: {p.sentence}" for p in self.hints]
        lines += [f"{self.name}:{p.line}: not checked: {p.sentence}" for p in self.unread]
        if lines:
            lines.append("")
        for claim in self.claims:
            how = "stated" if claim.stated else "worked out"
            right = f"{claim.right} of {claim.cells} right"
            lines.append(f"  line {claim.line:<4} {claim.name} = {claim.formula}  ({how}): {right}")
        if self.given:
            named = ", ".join(f"{name} (line {line})" for line, name in self.given[:12])
            more = f" and {len(self.given) - 12} more" if len(self.given) > 12 else ""
            lines.append(f"  taken as given: {named}{more}")
        lines.append(self.summary)
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """One line of counts."""
        cells = sum(claim.cells for claim in self.claims)
        own = sum(finding.kind != "inherited" for finding in self.findings)
        verdict = f"{own} wrong, {len(self.findings) - own} inherited"
        what = f"{counted(cells, 'cell')} in {counted(len(self.claims), 'matrix')}"
        return f"{self.name}: {what} and {counted(self.equations, 'equation')} checked: {verdict}"

    def to_json(self) -> str:
        """The report as a JSON object; keys as the attributes above."""
        found = []
        for finding in self.findings:
            fields = asdict(finding)
            cell = fields.pop("cell")
            columns = [cell["start"] + 1, cell["end"]] if cell else None
            found.append({**fields, "characters": columns})
        return json.dumps(
            {
                "name": self.name,
                "findings": found,
                "claims": [asdict(claim) for claim in self.claims],
                "equations": self.equations,
                "given": [{"line": line, "name": name} for line, name in self.given],
                "unread": [asdict(problem) for problem in self.unread],
                "malformed": [asdict(problem) for problem in self.malformed],
                "hints": [asdict(problem) for problem in self.hints],
                "exit_code": self.exit_code,
            },
            indent=2,
            ensure_ascii=False,
        )

    def corrected(self, text: str) -> str:
        """`text` with every wrong and inherited cell replaced, columns kept where they fit."""
        lines = text.split("\n")
        cells = [(f.cell, f.should_be) for f in self.findings if f.cell is not None]
        for cell, new in sorted(cells, key=lambda pair: (-pair[0].line, -pair[0].start)):
            line = lines[cell.line - 1]
            lines[cell.line - 1] = _replaced(line, cell, new)
        return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    plural = {"matrix": "matrices"}.get(noun, noun + "s")
    return f"{number:,} {noun if number == 1 else plural}"


def _replaced(line: str, cell: Cell, new: str) -> str:
    """Put `new` in the cell's place; spaces before it give or take the difference in length."""
    if line[cell.start : cell.end] != cell.text:
        raise ValueError(f"text: line {cell.line} is not the one that was checked")
    before, after = line[: cell.start], line[cell.end :]
    if new[0] in "-−" and cell.text[0] not in "-−–" and before.endswith(("-", "−")):
        before, new = before[:-1], new[1:]  # minus a negative result
    grown = len(new) - len(cell.text)
    spaces = len(before) - len(before.rstrip(" "))
    inside = bool(before.strip())
    if grown < 0 and spaces > 0 and inside:
        before += " " * -grown
    elif 0 < grown < spaces and inside:
        before = before[:-grown]
    return before + new + after


def write_beside(path: Path, text: str) -> Path:
    """Write the corrected copy of `path` as NAME.fixed.SUFFIX, whole or not at all."""
    target = path.with_name(f"{path.stem}.fixed{path.suffix}")
    with replacing(target) as out:
        os.fchmod(out.fileno(), path.stat().st_mode & 0o777)  # a private article stays private
        out.write(text)
    return target
