"""Every cell of every claim against its formula, and what a wrong cell does to the cells below it.

A printed cell is right when its digits can stand for the value of its formula, under one of these:

1. the operands are the printed numbers (corrected where they are wrong);
2. the operands are the unrounded values, carried from the beginning;
3. the operands are any numbers that the printed digits can stand for (interval arithmetic).

The third is the widest, so a cell outside it is wrong whatever was rounded. A cell that only the
third explains is believed unless rounding is no explanation: when the result is printed with all
the decimals that exact arithmetic on the printed digits has, or when in 1000 draws of operands
within their digits (all operands or some, they themselves or what is given, carried to them) never
so few cells missed the readings 1 and 2 as do here.

A cell that is not right, but is right for the article's own wrong numbers, inherits; a cell that
is neither is wrong by itself.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .claims import Claim
from .formula import Node
from .guess import overlaps, shows_all_decimals
from .numbers import Array, Matrix
from .values import Algebra, DoesNotFit, Intervals, Points, Reach, evaluate

DRAWS = 1000
MOST_DRAWN = 1024  # cells of a matrix for which draws are made; beyond, rounding is believed
DOUBT = 0.05  # below this chance a cell that only rounding explains is mentioned
MOST_ROOTS = 64  # wrong cells whose descendants are followed one by one

Flags = NDArray[np.bool_]
Root = tuple[int, int, int]  # index of the claim, row, column


@dataclass(eq=False)
class Values:
    """What is known of one matrix: as printed, as it should be printed, unrounded, and bounded."""

    own: Array
    right: Array
    carried: Array
    bounds: Array  # (2, rows, columns), of the right values
    own_bounds: Array
    wrong: Flags  # wrong or inherited
    claim: Claim | None = None  # what it follows from; None: it is given
    reached: dict[Root, Flags] = field(default_factory=dict)


@dataclass(eq=False)
class Verdict:
    """The cells of one claim. `should_be` holds the right value of every cell."""

    claim: Claim
    should_be: Array
    wrong: Flags
    inherited: Flags
    doubtful: Flags
    origins: dict[tuple[int, int], list[Root]] = field(default_factory=dict)
    bad_rows: list[tuple[int, float, float]] = field(default_factory=list)  # row, sum, tolerance
    problem: str = ""


def verify(claims: list[Claim]) -> list[Verdict]:
    """Check the claims in the order of the article, carrying values from one to the next."""
    known: dict[int, Values] = {}
    roots: list[Root] = []
    verdicts: list[Verdict] = []
    for index, claim in enumerate(claims):
        for node in claim.formula.walk():
            if node.matrix is not None and id(node.matrix) not in known:
                known[id(node.matrix)] = _given(node.matrix)
        try:
            with np.errstate(all="ignore"):
                verdict, values = _judge(claim, known)
                _trace_origins(index, claim, verdict, values, known, roots)
        except DoesNotFit as error:
            nothing = np.zeros(claim.target.shape, dtype=np.bool_)
            values = _given(claim.target)
            verdict = Verdict(claim, values.own, nothing, nothing, nothing, problem=str(error))
        known[id(claim.target)] = values
        verdicts.append(verdict)
    return verdicts


def _given(matrix: Matrix) -> Values:
    """A matrix that nothing is claimed of: its printed numbers are the right ones."""
    printed, half = matrix.values, matrix.operand_halves
    bounds = np.stack([printed - half, printed + half])
    nothing = np.zeros(matrix.shape, dtype=np.bool_)
    return Values(printed, printed, printed, bounds, bounds, nothing)


def _value(formula: Node, algebra: Algebra, known: dict[int, Values], which: str) -> Array:
    """The formula over one version (`own`, `right`, ...) of its operands."""

    def operand(node: Node) -> Array:
        if node.matrix is not None:
            return np.asarray(getattr(known[id(node.matrix)], which), dtype=np.float64)
        assert node.cell is not None
        value, half = node.cell.value, node.cell.operand_half
        if which.endswith("bounds"):
            return np.array([[[value - half]], [[value + half]]])
        return np.array([[value]])

    return evaluate(formula, algebra, operand)


def _judge(claim: Claim, known: dict[int, Values]) -> tuple[Verdict, Values]:
    """Compare the cells with every reading; return the verdict and what is known from here on."""
    target, formula = claim.target, claim.formula
    printed, half, shape = target.values, target.halves, target.shape

    def reading(algebra: Algebra, which: str) -> Array:
        value = _value(formula, algebra, known, which)
        return np.broadcast_to(value, (*value.shape[:-2], *shape)).copy()

    def agrees(low: Array, high: Array | None = None) -> Flags:
        return np.asarray(overlaps(printed, half, low, low if high is None else high))

    by_hand, carried = reading(Points(), "right"), reading(Points(), "carried")
    bounds, own_bounds = reading(Intervals(), "bounds"), reading(Intervals(), "own_bounds")
    plain = agrees(by_hand) | agrees(carried)
    tainted = _reached_by(claim, known)
    own = agrees(reading(Points(), "own"))
    # what the article's own wrong number gives to the digit, it has inherited, near or far
    rounded = agrees(bounds[0], bounds[1]) & ~plain & ~(tainted & own)
    chance = _chance_of_rounding(claim, known, rounded, plain) if rounded.any() else 1.0
    exact = chance == 0
    right = plain if exact else plain | rounded

    if not exact:
        own |= agrees(own_bounds[0], own_bounds[1])
    inherited = ~right & tainted & own
    wrong = ~right & ~inherited

    best = by_hand if agrees(by_hand).sum() >= agrees(carried).sum() else carried
    corrected = np.where(right, printed, _rounded_like(best, half))
    mine = np.stack([printed - half, printed + half])
    values = Values(
        own=printed,
        right=corrected,
        carried=carried,
        bounds=np.where(right, mine, bounds),
        own_bounds=mine,
        wrong=~right,
        claim=None if any(node.matrix is target for node in formula.walk()) else claim,
    )
    doubtful = rounded & right & (chance < DOUBT)
    verdict = Verdict(claim, best, wrong, inherited, doubtful)
    if formula.op == "softmax" or formula.matrix is target:
        verdict.bad_rows = _rows_not_one(printed, half, ~right)
    return verdict, values


def _rounded_like(values: Array, half: Array) -> Array:
    """Values rounded to the digits that are printed (half units of the last place)."""
    unit = np.where(half > 0, 2 * half, 1.0)
    finite = np.isfinite(values) & (half > 0)
    return np.where(finite, np.round(np.where(finite, values, 0.0) / unit) * unit, values)


def _reached_by(claim: Claim, known: dict[int, Values], root: Root | None = None) -> Flags:
    """The cells into which some cell went that is not right; with `root`, that one or its heirs."""
    marks = evaluate(claim.formula, Reach(), lambda node: _mark(node, known, root))
    return np.broadcast_to(marks, claim.target.shape) > 0


def _mark(node: Node, known: dict[int, Values], root: Root | None) -> Array:
    if node.matrix is None:
        return np.zeros((1, 1))
    values = known[id(node.matrix)]
    if root is None:
        return values.wrong.astype(np.float64)
    flags = values.reached.get(root)
    return np.zeros(node.matrix.shape) if flags is None else flags.astype(np.float64)


def _trace_origins(
    index: int,
    claim: Claim,
    verdict: Verdict,
    values: Values,
    known: dict[int, Values],
    roots: list[Root],
) -> None:
    """Record from which wrong cells every inherited cell comes, and add this claim's own."""
    for root in roots if verdict.inherited.any() else ():
        reached = _reached_by(claim, known, root) & verdict.inherited
        values.reached[root] = reached
        for i, j in np.argwhere(reached):
            verdict.origins.setdefault((int(i), int(j)), []).append(root)
    for i, j in np.argwhere(verdict.wrong):
        if len(roots) < MOST_ROOTS:
            root = (index, int(i), int(j))
            roots.append(root)
            values.reached[root] = np.zeros(claim.target.shape, dtype=np.bool_)
            values.reached[root][i, j] = True


