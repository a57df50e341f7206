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


def data_of(page: str) -> dict:
    block = re.search(r'<script id="run" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(block[1])


def weights_of(data: dict) -> np.ndarray:
    planes = np.frombuffer(gzip.decompress(base64.b64decode(data["weights"])), np.uint8)
    low, high = planes.reshape(2, -1).astype(np.int64)
    count = len(data["tokens"])
    units = (low + 256 * high).reshape(data["layers"], data["heads"], count, count)
    return units / 10 ** data["decimals"]


def test_the_page_holds_every_weight_to_the_precision_it_states(animal):
    page = html.render(animal)
    data = data_of(page)
    assert data["decimals"] == 4
    assert "rounded to 4 decimals (off by at most 0.00005)" in page
    np.testing.assert_allclose(weights_of(data), animal.weights(), rtol=0, atol=0.5001e-4)


def test_a_page_that_would_pass_a_megabyte_keeps_three_decimals_and_says_so(make_run):
    run = make_run([f"_w{at}" for at in range(120)], layers=5, heads=17)
    page = html.render(run)
    assert data_of(page)["decimals"] == 3
    assert "rounded to 3 decimals (off by at most 0.0005)" in page
    np.testing.assert_allclose(weights_of(data_of(page)), run.weights(), rtol=0, atol=0.5001e-3)


def test_a_run_of_128_tokens_and_72_heads_stays_under_a_megabyte(make_run):
    run = make_run([f"_w{at}" for at in range(126)], layers=6, heads=12)
    assert len(run.tokens) == 128
    assert len(html.render(run).encode()) < 1_000_000


def test_a_run_too_large_for_a_page_is_refused_before_anything_is_written(make_run, tmp_path):
    run = make_run(["_a"] * 3)
    run.num_heads = 2**25
    with pytest.raises(ValueError, match=r"html: 5 tokens in .* one page holds at most"):
        html.write(run, tmp_path / "map.html")
    assert not list(tmp_path.iterdir())


def test_the_pieces_put_together_are_the_text(hard):
    data = data_of(html.render(hard))
    assert "".join(piece for piece, _ in data["pieces"]) == hard.text
    for piece, word in data["pieces"]:
        if word is not None:
            assert hard.words[word].text == piece


def test_no_text_can_end_the_block_it_stands_in(make_run):
    page = html.render(
        make_run(["</script><script>alert(1)</script>", "_<!--", "_]]>", "_[[run]]"])
    )
    assert page.count("</script>") == 2
    assert "<!--" not in page
    assert "alert(1)" in data_of(page)["pieces"][0][0]


def test_nothing_in_the_page_points_outside_it(animal):
    page = html.render(animal)
    assert not re.findall(r'(?:src|href|url|import|fetch)\s*[=(]\s*["\']?\w+:', page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy


# -- in a browser --------------------------------------------------------------------------------


@pytest.fixture
def opened(page, tmp_path):
    def opened(run, opens=None, **how):
        opens = dict(opens or {})
        opens["include_self"] = opens.pop("self", False)
        (tmp_path / "map.html").write_text(html.render(run, **opens))
        page.open(tmp_path / "map.html", **how)
        return page

    return opened


def test_the_page_opens_on_a_word_and_lists_what_it_reads(opened, animal):
    page = opened(animal)
    page.click('[data-word="7"]')
    assert page.js("document.querySelector('#list-title').textContent") == "it reads"
    listed = page.js(
        "[...document.querySelectorAll('#list li')].map(e => e.innerText.split('\\n'))"
    )
    best = animal.weights()[:, :, 7].max((0, 1))
    assert ["animal", "0.7000", "1.2"] in listed
    assert listed[0][0] == "because" and listed[0][2] == "0.1"
    assert float(listed[0][1]) == pytest.approx(best[6], abs=1e-4)


def test_who_reads_a_word_is_the_column(opened, animal):
    page = opened(animal)
    page.click('[data-word="2"]')
    page.click("#read-by")
    assert page.js("document.querySelector('#list-title').textContent") == "animal is read by"
    listed = page.js(
        "[...document.querySelectorAll('#list li')].map(e => e.innerText.split('\\n'))"
    )
    assert ["it", "0.7000", "1.2"] in listed
    # `tired` is two tokens: what they read is averaged
    expected = animal.weights()[:, :, [9, 10], 2].mean(2).max()
    numbers = {name: float(weight) for name, weight, _ in listed}
    assert numbers["tired"] == pytest.approx(expected, abs=1e-4)


def test_a_head_is_chosen_and_its_cells_read_out_exactly(opened, animal):
    page = opened(animal)
    page.click('.head[aria-label^="Layer 1 head 2"]')
    assert page.js("document.querySelector('#matrix-title').textContent") == "Layer 1, head 2"
    page.click("#by-token")
    page.click("#special")
    page.js("document.querySelector('#matrix').focus()")
    for key in ["ArrowDown"] * 7 + ["ArrowRight"] * 2:
        page.press(key)
    readout = page.js("document.querySelector('#readout').textContent")
    assert readout == "it reads animal 0.7000, number 1 of 13 in its row"
    assert page.js("document.querySelector('#legend-end').textContent") == (
        f"{animal.weights()[1, 2].max():.4f}"
    )


def test_the_page_opens_on_what_it_is_told_to(opened, animal):
    page = opened(animal, opens={"word": 7, "layer": 1, "head": 2, "self": True, "raw": True})
    assert page.js("document.querySelector('#list-title').textContent") == "it reads"
    assert page.js("document.querySelector('#matrix-title').textContent") == "Layer 1, head 2"
    assert page.js("document.querySelector('#self').checked")
    heads = page.js("[...document.querySelectorAll('#list .where')].map(e => e.textContent)")
    assert set(heads) == {"1.2"}
    page.click("#all-heads")
    heads = page.js("[...document.querySelectorAll('#list .where')].map(e => e.textContent)")
    assert len(set(heads)) > 1
    assert page.js("document.querySelector('#by-token').getAttribute('aria-pressed')") == "true"


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
    assert page.js("document.querySelector('#list-title').textContent") == "animal reads"
    page.press("Enter")
    assert page.js("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_special_tokens_are_listed_only_when_asked_for(opened, animal):
    animal.weights()[0, 0, 6] = 0.0
    animal.weights()[0, 0, 6, 12] = 1.0
    page = opened(animal)
    page.click('[data-word="6"]')
    listed = "[...document.querySelectorAll('#list bdi')].map(e => e.textContent)"
    assert "[SEP]" not in page.js(listed)
    heads = animal.weights()[:, :, 6].reshape(6, 13)
    share = heads[:, [0, 12]].sum(1).mean()
    stated = f"spends {100 * share:.0f} % of its attention on special tokens"
    assert stated in page.js("document.querySelector('#rest').textContent")
    page.click("#special")
    assert "[SEP]" in page.js(listed)


def test_a_text_read_in_windows_is_whole_and_links_are_the_runs_own(opened, tmp_path):
    model = tiny_bert.write(tmp_path / "tiny")
    run = clearhead.read("the road, an animal " * 14 + "and it", model=model, window=True)
    assert len(run.starts) > 1
    page = opened(run)
    assert page.js("document.querySelector('#text').textContent") == run.text
    assert "overlapping windows" in page.js("document.querySelector('.what').textContent")
    for word in (1, len(run.words) - 2):
        page.click(f'[data-word="{word}"]')
        listed = page.js(
            "[...document.querySelectorAll('#list li')].map(e => e.innerText.split('\\n'))"
        )
        best: dict[int, clearhead.Link] = {}
        for link in run.links(word):
            best.setdefault(link.target, link)
        for row, link in zip(listed, list(best.values())[:8], strict=True):
            assert float(row[1]) == pytest.approx(link.weight, abs=2e-4)


def test_any_text_is_shown_as_text(opened, hard):
    page = opened(hard)
    assert page.js("document.querySelector('#text').textContent") == hard.text
    assert page.js("document.querySelectorAll('img').length") == 0
    assert page.js("document.querySelectorAll('script').length") == 2


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
  const texts = document.querySelectorAll(".word, .fine, .axis, h1, h2, button, .number");
  return [...texts].filter((element) => element.textContent.trim()).map((element) => {
    const a = light(parsed(getComputedStyle(element).color)) + 0.05;
    const b = light(behind(element)) + 0.05;
    return [Math.max(a, b) / Math.min(a, b), element.textContent];
  });
})()"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_its_width_and_keeps_its_contrast(opened, make_run, width, dark):
    page = opened(make_run([f"_word{at}" for at in range(40)], heads=12), width=width, dark=dark)
    assert page.js("document.documentElement.scrollWidth") <= width
    ratios = page.js(CONTRAST)
    assert min(ratios)[0] >= 4.5, min(ratios)
