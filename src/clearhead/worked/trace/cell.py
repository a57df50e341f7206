"""One cell written out: `q1 . k1 = 1.0 x 1.1 + 0.5 x 0.4 = 1.30`.

The numbers shown are rounded, the arithmetic is not. Where the rounded numbers on the line would
give another result than the one at its end, the line says so.
"""

import math
from collections.abc import Callable

import numpy as np

from .given import Array
from .steps import Step

MOST_TERMS = 12  # of a sum, before it is abbreviated
Place = tuple[str, int, list[int] | None, list[int] | None]  # step, head, rows, columns; None: all


def decimals(step: Step, digits: int) -> int:
    """The digits after the point: as few as show a given matrix exactly, else `digits`."""
    if step.kind != "given":
        return digits
    for few in range(1, digits):
        finite = step.array[np.isfinite(step.array)]
        if np.array_equal(np.round(finite, few), finite):
            return few
    return digits


def shown(value: float, places: int) -> str:
    """A number as it is printed; no negative zero; an exponent from 1e7 on."""
    if not math.isfinite(value):
        return "-inf" if value < 0 else "inf" if value > 0 else "nan"
    if abs(value) >= 1e7:
        return f"{value:.{places}e}"
    text = f"{value:.{places}f}"
    return text.lstrip("-") if float(text) == 0 else text


def places_of(steps: dict[str, Step], step: Step, i: int, j: int, head: int) -> list[Place]:
    """The cells of earlier steps that made cell (i, j) of a head."""
    found: list[Place] = []
    for name, part in step.operands:
        other = steps[name]
        at = head * len(other.array) // len(step.array)  # grouped heads share keys and values
        width = other.array.shape[2]
        rows, columns = [i], list[int]()
        match part:
            case "cell":
                columns = [j]
            case "first":
                columns = [0]
            case "row j":
                rows = [j]
            case "row 1":
                rows = [0]
            case "only":
                rows, columns = [0], [j]
            case "head":
                columns = [head * step.array.shape[2] + j]
            case "heads":
                at, columns = j // width, [j % width]
            case "column":
                found.append((name, at, None, [j]))
                continue
        found.append((name, at, rows, columns or None))
    return found


