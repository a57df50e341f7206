"""The text, head, compare and steps views and what leaves the page, in a browser, on a real server.

Every number that is shown or saved is held to the run's own: `run.map`, `run.word_weights`,
`run.heads`, `run.rollout_to`.
"""

import csv
import json
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clearhead
import tiny_bert
from chromium import Chromium, Page
from clearhead.viewer import html
from clearhead.viewer.scene import Scene

TEXT = "the road, an animal and it.\nthe animal: a road and 2 roads?"
HOSTILE = "</script><img src=x onerror=alert(1)> 東京 नमस्ते 🙂\n<!-- القطة جلست"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def run(model: Path) -> clearhead.AttentionRun:
    return clearhead.read(TEXT, model=model)


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    """The address of a `clearhead view` that runs meanwhile."""
    command = [sys.executable, "-m", "clearhead", "view", *arguments]
    with subprocess.Popen(
        [*command, "--no-browser", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as serving:
        assert serving.stdout is not None
        address = serving.stdout.readline().strip()
        assert address, "the server did not start"
        try:
            yield address
        finally:
            serving.terminate()


@pytest.fixture(scope="module")
def address(
    run: clearhead.AttentionRun, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    saved = tmp_path_factory.mktemp("runs") / "run.safetensors"
    run.save(saved)
    with served(str(saved)) as at:
        yield at


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine to open the page in")
    browser = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


class Tab:
    """A tab of the browser, with what these tests do in it."""

    def __init__(self, browser: Chromium, downloads: Path) -> None:
        self.browser, self.downloads = browser, downloads
        self.page: Page = browser.page()
        self.js, self.wait = self.page.js, self.page.wait

    def visit(self, url: str, *, width: int = 1280, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.page.call("Emulation.setEmulatedMedia", features=[scheme])
        self.page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        loaded = "Page.loadEventFired"
        self.browser.events[:] = [e for e in self.browser.events if e["method"] != loaded]
        self.page.call("Page.navigate", url="about:blank")  # a change of hash alone loads nothing
        self.browser.wait_for(loaded, self.page._session)
        self.browser.events[:] = [e for e in self.browser.events if e["method"] != loaded]
        self.page.call("Page.navigate", url=url)
        self.browser.wait_for(loaded, self.page._session)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def text(self, selector: str) -> str:
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    def says(self, selector: str, text: str) -> None:
        self.wait(
            f"document.querySelector({json.dumps(selector)})?.textContent === {json.dumps(text)}"
        )

    def click(self, selector: str, **keys: bool) -> None:
        held = {f"{key}Key": down for key, down in keys.items()}
        event = json.dumps({"bubbles": True, **held})
        click = f"dispatchEvent(new MouseEvent('click', {event}))"
        self.js(f"document.querySelector({json.dumps(selector)}).{click}")

    def listed(self) -> list[list[str]]:
        return self.js(
            "[...document.querySelectorAll('#list .target')].map(e => e.innerText.split('\\n'))"
        )

    def saved(self, button: int) -> Path:
        """The file that a button of the menu gives: 1 SVG, 2 PNG, 3 CSV, 4 JSON."""
        before = set(self.downloads.iterdir())
        self.click(f".export .column-of button:nth-child({button})")
        until = time.monotonic() + 20
        while time.monotonic() < until:
            new = [
                p for p in self.downloads.iterdir() if p not in before and p.suffix != ".crdownload"
            ]
            if new and new[0].stat().st_size:
                return new[0]
            self.js("new Promise(done => setTimeout(done, 30))")
        raise AssertionError("nothing was saved: " + self.text("body"))


@pytest.fixture
def tab(chromium: Chromium, tmp_path: Path) -> Iterator[Tab]:
    """A fresh tab; the test fails if its script failed, or asked for anything but this machine."""
    chromium.events.clear()
    folder = tmp_path / "downloads"
    folder.mkdir()
    behavior = {"behavior": "allow", "downloadPath": str(folder)}
    chromium.call("Browser.setDownloadBehavior", behavior)
    yield Tab(chromium, folder)
    for event in chromium.events:
        params = event.get("params", {})
        assert event["method"] != "Runtime.exceptionThrown", params
        assert params.get("entry", {}).get("level") != "error", params
        if event["method"] == "Network.requestWillBeSent":
            url = params["request"]["url"]
            assert url.startswith(("http://127.0.0.1:", "file:", "blob:", "data:")), url


def word_weights(run: clearhead.AttentionRun) -> np.ndarray:
    """(L, H, W, W)"""
    return np.array([run.word_weights(layer) for layer in range(run.num_layers)])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def close(shown: str, weight: float) -> None:
    """What is shown is the weight to the digits it has."""
    if "e" in shown:
        assert float(shown) == pytest.approx(weight, rel=5e-3)
    else:
        assert float(shown) == pytest.approx(weight, abs=0.51 * 10.0 ** -len(shown.split(".")[1]))


# -- the text view -------------------------------------------------------------------------------


def choose(
    tab: Tab, run: clearhead.AttentionRun, word: int, verb: str = "reads", **keys: bool
) -> None:
    tab.wait(f"document.querySelector('.prose [data-word=\"{word}\"]')")
    tab.click(f'.prose [data-word="{word}"]', **keys)
    if not keys:
        tab.says("#list-title", f"{run.words[word].text} {verb}")


def test_a_word_shows_what_it_reads_and_who_reads_it(tab: Tab, address: str, run: Any) -> None:
    tab.visit(address)
    word = run.find("animal")[0]
    choose(tab, run, word)
    largest = word_weights(run).max((0, 1))
    names = [one.text for one in run.words]
    for name, shown, where in tab.listed():
        layer, head = map(int, where.split("."))
        own = [word_weights(run)[layer, head, word, at] for at, n in enumerate(names) if n == name]
        assert any(abs(float(shown) - weight) < 1e-4 for weight in own)
    ordinary = [at for at, one in enumerate(run.words) if not one.special and at != word]
    close(tab.listed()[0][1], largest[word, ordinary].max())
    tab.click('[aria-label="Direction"] button:nth-child(2)')
    tab.says("#list-title", "animal is read by")
    close(tab.listed()[0][1], largest[ordinary, word].max())
    shown = tab.js("({ ...document.querySelector('.word:not([data-weight=\"\"])').dataset })")
    close(shown["weight"], largest[int(shown["word"]), word])


def test_words_are_compared_side_by_side_and_spans_are_read_as_one(
    tab: Tab, address: str, run: Any
) -> None:
    tab.visit(f"{address}#view=text&unit=words&heads=1.2")
    weights = word_weights(run)[1, 2]
    choose(tab, run, 2)
    choose(tab, run, 6, ctrl=True)
    tab.wait("document.querySelectorAll('#list .heading bdi').length === 2")
    names = [one.text for one in run.words]
    for name, one, other in tab.listed():
        ats = [at for at, n in enumerate(names) if n == name]
        assert any(
            abs(float(one) - weights[2, at]) < 1e-4 and abs(float(other) - weights[6, at]) < 1e-4
            for at in ats
        )
    choose(tab, run, 2)
    choose(tab, run, 4, shift=True)
    tab.wait(
        f"document.querySelector('#list-title').textContent.endsWith('… {run.words[4].text} read')"
    )
    mean = weights[2:5].mean(0)
    ordinary = [at for at, w in enumerate(run.words) if not w.special and at not in (2, 3, 4)]
    close(tab.listed()[0][1], mean[ordinary].max())


def test_a_search_finds_every_place_and_goes_from_one_to_the_next(
    tab: Tab, address: str, run: Any
) -> None:
    tab.visit(f"{address}#view=text&unit=words")
    tab.js("document.querySelector('.search input').focus()")
    tab.page.call("Input.insertText", text="ROAD")
    tab.says(".search .count", "3 found")
    tab.page.press("Enter")
    tab.says(".search .count", "1 of 3")
    first = run.find("road")[0]
    tab.wait(f"document.querySelector('[data-word=\"{first}\"]').ariaPressed === 'true'")
    assert tab.js("document.querySelectorAll('.word.found').length") == 3


def test_rollout_from_a_clicked_word_is_the_runs_own(tab: Tab, address: str, run: Any) -> None:
    tab.visit(f"{address}#view=text&unit=words&direction=made-of&listed=special,self")
    word = run.find("animal")[0]
    choose(tab, run, word, "is made of")
    shares = np.bincount([t.word for t in run.tokens], run.rollout_to(word), len(run.words))
    close(tab.listed()[0][1], shares.max())
    assert tab.listed()[0][0] == run.words[int(shares.argmax())].text


def test_arcs_are_the_strongest_links_of_the_chosen_heads(tab: Tab, address: str, run: Any) -> None:
    tab.visit(f"{address}#view=text&unit=words&heads=0.1&arcs=on")
    tab.wait("document.querySelectorAll('.arc title').length > 10")
    weights = word_weights(run)[0, 1].copy()
    special = [at for at, one in enumerate(run.words) if one.special]
    weights[special] = weights[:, special] = 0
    np.fill_diagonal(weights, 0)
    row, column = np.unravel_index(weights.argmax(), weights.shape)
    titles = tab.js("[...document.querySelectorAll('.arc title')].map(e => e.textContent)")
    strongest = titles[-1]  # drawn last, over the others
    assert strongest.startswith(f"{run.words[row].text} reads {run.words[column].text} ")
    close(strongest.split()[-1], weights[row, column])


def test_a_long_text_is_made_of_elements_only_near_the_window(
    tab: Tab, tmp_path: Path, chromium: Chromium
) -> None:
    words = [f"w{at}" for at in range(4000)]
    weights = np.full((1, 1, 4000), 1 / 4000, np.float32)
    lse = np.full((1, 4000), np.log(4000.0), np.float32)
    from clearhead.models.run import AttentionRun, LayerState
    from clearhead.models.tokens import Token, Word

    text = "\n".join(" ".join(words[at : at + 20]) for at in range(0, 4000, 20))
    places = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    tokens = [
        Token(0, w, w, int(s), int(s) + len(w), i, False)
        for i, (w, s) in enumerate(zip(words, places, strict=True))
    ]
    spans = [Word(t.text, t.start, t.end, (i,)) for i, t in enumerate(tokens)]
    zeros = np.zeros((1, 4000, 1), np.float32)
    long = AttentionRun("long", text, tokens, spans, [LayerState(zeros, zeros, lse)])
    assert weights.sum() == pytest.approx(1, abs=1e-3)
    html.write(long, tmp_path / "long.html")
    tab.visit((tmp_path / "long.html").as_uri() + "#view=text&words=3")
    tab.wait("document.querySelector('#list .target')")
    assert tab.text(".prose") == text
    assert 50 < tab.js("document.querySelectorAll('.word').length") < 2500
    tab.js("document.querySelector('.search input').focus()")
    tab.page.call("Input.insertText", text="w3990")
    tab.page.press("Enter")
    tab.wait("document.querySelector('[data-word=\"3990\"]')?.ariaPressed === 'true'")
    box = tab.js("document.querySelector('[data-word=\"3990\"]').getBoundingClientRect().top")
    assert 0 <= box <= 900
    assert tab.js("document.querySelectorAll('.word').length") < 2500


# -- heads, compare, steps -----------------------------------------------------------------------


def test_heads_are_sorted_by_any_measure_and_a_click_opens_one(
    tab: Tab, address: str, run: Any
) -> None:
    tab.visit(f"{address}#view=heads&unit=tokens")
    tab.wait("document.querySelectorAll('.head canvas[data-drawn=yes]').length === 6")
    for name, column in run.heads().columns.items():
        tab.js(
            f"(() => {{ const s = document.querySelector('select'); s.value = {name!r};"
            "s.dispatchEvent(new Event('change')); })()"
        )
        tab.wait(f"location.hash.includes('sort={name}')")
        tab.wait(f"document.querySelector('.head').title.includes({name!r})")
        heads = tab.js(
            "[...document.querySelectorAll('.head')].map(e => [e.dataset.head, e.ariaLabel])"
        )
        ranked = sorted(
            np.ndindex(column.shape), key=lambda at: (-np.nan_to_num(column[at], nan=-1), at)
        )
        assert [tuple(map(int, head.split("."))) for head, _ in heads] == ranked
        for head, label in heads:
            value = column[tuple(map(int, head.split(".")))]
            close(label.split()[-1], value) if not np.isnan(value) else None
    tab.click('.head[data-head="1.2"]')
    tab.wait("location.hash.includes('view=map') && location.hash.includes('heads=1.2')")


def test_heads_are_ranked_by_the_link_that_is_chosen(tab: Tab, address: str, run: Any) -> None:
    tab.visit(f"{address}#view=heads&unit=words&row=4&column=1&sort=this+link")
    tab.wait("document.querySelector('.head')?.ariaLabel.includes('this link')")
    weights = word_weights(run)[:, :, 4, 1]
    best = np.unravel_index(weights.argmax(), weights.shape)
    first = tab.js("(e => [e.dataset.head, e.ariaLabel])(document.querySelector('.head'))")
    assert first[0] == f"{best[0]}.{best[1]}"
    close(first[1].split()[-1], weights[best])


def test_two_heads_and_their_difference_are_read_out_cell_by_cell(
    tab: Tab, address: str, run: Any
) -> None:
    tab.visit(f"{address}#view=compare&heads=0.1&other=1:1.2")
    tab.wait("document.querySelector('.compared-one:nth-child(3) canvas')?.style.width")
    tab.js("document.querySelector('.compared-one canvas[role=img]').focus()")
    tab.page.press("ArrowDown")
    for key in ["ArrowDown"] * 4 + ["ArrowRight"] * 3:
        tab.page.press(key)
    names = f"{run.tokens[5].text} reads {run.tokens[3].text} "
    readout = "document.querySelector('.view.compare .readout').textContent"
    tab.wait(f"{readout}.startsWith({names!r})")
    one, other = run.map(0)[1, 5, 3], run.map(1)[2, 5, 3]
    left, right, apart = tab.js(
        "[...document.querySelectorAll('.view.compare .readout strong')].map(e => e.textContent)"
    )
    close(left, one)
    close(right, other)
    close(apart.replace("−", "-").replace("+", ""), other - one)
    rows = table(tab.saved(3))
    assert len(rows) == len(run.tokens) ** 2
    for row in rows:
        at = int(row["row"]), int(row["column"])
        expected = run.map(1)[2][at] - run.map(0)[1][at]
        assert float(row["difference"]) == pytest.approx(expected, abs=2e-7)


def test_a_text_read_by_two_models_opens_side_by_side(
    tab: Tab, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tiny_bert.write(tmp_path_factory.mktemp("models") / "other", seed=12)
    text = "the road and it"
    maps = [clearhead.read(text, model=folder).map(0)[0] for folder in (model, other)]
    with served(text, "--model", str(model), "--model", str(other)) as at:
        tab.visit(at)
        tab.wait("document.querySelector('.compared-one:nth-child(3) canvas')?.style.width")
        names = "[...document.querySelectorAll('.compared-one h3')].map(e => e.textContent)"
        assert [name.split(" · ")[-1] for name in tab.js(names)[:2]] == ["tiny", "other"]
        options = "[...document.querySelectorAll('.view.compare option')].map(e => e.textContent)"
        assert tab.js(options) == [f"{text} · tiny", f"{text} · other"]
        rows = table(tab.saved(3))
    assert len(rows) == maps[0].size
    for row in rows:
        cell = int(row["row"]), int(row["column"])
        assert float(row["left"]) == pytest.approx(maps[0][cell], abs=2e-7)
        assert float(row["right"]) == pytest.approx(maps[1][cell], abs=2e-7)
    assert max(abs(maps[0] - maps[1]).ravel()) > 1e-3  # two models, not one twice


def test_two_heads_that_agree_differ_by_nothing_and_a_text_and_its_source_have_two_lengths(
    tab: Tab, tmp_path: Path
) -> None:
    weights = np.full((1, 2, 3, 5), 0.2, np.float32)
    run = clearhead.from_weights(weights, list("abc"), key_tokens=list("vwxyz"))
    run.to_html(tmp_path / "page.html")
    tab.visit(f"{(tmp_path / 'page.html').as_uri()}#view=compare&heads=0.0&other=1:0.1")
    tab.wait("document.querySelector('.compared-one:nth-child(3) .ends')?.textContent === '0'")
    assert tab.text(".what").endswith(" · 3 × 5 tokens")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("the", "animal", "slept."), "TEXT: is 3 words, must be one text: put it in quotes"),
        (("-", "a b", "-"), "TEXT: - is asked for twice, must be once"),
        (tuple(f"text {n}" for n in range(17)), "TEXT: are 17 runs, must be at most 16"),
    ],
)
def test_several_texts_that_cannot_be_meant_are_refused_before_any_is_read(
    given: tuple[str, ...], sentence: str
) -> None:
    command = [sys.executable, "-m", "clearhead", "view", "--no-browser", *given]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, input="")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"clearhead: {sentence}")


