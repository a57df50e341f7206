"""The figures that follow one sentence through one head: projection, scores, weights, values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .. import drawing as d
from . import Lesson, Sentence
from .model import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class HeadPass:
    """One sentence of T tokens in one trained head of size D/H.

    Of a long sentence the MOST tokens around the word come first, and only those are drawn;
    attention does not mind the order, having no positions here.
    """

    sentence: Sentence
    tokens: tuple[str, ...]  # those that are drawn
    word: int  # the row of the word in question
    color: str
    x: Array  # (T, D)
    w: dict[str, Array]  # W_Q, W_K, W_V, each (D, D/H)
    q: Array
    k: Array
    v: Array
    scores: Array  # (T, T), scaled
    weights: Array


def head_pass(lesson: Lesson, which: int, head: int = 0) -> HeadPass:
    sentence, p = lesson.sentences[which], lesson.after.parameters
    length = len(sentence.tokens)
    first = int(np.clip(sentence.position - d.MOST // 2, 0, max(length - d.MOST, 0)))
    order = [*range(first, length), *range(first)]
    tokens = tuple(sentence.tokens[i] for i in order)
    x = p["table"][[lesson.vocabulary.index(t) for t in tokens]]
    size = x.shape[1] // lesson.heads
    part = slice(head * size, (head + 1) * size)
    w = {name: p[name][:, part] for name in ("W_Q", "W_K", "W_V")}
    q, k, v = (x @ w[name] for name in ("W_Q", "W_K", "W_V"))
    color = d.SENSES[lesson.senses.index(sentence.sense) % len(d.SENSES)]
    weights = lesson.after.weights[which][head][np.ix_(order, order)]
    scores = q @ k.T * size**-0.5
    word = sentence.position - first
    return HeadPass(sentence, tokens[: d.MOST], word, color, x, w, q, k, v, scores, weights)


def query(lesson: Lesson) -> Figure:
    """The query of the word against each key of its sentence, once per sense."""
    passes = [head_pass(lesson, i) for i in _one_each(lesson)[:2]]
    size = min(passes[0].q.shape[1], d.MOST)
    high = size + 7.6
    fig, ax = d.canvas(
        f"One query against every key: what “{d.brief(lesson.word)}” reads", 40, high * len(passes),
        "Score: query · key / √d. Weight: softmax of the scores.\n" + _key(lesson),
    )  # fmt: skip
    for row, f in enumerate(passes):
        y = row * high + 2.4
        largest = float(np.abs(np.vstack([f.q, f.k])).max())
        d.squares(ax, 5.5, y, f.q[f.word][:, None], largest=largest, color=f.color)
        ax.text(
            6,
            y - 0.3,
            f"query of\n{d.brief(lesson.word)}",
            ha="center",
            va="bottom",
            fontsize=d.SMALL,
        )
        ax.text(
            0.6,
            y + size / 2,
            d.brief(f.sentence.sense, 8),
            color=f.color,
            fontweight="bold",
            va="center",
        )
        d.sign(ax, 8.2, y + size / 2, "•")
        step = min(6.2, 30 / len(f.tokens))
        for column, token in enumerate(f.tokens):
            x = 10 + column * step
            d.squares(ax, x, y, f.k[column][:, None], largest=largest)
            bold = "bold" if column == f.word else "normal"
            fits = max(4, int(2.7 * step))  # letters
            ax.text(x + 0.5, y - 0.3, d.brief(token, fits), ha="center", va="bottom",
                    family="DejaVu Sans Mono", fontsize=d.SMALL, fontweight=bold)  # fmt: skip
            weight = float(f.weights[f.word, column])
            ax.text(x + 0.5, y + size + 0.3, _number(f.scores[f.word, column]), ha="center",
                    va="top", fontsize=d.SMALL)  # fmt: skip
            _bar(ax, x + 0.5, y + size + 3.5, weight, f.color)
        ax.text(9.2, y + size + 0.3, "score", ha="right", va="top", fontsize=d.SMALL, color=d.GREY)
        ax.text(9.2, y + size + 3.4, "weight", ha="right", va="bottom", fontsize=d.SMALL,
                color=d.GREY)  # fmt: skip
    return fig


def products(lesson: Lesson) -> Figure:
    """All queries at once: Q times K transposed, scaled, then the softmax of every row."""
    f = head_pass(lesson, _one_each(lesson)[0])
    t, size = len(f.tokens), min(f.q.shape[1], d.MOST)
    wide = 1.5 if t <= 8 else 1.0  # a cell that holds a number, or none
    x = [6.5, 6.5 + size + 2]
    x += [x[1] + t + 2]
    x += [x[2] + wide * t + 5.0]
    width = x[3] + wide * t + 0.6
    y = 0.6 + 0.4 * max(len(d.brief(t)) for t in f.tokens) * max(width, 34) / 34
    fig, ax = d.canvas(
        "All queries at once are one matrix product",
        max(width, 34),
        y + max(t, size) + 2.8,
        _key(lesson, " Shade: white low, blue high."),
    )
    largest = float(np.abs(np.vstack([f.q, f.k])).max())
    d.words(ax, x[0], y, f.tokens, f.word)
    d.squares(ax, x[0], y, f.q, largest=largest)
    d.sign(ax, x[0] + size + 1, y + t / 2, "×")
    d.squares(ax, x[1], y, f.k.T, largest=largest)
    d.words_above(ax, x[1], y, f.tokens, f.word)
    d.sign(ax, x[1] + t + 1, y + t / 2, "=")
    low, high = float(f.scores.min()), float(f.scores.max())
    d.shades(
        ax,
        x[2],
        y,
        f.scores,
        lowest=low,
        highest=high,
        digits=1 if t <= 8 else None,
        outline=f.word,
        wide=wide,
    )
    d.words_above(ax, x[2], y, f.tokens, f.word, wide)
    end = x[2] + wide * t
    ax.text(end + 2.4, y + t / 2 - 0.4, "softmax\nof each row", ha="center", va="bottom",
            fontsize=d.SMALL)  # fmt: skip
    d.arrow(ax, (end + 0.4, y + t / 2), (x[3] - 0.4, y + t / 2))
    d.shades(ax, x[3], y, f.weights, digits=2 if t <= 8 else None, outline=f.word, wide=wide)
    d.words_above(ax, x[3], y, f.tokens, f.word, wide)
    foot = y + max(t, size) + 0.5
    names = ("Q", "Kᵀ", "scores: Q Kᵀ / √d", "weights")
    shapes = (f.q, f.k.T, f.scores, f.weights)
    cells = (size, t, wide * t, wide * t)
    for at, name, matrix, across in zip(x, names, shapes, cells, strict=True):
        d.caption(ax, at + across / 2, foot, name, d.size_of(matrix))
    return fig


def values(lesson: Lesson) -> Figure:
    """The mixture: each value times its weight, and their sum."""
    f = head_pass(lesson, _one_each(lesson)[0])
    t, size = len(f.tokens), min(f.v.shape[1], d.MOST)
    weight = f.weights[f.word][:, None]
    mixture = (weight * f.v).sum(axis=0)[None]
    x = [7.0, 7.0 + 5, 7.0 + 5 + size + 2.0]
    width, y = max(x[2] + size + 1.5, 34), 1.8
    fig, ax = d.canvas(
        f"What “{d.brief(lesson.word)}” takes home: values, weighted and added",
        width,
        y + t + 3.4,
        _key(lesson, " Shade: white low, blue high."),
    )
    largest = float(np.abs(f.v).max())
    heads = ("weights", "values V", "weight × value")
    for at, name, wide in zip(x, heads, (1, size, size), strict=True):
        ax.text(at + wide / 2, y - 0.4, name, ha="center", va="bottom", fontweight="bold")
    d.words(ax, x[0], y, f.tokens, f.word)
    d.shades(ax, x[0], y, weight)
    for row in range(t):
        ax.text(x[0] + 1.25, y + row + 0.52, f"{weight[row, 0]:.2f}", va="center", fontsize=d.SMALL)
    d.sign(ax, x[1] - 0.8, y + t / 2, "×")
    d.squares(ax, x[1], y, f.v, largest=largest)
    d.sign(ax, x[1] + size + 1, y + t / 2, "=")
    d.squares(ax, x[2], y, weight * f.v, largest=largest, color=f.color)
    ax.plot([x[2], x[2] + size], [y + t + 0.6] * 2, color=d.INK, lw=1)
    d.squares(ax, x[2], y + t + 1.2, mixture, largest=largest, color=f.color)
    ax.text(x[2] - 0.5, y + t + 1.7, "their sum: what the head hands on", ha="right", va="center")
    said = d.brief(" ".join(f.sentence.tokens), 44)
    ax.text(x[2] - 0.5, y + t + 2.9, f"“{said}” ({d.brief(f.sentence.sense)})",
            ha="right", va="center", fontsize=d.SMALL, color=f.color)  # fmt: skip
    return fig


def projection(lesson: Lesson) -> Figure:
    """X W_Q = Q with squares for numbers."""
    f = head_pass(lesson, _one_each(lesson)[0])
    t, size, out = len(f.tokens), min(f.x.shape[1], d.MOST), min(f.q.shape[1], d.MOST)
    x = [7.0, 7.0 + size + 2, 7.0 + size + 2 + out + 2]
    width, rows, y = max(x[2] + out + 1.5, 34), max(t, size), 1.0
    fig, ax = d.canvas(
        f"A projection is a matrix product: X {d.name_of('W_Q')} = Q",
        width,
        y + rows + 2.8,
        _key(lesson),
    )
    middle = y + rows / 2
    top = middle - t / 2
    d.words(ax, x[0], top, f.tokens, f.word)
    d.squares(ax, x[0], top, f.x)
    d.sign(ax, x[1] - 1, middle, "×")
    d.squares(ax, x[1], middle - size / 2, f.w["W_Q"])
    d.sign(ax, x[2] - 1, middle, "=")
    d.squares(ax, x[2], top, f.q, color=f.color)
    foot = y + rows + 0.5
    d.caption(ax, x[0] + size / 2, foot, "X: one row per word", d.size_of(f.x))
    d.caption(ax, x[1] + out / 2, foot, f"{d.name_of('W_Q')}: trained", d.size_of(f.w["W_Q"]))
    d.caption(ax, x[2] + out / 2, foot, "Q: what each word asks", d.size_of(f.q))
    return fig


def flow(lesson: Lesson) -> Figure:
    """Everything at once, from the static vectors to the contextual one."""
    which = _one_each(lesson)[0]
    f = head_pass(lesson, which)
    t, size, out = len(f.tokens), min(f.x.shape[1], d.MOST), min(f.q.shape[1], d.MOST)
    x = [6.0, 6.0 + size + 3.0]
    x += [x[1] + out + 2.5]  # Q K V
    x += [x[2] + out + 4.0]  # scores
    x += [x[3] + t + 5.0]  # weights, and below them the mixture
    x += [x[4] + max(t, out) + 3.5]  # the contextual vector
    width = x[5] + size + 1.0
    lane = max(t, size) + max(4.0, 0.42 * width / d.WIDTH_INCHES)  # room for two lines below
    height = 3 * lane - 0.8
    title = "The whole flow of one head, with its own numbers"
    fig, ax = d.canvas(title, width, height, _key(lesson, " Shade: white low, blue high."))
    middles = [0.5 + lane * i + max(t, size) / 2 for i in range(3)]
    d.words(ax, x[0], middles[1] - t / 2, f.tokens, f.word)
    d.squares(ax, x[0], middles[1] - t / 2, f.x)
    d.caption(ax, x[0] + size / 2, middles[1] + t / 2 + 0.4, "X", "static vectors")
    for i, (name, result) in enumerate(zip(("Q", "K", "V"), (f.q, f.k, f.v), strict=True)):
        weight = d.name_of(f"W_{name}")
        d.arrow(ax, (x[0] + size + 0.4, middles[1]), (x[1] - 0.4, middles[i]))
        d.squares(ax, x[1], middles[i] - size / 2, f.w[f"W_{name}"])
        d.caption(ax, x[1] + out / 2, middles[i] + size / 2 + 0.4, weight, "trained")
        d.arrow(ax, (x[1] + out + 0.4, middles[i]), (x[2] - 0.4, middles[i]))
        d.squares(ax, x[2], middles[i] - t / 2, result)
        d.caption(ax, x[2] + out / 2, middles[i] + t / 2 + 0.4, name, f"X {weight}")
    half, low = (middles[0] + middles[1]) / 2, middles[2]
    for i, shift in ((0, -0.7), (1, 0.7)):
        d.arrow(ax, (x[2] + out + 0.4, middles[i]), (x[3] - 0.4, half + shift))
    lowest, highest = float(f.scores.min()), float(f.scores.max())
    d.shades(ax, x[3], half - t / 2, f.scores, lowest=lowest, highest=highest, outline=f.word)
    d.caption(ax, x[3] + t / 2, half + t / 2 + 0.4, "scores", "Q Kᵀ / √d")
    d.arrow(ax, (x[3] + t + 0.4, half), (x[4] - 0.4, half))
    d.shades(ax, x[4], half - t / 2, f.weights, outline=f.word)
    d.caption(ax, x[4] + t / 2, half + t / 2 + 0.4, "weights", "softmax of each row")
    d.arrow(ax, (x[4] + t / 2, half + t / 2 + 3.6), (x[4] + t / 2, low - t / 2 - 0.4))
    d.arrow(ax, (x[2] + out + 0.4, low), (x[4] - 0.4, low))
    d.squares(ax, x[4], low - t / 2, f.weights @ f.v, color=f.color)
    d.caption(ax, x[4] + out / 2, low + t / 2 + 0.4, "mixture", "weights × V")
    start = low - t / 2 + f.word + 0.5
    d.arrow(ax, (x[4] + out + 0.4, start), (x[5] - 0.4, start))
    rest = "+ X" if lesson.heads == 1 and not lesson.block else "…"
    ax.text(x[4] + out + 1.75, start - 0.4, rest, ha="center", va="bottom")
    d.squares(ax, x[5], start - 0.5, lesson.after.contextual[which][None], color=f.color)
    d.caption(
        ax,
        x[5] + size / 2,
        start + 0.9,
        d.brief(lesson.word),
        f"contextual: {d.brief(f.sentence.sense)}",
    )
    return fig


def _key(lesson: Lesson, more: str = "") -> str:
    which = f"Head 1 of {lesson.heads}. " if lesson.heads > 1 else ""
    longest = max(len(lesson.sentences[i].tokens) for i in _one_each(lesson))
    if longest > d.MOST:
        which += f"{d.MOST} words around “{d.brief(lesson.word)}” are drawn.\n"
    return f"{which}Squares: area is size; filled: positive, hollow: negative.{more}"


def _one_each(lesson: Lesson) -> list[int]:
    """For each sense the shortest sentence, held-out ones last."""
    chosen = []
    for sense in lesson.senses:
        rows = [i for i, s in enumerate(lesson.sentences) if s.sense == sense]
        chosen.append(min(rows, key=lambda i: (len(lesson.sentences[i].tokens), i)))
    return chosen


def _bar(ax: Axes, x: float, y: float, weight: float, color: str) -> None:
    """A bar standing on y, two cells high for a weight of 1, with the weight under it."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x - 0.6, y - 2 * weight), 1.2, 2 * weight, facecolor=color))
    ax.plot([x - 0.6, x + 0.6], [y, y], color=d.GREY, lw=0.6)
    ax.text(x, y + 0.15, f"{weight:.2f}", ha="center", va="top", fontsize=d.SMALL)


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
