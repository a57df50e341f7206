"""Formulas evaluated three ways: on numbers, on intervals, and on marks (what reaches what).

All three walk the same tree with the same rules; only the operations differ. A scalar is a 1 x 1
matrix. Numbers may carry leading axes (many draws at once); intervals are stacked as (2, rows,
columns), lower bound first.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .formula import Node
from .numbers import Array, Matrix

Marks = NDArray[np.bool_]
Operand = Callable[[Node], Array]


class DoesNotFit(ValueError):
    """Shapes that cannot be combined, or an operation that is not understood."""


class Algebra(Protocol):
    """What a way of evaluating must be able to do."""

    def two(self, op: str, a: Array, b: Array) -> Array: ...
    def one(self, op: str, a: Array) -> Array: ...


def evaluate(node: Node, algebra: Algebra, operand: Operand) -> Array:
    """The value of `node`; `operand` gives the values of its numbers, names and matrices."""
    if node.op in ("number", "name", "matrix"):
        return operand(node)
    values = [evaluate(arg, algebra, operand) for arg in node.args]
    if node.op == "max":
        result = values[0]
        for value in values[1:]:
            result = algebra.two("max", result, value)
        return result
    if len(values) == 1:
        return algebra.one(node.op, values[0])
    if len(values) != 2:
        raise DoesNotFit(f"{node.op} of {len(values)} things")
    check_shapes(node.op, values[0].shape[-2:], values[1].shape[-2:])
    return algebra.two(node.op, values[0], values[1])


def check_shapes(op: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raise DoesNotFit when `a op b` has no meaning."""
    if (1, 1) in (a, b):
        return
    if op == "*" and a[1] != b[0]:
        raise DoesNotFit(f"{a[0]} x {a[1]} times {b[0]} x {b[1]}")
    if op != "*" and any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        raise DoesNotFit(f"{a[0]} x {a[1]} {op} {b[0]} x {b[1]}")


def is_scalar(a: Array) -> bool:
    return a.shape[-2:] == (1, 1)


class Points:
    """Plain float64 arithmetic."""

    def two(self, op: str, a: Array, b: Array) -> Array:
        match op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b if is_scalar(a) or is_scalar(b) else np.matmul(a, b)
            case "⊙":
                return a * b
            case "/":
                return a / b
            case "max":
                return np.maximum(a, b)
            case "^":
                return np.asarray(a**b, dtype=np.float64)
        raise DoesNotFit(op)

    def one(self, op: str, a: Array) -> Array:
        match op:
            case "neg":
                return -a
            case "T":
                return np.swapaxes(a, -1, -2)
            case "softmax":
                top = a.max(-1, keepdims=True)
                e = np.exp(a - np.where(np.isfinite(top), top, 0.0))
                return np.asarray(e / e.sum(-1, keepdims=True), dtype=np.float64)
            case "max_j":
                return np.asarray(a.max(-1, keepdims=True), dtype=np.float64)
            case "sum_j":
                return np.asarray(a.sum(-1, keepdims=True), dtype=np.float64)
            case "causal":
                return np.where(earlier_keys(a.shape), a, -np.inf)
        return _elementwise(op)(a)