def test_the_steps_of_a_pair_are_the_numbers_of_the_run(tab: Tab, address: str, run: Any) -> None:
    tab.visit(f"{address}#view=steps&heads=1.2&unit=tokens&row=5&column=3")
    tab.wait("document.querySelectorAll('.products tbody tr').length > 0")
    q, k = run.layers[1].q[2, 5].astype(float), run.layers[1].k[2, 3].astype(float)
    values = dict(
        tab.js(
            "[...document.querySelectorAll('.chain li')]"
            ".map(e => [e.children[0].textContent, e.children[2].textContent])"
        )
    )
    number = lambda text: float(text.replace("−", "-"))  # noqa: E731
    assert number(values["score"]) == pytest.approx(q @ k, rel=1e-5)
    assert number(values["scaled"]) == pytest.approx(q @ k * run.map(1).scale, rel=1e-5)
    assert number(values["weight"]) == pytest.approx(run.map(1)[2, 5, 3], rel=1e-5)
    cells = tab.js(
        "[...document.querySelectorAll('.products tbody tr')]"
        ".map(row => [...row.children].map(cell => cell.textContent))"
    )
    for at, (name, *shown) in enumerate(cells):
        assert int(name) == at
        assert [number(x) for x in shown] == pytest.approx([q[at], k[at], q[at] * k[at]], rel=1e-3)
    row = np.sort(run.map(1)[2, 5])[::-1]
    close(tab.js("document.querySelector('.softmax .number').textContent"), row[0])
    saved = json.loads(tab.saved(4).read_text(encoding="utf-8"))
    given = {(one["what"], one["index"]): one["value"] for one in saved["rows"]}
    assert given["weight", None] == pytest.approx(run.map(1)[2, 5, 3], rel=1e-6)
    assert [given["products", at] for at in range(len(q))] == pytest.approx(q * k)
    assert tab.text(".steps-body section p").startswith("The weighted values are not here: a saved")


