"""What an experiment found: a question, columns of numbers, an answer made from them, a figure."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .. import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 80


@dataclass(frozen=True)
class Column:
    """`values` is one number per row; `form` is how one is printed, as in format()."""

    name: str
    values: NDArray[np.float64]
    form: str = ".3f"


@dataclass(frozen=True)
class Evidence:
    """`e["name"]` is a column, `print(e)` a table of 80 columns, `e.plot()` a figure."""

    question: str
    answer: str
    columns: tuple[Column, ...]
    draw: Callable[[Evidence, Axes], None] = field(repr=False)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        for column in self.columns:
            if column.name == name:
                return column.values
        names = ", ".join(c.name for c in self.columns)
        raise KeyError(f"column: {name!r}, must be one of {names}")

    def plot(self) -> Figure:
        with drawing.style():
            fig, ax = drawing.figure(self.question, 3.2)
            self.draw(self, ax)
            ax.grid(color=drawing.PALE, lw=0.5)
            ax.set_axisbelow(True)
            return drawing.lay_out(fig)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the figure as PNG or SVG, as the suffix says."""
        path = Path(path)
        if path.suffix not in (".png", ".svg"):
            raise ValueError(f"path: {path.name!r}, must end in .png or .svg")
        return drawing.save(self.plot(), path)

    def __str__(self) -> str:
        width = min(14, _COLUMNS // len(self.columns) - 1)
        heads = [textwrap.wrap(c.name, width) for c in self.columns]
        depth = max(map(len, heads))
        rows = [[""] * (depth - len(h)) + h for h in heads]
        lines = [" ".join(f"{h[i]:>{width}}" for h in rows) for i in range(depth)]
        lines.append(" ".join("-" * width for _ in self.columns))
        for values in zip(*(c.values for c in self.columns), strict=True):
            cells = (format(v, c.form) for v, c in zip(values, self.columns, strict=True))
            lines.append(" ".join(f"{cell:>{width}}" for cell in cells))
        return "\n".join([self.question, "", *lines, "", textwrap.fill(self.answer, _COLUMNS)])
