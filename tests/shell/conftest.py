"""A run made from arrays, so that what shows a run is tested without a model; and a browser.

`ArrayRun` satisfies the interface of `clearhead.models.run.AttentionRun`, as plainly as can be.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest


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
        self.starts, self.notes = starts, notes
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


class Page:
    """One tab of a headless Chromium, spoken to over its debugging pipe."""

    def __init__(self, browser: "Chromium", session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, params, self._session)

    def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Load a file and wait until its script is done; anything but that file is a failure."""
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce",
        }
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": name, "value": value} for name, value in features.items()],
        )
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=path.as_uri())
        self._browser.wait_for("Page.loadEventFired", self._session)
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def js(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, for 20 seconds at most."""
        self.js(
            f"""new Promise((done, failed) => {{
              const late = Date.now() + 20000;
              const look = () => ({condition}) ? done()
                : Date.now() > late ? failed(new Error(document.body.innerText))
                : setTimeout(look, 20);
              look();
            }})"""
        )

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def point(self, selector: str) -> tuple[float, float]:
        """Move the mouse to the middle of an element."""
        box = self.js(
            f"""(() => {{
              const element = document.querySelector({selector!r});
              element.scrollIntoView({{ block: "center" }});
              const box = element.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        self.move(*box)
        return box[0], box[1]

    def click(self, selector: str) -> None:
        x, y = self.point(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


class Chromium:
    """A browser process; messages are JSON ended by a zero byte, on its descriptors 3 and 4."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
            "--disable-background-networking --disable-component-update --disable-sync "
            f"--remote-debugging-pipe --user-data-dir={profile}"
        ).split()

        become = "import os, sys; os.dup2(int(sys.argv[1]), 13); os.dup2(int(sys.argv[2]), 4); "
        become += "os.dup2(13, 3); os.execv(sys.argv[3], sys.argv[3:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", become, str(to_browser), str(from_browser), program, *flags],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._count = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, params: dict[str, Any], session: str | None = None) -> Any:
        message = {"id": next(self._count), "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method: str, session: str) -> None:
        """Read on until an event has come."""
        while not any(
            event["method"] == method and event.get("sessionId") == session for event in self.events
        ):
            self.events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 16)
            assert part, "the browser has gone"
            self._rest += part
        whole, self._rest = self._rest.split(b"\0", 1)
        return json.loads(whole)

    def page(self) -> Page:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        return page

    def close(self) -> None:
        self.call("Browser.close", {})
        self._process.wait(20)
        os.close(self._out)
        os.close(self._in)


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
