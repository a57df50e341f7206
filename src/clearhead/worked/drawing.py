"""The visual language of every figure: squares for numbers, shades for weights, one palette.

    a number   a square whose area is its size; filled: positive, hollow: negative (after Hinton)
    a weight   a cell shaded from white (0) to deep blue (1)
    a sense    a colour and a marker, both, so that neither colour blindness nor a copier loses it
    a word     a fixed-width font, as the text itself

A figure is 6.5 inches wide, so that its 8 point text stays 8 point across half a page. Coordinates
on a canvas count cells: x to the right, y down. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._writing import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE, BLUE = "#1b1f24", "#6b7280", "#dfe3e8", "#08519c"
SENSES = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#AA4499",
    "#56B4E9",
    "#8C6D00",
)  # Okabe and Ito, darkened
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDTH_INCHES = 6.5
TEXT, SMALL, TITLE = 8.0, 7.0, 10.0
MOST = 12  # rows or columns of a matrix that are drawn
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": TEXT,
    "axes.titlelocation": "left",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "lines.linewidth": 1.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "clearhead",  # the same drawing gives the same bytes
    "svg.fonttype": "path",
}


def style() -> Any:
    """A context in which figures look like ours; nothing of the caller's settings is changed."""
    import matplotlib as mpl

    return mpl.rc_context(_STYLE)


def figure(
    title: str, height_inches: float, columns: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """A figure with a claim as its title and one row of axes; belongs to no window."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    fig.suptitle(title, x=0.01, ha="left", fontsize=TITLE, fontweight="bold")
    return fig, fig.subplots(1, columns, **options)


def canvas(title: str, width: float, height: float, note: str = "") -> tuple[Figure, Axes]:
    """An empty sheet of width x height cells below a title, with a note at its foot."""
    from matplotlib.figure import Figure

    cell = WIDTH_INCHES / width
    foot = 0.3 + 0.15 * note.count("\n") if note else 0.08
    full = height * cell + 0.42 + foot
    fig = Figure(figsize=(WIDTH_INCHES, full))
    ax = fig.add_axes((0, foot / full, 1, height * cell / full))
    ax.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    ax.axis("off")
    fig.text(0.015, 1 - 0.1 / full, title, va="top", fontsize=TITLE, fontweight="bold")
    fig.text(0.015, 0.08 / full, note, va="bottom", fontsize=SMALL, color=GREY)
    return fig, ax


def shown(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of a matrix that is drawn: at most MOST rows and columns."""
    return matrix[:MOST, :MOST]


def size_of(matrix: NDArray[np.float64]) -> str:
    """Its shape, and how much of it is drawn where that is not all."""
    rows, columns = matrix.shape
    if max(rows, columns) <= MOST:
        return f"{rows} × {columns}"
    return f"{min(rows, MOST)} × {min(columns, MOST)} of {rows} × {columns}"


def squares(
    ax: Axes,
    x: float,
    y: float,
    matrix: NDArray[np.float64],
    *,
    largest: float | None = None,
    color: str = INK,
    heads: int = 1,
) -> None:
    """Hinton's diagram: cell (row, column) at (x + column, y + row), its area as |value|;
    a dashed line between heads.
    """
    from matplotlib.patches import Rectangle

    whole = matrix.shape[1]
    matrix = shown(matrix)
    rows, columns = matrix.shape
    top = float(np.abs(matrix).max(initial=0)) if largest is None else largest
    _frame(ax, x, y, columns, rows)
    for (row, column), value in np.ndenumerate(matrix):
        side = 0.88 * min(np.sqrt(abs(value) / top), 1) if top > 0 else 0.0
        line = min(0.8, 6 * side)
        ax.add_patch(
            Rectangle(
                (x + column + (1 - side) / 2, y + row + (1 - side) / 2),
                side,
                side,
                facecolor=color if value > 0 else "white",
                edgecolor=color,
                linewidth=line,
            )
        )
    for head in range(1, heads):
        if (at := head * whole / heads) < columns:
            ax.plot([x + at] * 2, [y, y + rows], color=GREY, lw=0.8, ls=(0, (2, 2)))


def shades(
    ax: Axes,
    x: float,
    y: float,
    matrix: NDArray[np.float64],
    *,
    lowest: float = 0.0,
    highest: float = 1.0,
    digits: int | None = None,
    outline: int | None = None,
    wide: float = 1.0,
) -> None:
    """Cells shaded from white (lowest) to blue (highest); `digits` prints the numbers in them.

    `outline` frames one row; `wide` is the width of a cell.
    """
    from matplotlib.patches import Rectangle

    matrix = shown(matrix)
    for (row, column), value in np.ndenumerate(matrix):
        share = float(np.clip((value - lowest) / max(highest - lowest, 1e-12), 0, 1))
        corner = (x + wide * column, y + row)
        ax.add_patch(Rectangle(corner, wide, 1, facecolor=shade(share), edgecolor=PALE, lw=0.5))
        if digits is not None:
            ink = "white" if share > 0.6 else INK
            text = f"{value:.{digits}f}".replace("-", "−").replace("0.", ".", 1)
            ax.text(corner[0] + wide / 2, y + row + 0.52, text, ha="center", va="center",
                    color=ink, fontsize=SMALL - 1)  # fmt: skip
    if outline is not None:
        ax.add_patch(
            Rectangle(
                (x, y + outline), wide * matrix.shape[1], 1, fill=False, edgecolor=INK, lw=1.2
            )
        )


def shade(share: float) -> tuple[float, float, float]:
    """0: white, 1: deep blue, lightness falling evenly between."""
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - share * (1 - c) for c in to_rgb(BLUE))
    return red, green, blue


