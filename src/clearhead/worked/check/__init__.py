"""Check a worked example: read the article, understand its matrices, verify every cell."""

import os
from pathlib import Path

import numpy as np

from .arithmetic import written_out
from .claims import understand
from .formula import Node
from .guess import agreement
from .numbers import Problem
from .read import read_article
from .report import CheckReport, Claimed, Finding, counted, write_beside
from .sentences import doubt, judge
from .values import DoesNotFit
from .verify import Root, Verdict, verify

LARGEST_BYTES = 64 << 20


def check(text: str, *, name: str = "text") -> CheckReport:
    """Check every matrix and equation of a Markdown article to the digits it prints.

    text    str    the article: fenced blocks of rows, tables, NumPy output, LaTeX, prose
    name    str    what to call it in the report, usually the file's name

    Finds matrices, works out what each claims (a product, a scaling, a mask, a softmax with or
    without scaling, rows that sum to 1, a weighted sum), and compares every cell with the formula
    by interval arithmetic on the printed digits: 0.78 stands for 0.775 .. 0.785. A wrong value is
    carried forward both ways, so that cells which only inherit it are told apart.

    Returns a CheckReport; `print` it, or see its `findings`, `ok`, `to_json`, `corrected`.
    Text without matrices or equations gives a report with one `malformed` entry.
    Raises  TypeError when `text` is not a str. Odd content never raises; it is reported.

    >>> import clearhead as ch
    >>> print(ch.check("0.2(1.1) + 1.4(0.4) = 1.78", name="note.md"))
    note.md:1: 0.2 x 1.1 + 1.4 x 0.4: printed 1.78, should be 0.78
    <BLANKLINE>
    note.md: 0 cells in 0 matrices and 1 equation checked: 1 wrong, 0 inherited
    """
    if not isinstance(text, str):
        raise TypeError(f"text: {type(text).__name__}, must be str (see check_file for a path)")
    article = read_article(text)
    reading = understand(article)
    verdicts = verify(reading.claims)
    findings = [finding for verdict in verdicts for finding in _findings(verdict, verdicts)]
    unread = [*article.unread, *reading.unread]
    unread += [
        Problem(v.claim.target.line, f"{v.claim.target.label}: {v.problem}")
        for v in verdicts
        if v.problem
    ]
    equations, wrong, doubts = judge(article.equations, findings, article.matrices)
    malformed = [*article.malformed, *reading.malformed]
    if not (article.matrices or equations or malformed):
        malformed.append(
            Problem(1, f"no matrices and no equations in {counted(article.line_count, 'line')}")
        )
    return CheckReport(
        name=name,
        findings=tuple(sorted([*findings, *wrong], key=lambda f: (f.line, f.row, f.column))),
        claims=tuple(_claimed(verdict) for verdict in verdicts if not verdict.problem),
        equations=equations,
        given=tuple((m.line, m.label) for m in reading.given),
        unread=tuple(sorted(set(unread))),
        malformed=tuple(sorted(set(malformed))),
        hints=tuple(sorted([*doubts, *(hint for v in verdicts for hint in _hints(v))])),
    )


def check_file(
    path: str | os.PathLike[str], *, fix: bool = False
) -> tuple[CheckReport, Path | None]:
    """Check a Markdown file; with `fix`, write a corrected copy beside it (NAME.fixed.md).

    Returns the report and the path of the copy; None when nothing was asked for or nothing can be
    corrected. The copy appears whole or not at all; the article itself is never touched.
    Raises  ValueError: not UTF-8 text (with the line), or more than 64 MiB; OSError: no such file.
    """
    file = Path(path)
    size = file.stat().st_size
    if size > LARGEST_BYTES:
        raise ValueError(f"{file}: {size / 2**20:.0f} MiB; articles of up to 64 MiB are checked")
    data = file.read_bytes()
    if 0 in data:
        line = data.count(b"\n", 0, data.index(0)) + 1
        raise ValueError(f"{file}: line {line} holds a zero byte; a Markdown article is UTF-8 text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{file}: line {line} is not UTF-8; a Markdown article is UTF-8 text"
        ) from None
    report = check(text, name=str(path))
    if not fix or not any(finding.cell for finding in report.findings):
        return report, None
    return report, write_beside(file, report.corrected(text))


