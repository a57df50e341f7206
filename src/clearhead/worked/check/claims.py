"""What the article claims: stated formulas first, and for the rest the formula that the cells show.

A formula is stated by operators between matrices (`A x B = C`) or by a caption (`softmax(scores)`).
A matrix without one is compared with everything its predecessors could give; see check_guess.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from .captions import Caption, Names, Part, read_caption
from .formula import Node, NotAFormula, parse
from .guess import Guesser
from .numbers import Matrix, Problem
from .read import Article
from .tokens import Token
from .values import DoesNotFit, check_shapes


@dataclass(frozen=True, slots=True)
class Claim:
    """`target` is `formula`: because the article says so, or because the cells show it."""

    target: Matrix
    formula: Node
    stated: bool


@dataclass(eq=False)
class Reading:
    """An article understood: claims in reading order, what is given, what was not understood."""

    claims: list[Claim] = field(default_factory=list)
    given: list[Matrix] = field(default_factory=list)
    malformed: list[Problem] = field(default_factory=list)
    unread: list[Problem] = field(default_factory=list)


def understand(article: Article) -> Reading:
    """Work out what every matrix of the article is."""
    reading, names = Reading(), Names()
    captions = {id(m): read_caption(m.name or m.caption) for m in article.matrices}
    for matrix in article.matrices:
        matrix.name, matrix.head = captions[id(matrix)].name, captions[id(matrix)].head
    in_chain = _chains(article, names, captions, reading)
    seen: list[Matrix] = []
    names, guesser = Names(), Guesser()
    for matrix in article.matrices:
        caption = captions[id(matrix)]
        _check_size(matrix, caption, reading)
        names.head = matrix.head
        misfit = _stated_misfit(matrix, caption, names) if id(matrix) not in in_chain else ""
        if misfit:
            reading.malformed.append(Problem(matrix.line, misfit))
            claim = None
        else:
            claim = _claim_of(matrix, caption, names, seen, in_chain, guesser)
        if claim:
            reading.claims.append(claim)
        elif caption.part and not misfit:
            reading.unread.append(
                Problem(
                    matrix.line,
                    f"could not interpret {matrix.label}: no formula over the matrices "
                    "above it gives most of its cells",
                )
            )
        else:
            reading.given.append(matrix)
        if not guesser.left and not any("worked out" in p.sentence for p in reading.unread):
            reading.unread.append(
                Problem(matrix.line, "too many matrices: from here on no formula is worked out")
            )
        seen.append(matrix)
        names.learn(matrix, _part_of(claim, caption))
    return reading


def _claim_of(
    matrix: Matrix,
    caption: Caption,
    names: Names,
    seen: list[Matrix],
    stated: dict[int, Node],
    guesser: Guesser,
) -> Claim | None:
    """The formula of one matrix, from the strongest evidence there is for one."""
    formula = stated.get(id(matrix))
    if formula is not None:
        return Claim(matrix, _resolved(formula, names) or formula, True)
    for text in caption.formulas:
        formula = names.formula(text)
        if formula is not None:
            formula = fitted(formula, matrix)
            if formula is not None:
                return Claim(matrix, formula, True)
    formula = guesser.guess(matrix, caption, names, seen)
    if formula is not None:
        return Claim(matrix, formula, False)
    values = matrix.values
    if caption.part == "weights" and bool(((values >= 0) & (values <= 1)).all()):
        return Claim(matrix, Node("matrix", matrix=matrix), False)  # its rows must sum to 1
    return None


def _stated_misfit(matrix: Matrix, caption: Caption, names: Names) -> str:
    """What is wrong with `Scores = Q x K` when no reading of Q x K has a shape, or nothing."""
    found = [names.formula(text) for text in caption.formulas if "=" in matrix.caption]
    formulas = [formula for formula in found if formula is not None]
    if not formulas or any(_has_shape(formula) for formula in formulas):
        return ""
    return _misfit(formulas[0], matrix)


def _has_shape(formula: Node) -> bool:
    for candidate in (formula, *_with_transposes(formula)):
        try:
            shape_of(candidate)
        except DoesNotFit:
            continue
        return True
    return False


def _resolved(formula: Node, names: Names) -> Node | None:
    try:
        return names.resolve(formula)
    except NotAFormula:
        return None


def _part_of(claim: Claim | None, caption: Caption) -> Part:
    """The part that a matrix plays from now on, by its caption or else by its formula."""
    if caption.part or claim is None:
        return caption.part
    match claim.formula.op:
        case "softmax":
            return "weights"
        case "/":
            return "scaled"
        case "*":
            return "scores" if claim.formula.args[1].op == "T" else ""
    return ""


def _check_size(matrix: Matrix, caption: Caption, reading: Reading) -> None:
    if caption.size and caption.size != matrix.shape:
        said, is_ = caption.size, matrix.shape
        reading.malformed.append(
            Problem(
                matrix.line,
                f"{matrix.label} is {is_[0]} x {is_[1]}, its caption says {said[0]} x {said[1]}",
            )
        )


def _chains(
    article: Article, names: Names, captions: dict[int, Caption], reading: Reading
) -> dict[int, Node]:
    """Formulas stated by operators between matrices, by the identity of the matrix they give."""
    stated: dict[int, Node] = {}
    chain: list[Token] = []
    line = 0
    for number, item in [*article.items, (0, None)]:
        if isinstance(item, list):
            line = line if chain else number
            chain += item
            continue
        closes = chain and chain[-1].kind in ("matrix", "T", "close")
        if item is None or (closes and isinstance(item, Matrix)):
            _close_chain(chain, names, stated, reading, line)
            chain = []
        if isinstance(item, Matrix):
            line = line if chain else number
            chain.append(Token("matrix", item.name, matrix=item))
            names.learn(item, captions[id(item)].part)
    return stated


def _close_chain(
    chain: list[Token], names: Names, stated: dict[int, Node], reading: Reading, line: int
) -> None:
    """Read one chain `side = side = ...` and record what it says of bare matrices."""
    if not any(t.kind == "op" for t in chain) or not any(t.kind == "matrix" for t in chain):
        return
    sides: list[list[Token]] = [[]]
    for token in chain:
        if token.kind == "op" and token.text == "=":
            sides.append([])
        else:
            sides[-1].append(token)
    if sides and not sides[-1]:
        sides.pop()  # a formula that goes on after the block
    try:
        trees = [parse(side) for side in sides if side]
    except NotAFormula:
        reading.unread.append(Problem(line, "could not read the formula that starts here"))
        return
    if trees[0].op != "matrix" and len(trees) > 1:
        target = next((tree.matrix for tree in trees if tree.matrix), None)
        if target is not None and (
            not target.name or not any(node.matrix for node in trees[0].walk())
        ):
            target.name = str(trees[0])
    for before, after in [*pairwise(trees), *((b, a) for a, b in pairwise(trees[:2]))]:
        if after.op != "matrix" or after.matrix is None or before.op in ("matrix", "name"):
            continue
        if id(after.matrix) in stated:
            continue
        formula = _resolved(before, names) or before
        if any(node.op == "name" for node in formula.walk()):
            continue
        fits = fitted(formula, after.matrix)
        if fits is not None:
            stated[id(after.matrix)] = fits
        else:
            reading.malformed.append(Problem(line, _misfit(formula, after.matrix)))


def _misfit(formula: Node, target: Matrix) -> str:
    rows, columns = target.shape
    sizes = " and ".join(
        f"{n.matrix.shape[0]} x {n.matrix.shape[1]}" for n in formula.walk()[::-1] if n.matrix
    )
    return f"matrices of {sizes} do not combine as `{formula}` to one of {rows} x {columns}"


def shape_of(node: Node) -> tuple[int, int]:
    """The shape of a formula's value. Raises DoesNotFit."""
    if node.op == "matrix" and node.matrix is not None:
        return node.matrix.shape
    if node.op in ("number", "name"):
        return 1, 1
    shapes = [shape_of(arg) for arg in node.args]
    if len(shapes) == 1:
        rows, columns = shapes[0]
        if node.op in ("max_j", "sum_j"):
            return rows, 1
        return (columns, rows) if node.op == "T" else (rows, columns)
    check_shapes(node.op, *shapes[:2])
    first, second = shapes[:2]
    if node.op == "*" and (1, 1) not in (first, second):
        return first[0], second[1]
    return max(first[0], second[0]), max(first[1], second[1])


def fitted(formula: Node, target: Matrix) -> Node | None:
    """`formula` if it has the target's shape, perhaps with a transpose that was left out."""
    for candidate in (formula, *_with_transposes(formula)):
        try:
            if shape_of(candidate) == target.shape:
                return candidate
        except DoesNotFit:
            continue
    return None


def _with_transposes(node: Node) -> list[Node]:
    """Readings of a formula in which one product takes its second matrix transposed, or not."""
    found: list[Node] = []
    if node.op == "*" and len(node.args) == 2:
        first, second = node.args
        turned = second.args[0] if second.op == "T" else Node("T", (second,))
        found.append(Node("*", (first, turned)))
    for at, arg in enumerate(node.args):
        for other in _with_transposes(arg):
            args = (*node.args[:at], other, *node.args[at + 1 :])
            found.append(Node(node.op, args, node.cell, node.name, node.matrix))
    return found
