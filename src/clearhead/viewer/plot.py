"""Heads as pictures, with matplotlib: one head on axes, or all heads of a run as small multiples.

Labels are in the user's own script where an installed font has it, and `U+6771` where none has, so
that no label is a row of boxes. (matplotlib before 3.11 draws letters one by one: Arabic letters
are then neither joined nor put from right to left.)
"""

import os
from typing import IO, TYPE_CHECKING

import numpy as np

from .._writing import replacing
from .fonts import drawable
from .labels import visible
from .ranking import Run, pooled, proof_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

NAMED_TOKENS = 64  # on an axis; with more, only every second, third ... token has its name
# Squares a side, no more than pixels: in each the largest weight, so that none is lost.
_SQUARES, _THUMBNAIL = 1024, 64
_COLOURS = ("#fdfcf9", "#d9e6fa", "#94b9ef", "#4a82d8", "#2450a8", "#0f2260")


def heat_map(
    run: Run, layer: int, head: int, ax: "Axes | None" = None, *, raw: bool = False
) -> "Axes":
    """Draw the weights of one head, queries down and keys across, and return the axes.

    ax      where to draw; by default the axes of a new pyplot figure, sized to the tokens
    raw     label with the tokenizer's pieces instead of the user's characters

    A text of more than 1024 tokens is drawn in squares that show their largest weight.
    The colour goes from 0 to the largest weight of the head, as the colour bar says.
    Raises  ValueError: no such layer or head.

    >>> run.plot(layer=5, head=11).get_title()
    'all-MiniLM-L6-v2, layer 5, head 11'
    """
    _check_head(run, layer, head)
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=_size(run), layout="constrained").add_subplot()
    picture, side = pooled(run, layer, head, _SQUARES)
    end = side * len(picture) - 0.5
    image = ax.imshow(
        picture, cmap=_colour_map(), vmin=0, vmax=picture.max(), extent=(-0.5, end, end, -0.5)
    )
    ax.figure.colorbar(image, ax=ax, shrink=0.6, label="weight")
    _name_tokens(ax, [token.raw if raw else token.text for token in run.tokens])
    ax.set_ylabel("reads")
    ax.set_xlabel("is read")
    joined = f" (a square: the largest of {side} × {side} weights)" if side > 1 else ""
    proof = proof_line(run)
    named = f"{run.model}, layer {layer}, head {head}{joined}"
    title, families = drawable([named, *([proof] if proof else [])])
    ax.set_title("\n".join(title), fontfamily=families, parse_math=False)
    return ax


def write_png(
    run: Run,
    path: str | os.PathLike[str],
    layer: int | None = None,
    head: int | None = None,
    *,
    raw: bool = False,
) -> None:
    """Write one head, those of one layer, or all of them as a PNG; whole or not at all.

    Raises  ValueError: no such layer or head, or a head without a layer. OSError.
    """
    with replacing(path, binary=True) as out:
        draw_png(run, out, layer, head, raw=raw)


def draw_png(
    run: Run, out: IO[bytes], layer: int | None, head: int | None, *, raw: bool = False
) -> None:
    """As `write_png`, into an open file."""
    from matplotlib.figure import Figure

    _check_head(run, layer, head)
    if layer is not None and head is not None:
        figure = Figure(figsize=_size(run), layout="constrained")
        heat_map(run, layer, head, figure.add_subplot(), raw=raw)
    else:
        figure = all_heads(run, layer)
    figure.savefig(out, format="png", dpi=150)


def all_heads(run: Run, layer: int | None = None) -> "Figure":
    """Every head, or those of one layer, as small pictures, all on one scale from 0 to 1.

    Layers go down and heads across.

    The colour follows the square root of the weight, which keeps small weights in sight.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    layers = range(run.num_layers) if layer is None else [layer]
    rows, columns = len(layers), run.num_heads
    figure = Figure(figsize=(0.9 * columns + 2, 0.9 * rows + 1.2), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    scale = PowerNorm(0.5, vmin=0, vmax=1)
    for (row, head), axes in np.ndenumerate(grid):
        small, _ = pooled(run, layers[row], head, _THUMBNAIL)
        image = axes.imshow(small, cmap=_colour_map(), norm=scale, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("#d0ccc2")
        if head == 0:
            axes.set_ylabel(f"layer {layers[row]}", rotation=0, ha="right", va="center", fontsize=8)
        if row == 0:
            axes.set_title(f"head {head}", fontsize=8)
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30, ticks=[0, 0.05, 0.2, 0.5, 1])
    bar.ax.tick_params(labelsize=8)
    bar.set_label("weight", fontsize=8)
    line = visible(" ".join(run.text.split()))
    lines, families = drawable(
        [line if len(line) <= 90 else line[:89] + "…", run.model, *filter(None, [proof_line(run)])]
    )
    figure.suptitle("\n".join(lines), fontsize=9, fontfamily=families, parse_math=False)
    return figure


def _check_head(run: Run, layer: int | None, head: int | None) -> None:
    if head is not None and layer is None:
        raise ValueError(f"head: {head} is not enough; it needs a layer")
    for name, at, count in (("layer", layer, run.num_layers), ("head", head, run.num_heads)):
        if at is not None and not 0 <= at < count:
            raise ValueError(f"{name}: {at} is not in this model; it has 0 to {count - 1}")


def _name_tokens(ax: "Axes", texts: list[str]) -> None:
    labels, families = drawable([text if len(text) <= 16 else text[:15] + "…" for text in texts])
    places = range(0, len(labels), -(-len(labels) // NAMED_TOKENS))
    shown = [labels[at] for at in places]
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    for axis, turned in ((ax.xaxis, 90), (ax.yaxis, 0)):
        axis.set_ticks(
            places, shown, rotation=turned, fontsize=8, fontfamily=families, parse_math=False
        )
    ax.tick_params(length=0)


def _size(run: Run) -> tuple[float, float]:
    """Inches for the tokens of a run: room for a name a row, up to `NAMED_TOKENS` rows."""
    side = 2.4 + 0.19 * min(max(len(run.tokens), 8), NAMED_TOKENS)
    return 1.15 * side, side


def _colour_map() -> "Colormap":
    """The one hue of the page, ever further from the paper."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("clearhead", _COLOURS)
