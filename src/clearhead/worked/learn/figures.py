"""The figures of a lesson: the idea of attention, drawn from the numbers that training found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .. import drawing as d
from . import Lesson, Sentence, Snapshot
from .products import flow, products, projection, query, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
_LETTER = 0.068  # inches per character of the fixed-width font at SMALL points, and a little
_WINDOW = 44  # characters of a sentence that are drawn


def static_to_contextual(lesson: Lesson) -> Figure:
    """One static vector on the left; on the right what the layer made of it in each sentence."""
    from rich.cells import cell_len

    chosen = _examples(lesson, each=3)
    size = min(lesson.after.contextual.shape[1], d.MOST)

    parts = {i: _around(lesson.sentences[i]) for i in chosen}
    longest = max(cell_len(" ".join(word for word, _ in part)) for part in parts.values()) + 2
    fixed = 2 * size + 8.5  # cells beside the text
    cell = min((d.WIDTH_INCHES - longest * _LETTER) / fixed, 0.17)
    left, width = size + 2.5, d.WIDTH_INCHES / cell
    groups = len({lesson.sentences[i].sense for i in chosen})
    step, more = max(1.5, 0.21 / cell), max(0.6, 0.09 / cell)  # between rows, between groups
    height = step * len(chosen) + more * groups + 0.9
    fig, ax = d.canvas(
        f"One vector for “{d.brief(lesson.word)}”, and what each sentence makes of it",
        width, height,
        "Shade behind a word: how much the word in question reads it, after training. "
        "Filled squares are positive, hollow ones negative.",
    )  # fmt: skip
    centre = height / 2
    static = lesson.static(lesson.after)[None]
    largest = float(np.abs(np.vstack([static, lesson.after.contextual[chosen]])).max())
    d.squares(ax, 0.8, centre - 0.5, static, largest=largest)
    d.caption(ax, 0.8 + size / 2, centre + 0.8, d.brief(lesson.word), "static: always this")
    right = width - size - 0.8
    y, sense = 0.0, ""
    for i in chosen:
        sentence = lesson.sentences[i]
        y += step if sentence.sense == sense else step + more
        color = d.SENSES[lesson.senses.index(sentence.sense) % len(d.SENSES)]
        d.arrow(ax, (size + 1.1, centre), (left + 1.0, y), bend=0.0, arrowstyle="-", color=d.PALE)
        weights = lesson.after.weights[i].mean(axis=0)[sentence.position]
        end = _shaded(ax, left + 1.4, y, parts[i], sentence.position, weights, cell)
        d.arrow(ax, (end + 0.2, y), (right - 0.4, y), color=color)
        d.squares(
            ax, right, y - 0.5, lesson.after.contextual[i][None], largest=largest, color=color
        )
        if sentence.sense != sense:
            sense = sentence.sense
            ax.text(right, y - 0.75, f"contextual: {d.brief(sense)}", color=color, fontsize=d.SMALL,
                    fontweight="bold", va="bottom")  # fmt: skip
    return fig


def plane(lesson: Lesson) -> Figure:
    """The static vector and its contextual versions in 2-D, before and after, on the same axes."""
    fig, axes = d.figure(
        f"Training moves the two lives of “{d.brief(lesson.word)}” apart"
        if len(lesson.senses) == 2
        else f"Training moves the senses of “{d.brief(lesson.word)}” apart",
        2.9, columns=2, sharey=True,
    )  # fmt: skip
    across, up = _limits(lesson)
    for ax, moment, name in ((axes[0], lesson.before, "before"), (axes[1], lesson.after, "after")):
        start = lesson.plane(lesson.static(moment)[None])[0]
        ends = lesson.plane(moment.contextual)
        for sense, (color, marker) in _looks(lesson):
            for out in (False, True):
                rows = [
                    i
                    for i, s in enumerate(lesson.sentences)
                    if s.sense == sense and s.held_out == out
                ]
                for x, y in ends[rows]:
                    ax.plot([start[0], x], [start[1], y], color=color, lw=0.7, alpha=0.45)
                ax.plot(*ends[rows].T, marker, color=color, ms=5.5, mfc="white" if out else color,
                        label=d.brief(sense) + (", held out" if out else ""))  # fmt: skip
        ax.plot(*start, "*", color=d.INK, ms=13, mec="white", label="static")
        apart = lesson.separation(moment)
        ax.set_title(f"{name}: senses {apart:.1f} × as far apart as within")
        ax.set(xlabel="first principal direction", aspect="equal", xlim=across, ylim=up)
        ax.grid(color=d.PALE, lw=0.5)
    axes[0].set_ylabel("second principal direction")
    handles, labels = axes[1].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=5)
    return fig


def trained(lesson: Lesson) -> Figure:
    """W_Q, W_K and W_V: random before, and what gradient descent made of them."""
    size = min(lesson.before.parameters["W_Q"].shape[0], d.MOST)
    gap, top = 2.0, 1.4
    width, height = 3 * size + 2 * gap + 8, 3 * size + top + 3.0
    steps = len(lesson.loss) - 1
    fig, ax = d.canvas(
        "The three projections start random and are trained", width, height,
        f"{steps} steps of gradient descent; all squares on one scale. "
        "Area: size of the weight. Filled: positive, hollow: negative.",
    )  # fmt: skip
    names = ("W_Q", "W_K", "W_V")
    old, new = lesson.before.parameters, lesson.after.parameters
    largest = max(float(np.abs(p[n]).max()) for p in (old, new) for n in names)
    for column, name in enumerate(names):
        x = 5 + column * (size + gap)
        ax.text(x + size / 2, top - 0.4, d.name_of(name), ha="center", va="bottom",
                fontweight="bold")  # fmt: skip
        change = new[name] - old[name]
        rows = (("before:\nrandom", old[name]), ("after:\ntrained", new[name]), ("change", change))
        for row, (label, matrix) in enumerate(rows):
            y = top + row * (size + 0.8)
            d.squares(ax, x, y, matrix, largest=largest, heads=lesson.heads)
            if column == 0:
                ax.text(x - 0.6, y + size / 2, label, ha="right", va="center")
        share = np.linalg.norm(change) / np.linalg.norm(old[name])
        ax.text(x + size / 2, top + 3 * size + 1.9, f"{share:.0%} of its length", ha="center",
                va="top", color=d.GREY, fontsize=d.SMALL)  # fmt: skip
    return fig


def loss(lesson: Lesson) -> Figure:
    """The loss at every step, on a logarithmic scale."""
    fig, ax = d.figure("The loss falls, step by step", 2.6)
    ax.plot(lesson.loss, color=d.INK)
    chance = np.log(len(lesson.senses))
    ax.axhline(chance, color=d.GREY, lw=0.8, ls=(0, (4, 3)))
    ax.text(len(lesson.loss) - 1, 1.15 * chance, f"guessing: ln {len(lesson.senses)}", ha="right",
            va="bottom", color=d.GREY, fontsize=d.SMALL)  # fmt: skip
    ax.set(yscale="log", xlabel="step", ylabel="loss (nats)", xlim=(0, len(lesson.loss) - 1))
    ax.set_ylim(top=2.5 * max(chance, lesson.loss.max()))
    ax.grid(color=d.PALE, lw=0.5)
    return fig


def filters(lesson: Lesson) -> Figure:
    """W_Q as a filter: which directions it lets through, and which words its question finds."""
    from ...viewer.fonts import drawable

    fig, axes = d.figure(
        f"The query matrix is a filter: what “{d.brief(lesson.word)}” asks for",
        3.6,
        columns=2,
        width_ratios=(2, 3),
    )
    gains = [
        np.linalg.svd(m.parameters["W_Q"], compute_uv=False) for m in (lesson.before, lesson.after)
    ]
    at = np.arange(1, min(len(gains[0]), d.MOST) + 1)
    axes[0].bar(at, gains[1][: len(at)], color=d.INK, width=0.62, label="after training")
    axes[0].plot(at, gains[0][: len(at)], "_", color="#E69F00", ms=13, mew=2, label="before")
    axes[0].set(
        title=f"how much each direction passes {d.name_of('W_Q')}",
        xlabel="direction, strongest first",
    )
    axes[0].set(ylabel="gain (singular value)", xticks=at)
    axes[0].legend()

    score = word_scores(lesson, lesson.after)
    home = {w: {s.sense for s in lesson.sentences if w in s.tokens} for w in lesson.vocabulary}
    order = np.argsort(score)
    which = "every word"
    if len(order) > 24:
        order, which = np.concatenate([order[:6], order[-18:]]), "18 highest, 6 lowest"
    for row, i in enumerate(order):
        senses = home[lesson.vocabulary[i]]
        only = lesson.senses.index(next(iter(senses))) if len(senses) == 1 else None
        color = d.GREY if only is None else d.SENSES[only % len(d.SENSES)]
        marker = "o" if only is None else d.MARKERS[only % len(d.MARKERS)]
        axes[1].plot([0, score[i]], [row, row], color=color, lw=1.0)
        axes[1].plot(score[i], row, marker, color=color, ms=4)
    axes[1].axvline(0, color=d.GREY, lw=0.6)
    names, _ = drawable([d.brief(lesson.vocabulary[i]) for i in order])
    axes[1].set_yticks(range(len(order)), names, family="DejaVu Sans Mono", size=6)
    axes[1].set(
        title=f"score against the query of “{d.brief(lesson.word)}” ({which})", xlabel="score"
    )
    for sense, (color, marker) in _looks(lesson):
        axes[1].plot([], [], marker, color=color, ms=4, label=f"only with {d.brief(sense)}")
    axes[1].plot(
        [], [], "o", color=d.GREY, ms=4, label="with both" if len(lesson.senses) == 2 else "shared"
    )
    axes[1].legend(loc="lower right")
    return fig


def word_scores(lesson: Lesson, moment: Snapshot) -> np.ndarray:
    """(V,) score of each word's key against the query of the word in question; heads averaged."""
    p = moment.parameters
    size = p["W_Q"].shape[1] // lesson.heads
    scores = p["table"] @ p["W_K"] @ (lesson.static(moment) @ p["W_Q"])
    return np.asarray(scores * size**-0.5 / lesson.heads)


