"""A lesson as text: the sentences it reads from a file, and the summary it prints."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..drawing import brief
from . import Lesson, Snapshot

_LINE_CHARACTERS = 10_000
_FILE_BYTES = 10_000_000
_SPARK = "▁▂▃▄▅▆▇█"


def read_sentences(
    path: str | os.PathLike[str],
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The sentences of a text file, and those held out, each as sense -> sentences.

        # one sentence per line, after its sense; a line that begins with ? is held out
        bird: The duck swims on the pond
        lower: Duck under the low branch
        ? bird: A wild duck swims over the lake

    Raises ValueError with the line where that is not so, or where the file is no UTF-8 text.
    """
    path = Path(path)
    if path.stat().st_size > _FILE_BYTES:
        raise ValueError(f"{path.name}: more than {_FILE_BYTES} bytes, must be a list of sentences")
    training: dict[str, list[str]] = {}
    held_out: dict[str, list[str]] = {}
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        where = f"{path.name}: line {number}"
        try:
            line = raw.decode().strip()
        except UnicodeDecodeError:
            raise ValueError(f"{where} is not UTF-8") from None
        if not line or line.startswith("#"):
            continue
        if len(line) > _LINE_CHARACTERS:
            raise ValueError(f"{where}: {len(line)} characters, must be one sentence")
        sense, colon, text = line.removeprefix("?").partition(":")
        if not colon or not sense.strip() or not text.strip():
            raise ValueError(f"{where}: {line[:40]!r}, must be 'sense: sentence'")
        group = held_out if line.startswith("?") else training
        group.setdefault(sense.strip(), []).append(text.strip())
    if not training:
        raise ValueError(f"{path.name}: no sentences, must hold lines of 'sense: sentence'")
    return training, held_out


def summary(lesson: Lesson) -> str:
    """At most 80 columns: what was trained, before and after, and what the word reads."""
    training = sum(not s.held_out for s in lesson.sentences)
    out = len(lesson.sentences) - training
    size = lesson.before.contextual.shape[1]
    layer = "one head" if lesson.heads == 1 else f"{lesson.heads} heads"
    layer += ", a transformer block" if lesson.block else ""
    count = sum(a.size for a in lesson.after.parameters.values())
    lines = [
        f"“{lesson.word}” in {len(lesson.senses)} senses: {', '.join(lesson.senses)}",
        f"{layer}; {size} numbers per word, {count} parameters, {len(lesson.loss) - 1} steps",
        "",
        f"{'':34}{'before':>8}{'after':>9}",
        _row("loss, nats", lesson.loss[0], lesson.loss[-1], ".4f"),
        _share(f"right on {training} training sentences", lesson, held_out=False),
    ]
    if out:
        lines.append(_share(f"right on {out} held-out sentences", lesson, held_out=True))
    lines += [
        _row("distance between senses / within", *_separations(lesson), ".1f"),
        "",
        f"loss {_sparkline(lesson.loss)}",
        "",
        f"what “{lesson.word}” reads after training (? held out)",
        *_reading(lesson, lesson.after),
    ]
    return "\n".join(brief(line, 80).rstrip() for line in lines)


def _row(name: str, before: float, after: float, form: str) -> str:
    return f"{name:34}{before:>8{form}}{after:>9{form}}"


def _share(name: str, lesson: Lesson, held_out: bool) -> str:
    moments = (lesson.before, lesson.after)
    before, after = (lesson.accuracy(m, held_out=held_out) for m in moments)
    return _row(name, before, after, ".0%")


def _separations(lesson: Lesson) -> tuple[float, float]:
    return lesson.separation(lesson.before), lesson.separation(lesson.after)


def _reading(lesson: Lesson, moment: Snapshot) -> list[str]:
    """For two sentences per sense, one of them held out if any is: the words most read."""
    lines: list[str] = []
    for sense in lesson.senses:
        rows = [i for i, s in enumerate(lesson.sentences) if s.sense == sense]
        for i in dict.fromkeys((rows[0], rows[-1])):
            s = lesson.sentences[i]
            weights = moment.weights[i].mean(axis=0)[s.position]
            best = np.argsort(-weights, kind="stable")[:2]
            reads = "  ".join(f"{s.tokens[j]} {weights[j]:.2f}" for j in best)
            mark = "?" if s.held_out else " "
            lines.append(f"{mark} {_filled(sense, 9)} {_filled(' '.join(s.tokens), 36)}  {reads}")
    return lines


def _filled(text: str, width: int) -> str:
    from rich.cells import set_cell_size

    return set_cell_size(brief(text, width), width)


def _sparkline(loss: np.ndarray, width: int = 60) -> str:
    """The loss in `width` steps on a logarithmic scale."""
    at = np.linspace(0, len(loss) - 1, min(width, len(loss))).round().astype(int)
    height = np.log(np.maximum(loss[at], 1e-12))
    span = max(float(np.ptp(height)), 1e-12)
    level = ((height - height.min()) / span * (len(_SPARK) - 1)).round().astype(int)
    return "".join(_SPARK[i] for i in level)
