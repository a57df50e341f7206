"""The equations of an article judged: wrong by themselves, or right for a wrong number they repeat.

An operand that prints a number which the article has got wrong further up, and which nothing right
prints, is that number repeated. The equation is then worked out once more with the right one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .arithmetic import WrongResult, wrong_results
from .equations import Equation, is_plain
from .formula import Node
from .numbers import Cell, Matrix, Problem
from .report import Finding

FEWEST_DIGITS = 2  # significant, of a number that is recognised where it is repeated


@dataclass(frozen=True, slots=True)
class Repeated:
    """An operand that repeats a wrong number: where it is, what it should be, and whose it is."""

    cell: Cell
    should_be: str
    source: Finding


class Mistakes:
    """The wrong numbers of an article by their size, each with what found it."""

    def __init__(self, findings: Iterable[Finding], matrices: Iterable[Matrix]) -> None:
        self._known: dict[float, list[Finding]] = {}
        wrong = {id(finding.cell) for finding in findings}
        cells = (cell for matrix in matrices for row in matrix.rows for cell in row)
        self._right = {_key(cell) for cell in cells if id(cell) not in wrong}
        for finding in findings:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        """From its line on, the number that `finding` is about is a wrong one."""
        if finding.cell is not None:
            self._known.setdefault(_key(finding.cell), []).append(finding)

    def confirm(self, cell: Cell) -> None:
        """This number is right somewhere: where it is repeated, nobody can say which is meant."""
        self._right.add(_key(cell))

    def of(self, cell: Cell, line: int) -> Finding | None:
        """The mistake that an operand of a line repeats; None also when it may be one of two."""
        digits = cell.text.lstrip("+-−–0.").replace(".", "")
        if "." not in cell.text or len(digits) < FEWEST_DIGITS or _key(cell) in self._right:
            return None
        above = [found for found in self._known.get(_key(cell), []) if found.line <= line]
        sizes = {round(_right_size(found), 9) for found in above}
        return above[0] if len(sizes) == 1 else None


def _key(cell: Cell) -> float:
    return round(abs(cell.value), 12)


def _right_value(finding: Finding) -> float:
    text = finding.should_be.replace("−", "-").replace(",", "").strip("()")
    return float(text.rstrip("%")) * (0.01 if text.endswith("%") else 1.0)


def _right_size(finding: Finding) -> float:
    """The right value, relative to the sign of the printed one."""
    assert finding.cell is not None
    return _right_value(finding) * (-1.0 if finding.cell.value < 0 else 1.0)


def judge(
    equations: Iterable[Equation], findings: list[Finding], matrices: list[Matrix]
) -> tuple[int, list[Finding], list[Problem]]:
    """How many equations could be checked, what is wrong in them, and what is doubtful.

    findings  what is wrong in the matrices, which equations may repeat
    """
    mistakes = Mistakes(findings, matrices)
    count, found, doubts = 0, list[Finding](), list[Problem]()
    for equation in equations:
        wrong = wrong_results(equation)
        if wrong is None:
            continue
        count += 1
        repeated: list[Repeated] = []
        sides = tuple(_mended(side, equation.line, mistakes, repeated) for side in equation.sides)
        if repeated:
            others = tuple(
                _mended(side, equation.line, mistakes, []) for side in equation.first_alternatives
            )
            mended = wrong_results(replace(equation, sides=sides, first_alternatives=others))
            repeats = _repeats(repeated, equation)
            results = [_result(w, wrong, repeated) for w in mended or () if not w.doubtful]
            if mended is not None and (results or wrong):
                found += [*repeats, *results]
                for finding in results:
                    mistakes.add(finding)
                continue
        for result in wrong:
            if result.doubtful:
                doubts.append(
                    doubt(result.line, result.calculation, result.printed, _right(result))
                )
            else:
                found.append(_result(result, wrong, []))
                mistakes.add(found[-1])
        if not wrong:
            for side in equation.sides:
                for cell in _cells(side) if is_plain(side) else ():
                    mistakes.confirm(cell)
    return count, found, doubts


def doubt(line: int, where: str, printed: str, digits_give: str) -> Problem:
    """The remark on a number that only rounded operands explain."""
    return Problem(
        line,
        f"{where}: {printed} is right only if the operands are rounded; "
        f"the printed digits give {digits_give}",
    )


def _right(result: WrongResult) -> str:
    cell = result.cell
    return cell.printed_like(result.should_be) if cell else f"{result.should_be:g}"


def _result(result: WrongResult, before: list[WrongResult], repeated: list[Repeated]) -> Finding:
    """A result that is wrong: inherited, if it was right before the operands were mended."""
    own = any(w.cell is result.cell and not w.doubtful for w in before)
    because, lines = _whose(repeated[0].source) if repeated and not own else ("", ())
    return Finding(
        "wrong" if own else "inherited", result.line, result.calculation, 0, 0, result.printed,
        _right(result), because, lines, cell=result.cell,
    )  # fmt: skip


def _repeats(repeated: list[Repeated], equation: Equation) -> list[Finding]:
    """One finding for each operand that repeats a wrong number."""
    where = " = ".join(str(side) for side in equation.sides if not is_plain(side))
    by_place = {repeat.cell.start: repeat for repeat in repeated}
    return [
        Finding(
            "inherited", equation.line, where, 0, 0, repeat.cell.text, repeat.should_be,
            *_whose(repeat.source), cell=repeat.cell,
        )
        for repeat in by_place.values()
    ]  # fmt: skip


def _whose(source: Finding) -> tuple[str, tuple[int, ...]]:
    """What an equation inherits from, and on which lines that is."""
    if source.kind == "inherited" and source.because:
        return source.because, source.from_lines
    return f"inherited from {source.place}, line {source.line}", (source.line,)


def _mended(node: Node, line: int, mistakes: Mistakes, repeated: list[Repeated]) -> Node:
    """A calculation with the right numbers in place of the wrong ones that it repeats."""
    return node if is_plain(node) else _replaced(node, line, mistakes, repeated)


def _replaced(node: Node, line: int, mistakes: Mistakes, repeated: list[Repeated]) -> Node:
    def right(cell: Cell) -> Cell:
        source = mistakes.of(cell, line)
        if source is None:
            return cell
        value = _right_size(source) * (-1.0 if cell.value < 0 else 1.0)
        text = cell.printed_like(value)
        flipped = text[0] in "-−" and cell.text[0] not in "-−–" and node.matrix is None
        repeated.append(Repeated(cell, f"({text})" if flipped else text, source))
        return replace(cell, text=text, value=value)

    if node.cell is not None:
        return replace(node, cell=right(node.cell))
    if node.matrix is not None:
        rows = [[right(cell) for cell in row] for row in node.matrix.rows]
        return replace(node, matrix=replace(node.matrix, rows=rows))
    args = tuple(_replaced(arg, line, mistakes, repeated) for arg in node.args)
    return replace(node, args=args)


def _cells(node: Node) -> list[Cell]:
    """The numbers of a plain side."""
    if node.matrix is not None:
        return [cell for row in node.matrix.rows for cell in row]
    return [node.cell] if node.cell is not None else [c for arg in node.args for c in _cells(arg)]
