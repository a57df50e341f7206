"""The equations of an article, and one matrix cell written out as an equation."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .equations import Equation, is_plain
from .formula import Node
from .guess import full_decimals, overlaps, printed_interval, printed_value
from .numbers import Cell
from .values import DoesNotFit, Intervals, Points, evaluate

MOST_TERMS = 6


@dataclass(frozen=True, slots=True)
class WrongResult:
    """A printed result of an equation that its calculation does not give. `cell` may be None.

    `doubtful`: rounded operands could explain it, but the printed digits give something else.
    """

    line: int
    calculation: str
    printed: str
    should_be: float
    cell: Cell | None
    doubtful: bool = False


def wrong_results(equation: Equation) -> list[WrongResult] | None:
    """What is wrong in an equation; None when it cannot be evaluated."""
    found: list[WrongResult] = []
    sides = equation.sides
    if any(node.op == "name" for side in sides for node in side.walk()):
        return None
    try:
        with np.errstate(all="ignore"):
            for at in range(len(sides) - 1):
                befores = equation.first_alternatives if at == 0 else (sides[at],)
                found += _disagreements(befores or (sides[0],), sides[at + 1], equation.line)
    except DoesNotFit:
        return None
    return found


def _disagreements(befores: tuple[Node, ...], after: Node, line: int) -> list[WrongResult]:
    """The results in `after` that no reading of what stands before gives."""
    if all(is_plain(side) for side in (*befores, after)):
        before = befores[0]
        if before.op == after.op == "number" and before.cell and after.cell:
            coarse = max(before.cell.half, after.cell.half)
            if abs(before.cell.value - after.cell.value) <= coarse * (1 + 1e-9):
                return []
        else:
            return []
    first: list[WrongResult] = []
    for before in befores:
        calculation, result = (
            (after, before) if is_plain(before) and not is_plain(after) else (before, after)
        )
        wrong = _compared(calculation, result, line)
        if not wrong:
            return []
        first = first or wrong
    return first


def _compared(calculation: Node, result: Node, line: int) -> list[WrongResult]:
    """Where the result cannot stand for the calculation."""
    exact = evaluate(calculation, Points(), printed_value)
    bounds = evaluate(calculation, Intervals(), printed_interval)
    if not is_plain(result):
        other = evaluate(result, Intervals(), printed_interval)
        if other.shape != bounds.shape:
            raise DoesNotFit("two sides of different shapes")
        value = evaluate(result, Points(), printed_value)
        middle, half = (other[0] + other[1]) / 2, (other[1] - other[0]) / 2
        if overlaps(middle, half, bounds[0], bounds[1]).all():
            return []
        return [WrongResult(line, str(result), f"{value[0, 0]:g}", float(exact[0, 0]), None)]
    cells = _cells(result)
    printed = evaluate(result, Points(), printed_value)
    if printed.shape != exact.shape:
        raise DoesNotFit("a result of another shape")
    half = np.array([[cell.half for cell in cells]])
    decimals = full_decimals(calculation)
    ends = decimals is not None and max(c.decimals for c in cells) >= decimals
    agree = overlaps(printed, half, exact, exact)
    explained = overlaps(printed, half, bounds[0], bounds[1]) & (not ends)
    sign = -1.0 if result.op == "neg" else 1.0
    return [
        WrongResult(
            line,
            str(calculation),
            cells[j].text,
            sign * float(exact[0, j]),
            cells[j],
            bool(explained[0, j]),
        )
        for j in np.flatnonzero(~agree[0])
    ]


def _cells(result: Node) -> list[Cell]:
    if result.op == "neg":
        return _cells(result.args[0])
    if result.matrix is not None:
        return result.matrix.rows[0]
    assert result.cell is not None
    return [result.cell]


def written_out(formula: Node, row: int, column: int) -> str:
    """`0.2 x 1.1 + 1.4 x 0.4` for a product of two matrices; nothing for other formulas."""
    if formula.op != "*":
        return ""
    first, second = (_texts(arg) for arg in formula.args)
    if first is None or second is None or len(first(0, True)) > MOST_TERMS:
        return ""
    pairs = list(zip(first(row, True), second(column, False), strict=True))
    return " + ".join(f"{_signed(a)} x {_signed(b)}" for a, b in pairs) if len(pairs) > 1 else ""


def _signed(text: str) -> str:
    return f"({text})" if text[0] in "-−" else text


def _texts(node: Node) -> Callable[[int, bool], list[str]] | None:
    """A function (index, row?) -> the printed texts there, of a matrix or its transpose."""
    turned = node.op == "T"
    matrix = node.args[0].matrix if turned else node.matrix
    if matrix is None:
        return None

    def line(index: int, is_row: bool) -> list[str]:
        if is_row != turned:
            return [cell.text for cell in matrix.rows[index]]
        return [row[index].text for row in matrix.rows]

    return line
