"""The pages for the terminal: what they say, and that they fit."""

import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.text import Text

from clearhead import terminal
from clearhead.viewer import ranking


def overview(run, *, special=False, include_self=False, top=12) -> list[str]:
    units = ranking.words(run, special=special)
    heads = ranking.all_heads(run)
    page = terminal.overview(run, units, heads, include_self=include_self, top=top)
    return page.plain.splitlines()


def word(run, name: str, heads=None) -> list[str]:
    units = ranking.words(run, special=False)
    at = units.labels.index(name)
    heads = heads or ranking.all_heads(run)
    return terminal.word_page(run, units, at, heads, include_self=False).plain.splitlines()


def heat_map(run, layer: int, head: int) -> Text:
    return terminal.heat_map(run, layer, head, [token.text for token in run.tokens])


def test_no_line_of_any_page_is_wider_than_80_cells(hard):
    pages = [
        *overview(hard, special=True, include_self=True),
        *heat_map(hard, 1, 2).plain.split("\n"),
    ]
    pages += word(hard, hard.words[1].text)
    assert max(map(cell_len, pages)) <= 80


def test_nothing_of_a_text_commands_the_terminal(hard):
    pages = "\n".join(
        [*overview(hard), heat_map(hard, 0, 0).plain, *word(hard, hard.words[1].text)]
    )
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", pages)


def test_the_overview_ranks_links_with_weight_and_head(animal):
    lines = overview(animal, top=100)
    assert lines[0] == "The animal crossed the road because it was tired."
    assert lines[1] == "from-arrays: 2 layers × 3 heads, 13 tokens, 10 words"
    links = [line for line in lines if "→" in line]
    it = next(line for line in links if re.match(r" *it → animal ", line))
    assert it.split()[-2:] == ["0.70", "1.2"]
    weights = [float(line.split()[-2].lstrip("≥")) for line in links]
    assert weights == sorted(weights, reverse=True)


def test_links_that_are_one_fact_share_a_line_that_holds_for_all_of_them(animal):
    first = overview(animal)[4]
    assert first.split()[:6] == ["8", "words", "→", "the", "word", "before"]
    assert first.split()[-2:] == ["0.99", "0.1"]


def test_the_overview_says_what_each_word_reads_and_what_it_leaves_out(animal):
    lines = overview(animal)
    table = lines.index("What each word reads most (weight, layer.head)")
    it = next(line for line in lines[table:] if line.split()[:1] == ["it"])
    assert it.split()[1:4] == ["because", "0.99", "0.1"]
    assert "animal   0.70 1.2" in it
    notes = " ".join(lines)
    assert re.search(
        r"Left out: \[CLS\] \[SEP\], which take \d+% of the reading \(--special\)", notes
    )
    assert "words reading themselves (--self)" in notes
    everything = " ".join(overview(animal, special=True, include_self=True))
    assert "Left out" not in everything


def test_weaker_links_that_do_not_fit_are_counted(animal):
    lines = overview(animal, top=1)
    assert sum("→" in line for line in lines) == 1
    assert f"{90 - 8} weaker links not shown" in " ".join(lines)


def test_a_word_of_one_is_said_to_have_nothing_to_read(make_run):
    assert any("none: there is nothing else to read" in line for line in overview(make_run(["Hi"])))


def test_the_word_page_gives_every_target_its_rank_best_heads_and_the_others_mean(animal):
    lines = word(animal, "it")
    reads = lines[lines.index(next(at for at in lines if at.startswith("What it reads"))) + 1 :]
    rows = [line.split() for line in reads[:9]]
    assert [row[0] for row in rows] == [str(place) for place in range(1, 10)]
    assert {row[1] for row in rows} == set(
        "The animal crossed the road because was tired .".split()
    )
    animal_row = next(row for row in rows if row[1] == "animal")
    assert animal_row[3:5] == ["0.70", "1.2"]
    others = np.delete(np.arange(1, 12), 6)  # tokens of words, but `it`
    weights = animal.weights()[1, 2][others, 2].astype(float)
    weights = np.append(np.delete(weights, [7, 8]), weights[7:9].mean())  # `tir` `##ed`: one word
    assert float(animal_row[5]) == pytest.approx(weights.mean(), abs=0.006)


def test_one_head_is_printed_in_percent_with_every_token_named(animal):
    lines = heat_map(animal, 1, 2).plain.splitlines()
    rows = lines[-13:]
    for at, (row, token) in enumerate(zip(rows, animal.tokens, strict=True)):
        cells = row.split()
        assert cells[:2] == [str(at), token.text]
        expected = [f"{100 * w:.0f}" if w >= 0.005 else "·" for w in animal.weights()[1, 2, at]]
        assert cells[2:] == expected


def test_a_longer_head_is_shaded_and_its_needle_survives_pooling(make_run):
    run = make_run([f"_w{at}" for at in range(200)], layers=1, heads=1)
    run.weights()[:] = 0.001
    run.weights()[0, 0, 101, 37] = 0.9
    lines = heat_map(run, 0, 0).plain.splitlines()
    assert "a cell: the largest of 3 × 3" in lines[4]
    assert [line.count("█") for line in lines[6:]].count(1) == 1
    row = next(at for at, line in enumerate(lines[6:]) if "█" in line)
    assert row == 101 // 3


def test_colour_is_only_on_top(animal):
    page = heat_map(animal, 1, 2)
    assert "\x1b" not in page.plain
    assert any("on #" in str(span.style) for span in page.spans)
