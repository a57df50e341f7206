"""The formula that a matrix's own cells show, when the article does not state one.

Every product, scaling, mask and softmax of the matrices above is tried. One is believed when more
than half of the cells agree with it, and when so many would not agree by chance: the chance that
numbers from the matrix's own range fall on so many printed cells, times the number of formulas
tried, must be below 1 in 100. Of formulas of the kind that the caption names ("weights"), only
those count as tried. Rounded operands are allowed for, except where the
matrix shows every decimal of exact arithmetic.
"""

import math
from collections.abc import Iterator

import numpy as np

from .captions import Caption, Names, Part, canonical, number
from .formula import Node
from .numbers import Array, Cell, Matrix
from .values import DoesNotFit, Intervals, Points, evaluate, rounding_slack

LOOK_BACK = 6
MOST_CELLS = 4096
MOST_TRIED = 20_000
_OPERANDS = (
    "x",
    "q",
    "k",
    "k^t",
    "v",
    "w_q",
    "w_k",
    "w_v",
    "scores",
    "scaled",
    "masked",
    "weights",
)
BIGGEST = 1 << 20  # multiplications of one formula tried on a guess
_OPS: dict[Part, tuple[str, ...]] = {
    "scores": ("*",),
    "scaled": ("/", "*"),
    "masked": ("+", "causal"),
    "weights": ("softmax",),
    "output": ("*",),
}


class Guesser:
    """Works out formulas, within a budget of formulas tried in one article."""

    def __init__(self) -> None:
        self.left = MOST_TRIED

    def guess(
        self, matrix: Matrix, caption: Caption, names: Names, seen: list[Matrix]
    ) -> Node | None:
        """The formula over `seen` that explains `matrix`, or None."""
        if matrix.size > MOST_CELLS:
            return None
        near = seen[-LOOK_BACK:]
        named = dict.fromkeys(names.get(key) for key in _OPERANDS)
        near = [*(m for m in named if m is not None and m not in near), *near]
        tried = [node for node in candidates(matrix, near, names) if _small(node)][: self.left]
        self.left -= len(tried)
        kinds = _OPS.get(caption.part, ())
        same_kind = sum(node.op in kinds for node in tried)
        believed: list[tuple[int, int, int, float, Node]] = []
        for order, node in enumerate(tried):
            try:
                agreeing, chance = agreement(matrix, node)
            except DoesNotFit:
                continue
            rivals = 1 if _is_again(matrix, node) else same_kind if node.op in kinds else len(tried)
            if 2 * agreeing <= matrix.size or chance * rivals >= 0.01:
                continue
            evidence = -math.log(max(chance, 1e-300))
            believed.append((len(node.walk()), -agreeing, order, evidence, node))
        # A long formula over rounded numbers agrees with much: the plainest that has at least half
        # the evidence of the best is taken.
        most = max((evidence for *_, evidence, _ in believed), default=0.0)
        good = [entry for entry in believed if 2 * entry[3] >= most]
        return min(good, key=lambda entry: entry[:3])[4] if good else None


def _is_again(matrix: Matrix, node: Node) -> bool:
    """Whether the article shows a matrix of the same name once more."""
    if node.matrix is None or not matrix.name or node.matrix.head != matrix.head:
        return False
    return canonical(node.matrix.name) == canonical(matrix.name)


def candidates(matrix: Matrix, near: list[Matrix], names: Names) -> Iterator[Node]:
    """Formulas of the right shape, the plainest first and the nearest matrices first."""
    shape = matrix.shape
    leaves = [Node("matrix", matrix=m) for m in reversed(near)]
    same = [leaf for leaf in leaves if _shape(leaf) == shape]
    yield from same
    yield from (Node("T", (leaf,)) for leaf in leaves if _shape(leaf) == shape[::-1])
    widths = sorted({m.shape[1] for m in near} | {m.shape[0] for m in near if "^" in m.name})
    hidden = _hidden_cells(matrix)
    for leaf in same:
        if hidden is not None:
            yield Node("causal", (leaf,))
            yield Node("+", (leaf, hidden))
            continue
        scaled = [Node("/", (leaf, Node("sqrt", (number(w),)))) for w in widths if w > 1]
        yield from scaled
        for inner in (leaf, *scaled):
            yield Node("softmax", (inner,))
            yield Node("softmax", (Node("causal", (inner,)),))
        yield Node("exp", (leaf,))
        yield from (Node("+", (leaf, other)) for other in same if other is not leaf)
    products = list(_products(leaves, shape))
    yield from products
    for product in products:
        width = number(_inner(product))
        scaled_product = Node("/", (product, Node("sqrt", (width,))))
        for inner in (scaled_product, product):
            yield Node("softmax", (inner,))
            yield Node("softmax", (Node("causal", (inner,)),))
        yield scaled_product
    yield from _whole_attention(names, shape)


def _products(leaves: list[Node], shape: tuple[int, int]) -> Iterator[Node]:
    for a in leaves:
        for b in leaves:
            (m, k), (n, p) = _shape(a), _shape(b)
            if (m, p) == shape and k == n and a is not b:
                yield Node("*", (a, b))
            if (m, n) == shape and k == p:
                yield Node("*", (a, Node("T", (b,))))


