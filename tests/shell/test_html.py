"""The HTML page: what is in the file, and what a browser makes of it."""

import base64
import gzip
import json
import re

import numpy as np
import pytest

import clearhead
import tiny_bert
from clearhead.viewer import html

HIDDEN = 65535


def data_of(page: str) -> dict:
    block = re.search(r'<script id="run" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(block[1])


def stored(data: dict) -> np.ndarray:
    planes = np.frombuffer(
        gzip.decompress(base64.b85decode(data["weights"].replace(".", "<"))), np.uint8
    )
    low, high = planes.reshape(2, -1).astype(np.int64)
    return low + 256 * high


def weights_of(data: dict) -> np.ndarray:
    """(L, H, T, S), NaN where the mask hides."""
    about = data["about"]
    T = len(about["rows"]["tokens"])
    S = len((about["columns"] or about["rows"])["tokens"])
    shape = len(about["layers"]), len(about["heads"]), T, S
    units = stored(data)[: np.prod(shape)].reshape(shape)
    return np.where(units == HIDDEN, np.nan, units / 10 ** data["decimals"])


def test_the_page_holds_every_weight_to_the_precision_it_states(real, animal):
    data = data_of(html.render(real(animal)))
    assert data["decimals"] == data["about"]["decimals"] == 4
    np.testing.assert_allclose(weights_of(data), animal.weights(), rtol=0, atol=0.5001e-4)


def test_a_page_that_would_pass_a_megabyte_keeps_three_decimals_and_says_so(real, make_run):
    run = real(make_run([f"_w{at}" for at in range(120)], layers=5, heads=17))
    data = data_of(html.render(run))
    assert data["decimals"] == data["about"]["decimals"] == 3
    np.testing.assert_allclose(weights_of(data), run.weights(), rtol=0, atol=0.5001e-3)


def test_a_run_of_128_tokens_and_72_heads_stays_under_a_megabyte(real, make_run):
    run = real(make_run([f"_w{at}" for at in range(126)], layers=6, heads=12))
    assert len(run.tokens) == 128
    assert len(html.render(run).encode()) < 990_000  # room for the app to grow


def test_a_run_too_large_for_a_page_is_refused_before_anything_is_written(real, make_run, tmp_path):
    run = real(make_run(["_a"] * 3))
    run.layers = run.layers * 2**23
    with pytest.raises(ValueError, match=r"html: 5 tokens in .* one page holds at most"):
        html.write(run, tmp_path / "map.html")
    assert not list(tmp_path.iterdir())


def test_what_a_mask_hides_is_stored_as_hidden_and_not_as_nothing(real, make_run):
    run = make_run(["_a", "_b", "_c"])
    run.weights()[:] = np.tril(run.weights())
    run.weights()[:] /= run.weights().sum(-1, keepdims=True)
    stated = weights_of(data_of(html.render(real(run))))
    expected = np.where(run.weights() == 0, np.nan, run.weights())
    np.testing.assert_allclose(stated, expected, rtol=0, atol=0.5001e-4)


def test_the_rollout_in_the_page_is_the_runs_own(tmp_path):
    run = clearhead.read("the road, an animal and it", model=tiny_bert.write(tmp_path / "tiny"))
    data = data_of(html.render(run))
    T = len(run.tokens)
    rollout = stored(data)[-T * T :].reshape(T, T) * data["rollout"]
    for at, word in enumerate(run.words):
        expected = run.rollout_to(at)
        np.testing.assert_allclose(
            rollout[list(word.tokens)].mean(0), expected, rtol=0, atol=1.01e-5 + 1e-6
        )


def test_the_measures_in_the_page_are_the_runs_own(tmp_path):
    run = clearhead.read("the road, an animal and it", model=tiny_bert.write(tmp_path / "tiny"))
    data = data_of(html.render(run))
    table = run.heads()
    assert list(data["measures"]) == list(table.columns)
    for name, values in zip(data["measures"], data["values"], strict=True):
        known = np.array([np.nan if value is None else value for value in values])
        np.testing.assert_allclose(known, table.columns[name].ravel(), rtol=5.1e-4)


def test_no_text_can_end_the_block_it_stands_in(real, make_run):
    run = make_run(["</script><script>alert(1)</script>", "_<!--", "_]]>", "_[[run]]"])
    page = html.render(real(run))
    assert page.count("</script>") == 3  # the data, the app as gzip, what unpacks it
    assert "<!--" not in page
    assert "alert(1)" in data_of(page)["about"]["rows"]["tokens"][1][0]


def test_nothing_in_the_page_points_outside_it(real, animal):
    page = html.render(real(animal))
    code = re.search(r'<script id="code" type="application/gzip">(.*?)</script>', page)[1]
    script = gzip.decompress(base64.b64decode(code)).decode()
    for text in (page, script):
        assert not re.findall(r'(?:src|href|url|import|fetch)\s*[=(]\s*["\']?\w+:', text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy


def test_a_module_that_imports_in_another_way_is_refused(monkeypatch, tmp_path):
    from clearhead.viewer import bundle

    (tmp_path / "static").mkdir()
    for name, code in {
        "whole": 'import * as all from "./other.js";\n',
        "ring": 'import { b } from "./knot.js";\nexport const a = b;\n',
        "knot": 'import { a } from "./ring.js";\nexport const b = a;\n',
    }.items():
        (tmp_path / "static" / f"{name}.js").write_text(code)
    monkeypatch.setattr(bundle, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match="must import"):
        bundle.bundle("whole.js")
    with pytest.raises(ValueError, match="ring needs knot needs ring, must not be a ring"):
        bundle.bundle("ring.js")


# -- in a browser --------------------------------------------------------------------------------


@pytest.fixture
def opened(real, page, tmp_path):
    def opened(run, opens=None, shows="#list .target", **how):
        opens = dict(opens or {})
        opens["include_self"] = opens.pop("self", False)
        whole = run if isinstance(run, clearhead.AttentionRun) else real(run)
        (tmp_path / "map.html").write_text(html.render(whole, **opens))
        page.open(tmp_path / "map.html", **how)
        page.wait(f"document.querySelector({shows!r})")
        return page

    return opened


TITLE = "document.querySelector('#list-title').textContent"
LISTED = "[...document.querySelectorAll('#list li')].map(e => e.innerText.split('\\n'))"


def choose(page, word, says):
    page.click(f'[data-word="{word}"]')
    page.wait(f"{TITLE} === {json.dumps(says)}")
    return page.js(LISTED)


def test_the_page_opens_on_a_word_and_lists_what_it_reads(opened, animal):
    page = opened(animal)
    listed = choose(page, 7, "it reads")
    best = animal.weights()[:, :, 7].max((0, 1))
    assert ["animal", "0.7000", "1.2"] in listed
    assert listed[0][0] == "because" and listed[0][2] == "0.1"
    assert float(listed[0][1]) == pytest.approx(best[6], abs=1e-4)


def test_who_reads_a_word_is_the_column(opened, animal):
    page = opened(animal)
    choose(page, 2, "animal reads")
    page.click('[aria-label="Direction"] button:nth-child(2)')
    page.wait(f"{TITLE} === 'animal is read by'")
    listed = page.js(LISTED)
    assert ["it", "0.7000", "1.2"] in listed
    # `tired` is two tokens: what they read is averaged
    expected = animal.weights()[:, :, [9, 10], 2].mean(2).max()
    numbers = {name: float(weight) for name, weight, _ in listed}
    assert numbers["tired"] == pytest.approx(expected, abs=1e-4)


def test_a_head_is_chosen_and_its_cells_read_out_exactly(opened, animal):
    page = opened(animal)
    page.click('[data-view="heads"]')
    page.wait("document.querySelector('.head[data-head=\"1.2\"]')")
    page.click('.head[aria-label^="Layer 1 head 2"]')
    page.wait(
        "document.querySelector('.view.map .heads-button')?.textContent === 'Layer 1 · head 2'"
    )
    page.click('.view.map [aria-label="Rows and columns"] button:first-child')
    page.js("document.querySelector('.view.map .cells').focus()")
    for key in ["ArrowDown"] * 8 + ["ArrowRight"] * 2:
        page.press(key)
    readout = "document.querySelector('.view.map .readout').textContent"
    page.wait(f"{readout}.includes('0.7')")
    assert re.search("it reads animal.*0.7000.*", page.js(readout).replace("\n", " ")), page.js(
        readout
    )


def test_the_page_opens_on_what_it_is_told_to(opened, animal):
    page = opened(animal, opens={"word": 7, "layer": 1, "head": 2, "self": True, "raw": True})
    page.wait(f"{TITLE} === 'it reads'")
    assert page.js("document.querySelector('.heads-button').textContent") == "Layer 1 · head 2"
    assert page.js("document.querySelector('#self').checked")
    assert page.js("location.hash").count("unit=") == 0  # tokens: the tokenizer's pieces
    labels = page.js("[...document.querySelectorAll('.word')].map(e => e.ariaLabel)")
    assert any(label.startswith("##ed") for label in labels)


def test_the_page_of_a_layer_keeps_to_its_heads(opened, animal):
    page = opened(animal, opens={"word": 7, "layer": 1})
    heads = page.js("[...document.querySelectorAll('#list .where')].map(e => e.textContent)")
    assert {name.split(".")[0] for name in heads} == {"1"} and len(set(heads)) > 1


def test_words_are_reached_with_the_keyboard(opened, animal):
    page = opened(animal)
    page.js("document.querySelector('.word[tabindex=\"0\"]').focus()")
    page.press("Home")
    page.press("ArrowRight")
    assert page.js("document.activeElement.textContent") == "animal"
    page.press("Enter")
    page.wait(f"{TITLE} === 'animal reads'")
    assert page.js("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_special_tokens_are_listed_only_when_asked_for(opened, animal):
    animal.weights()[0, 0, 6] = 0.0
    animal.weights()[0, 0, 6, 12] = 1.0
    page = opened(animal)
    choose(page, 6, "because reads")
    listed = "[...document.querySelectorAll('#list bdi')].map(e => e.textContent)"
    assert "[SEP]" not in page.js(listed)
    heads = animal.weights()[:, :, 6].reshape(6, 13)
    share = heads[:, [0, 12]].sum(1).mean()
    stated = f"spends {100 * share:.0f} % of its attention on special tokens"
    assert stated in page.js("document.querySelector('#rest').textContent")
    page.click("#special")
    page.wait(f"{listed}.includes('[SEP]')")


def test_a_text_read_in_windows_is_whole_and_links_are_the_runs_own(opened, tmp_path):
    model = tiny_bert.write(tmp_path / "tiny")
    run = clearhead.read("the road, an animal " * 14 + "and it", model=model, window=True)
    assert len(run.starts) > 1
    page = opened(run)
    assert page.js("document.querySelector('.prose').textContent") == run.text
    assert "overlapping windows" in page.js("document.querySelector('.foot').textContent")
    for word in (1, len(run.words) - 2):
        page.click(f'[data-word="{word}"]')
        page.wait(f"document.querySelector('[data-word=\"{word}\"]').ariaPressed === 'true'")
        best: dict[int, clearhead.Link] = {}
        for link in run.links(word):
            best.setdefault(link.target, link)
        for row, link in zip(page.js(LISTED), list(best.values())[:10], strict=True):
            assert float(row[1]) == pytest.approx(link.weight, abs=2e-4)


def test_a_run_that_reads_another_text_has_a_page_of_two_texts(real, opened, tmp_path, make_run):
    source = real(make_run(["_the", "_animal", "_slept"], layers=1, heads=2))
    run = real(make_run(["_it", "_rested"], layers=1, heads=2))
    (state,) = run.layers
    keys = clearhead.models.run.Reading(source.text, source.tokens, source.words)
    zeros = np.zeros((2, len(source.tokens), 1), np.float32)
    weights = np.random.default_rng(3).dirichlet(np.ones(5), (2, 4)).astype(np.float32)
    states = [state._replace(k=zeros, bias=np.log(weights))]
    crossed = clearhead.AttentionRun("crossed", run.text, run.tokens, run.words, states, keys=keys)
    crossed.to_html(tmp_path / "crossed.html")
    page = opened(crossed)
    texts = page.js("[...document.querySelectorAll('.prose')].map(e => e.textContent)")
    assert texts == [run.text, source.text]
    page.click('.prose [data-word="1"]')
    page.wait(f"{TITLE} === 'it reads'")
    best = weights.max(0)[1]
    listed = {name: float(weight) for name, weight, _ in page.js(LISTED)}
    assert listed == pytest.approx(
        {"the": best[1], "animal": best[2], "slept": best[3]}, abs=0.5001e-4
    )


def test_any_text_is_shown_as_text(opened, hard):
    page = opened(hard, shows=".prose .word")  # one word alone reads nothing that a list names
    assert page.js("document.querySelector('.prose').textContent") == hard.text
    assert page.js("document.querySelectorAll('img').length") == 0
    assert page.js("document.querySelectorAll('script').length") == 4  # and the app, unpacked


# The contrast of every text with what is behind it, as WCAG 2 defines it.
CONTRAST = """(() => {
  const channel = (v) => v <= 10 ? v / 3294 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) =>
    0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parsed = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const rgba = parsed(getComputedStyle(element).backgroundColor);
      if (rgba.length === 3 || rgba[3] === 1) return rgba;
    }
  };
  const texts = document.querySelectorAll(".word, .fine, .axis, h2, h3, button, .number");
  return [...texts].filter((e) => e.checkVisibility() && e.textContent.trim()).map((element) => {
    const a = light(parsed(getComputedStyle(element).color)) + 0.05;
    const b = light(behind(element)) + 0.05;
    return [Math.max(a, b) / Math.min(a, b), element.textContent];
  });
})()"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_its_width_and_keeps_its_contrast(opened, make_run, width, dark):
    page = opened(make_run([f"_word{at}" for at in range(40)], heads=12), width=width, dark=dark)
    for view in ("text", "map", "heads", "compare"):
        page.click(f'[data-view="{view}"]')
        page.wait(f"document.querySelector('.view.{view}')?.checkVisibility()")
        assert page.js("document.documentElement.scrollWidth") <= width, view
        ratios = page.js(CONTRAST)
        assert min(ratios)[0] >= 4.5, (view, min(ratios))
