"""A run made from arrays, so that what shows a run is tested without a model.

It satisfies the interface of `clearhead.models.run.AttentionRun`, written as plainly as can be.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

Float = np.ndarray


@dataclass(frozen=True)
class Token:
    id: int
    raw: str
    text: str
    start: int
    end: int
    word: int
    special: bool


@dataclass(frozen=True)
class Word:
    text: str
    start: int
    end: int
    tokens: tuple[int, ...]
    special: bool = False


@dataclass(frozen=True)
class Link:
    layer: int
    head: int
    source: int
    target: int
    weight: float


class ArrayRun:
    """Attention given as an array of shape (layers, heads, tokens, tokens)."""

    def __init__(self, text, tokens, weights, model="from-arrays"):
        self.model, self.text, self.tokens = model, text, tuple(tokens)
        self._weights = np.asarray(weights, np.float32)
        self.starts, self.notes = (0,), ()
        self.num_layers, self.num_heads = self._weights.shape[:2]
        members = {}
        for at, token in enumerate(self.tokens):
            members.setdefault(token.word, []).append(at)
        self.words = tuple(self._word(at) for _, at in sorted(members.items()))

    def _word(self, at):
        first, last = self.tokens[at[0]], self.tokens[at[-1]]
        text = first.text if first.special else self.text[first.start : last.end]
        return Word(text, first.start, last.end, tuple(at), first.special)

    def weights(self):
        return self._weights

    def map(self, layer):
        return self._weights[layer]

    def word_weights(self, layer):
        members = np.zeros((len(self.words), len(self.tokens)), np.float32)
        for at, word in enumerate(self.words):
            members[at, list(word.tokens)] = 1
        keys = self._weights[layer] @ members.T
        return (members / members.sum(1, keepdims=True)) @ keys