class Intervals:
    """Every operand anywhere in its interval; bounds that the true value cannot leave."""

    def two(self, op: str, a: Array, b: Array) -> Array:
        match op:
            case "+":
                return np.stack([a[0] + b[0], a[1] + b[1]])
            case "-":
                return np.stack([a[0] - b[1], a[1] - b[0]])
            case "*" if not (is_scalar(a) or is_scalar(b)):
                # every operand occurs once in a cell, so bounds of the terms add up exactly
                rows = [
                    _corners(a[:, i, :, None], b, np.multiply).sum(1) for i in range(a.shape[1])
                ]
                return np.stack(rows, axis=1)
            case "*" | "⊙":
                return _corners(a, b, np.multiply)
            case "/":
                if np.any((b[0] <= 0) & (b[1] >= 0)):
                    raise DoesNotFit("division by something that may be 0")
                return _corners(a, b, np.divide)
            case "max":
                return np.maximum(a, b)
            case "^":
                if np.any(a[0] < 0) and np.any(b[0] != np.round(b[1])):
                    raise DoesNotFit("a power of a negative number")
                powers = _corners(a, b, np.power)
                crosses = (a[0] < 0) & (a[1] > 0) & (b[0] % 2 == 0)
                powers[0] = np.where(crosses, 0.0, powers[0])
                return powers
        raise DoesNotFit(op)

    def one(self, op: str, a: Array) -> Array:
        match op:
            case "neg":
                return -a[::-1]
            case "T":
                return np.swapaxes(a, -1, -2)
            case "softmax":
                return np.stack([_softmax_bound(a, 0), _softmax_bound(a, 1)])
            case "max_j" | "sum_j" | "causal":
                return Points().one(op, a)
        return _elementwise(op)(a)  # all increasing: bounds map to bounds


class Reach:
    """Marks, 1.0 or 0.0: a cell is marked when a marked cell took part in it."""

    def two(self, op: str, a: Array, b: Array) -> Array:
        if op == "*" and not (is_scalar(a) or is_scalar(b)):
            rows, columns = a.max(-1, keepdims=True), b.max(-2, keepdims=True)
            return np.asarray(np.maximum(rows, columns), dtype=np.float64)
        return np.maximum(a, b)

    def one(self, op: str, a: Array) -> Array:
        match op:
            case "T":
                return np.swapaxes(a, -1, -2)
            case "softmax":
                return np.broadcast_to(a.max(-1, keepdims=True), a.shape)
            case "max_j" | "sum_j":
                return np.asarray(a.max(-1, keepdims=True), dtype=np.float64)
            case "causal":
                return np.where(earlier_keys(a.shape), a, 0.0)
        return a


def earlier_keys(shape: tuple[int, ...]) -> Marks:
    """True where a query may attend: keys up to its own position, aligned at the last one."""
    rows, columns = shape[-2:]
    return np.asarray(np.tri(rows, columns, columns - rows, dtype=np.bool_))


def _elementwise(op: str) -> Callable[[Array], Array]:
    functions: dict[str, Callable[[Array], Array]] = {
        "exp": np.exp, "sqrt": np.sqrt, "tanh": np.tanh, "ln": np.log, "log": np.log,
    }  # fmt: skip
    if op not in functions:
        raise DoesNotFit(op)
    return functions[op]


def _corners(a: Array, b: Array, of: Callable[[Array, Array], Array]) -> Array:
    """The least and greatest of the four combinations of bounds; 0 times infinity is 0."""
    found = np.stack([of(a[i], b[j]) for i in (0, 1) for j in (0, 1)])
    found = np.where(np.isnan(found), 0.0, found)
    return np.stack([found.min(0), found.max(0)])


def _softmax_bound(a: Array, bound: int) -> Array:
    """Softmax rises with its own score and falls with the others': one bound of each cell."""
    own, others = a[bound], a[1 - bound]
    top = np.maximum(own, others).max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    mine, theirs = np.exp(own - top), np.exp(others - top)
    rest = theirs.sum(-1, keepdims=True) - theirs
    return np.asarray(mine / (mine + np.maximum(rest, 0.0)), dtype=np.float64)


def dimension(name: str, matrices: dict[str, Matrix]) -> float | None:
    """What d, d_k or d_model stand for: the width of Q (or of X), when the article shows it."""
    if name.lower() not in ("d", "dk", "d_k", "d_head", "d_q", "d_model", "dim"):
        return None
    order = ("x", "q") if name.lower() == "d_model" else ("q", "x")
    for known in order:
        if known in matrices:
            return float(matrices[known].shape[1])
    if "k^t" in matrices:
        return float(matrices["k^t"].shape[0])
    return None


def rounding_slack(values: Array) -> Array:
    """What float64 itself may lose in a few hundred operations of this size."""
    return np.where(np.isfinite(values), np.abs(values), 0.0) * 2.0**-44 + math.ulp(1.0)