def _rows_not_one(printed: Array, half: Array, wrong: Flags) -> list[tuple[int, float, float]]:
    """Rows of weights that cannot sum to 1, unless one of their cells is already reported."""
    sums, tolerance = printed.sum(1), half.sum(1) + 1e-12
    bad = (np.abs(sums - 1) > tolerance) & ~wrong.any(1)
    return [(int(i), float(sums[i]), float(tolerance[i])) for i in np.flatnonzero(bad)]


def _chance_of_rounding(
    claim: Claim, known: dict[int, Values], rounded: Flags, plain: Flags
) -> float:
    """How likely rounded operands leave so few cells that the printed digits do not give.

    0 also where the result shows every decimal: then the printed digits must give it.
    """
    if shows_all_decimals(claim.target, claim.formula):
        return 0.0
    half = claim.target.halves
    sizes = [known[id(n.matrix)].own.size for n in claim.formula.walk() if n.matrix is not None]
    if max([*sizes, claim.target.size]) > MOST_DRAWN or not plain.any():
        return 1.0
    points = Points()
    readings = [
        np.broadcast_to(_value(claim.formula, points, known, which), claim.target.shape)
        for which in ("right", "carried")
    ]
    chance = 0.0
    for carried in (False, True):
        for rounded_ones in _stories(claim, known, carried):
            shown = _rounded_like(_draws(claim, known, carried, rounded_ones), half)
            close = [np.abs(shown - value) <= half * (1 + 1e-9) for value in readings]
            misses = (~(close[0] | close[1]) & (plain | rounded)).sum((1, 2))
            chance = max(chance, float((misses <= rounded.sum()).mean()))
            if chance >= DOUBT:
                return chance
    return chance