def words(ax: Axes, x: float, y: float, column: Sequence[str], strong: int | None = None) -> None:
    """Words down the left of a matrix at (x, y); `strong` is the one in question."""
    for row, word in enumerate(column[:MOST]):
        weight = "bold" if row == strong else "normal"
        ax.text(x - 0.3, y + row + 0.52, brief(word), ha="right", va="center",
                family="DejaVu Sans Mono", fontsize=SMALL, fontweight=weight)  # fmt: skip


def words_above(
    ax: Axes, x: float, y: float, row: Sequence[str], strong: int | None = None, wide: float = 1.0
) -> None:
    """Words up from the top of a matrix at (x, y) whose columns are `wide`."""
    for column, word in enumerate(row[:MOST]):
        weight = "bold" if column == strong else "normal"
        ax.text(x + wide * (column + 0.5), y - 0.2, brief(word), rotation=90, ha="center",
                va="bottom", family="DejaVu Sans Mono", fontsize=SMALL,
                fontweight=weight)  # fmt: skip


def brief(text: str, width: int = 14) -> str:
    """At most `width` columns of fixed-width letters, where a Chinese one takes two."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def name_of(matrix: str) -> str:
    """W_Q with its letter lowered, in bold."""
    letter, _, index = matrix.partition("_")
    return rf"$\mathbf{{{letter}}}_\mathbf{{{index}}}$" if index else matrix


def caption(ax: Axes, x: float, y: float, text: str, detail: str = "") -> None:
    """The name of a matrix, and under it its shape, centred at x with its top at y."""
    ax.text(x, y, text, ha="center", va="top", fontsize=TEXT, fontweight="bold")
    ax.text(x, y, f"\n{detail}", ha="center", va="top", fontsize=SMALL, color=GREY, linespacing=1.4)


def sign(ax: Axes, x: float, y: float, text: str) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=TITLE + 2)


def arrow(
    ax: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    bend: float = 0.0,
    **options: Any,
) -> None:
    settings = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.0, "mutation_scale": 8} | options
    settings |= {"connectionstyle": f"arc3,rad={bend}", "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=end, xytext=start, arrowprops=settings)


def lay_out(fig: Figure) -> Figure:
    """Finds fonts for letters that DejaVu lacks, and fixes the layout: PNG and SVG then agree."""
    from matplotlib.text import Text

    from ..viewer.fonts import drawable

    for text in fig.findobj(Text):
        own = text.get_text()
        if "$" in own and "\\math" not in own:  # a $ in a user's word is a $
            text.set_parse_math(False)
        if not own.isascii() and "\\mathbf" not in own:
            lines, families = drawable(own.split("\n"))
            text.set_text("\n".join(lines))
            text.set_fontfamily([*text.get_fontfamily(), *families])
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    return fig


def save(fig: Figure, path: Path) -> Path:
    """Writes a PNG (200 dpi) or SVG, as the suffix says, whole or not at all."""
    kind = path.suffix.lower().lstrip(".")
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with style(), replacing(path, binary=True) as file:
        fig.savefig(file, format=kind, dpi=200, metadata=metadata)
    return path


def _frame(ax: Axes, x: float, y: float, columns: int, rows: int) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), columns, rows, facecolor="#f4f5f7", edgecolor=PALE, lw=0.6))