class Writer:
    """Writes cells of one trace out, at a number of digits."""

    def __init__(self, steps: dict[str, Step], digits: int) -> None:
        self.steps, self.digits = steps, digits

    def text(self, step: Step, value: float) -> str:
        return shown(value, decimals(step, self.digits))

    def write(self, step: Step, i: int, j: int, head: int) -> str:
        """The arithmetic of one cell, on one line."""
        value = float(step.array[head, i, j])
        result = shown(value, decimals(step, self.digits))
        left = f"{step.name}[{i}, {j}]"
        if len(step.array) > 1:
            left = f"head {head}, {left}"
        writers: dict[str, Callable[[Step, int, int, int], tuple[str, float]]] = {
            "product": self._product, "additive": self._additive, "root": self._root,
            "scale": self._scale, "cap": self._cap, "sum": self._sum, "maximum": self._maximum,
            "exp": self._exp, "total": self._total, "quotient": self._quotient,
        }  # fmt: skip
        if step.kind == "given":
            return f"{left} = {result}, given"
        if step.kind == "mask":
            before = self._operand(step, 0, i, j, head)
            hidden = math.isinf(value) and not math.isinf(before[1])
            why = "may not attend to" if hidden else "may attend to"
            return f"{left}: {before[0]} -> {result}, {step.rows[i]} {why} {step.columns[j]}"
        if step.kind in ("split", "join"):
            name, at, rows, columns = places_of(self.steps, step, i, j, head)[0]
            source = self.steps[name]
            whose = f"head {at}, " if len(source.array) > 1 else ""
            assert rows is not None and columns is not None
            return f"{left} = {whose}{name}[{rows[0]}, {columns[0]}] = {result}"
        text, rough = writers[step.kind](step, i, j, head)
        if step.name == "scores" and step.kind == "product":
            left = (
                f"q{i + 1} . k{j + 1}"
                if len(step.array) == 1
                else f"head {head}, q{i + 1} . k{j + 1}"
            )
        note = "" if shown(rough, decimals(step, self.digits)) == result else UNROUNDED
        return f"{left} = {text} = {result}{note}"

    def _operand(self, step: Step, which: int, i: int, j: int, head: int) -> tuple[str, float]:
        """The single cell that operand number `which` takes: as shown, and its value."""
        name, at, rows, columns = places_of(self.steps, step, i, j, head)[which]
        assert rows is not None and columns is not None
        value = float(self.steps[name].array[at, rows[0], columns[0]])
        return self.text(self.steps[name], value), value

    def _line(self, step: Step, which: int, i: int, j: int, head: int) -> tuple[list[str], Array]:
        """The row or column that operand number `which` takes: as shown, and as shown's values."""
        name, at, rows, columns = places_of(self.steps, step, i, j, head)[which]
        other = self.steps[name]
        line = other.array[at, rows[0]] if rows is not None else other.array[at][:, columns[0]]  # type: ignore[index]
        places = decimals(other, self.digits)
        texts = [shown(float(value), places) for value in line]
        return texts, np.array([float(text) for text in texts])

    def _product(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        (a, x), (b, y) = (self._line(step, which, i, j, head) for which in (0, 1))
        terms = [f"{_signed(p)} x {_signed(q)}" for p, q in zip(a, b, strict=True)]
        rough = float(x @ y)
        if len(step.operands) > 2:
            bias, _ = self._operand(step, 2, i, j, head)
            terms.append(bias)
            rough += float(bias)
        return _abbreviated(terms), rough

    def _additive(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        (a, x), (b, y), (c, z) = (self._line(step, which, i, j, head) for which in (0, 1, 2))
        terms = [
            f"{_signed(w)} x tanh({p} + {_signed(q)})" for p, q, w in zip(a, b, c, strict=True)
        ]
        return _abbreviated(terms), float(z @ np.tanh(x + y))

    def _root(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        before, _ = self._operand(step, 0, i, j, head)
        size = step.constants["size"]
        return f"{before} / sqrt({size:.0f})", float(before) / size**0.5

    def _scale(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        before, _ = self._operand(step, 0, i, j, head)
        return f"{before} x {step.constants['scale']:g}", float(before) * step.constants["scale"]

    def _cap(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        before, _ = self._operand(step, 0, i, j, head)
        cap = step.constants["softcap"]
        return f"{cap:g} x tanh({before} / {cap:g})", cap * math.tanh(float(before) / cap)

    def _sum(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        (a, _), (b, _) = (self._operand(step, which, i, j, head) for which in (0, 1))
        return f"{a} + {_signed(b)}", float(a) + float(b)

    def _maximum(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        texts, values = self._line(step, 0, i, j, head)
        if step.extra is not None:
            texts = [*texts, f"sink {shown(float(step.extra[head]), self.digits)}"]
            values = np.append(values, round(float(step.extra[head]), self.digits))
        return f"max({_abbreviated(texts, ', ')})", float(values.max())

    def _exp(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        (a, x), (b, _) = (self._operand(step, which, i, j, head) for which in (0, 1))
        if math.isinf(x):
            return "e^-inf", 0.0
        return f"e^({a} - {_signed(b)})", math.exp(float(a) - float(b))

    def _total(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        texts, values = self._line(step, 0, i, j, head)
        rough = float(values.sum())
        if step.extra is not None:
            rest = float(step.array[head, i, 0]) - float(
                self.steps["exponentials"].array[head, i].sum()
            )
            texts = [*texts, f"sink {shown(rest, self.digits)}"]
            rough += round(rest, self.digits)
        return _abbreviated(texts), rough

    def _quotient(self, step: Step, i: int, j: int, head: int) -> tuple[str, float]:
        (a, _), (b, y) = (self._operand(step, which, i, j, head) for which in (0, 1))
        if y == 0:
            return "0, as this query sees no key", 0.0
        return f"{a} / {b}", float(a) / float(b) if float(b) else 0.0


UNROUNDED = "  (from the unrounded numbers)"


def _signed(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def _abbreviated(terms: list[str], joint: str = " + ") -> str:
    """All the terms, or the first and last few and how many are left out."""
    if len(terms) <= MOST_TERMS:
        return joint.join(terms)
    left_out = len(terms) - 5
    return joint.join([*terms[:3], f"({left_out} more)", *terms[-2:]])