def _findings(verdict: Verdict, verdicts: list[Verdict]) -> list[Finding]:
    """The cells of one matrix that are not right, then its rows that do not sum to 1."""
    target = verdict.claim.target
    found: list[Finding] = []
    for i, j in np.argwhere(verdict.wrong | verdict.inherited).tolist():
        cell = target.rows[i][j]
        value = float(verdict.should_be[i, j])
        inherits = bool(verdict.inherited[i, j])
        roots = verdict.origins.get((i, j), [])
        lines = tuple(sorted({_line_of(root, verdicts) for root in roots}))
        because = _inherits_from(roots, verdicts) if inherits else _because(verdict, i, j, value)
        found.append(
            Finding(
                kind="inherited" if inherits else "wrong",
                line=cell.line,
                where=target.label,
                row=i + 1,
                column=j + 1,
                printed=cell.text,
                should_be=cell.printed_like(value),
                because=because,
                from_lines=lines,
                cell=cell,
            )
        )
    for i, total, _ in verdict.bad_rows:
        first = target.rows[i][0]
        printed = f"{total:.{max(c.decimals for c in target.rows[i])}f}"
        found.append(Finding("row", first.line, target.label, i + 1, 0, printed, "1"))
    return found


def _line_of(root: Root, verdicts: list[Verdict]) -> int:
    index, row, column = root
    return verdicts[index].claim.target.rows[row][column].line


def _inherits_from(roots: list[Root], verdicts: list[Verdict]) -> str:
    """`inherited from scores, row 2, column 1, line 12`."""
    if not roots:
        return "inherited"
    named = []
    for index, row, column in roots[:3]:
        target = verdicts[index].claim.target
        line = target.rows[row][column].line
        named.append(f"{target.label}, row {row + 1}, column {column + 1}, line {line}")
    more = f" and {len(roots) - 3} more" if len(roots) > 3 else ""
    return "inherited from " + "; ".join(named) + more


def _because(verdict: Verdict, row: int, column: int, value: float) -> str:
    """The arithmetic of a cell, if the printed operands give the right value."""
    formula = verdict.claim.formula
    text = written_out(formula, row, column)
    cell = verdict.claim.target.rows[row][column]
    if not text:
        return f"{formula}"
    plain = text.replace("(", "").replace(")", "").replace("−", "-")
    total = sum(float(a) * float(b) for a, b in (term.split(" x ") for term in plain.split(" + ")))
    right = cell.printed_like(value)
    return f"{text} = {right}" if abs(total - value) <= cell.half else f"{formula}"


def _claimed(verdict: Verdict) -> Claimed:
    target = verdict.claim.target
    bad = int((verdict.wrong | verdict.inherited).sum())
    formula = verdict.claim.formula
    said = f"{formula}" if formula.matrix is None else f"{formula} of line {formula.matrix.line}"
    return Claimed(
        target.line,
        target.label,
        "rows that sum to 1" if formula.matrix is target else said,
        verdict.claim.stated,
        verdict.wrong.size,
        verdict.wrong.size - bad,
    )


def _hints(verdict: Verdict) -> list[Problem]:
    """Cells that only rounding explains where most are exact; a scaling stated but left out."""
    wrong, target = verdict.wrong, verdict.claim.target
    doubtful = np.argwhere(verdict.doubtful).tolist()
    if doubtful and 4 * len(doubtful) <= wrong.size:
        hints = []
        for i, j in doubtful:
            cell, place = target.rows[i][j], f"{target.label}, row {i + 1}, column {j + 1}"
            should = cell.printed_like(float(verdict.should_be[i, j]))
            hints.append(doubt(cell.line, place, cell.text, should))
        return hints
    if not verdict.claim.stated or 2 * wrong.sum() <= wrong.size:
        return []
    for other in _neighbours(verdict.claim.formula):
        try:
            agreeing, _ = agreement(target, other)
        except DoesNotFit:
            continue
        if 2 * agreeing > wrong.size:
            said = f"{target.label} does not follow `{verdict.claim.formula}`"
            return [Problem(target.line, f"{said}; {agreeing} of its cells fit `{other}`")]
    return []


def _neighbours(formula: Node) -> list[Node]:
    """The formula without its scaling, and with the scaling of a dot product."""
    if formula.op != "softmax":
        return []
    inner = formula.args[0]
    if inner.op == "/":
        return [Node("softmax", (inner.args[0],))]
    return []