# -- what leaves the page ------------------------------------------------------------------------


def test_the_numbers_of_a_word_leave_the_page_whole(tab: Tab, address: str, run: Any) -> None:
    tab.visit(f"{address}#view=text&unit=words&heads=1.2")
    choose(tab, run, 4)
    weights = word_weights(run)[1, 2, 4]
    saved = tab.saved(3)
    rows = table(saved)
    assert saved.name.startswith("clearhead_") and saved.name.endswith("_text_L1H2.csv")
    assert [row["to_text"] for row in rows] == [one.text for one in run.words]
    assert [float(row["weight"]) for row in rows] == pytest.approx(weights.tolist(), rel=1e-6)
    given = json.loads(tab.saved(4).read_text(encoding="utf-8"))
    assert [row["weight"] for row in given["rows"]] == [float(row["weight"]) for row in rows]
    assert given["heads"] == [{"layer": 1, "head": 2}] and given["text"] == run.text


def test_the_cells_of_the_map_leave_the_page_as_they_are(tab: Tab, address: str, run: Any) -> None:
    tab.visit(f"{address}#view=map&unit=tokens&heads=0.2")
    tab.wait("document.querySelector('.view.map canvas')")
    rows = table(tab.saved(3))
    T = len(run.tokens)
    assert len(rows) == T * T
    weights = np.array([float(row["weight"]) for row in rows]).reshape(T, T)
    np.testing.assert_allclose(weights, run.map(0)[2], rtol=1e-6)
    assert rows[T + 2]["row_text"] == run.tokens[1].text


