"""The figures of `why`: one function per experiment, from its columns to a pair of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import drawing as d

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .evidence import Evidence


def _line(e: Evidence, ax: Axes, x: str, y: str, look: int, label: str) -> None:
    ax.plot(e[x], e[y], color=d.SENSES[look], marker=d.MARKERS[look], ms=4.5, label=label)


def scale(e: Evidence, ax: Axes) -> None:
    _line(e, ax, "d", "variance of q · k", 1, "q · k")
    _line(e, ax, "d", "variance of q · k / √d", 0, "q · k / √d")
    ax.set(xscale="log", yscale="log", xlabel="d", ylabel="variance")
    ax.legend()


def saturation(e: Evidence, ax: Axes) -> None:
    """Entropy on the left axis, gradient dashed on the right one."""
    _line(e, ax, "d", "entropy of q · k", 1, "entropy of q · k")
    _line(e, ax, "d", "entropy of q · k / √d", 0, "entropy of q · k / √d")
    ax.set(xscale="log", xlabel="d", ylabel="entropy (nats)", ylim=(0, None))
    other = ax.twinx()
    other.spines["right"].set_visible(True)
    for column, look in (("gradient of q · k", 1), ("gradient of q · k / √d", 0)):
        other.plot(
            e["d"], e[column], "--", color=d.SENSES[look], marker=d.MARKERS[look], ms=4.5,
            mfc="white", label=column,
        )  # fmt: skip
    other.set(ylabel="norm of the softmax's Jacobian", ylim=(0, None))
    handles = [h for a in (ax, other) for h in a.get_legend_handles_labels()[0]]
    labels = [t for a in (ax, other) for t in a.get_legend_handles_labels()[1]]
    ax.figure.legend(handles, labels, loc="outside lower center", ncols=2)


def mask(e: Evidence, ax: Axes) -> None:
    floor = 1e-9  # an exact zero has no place on a logarithmic axis
    for look, name in enumerate(("masked before", "zeroed after", "zeroed and renormalised")):
        error = np.maximum(e[f"error, {name}"], floor)  # NaN stays NaN
        ax.plot(e["hidden score"], error, color=d.SENSES[look], marker=d.MARKERS[look], ms=4.5,
                label=name)  # fmt: skip
        if len(gone := e["hidden score"][np.isnan(error)]):
            ax.plot(gone, np.ones(len(gone)), "x", color=d.SENSES[look], ms=7, mew=2,
                    label=f"{name}: NaN")  # fmt: skip
    ax.set(yscale="log", xlabel="score of the hidden key", ylabel="largest error of a weight")
    ax.legend(loc="center right")


def heads(e: Evidence, ax: Axes) -> None:
    at = np.arange(len(e["heads"]))
    ax.bar(at, e["times the first"], color=d.SENSES[0], width=0.55, label="time, measured")
    ax.plot(at, e["multiply-adds, millions"] / e["multiply-adds, millions"][0], color=d.INK,
            marker="_", ms=14, mew=2, ls="", label="multiply-adds, counted")  # fmt: skip
    ax.set_xticks(at, [f"{h:.0f}" for h in e["heads"]])
    ax.set(xlabel="heads", ylabel=f"relative to {e['heads'][0]:.0f} head")
    ax.figure.legend(loc="outside lower center", ncols=2)


def tiling(e: Evidence, ax: Axes) -> None:
    _line(e, ax, "tokens", "MiB, direct", 1, "the formula with its T × T matrix")
    _line(e, ax, "tokens", "MiB, tiled", 0, "in tiles")
    ax.set_xscale("log", base=2)
    ax.set_xticks(e["tokens"], [f"{t:.0f}" for t in e["tokens"]])
    ax.set(xlabel="tokens", ylabel="peak memory beyond inputs (MiB)")
    ax.legend()
