"""Runs made of random queries and keys, with words, sentences and special tokens: no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import clearhead as ch
from clearhead.models.run import LayerState, Reading
from clearhead.models.tokens import Token, Word

SIZES = (1, 2, 3, 1, 1, 2)  # tokens of a word, in turn


def reading(count: int, *, special: Sequence[int] = (0,)) -> Reading:
    """A text of `count` tokens: words of one to three, every seventh ends a sentence."""
    text, tokens, words = "", [], []
    while len(tokens) < count:
        number, at = len(words), len(tokens)
        if at in special:
            words.append(Word("[X]", len(text), len(text), (at,), True))
            tokens.append(Token(0, "[X]", "[X]", len(text), len(text), number, True))
            continue
        size = 1
        while size < SIZES[number % len(SIZES)] and at + size < count and at + size not in special:
            size += 1
        pieces = [f"w{number}", "ab", "cd"][:size]
        start = len(text)
        for i, piece in enumerate(pieces):
            begin = len(text)
            text += piece
            tokens.append(
                Token(
                    at % 5 + 1, f"##{piece}" if i else piece, piece, begin, len(text), number, False
                )
            )
        words.append(Word(text[start:], start, len(text), tuple(range(at, at + size))))
        text += ". " if number % 7 == 6 else " "
        if number % 23 == 22:
            text += "\n\n"
    return Reading(text, tuple(tokens), tuple(words))


def run(
    T: int,
    S: int | None = None,
    *,
    layers: int = 2,
    heads: int = 3,
    size: int = 5,
    masks: Sequence[Any] = (None,),
    peak: float = 1.0,
    seed: int = 3,
    dtype: Any = np.float32,
    **rules: Any,
) -> ch.AttentionRun:
    """A run of T queries over S keys (T where it is None); layer i has masks[i % len(masks)]."""
    rng = np.random.default_rng(seed)
    keys = T if S is None else S
    states = []
    for layer in range(layers):
        q = (peak * rng.normal(size=(heads, T, size))).astype(dtype)
        k = rng.normal(size=(1, keys, size)).astype(dtype)
        mask = masks[layer % len(masks)]
        lse = ch.attention_map(q, k, mask=mask, **rules).lse
        states.append(LayerState(q, k, lse, mask, **rules))
    mine = reading(T)
    other = None if S is None else reading(S, special=(0, 7))
    return ch.AttentionRun("made", mine.text, mine.tokens, mine.words, states, keys=other)