def _stories(claim: Claim, known: dict[int, Values], carried: bool) -> list[set[int]]:
    """Which matrices may have been rounded: all, any one, or those of so many decimals or more."""
    found: dict[int, Matrix] = {}
    waiting = [claim.formula]
    while waiting:
        for node in waiting.pop().walk():
            if node.matrix is None or id(node.matrix) in found:
                continue
            source = known[id(node.matrix)].claim
            if carried and source is not None:
                waiting.append(source.formula)
            else:
                found[id(node.matrix)] = node.matrix
    depths = {matrix.decimals for matrix in found.values()}
    stories = [{key for key, m in found.items() if m.decimals >= depth} for depth in depths]
    return [story for story in [*stories, *({key} for key in found)] if story]


def _draws(claim: Claim, known: dict[int, Values], carried: bool, rounded_ones: set[int]) -> Array:
    """The formula for operands drawn evenly from what their digits can stand for.

    Only the matrices of `rounded_ones` are drawn, the others are as printed. `carried`: what is
    given is drawn, and carried to the operands through their formulas.
    """
    random = np.random.default_rng(0)
    drawn: dict[int, Array] = {}

    def operand(node: Node) -> Array:
        if node.matrix is None:
            assert node.cell is not None
            half = node.cell.operand_half
            return node.cell.value + half * random.uniform(-1, 1, (DRAWS, 1, 1))
        values = known[id(node.matrix)]
        if id(node.matrix) in drawn:
            return drawn[id(node.matrix)]
        if carried and values.claim is not None:
            value = evaluate(values.claim.formula, Points(), operand)
        elif id(node.matrix) not in rounded_ones:
            value = values.right
        else:
            low, high = values.bounds
            width = np.where(np.isfinite(low), high - low, 0.0)
            value = low + width * random.random((DRAWS, *low.shape))
        return drawn.setdefault(id(node.matrix), value)

    value = evaluate(claim.formula, Points(), operand)
    return np.broadcast_to(value, (DRAWS, *claim.target.shape))
