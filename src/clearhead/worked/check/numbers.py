"""A printed number and the matrix it stands in: what the digits say, and what they leave open.

A number printed 0.78 may stand for anything in 0.775 .. 0.785; a whole number such as 2 is exact
when it is an operand and may stand for 1.5 .. 2.5 when it is a result. Everything that the checker
tolerates follows from these half units; nothing is tuned.
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MINUS = "-−–"
_INFINITE = re.compile(rf"([{MINUS}+]?)\s?(?:np\.)?(?:inf(?:inity)?|∞)$", re.IGNORECASE)
_NUMBER = re.compile(rf"([{MINUS}+]?)(\d[\d,]*|)(\.\d*)?(?:[eE]([+\-−]?\d+))?(%?)$")


@dataclass(frozen=True, slots=True)
class Cell:
    """One printed number: its text, its value, half a unit of its last digit, and its place."""

    text: str
    value: float
    half: float
    line: int
    start: int
    end: int
    highlighted: bool = False

    @property
    def operand_half(self) -> float:
        """What rounding leaves open when the number is used: nothing for a whole number."""
        whole = math.isinf(self.value) or not any(sign in self.text for sign in ".%")
        return 0.0 if whole else self.half

    @property
    def decimals(self) -> int:
        """Digits after the point, counting an exponent: 8.7e-05 has 6."""
        if self.half <= 0:
            return 0
        return max(0, round(-math.log10(2 * self.half)) - (2 if self.text.endswith("%") else 0))

    def printed_like(self, value: float) -> str:
        """`value` written the way this cell is written: same decimals, exponent and percent."""
        if math.isinf(value):
            return "-inf" if value < 0 else "inf"
        if "e" in self.text.lower() and not math.isinf(self.value):
            mantissa = self.text.lower().split("e")[0]
            return f"{value:.{len(mantissa.partition('.')[2])}e}"
        shown = value * 100 if self.text.endswith("%") else value
        text = f"{shown:.{self.decimals}f}"
        if float(text) == 0:
            text = text.lstrip("-")
        if self.text.endswith("."):
            text += "."
        if "−" in self.text:
            text = text.replace("-", "−")
        return text + ("%" if self.text.endswith("%") else "")


def read_number(text: str, line: int, start: int, highlighted: bool = False) -> Cell | None:
    """The cell that `text` prints, or None when it is not one number. NaN is no number here."""
    if len(text) > 40:
        return None
    end = start + len(text)
    infinite = _INFINITE.match(text)
    if infinite:
        value = -math.inf if infinite[1] and infinite[1] in MINUS else math.inf
        return Cell(text, value, 0.0, line, start, end, highlighted)
    found = _NUMBER.match(text)
    if not found or not (found[2] or (found[3] and len(found[3]) > 1)):
        return None
    sign, whole, fraction, exponent, percent = found.groups()
    if "," in whole and not re.fullmatch(r"\d{1,3}(,\d{3})+", whole):
        return None
    power = int((exponent or "0").replace("−", "-"))
    if abs(power) > 300:
        return None
    decimals = len(fraction or ".") - 1
    scale = 0.01 if percent else 1.0
    value = float((whole.replace(",", "") or "0") + (fraction or "")) * scale * 10.0**power
    if sign and sign in MINUS:
        value = -value
    return Cell(
        text, value, 0.5 * 10.0 ** (power - decimals) * scale, line, start, end, highlighted
    )


@dataclass(eq=False)
class Matrix:
    """A matrix found in the article, in the order of the article. `name` may be empty."""

    rows: list[list[Cell]]
    line: int
    caption: str = ""
    name: str = ""
    kind: str = "rows"  # rows, array, table, latex, inline
    declared: tuple[int, int] | None = None
    head: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.rows[0])

    @property
    def size(self) -> int:
        return len(self.rows) * len(self.rows[0])

    @property
    def label(self) -> str:
        name = self.name or f"the {self.shape[0]} x {self.shape[1]} matrix"
        return f"{name}, head {self.head}" if self.head else name

    @cached_property
    def values(self) -> Array:
        return np.array([[cell.value for cell in row] for row in self.rows])

    @cached_property
    def halves(self) -> Array:
        return np.array([[cell.half for cell in row] for row in self.rows])

    @cached_property
    def operand_halves(self) -> Array:
        return np.array([[cell.operand_half for cell in row] for row in self.rows])

    @cached_property
    def decimals(self) -> int:
        """The decimals of its most exactly printed number."""
        return max(cell.decimals for row in self.rows for cell in row)


@dataclass(frozen=True, order=True)
class Problem:
    """A place in the article that cannot be read as it should: one sentence about one line."""

    line: int
    sentence: str


def uneven(row: int, length: int, first: int) -> str:
    """The sentence about a ragged row, counted from 1."""
    numbers = "number" if length == 1 else "numbers"
    return (
        f"row {row} has {length} {numbers}, row 1 has {first}; "
        "the rows of a matrix must be equally long"
    )