def _whole_attention(names: Names, shape: tuple[int, int]) -> Iterator[Node]:
    """softmax(Q K^T / sqrt(d)) V, for an article that shows no weights."""
    q, k, v = (names.find(name) for name in ("q", "k^t", "v"))
    if q is None or k is None or v is None or q.op != "matrix" or v.op != "matrix":
        return
    scores = Node("*", (q, k))
    for inner in (Node("/", (scores, Node("sqrt", (number(_shape(q)[1]),)))), scores):
        node = Node("*", (Node("softmax", (inner,)), v))
        if (_shape(q)[0], _shape(v)[1]) == shape:
            yield node


def _shape(leaf: Node) -> tuple[int, int]:
    assert leaf.matrix is not None
    return leaf.matrix.shape


def _inner(product: Node) -> int:
    return _shape(product.args[0])[1]


def _small(node: Node) -> bool:
    shapes = [part.matrix.shape for part in node.walk() if part.matrix is not None]
    return math.prod(max(shapes, key=math.prod)) * max(map(max, shapes)) <= BIGGEST


def _hidden_cells(matrix: Matrix) -> Node | None:
    """The mask that the matrix's own -inf cells draw: 0 and -inf, to be added."""
    values = matrix.values
    if not np.isneginf(values).any():
        return None
    shut, open_ = Cell("-inf", -np.inf, 0.0, 0, 0, 0), Cell("0", 0.0, 0.0, 0, 0, 0)
    rows = [[shut if value == -np.inf else open_ for value in row] for row in values]
    return Node("matrix", matrix=Matrix(rows, matrix.line, name="its mask"))


@np.errstate(all="ignore")
def agreement(matrix: Matrix, node: Node) -> tuple[int, float]:
    """How many cells agree with `node`, and how likely so many would by chance."""
    printed, half = matrix.values, matrix.halves
    exact = evaluate(node, Points(), printed_value)
    bounds = evaluate(node, Intervals(), printed_interval)
    exact, bounds = (
        np.broadcast_to(exact, printed.shape),
        np.broadcast_to(bounds, (2, *printed.shape)),
    )
    if (np.isinf(printed) != np.isinf(exact)).any():
        return 0, 1.0  # nobody misprints an infinity
    spread = _spread(printed)
    best, chance = 0, 1.0
    readings = [(exact, exact), (bounds[0], bounds[1])]
    for low, high in readings[: 1 if shows_all_decimals(matrix, node) else 2]:
        agree = overlaps(printed, half, low, high)
        finite = np.isfinite(printed)
        width = (2 * half)[finite] + (high[finite] - low[finite])
        p = float(np.clip(width / spread, 1e-9, 1).mean()) if spread > 0 and width.size else 1.0
        count = int(agree.sum())
        likely = _at_least(int(agree[finite].sum()), int(finite.sum()), p)
        best, chance = max(best, count), min(chance, 2 * likely)
    return best, chance


def shows_all_decimals(matrix: Matrix, formula: Node) -> bool:
    """Whether the matrix is printed with every decimal that the printed operands give exactly."""
    decimals = full_decimals(formula)
    return decimals is not None and matrix.decimals >= decimals


def full_decimals(node: Node) -> int | None:
    """The decimals that exact arithmetic on the printed digits has; None when it never ends."""
    if node.op == "number" and node.cell is not None:
        return node.cell.decimals
    if node.op == "matrix" and node.matrix is not None:
        return node.matrix.decimals
    parts = [full_decimals(arg) for arg in node.args]
    if any(part is None for part in parts):
        return None
    numbers = [part for part in parts if part is not None]
    if node.op in ("*", "⊙"):
        return sum(numbers)
    return max(numbers) if node.op in ("+", "-", "neg", "T", "max", "causal") else None


def overlaps(printed: Array, half: Array, low: Array, high: Array) -> np.ndarray:
    """Where the printed digits can stand for a value in [low, high]. NaN agrees with nothing."""
    with np.errstate(invalid="ignore"):
        slack = rounding_slack(printed) + rounding_slack(low) + rounding_slack(high)
        inside = (printed + half + slack >= low) & (printed - half - slack <= high)
    return np.asarray(inside | ((printed == low) & (low == high)), dtype=np.bool_)


def _spread(printed: Array) -> float:
    """The range in which the matrix's numbers lie, without its outliers when there are many."""
    finite = np.sort(printed[np.isfinite(printed)])
    if finite.size == 0:
        return 0.0
    cut = finite.size // 10
    return float(finite[finite.size - 1 - cut] - finite[cut])


def _at_least(k: int, n: int, p: float) -> float:
    """The chance of k or more out of n when each has the chance p."""
    if k == 0 or p >= 1:
        return 1.0
    terms = (
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
        + i * math.log(p) + (n - i) * math.log1p(-p)
        for i in range(k, n + 1)
    )  # fmt: skip
    return min(1.0, sum(math.exp(term) for term in terms))


def printed_value(node: Node) -> Array:
    if node.matrix is not None:
        return node.matrix.values
    assert node.cell is not None
    return np.array([[node.cell.value]])


def printed_interval(node: Node) -> Array:
    if node.matrix is not None:
        values, halves = node.matrix.values, node.matrix.operand_halves
        return np.stack([values - halves, values + halves])
    assert node.cell is not None
    value, half = node.cell.value, node.cell.operand_half
    return np.array([[[value - half]], [[value + half]]])
