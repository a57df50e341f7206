"""How the projections come to be: one word, two meanings, one attention layer, gradient descent.

The static vector of a word is the same in every sentence, so nothing that reads it alone can tell
two meanings apart. The layer learns to tell them, from the vector at the word and nothing else, so
W_Q, W_K and W_V must learn what to ask the other words for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..vectors import Vectors, read_vectors
from .model import Array, Batch, Parameters, backward, forward, parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sentences = Mapping[str, Sequence[str]]  # sense -> sentences

DUCK: dict[str, tuple[str, ...]] = {
    "bird": (
        "The duck swims on the pond",
        "A duck flies over the lake",
        "The duck has brown feathers",
        "A wild duck laid an egg",
        "The duck eats bread by the pond",
        "We saw a duck on the lake",
        "The duck flies and has feathers",
        "An egg of the duck lay by the lake",
        "The wild duck eats on the pond",
        "A brown duck swims by the bread",
    ),
    "lower": (
        "Duck under the low branch",
        "You must duck your head",
        "Duck before the ball hits you",
        "They duck behind the wall",
        "We duck to miss the ball",
        "Duck down when they throw",
        "You must duck under the door",
        "Duck your head at the low door",
        "You duck when they throw the ball",
        "They must duck behind the low wall",
    ),
}
DUCK_HELD_OUT: dict[str, tuple[str, ...]] = {
    "bird": ("A wild duck swims over the lake", "We saw the duck on the pond by the bread"),
    "lower": ("Duck your head under the branch", "We must duck when they throw"),
}


@dataclass(frozen=True)
class Sentence:
    """Tokens in lower case, the sense of the word in question, and whether training saw it."""

    text: str
    tokens: tuple[str, ...]
    sense: str
    position: int
    held_out: bool


@dataclass(frozen=True)
class Snapshot:
    """The layer at one moment. N sentences, V words in the vocabulary, C senses.

    parameters   name -> array: table (V, D), W_Q, W_K, W_V (D, D), ... as in `learn_model`
    contextual   (N, D)     the vector at the word in question, after the layer
    weights      N times (H, T, T)   every query's attention weights in that sentence
    probability  (N, C)     what the layer thinks the sense is
    """

    parameters: Parameters
    contextual: Array
    weights: tuple[Array, ...]
    probability: Array


@dataclass(frozen=True)
class Lesson:
    """What `learn` returns: the layer before and after training, and the way between.

    loss   (steps + 1,)   mean cross-entropy in nats, before each step and after the last
    """

    word: str
    senses: tuple[str, ...]
    vocabulary: tuple[str, ...]
    sentences: tuple[Sentence, ...]
    heads: int
    block: bool
    loss: Array
    before: Snapshot
    after: Snapshot

    def static(self, moment: Snapshot) -> Array:
        """(D,) the one static vector of the word."""
        row: Array = moment.parameters["table"][self.vocabulary.index(self.word)]
        return row

    def accuracy(self, moment: Snapshot, *, held_out: bool) -> float:
        """The share of sentences whose sense the layer names; NaN where there is none."""
        named = moment.probability.argmax(axis=1)
        right = [
            self.senses[n] == s.sense
            for n, s in zip(named, self.sentences, strict=True)
            if s.held_out == held_out
        ]
        return float(np.mean(right)) if right else float("nan")

    def separation(self, moment: Snapshot) -> float:
        """Mean distance between contextual vectors of different senses over that within a sense."""
        sense = np.array([self.senses.index(s.sense) for s in self.sentences])
        gaps = moment.contextual[:, None] - moment.contextual[None]
        distance = np.sqrt((gaps**2).sum(axis=-1))
        same = sense[:, None] == sense[None]
        within = distance[same & ~np.eye(len(sense), dtype=bool)]
        return float(distance[~same].mean() / max(within.mean(), 1e-300)) if within.size else np.inf

    def plane(self, points: Array) -> Array:
        """(n, D) -> (n, 2): the two directions in which the word's vectors after training differ
        most (principal components); the static vector is the origin."""
        origin = self.static(self.after)
        cloud = self.after.contextual - origin
        axes = np.linalg.svd(cloud - cloud.mean(axis=0), full_matrices=True)[2][:2]
        axes *= np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])[:, None]
        projected: Array = (points - origin) @ axes.T
        return projected

    def plot(self, name: str) -> Figure:
        """One figure; `clearhead.worked.learn.figures.FIGURES` lists their names."""
        from .figures import plot

        return plot(self, name)

    def save_figures(
        self, folder: str | os.PathLike[str], formats: Sequence[str] = ("png", "svg")
    ) -> list[Path]:
        """Every figure as `folder/name.png` and `.svg`; makes the folder, returns the paths."""
        from .figures import save_figures

        return save_figures(self, Path(folder), formats)

    def __str__(self) -> str:
        from .text import summary

        return summary(self)


def learn(
    sentences: Sentences | None = None,
    *,
    held_out: Sentences | None = None,
    word: str | None = None,
    heads: int = 1,
    block: bool = False,
    size: int = 8,
    steps: int = 300,
    rate: float = 0.5,
    seed: int = 0,
    vectors: Vectors | str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Lesson:
    """Trains one attention layer to tell the senses of one word apart, by plain gradient descent.

    sentences  sense -> sentences that hold the word in that sense; None: "duck", bird or to lower
    held_out   the same, read after training and never trained on; its words must occur in training
    word       the word; None: the one word that all sentences share
    heads      attention heads, each of size D / heads
    block      a transformer block: attention, residual, feed-forward, residual
    size       D, the numbers per vector
    steps      passes over all sentences; `rate` times the gradient is subtracted after each
    seed       of the random start; the same seed gives the same bits
    vectors    static vectors, or a GloVe or word2vec file of them; these stay as they are and
               set D. None: random ones, trained with the rest
    progress   a progress bar on stderr, where that is a terminal

    Returns  Lesson: `.before`, `.after`, `.loss`, `print(lesson)`, `.save_figures(folder)`
    Raises   ValueError, TypeError: the argument, what it is, what it must be; ValueError where the
             rate is so high that the loss is no longer finite. Ctrl-C stops it at once.

    >>> lesson = learn(steps=300)
    >>> lesson.accuracy(lesson.after, held_out=True)
    1.0
    """
    if sentences is None:
        sentences = DUCK
        held_out = DUCK_HELD_OUT if held_out is None else held_out
    if vectors is None:
        _check(heads, size, steps, rate)
    word, everything = _sentences(sentences, held_out or {}, word)
    senses = tuple(sentences)
    training = tuple(s for s in everything if not s.held_out)
    vocabulary = tuple(sorted({t for s in training for t in s.tokens}))
    unseen = sorted({t for s in everything for t in s.tokens} - set(vocabulary))
    if unseen:
        raise ValueError(
            f"held_out: {unseen[0]!r} occurs in no training sentence, must occur in one"
        )

    rng = np.random.default_rng(seed)
    if vectors is None:
        table = rng.standard_normal((len(vocabulary), size)) * size**-0.5
    else:
        table = _given(vectors, vocabulary)
        _check(heads, table.shape[1], steps, rate)
    p = parameters(rng, table, len(senses), heads, block)
    fixed = {"table"} if vectors is not None else set()
    shown, batch = (_batch(s, vocabulary, senses) for s in (everything, training))
    before = _snapshot(p, shown, heads)
    loss = np.empty(steps + 1)
    with np.errstate(over="ignore", invalid="ignore"):  # _finite says it better
        for step in _counted(steps, progress):
            f = forward(p, batch, heads)
            loss[step] = _finite(f.loss(batch), rate, step)
            gradient = backward(p, batch, heads, f)
            p = {n: a if n in fixed else a - rate * gradient[n] for n, a in p.items()}
        loss[steps] = _finite(forward(p, batch, heads).loss(batch), rate, steps)
    after = _snapshot(p, shown, heads)
    return Lesson(word, senses, vocabulary, everything, heads, block, loss, before, after)


def tokens(text: str) -> tuple[str, ...]:
    """The words of a sentence in lower case, without punctuation."""
    return tuple(re.findall(r"\w+(?:['’-]\w+)*", text.lower()))


def _given(vectors: Vectors | str | os.PathLike[str], vocabulary: Sequence[str]) -> Array:
    if not isinstance(vectors, Vectors):
        vectors = read_vectors(vectors, words=vocabulary)
    missing = [word for word in vocabulary if word not in vectors]
    if missing:
        raise ValueError(f"vectors: none for {missing[0]!r} and {len(missing) - 1} other words")
    return vectors[vocabulary].astype(np.float64)


def _check(heads: int, size: int, steps: int, rate: float) -> None:
    for name, value in (("heads", heads), ("size", size), ("steps", steps)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"{name}: {value!r}, must be a whole number")
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number):
        raise TypeError(f"rate: {rate!r}, must be a number")
    if heads < 1 or size < 2 or size % heads:
        raise ValueError(
            f"heads, size: {heads} heads of {size} numbers, must divide, size at least 2"
        )
    if steps < 1:
        raise ValueError(f"steps: {steps}, must be at least 1")
    if not (np.isfinite(rate) and rate > 0):
        raise ValueError(f"rate: {rate}, must be finite and above 0")


def _sentences(
    sentences: Sentences, held_out: Sentences, word: str | None
) -> tuple[str, tuple[Sentence, ...]]:
    for kind, given in (("sentences", sentences), ("held_out", held_out)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{kind}: {type(given).__name__}, must be a mapping sense -> sentences")
    if not isinstance(word, str | None):
        raise TypeError(f"word: {word!r}, must be a string")
    if len(sentences) < 2:
        raise ValueError(f"sentences: {len(sentences)} sense, must be at least 2")
    if extra := set(held_out) - set(sentences):
        raise ValueError(f"held_out: sense {sorted(extra)[0]!r} is not among {list(sentences)}")
    found: list[tuple[str, str, bool]] = []
    for kind, group in (("sentences", sentences), ("held_out", held_out)):
        for sense, texts in group.items():
            if isinstance(texts, str):
                raise TypeError(
                    f"{kind}: {sense!r} is a single string, must be a list of sentences"
                )
            if not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{kind}: {sense!r} holds what is no string, must be sentences")
            if not texts and kind == "sentences":
                raise ValueError(f"sentences: {sense!r} has none, must have at least 1")
            found += [(text, sense, kind == "held_out") for text in texts]
    word = _shared_word([text for text, _, _ in found]) if word is None else word.lower()
    for text, _, _ in found:
        if word not in tokens(text):
            raise ValueError(f"sentences: {text!r} does not hold the word {word!r}")
    return word, tuple(
        Sentence(text, tokens(text), sense, tokens(text).index(word), out)
        for text, sense, out in found
    )


def _shared_word(texts: list[str]) -> str:
    shared = set.intersection(*(set(tokens(text)) for text in texts))
    if len(shared) != 1:
        what = f"all sentences share {sorted(shared)}" if shared else "no word is in all sentences"
        raise ValueError(f"word: {what}, must be named")
    return shared.pop()


def _batch(
    sentences: Sequence[Sentence], vocabulary: Sequence[str], senses: Sequence[str]
) -> Batch:
    row = {word: i for i, word in enumerate(vocabulary)}
    real = np.zeros((len(sentences), max(len(s.tokens) for s in sentences)), dtype=bool)
    ids = np.zeros(real.shape, dtype=np.intp)
    for i, s in enumerate(sentences):
        real[i, : len(s.tokens)] = True
        ids[i, : len(s.tokens)] = [row[t] for t in s.tokens]
    position = np.array([s.position for s in sentences], dtype=np.intp)
    sense = np.array([senses.index(s.sense) for s in sentences], dtype=np.intp)
    return Batch(ids, real, position, sense)


def _snapshot(p: Parameters, batch: Batch, heads: int) -> Snapshot:
    f = forward(p, batch, heads)
    scores = f.q @ np.swapaxes(f.k, -1, -2) * f.q.shape[-1] ** -0.5
    weights = np.exp(scores - f.lse[..., None])  # exact wherever the key is real
    lengths = batch.real.sum(axis=1)
    cut = tuple(w[:, :n, :n] for w, n in zip(weights, lengths, strict=True))
    return Snapshot(p, f.word, cut, np.exp(f.log_p))


def _finite(loss: float, rate: float, step: int) -> float:
    if not np.isfinite(loss):
        raise ValueError(f"rate: {rate} makes the loss {loss} at step {step}, must be smaller")
    return loss


def _counted(steps: int, progress: bool) -> Iterator[int]:
    if not progress:
        yield from range(steps)
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(
        range(steps), "learning", console=console, transient=True, disable=not console.is_terminal
    )