FIGURES: dict[str, Callable[[Lesson], Figure]] = {
    "static-to-contextual": static_to_contextual,
    "plane": plane,
    "trained": trained,
    "query": query,
    "products": products,
    "values": values,
    "projection": projection,
    "filter": filters,
    "flow": flow,
    "loss": loss,
}


def plot(lesson: Lesson, name: str) -> Figure:
    """One figure by its name in FIGURES."""
    if name not in FIGURES:
        raise ValueError(f"name: {name!r}, must be one of {', '.join(FIGURES)}")
    with d.style():
        return d.lay_out(FIGURES[name](lesson))


def save_figures(
    lesson: Lesson, folder: str | Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Every figure as `folder/name.png` and `.svg`; makes the folder; returns what was written."""
    wrong = [f for f in formats if f not in FORMATS]
    if wrong:
        raise ValueError(f"formats: {wrong[0]!r}, must be among {', '.join(FORMATS)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in FIGURES:
        fig = plot(lesson, name)
        written += [d.save(fig, folder / f"{name}.{kind}") for kind in formats]
    return written


def _looks(lesson: Lesson) -> list[tuple[str, tuple[str, str]]]:
    return [
        (sense, (d.SENSES[i % len(d.SENSES)], d.MARKERS[i % len(d.MARKERS)]))
        for i, sense in enumerate(lesson.senses)
    ]


def _limits(lesson: Lesson) -> list[tuple[float, float]]:
    """The same limits for both panels, a window that holds every point of both moments."""
    moments = (lesson.before, lesson.after)
    points = np.vstack([lesson.plane(m.contextual) for m in moments])
    points = np.vstack([points, *(lesson.plane(lesson.static(m)[None]) for m in moments)])
    middle = (points.max(axis=0) + points.min(axis=0)) / 2
    half = 0.56 * np.ptp(points, axis=0)
    half = np.maximum(half, [half[1] / 2, 0.6 * half[0]])  # not too flat, not too tall
    return [(float(m - h), float(m + h)) for m, h in zip(middle, half, strict=True)]


def _examples(lesson: Lesson, each: int) -> list[int]:
    """The shortest sentences of each sense."""
    chosen: list[int] = []
    for sense in lesson.senses[:4]:
        rows = [i for i, s in enumerate(lesson.sentences) if s.sense == sense]
        chosen += sorted(rows, key=lambda i: (len(lesson.sentences[i].text), i))[:each]
    return chosen


def _around(sentence: Sentence) -> list[tuple[str, int | None]]:
    """The words around the word in question that fit, each with its place; … for what does not."""
    from rich.cells import cell_len

    first, last = sentence.position, sentence.position + 1
    room = _WINDOW - cell_len(d.brief(sentence.tokens[first]))
    while True:
        ahead = last < len(sentence.tokens) and (
            last - sentence.position <= sentence.position - first or first == 0
        )
        at = last if ahead else first - 1
        if (
            not 0 <= at < len(sentence.tokens)
            or (room := room - 1 - cell_len(d.brief(sentence.tokens[at]))) < 0
        ):
            break
        first, last = min(first, at), max(last, at + 1)
    part: list[tuple[str, int | None]] = [
        (d.brief(sentence.tokens[i]), i) for i in range(first, last)
    ]
    left: list[tuple[str, int | None]] = [("…", None)]
    return (left if first > 0 else []) + part + (left if last < len(sentence.tokens) else [])


def _shaded(
    ax: Axes,
    x: float,
    y: float,
    part: list[tuple[str, int | None]],
    position: int,
    weights: np.ndarray,
    cell: float,
) -> float:
    """Words, each on a patch as dark as its weight; returns where they end."""
    from matplotlib.patches import FancyBboxPatch
    from rich.cells import cell_len

    high, letter = 0.15 / cell, _LETTER / cell
    for word, i in part:
        weight = 0.0 if i is None else float(weights[i])
        wide = cell_len(word) * letter
        ax.add_patch(
            FancyBboxPatch(
                (x, y - high / 2), wide, high, boxstyle=f"round,pad={0.25 * letter}",
                facecolor=d.shade(weight), edgecolor="none",
            )
        )  # fmt: skip
        ax.text(x + wide / 2, y + 0.02, word, ha="center", va="center", family="DejaVu Sans Mono",
                fontsize=d.SMALL, color="white" if weight > 0.6 else d.INK,
                fontweight="bold" if i == position else "normal")  # fmt: skip
        x += wide + letter
    return x - letter
