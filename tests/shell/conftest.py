"""A run made from arrays, so that what shows a run is tested without a model; and a browser.

`ArrayRun` satisfies the interface of `clearhead.models.run.AttentionRun`, as plainly as can be.
"""

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import clearhead.models.tokens as models
from chromium import Chromium, Page
from clearhead.models.run import AttentionRun, LayerState


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
    special: bool


class ArrayRun:
    """Attention given as an array of shape (layers, heads, tokens, tokens)."""

    def __init__(self, text, tokens, words, weights, *, starts=(0,), notes=()):
        self.model, self.text = "from-arrays", text
        self.tokens, self.words = tuple(tokens), tuple(words)
        self.starts, self.notes, self.proofs = starts, notes, ()
        self._weights = np.asarray(weights, np.float32)
        self.num_layers, self.num_heads = self._weights.shape[:2]

    def weights(self):
        return self._weights

    def map(self, layer):
        return self._weights[layer]

    def save(self, path):
        Path(path).write_bytes(self._weights.tobytes())


def spelled(pieces: list[str]) -> tuple[str, list[Token], list[Word]]:
    """Text, tokens and words of pieces: `##` continues a word, `_` before a piece is a space."""
    text, tokens, words = "", [], []
    at = itertools.count()
    for piece in ["[CLS]", *pieces, "[SEP]"]:
        special = piece in ("[CLS]", "[SEP]")
        shown = piece.removeprefix("_").removeprefix("##")
        text += " " * piece.startswith("_")
        start = len(text)
        text += "" if special else shown
        if piece.startswith("##"):
            last = words.pop()
            held = (*last.tokens, len(tokens))
            words.append(Word(text[last.start :], last.start, len(text), held, False))
        else:
            words.append(Word(shown, start, len(text), (len(tokens),), special))
        raw = piece.removeprefix("_")
        tokens.append(Token(next(at), raw, shown, start, len(text), len(words) - 1, special))
    return text, tokens, words


def attention(layers: int, heads: int, size: int, seed: int = 0) -> np.ndarray:
    """Weights of random scores: rows sum to 1, some peaked and some flat."""
    scores = np.random.default_rng(seed).normal(0, 2, (layers, heads, size, size))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def run_of(pieces: list[str], layers: int = 2, heads: int = 3) -> ArrayRun:
    text, tokens, words = spelled(pieces)
    return ArrayRun(text, tokens, words, attention(layers, heads, len(tokens)))


def attention_run(run: ArrayRun) -> AttentionRun:
    """The same run as clearhead has it: its scores are the logarithms of the weights, as a bias.

    A weight of 0 is hidden.
    """
    L, H, T, _ = run.weights().shape
    zeros = np.zeros((H, T, 1), np.float32)
    with np.errstate(divide="ignore"):
        scores = np.log(run.weights())
    states = [LayerState(zeros, zeros, zeros[..., 0], bias=scores[layer]) for layer in range(L)]
    tokens = [
        models.Token(t.id, t.raw, t.text, t.start, t.end, t.word, t.special) for t in run.tokens
    ]
    words = [models.Word(w.text, w.start, w.end, w.tokens, w.special) for w in run.words]
    return AttentionRun(run.model, run.text, tokens, words, states, notes=run.notes)


@pytest.fixture
def real():
    """`attention_run`: for what asks more of a run than its weights."""
    return attention_run


@pytest.fixture
def make_run():
    """`run_of`, for tests that need a text of their own."""
    return run_of


ANIMAL = [
    "The",
    "_animal",
    "_crossed",
    "_the",
    "_road",
    "_because",
    "_it",
    "_was",
    "_tir",
    "##ed",
    ".",
]


@pytest.fixture
def animal() -> ArrayRun:
    """2 layers of 3 heads: 0.1 reads the token before, and in 1.2 `it` reads `animal`."""
    run = run_of(ANIMAL)
    weights = run.weights()
    weights[0, 1] = 0.01 / 12
    weights[0, 1, 0] = 1 / 13
    weights[0, 1, range(1, 13), range(12)] = 0.99
    weights[1, 2, 7] = 0.3 / 12
    weights[1, 2, 7, 2] = 0.7
    return run


# Texts that labels get wrong: other scripts, joiners, control characters, markup, very long words.
HARD = {
    "arabic": ["القطة", "_جلست", "_على", "_السجادة", "."],
    "chinese": ["東", "京", "は", "日", "本", "の", "首", "都", "で", "す", "。"],
    "hindi": ["नमस्ते", "_दुनिया"],
    "emoji": ["🙂", "_👩‍👩‍👧", "_🇯🇵", "_👍🏽"],
    "markup": ["</script>", "_<img", "_src=x", "_onerror=alert(1)>", "_<!--", "_&amp;", "_$x$"],
    "control": ["\n", "a\x1b[31mb", "_\u202eabc", "\t", "_\x07"],
    "long": ["Donaudampfschifffahrtsgesellschaftskapitän" * 3, "_in", "_東京" * 30],
    "one": ["Hello"],
    "many": [f"_word{at}" for at in range(150)],
}


@pytest.fixture(params=HARD)
def hard(request) -> ArrayRun:
    """A run of a text that labels get wrong."""
    return run_of(HARD[request.param])


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Iterator[Chromium]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine to open the page in")
    browser = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(chromium) -> Iterator[Page]:
    """A fresh tab; the test fails if its script failed, or asked for anything but files."""
    chromium.events.clear()
    tab = chromium.page()
    yield tab
    for event in chromium.events:
        params = event.get("params", {})
        assert event["method"] != "Runtime.exceptionThrown", params
        assert params.get("entry", {}).get("level") != "error", params
        if event["method"] == "Network.requestWillBeSent":
            assert params["request"]["url"].startswith("file:"), params["request"]["url"]