@pytest.mark.parametrize("view", ["text", "map", "heads", "compare", "steps"])
def test_every_view_leaves_as_a_picture(tab: Tab, address: str, run: Any, view: str) -> None:
    tab.visit(f"{address}#view={view}&unit=words&heads=1.2&words=4&row=4&column=1")
    tab.wait(
        {
            "text": "document.querySelector('#list .target')",
            "map": "document.querySelector('.view.map .readout')",
            "heads": "document.querySelectorAll('.head canvas[data-drawn=yes]').length === 6",
            "compare": "document.querySelector('.compared-one canvas')?.style.width",
            "steps": "document.querySelector('.chain li')",
        }[view]
    )
    tab.js("new Promise(done => setTimeout(done, 300))")
    saved = tab.saved(1)
    tree = ET.parse(saved)
    texts = [e.text or "" for e in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert saved.suffix == ".svg" and "tiny" in " ".join(texts)
    if view == "text":
        assert {"road", "animal"} <= set(texts)
        assert {shown for _, shown, *_ in tab.listed()} <= set(texts)
    png = tab.saved(2).read_bytes()
    assert png.startswith(b"\x89PNG") and len(png) > 3000


def test_a_link_brings_the_exact_view_back(
    tab: Tab, address: str, run: Any, chromium: Chromium, tmp_path: Path
) -> None:
    tab.visit(f"{address}#view=text&unit=words&heads=0.1,1.2&join=max")
    choose(tab, run, 2)
    choose(tab, run, 6, ctrl=True)
    tab.wait("document.querySelectorAll('#list .heading bdi').length === 2")
    tab.click("#special")
    tab.wait("location.hash.includes('listed=special') && location.hash.includes('words=2,6')")
    again = Tab(chromium, tmp_path)
    again.visit(tab.js("location.href"))
    again.wait("document.querySelectorAll('#list .heading bdi').length === 2")
    assert again.listed() == tab.listed()
    assert again.text("#list-title") == tab.text("#list-title")
    assert again.js("document.querySelector('#special').checked")


# -- a text of one's own -------------------------------------------------------------------------


def test_a_hostile_text_that_is_typed_is_shown_as_text(model: Path, tab: Tab) -> None:
    with served("--model", str(model)) as address:
        tab.visit(address)
        tab.wait("document.querySelector('.view.start textarea')?.checkVisibility()")
        tab.click(".start-form .primary")
        error = "document.querySelector('.start-form .error')?.textContent"
        tab.wait(f"{error}.startsWith('The text is empty')")
        tab.js("document.querySelector('textarea').focus()")
        tab.page.call("Input.insertText", text=HOSTILE)
        tab.click(".start-form .primary")
        tab.wait("document.querySelector('.view.text #list .target')")
        assert tab.text(".prose") == HOSTILE
        assert tab.js("document.querySelectorAll('img').length") == 0
        labels = tab.js("[...document.querySelectorAll('.word')].map(e => e.ariaLabel).join(' ')")
        assert not {"Ġ", "æ", "##", "\ufffd"} & set(labels)
        svg = ET.parse(tab.saved(1))
        assert not list(svg.iter("{http://www.w3.org/2000/svg}script"))


# -- the page without a server -------------------------------------------------------------------


ASK = """
import { readFileSync } from "node:fs";
const { Embedded } = await import(process.argv[2]);
const source = await Embedded.open(JSON.parse(readFileSync(process.argv[3], "utf8")));
const answers = [];
for (const [question, args] of JSON.parse(readFileSync(process.argv[4], "utf8"))) {
  const { json, arrays } = await source.ask("page", question, args);
  answers.push([json, arrays.map((array) => [...array].map((x) => Number.isNaN(x) ? null : x))]);
}
console.log(JSON.stringify(answers));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_embedded_source_answers_as_the_scene_does(run: Any, tmp_path: Path) -> None:
    page = html.render(run)
    data = re.search(r'<script id="run" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    everything = [(layer, head) for layer in range(2) for head in range(3)]
    pictures = [
        {"heads": heads, "join": join, "unit": unit, "leave": leave}
        for heads in ([(1, 2)], everything)
        for join in ("mean", "max")
        for unit in ("tokens", "words", "sentences")
        for leave in (
            {"special": False, "sinks": False, "columns": []},
            {"special": True, "sinks": False, "columns": [1]},
        )
    ]
    questions = [
        (question, picture | more)
        for picture in pictures
        for question, more in (
            ("row", {"index": 1}),
            ("column", {"index": 2}),
            ("tile", {"pool": "mean", "level": 1, "row": 0, "column": 0}),
            ("tile", {"pool": "max", "level": 2, "row": 0, "column": 0}),
            ("removed", {}),
        )
    ]
    questions += [("across", {"unit": "words", "row": 4, "column": 1}), ("heads", {})]
    questions += [
        ("rollout", {"unit": "words", "index": 4, "direction": d}) for d in ("to", "from")
    ]
    for name, content in (
        ("ask.mjs", ASK),
        ("run.json", data[1]),
        ("questions.json", json.dumps(questions)),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
    module = Path(str(files("clearhead.viewer").joinpath("static", "embedded.js"))).as_uri()
    command = ["node", "ask.mjs", module, "run.json", "questions.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    scene = Scene(run)
    keys = len(run.tokens)
    for (question, args), (given, arrays) in zip(questions, json.loads(done.stdout), strict=True):
        expected = scene.answer(question, args)
        # half a digit for each key that is added up, twice over where rows are scaled up again
        atol = 0.5001e-4 * keys * 2 if question != "heads" else 1e-3
        for own, wanted in zip(arrays, expected.arrays, strict=True):
            if (
                question in ("row", "column")
                and args["join"] == "max"
                and own is arrays[-1]
                and len(arrays) == 2
            ):
                continue  # whose it is may differ where two are equal but for rounding
            known = np.array([np.nan if x is None else x for x in own])
            np.testing.assert_allclose(
                known, wanted.ravel(), rtol=1e-3, atol=atol, err_msg=question
            )
        for name in ("mean", "most"):
            if name in given:
                assert given[name] == pytest.approx(expected.json[name], abs=atol)
        if question == "removed":
            assert given["columns"] == expected.json["columns"]
            assert [s for s, _ in given["sinks"]] == [s for s, _ in expected.json["sinks"]]
