"""Links between words: the rule of the sums, the strongest head, windows."""

from dataclasses import replace

import numpy as np
import pytest

from clearhead.viewer import data, ranking


def by_hand(run, layer: int, head: int) -> np.ndarray:
    """The word weights written out: queries averaged, keys summed."""
    weights = run.weights()[layer, head]
    out = np.zeros((len(run.words), len(run.words)))
    for a, source in enumerate(run.words):
        for t in source.tokens:
            for s, token in enumerate(run.tokens):
                out[a, token.word] += weights[t, s] / len(source.tokens)
    return out


def test_every_words_reading_is_one_when_nothing_is_left_out(animal):
    units = ranking.words(animal, special=True)
    for block in ranking.blocks(animal, units, ranking.all_heads(animal)):
        np.testing.assert_allclose(block.weights.sum(1), 1, rtol=0, atol=1e-6)


def test_a_word_of_two_tokens_is_averaged_as_query_and_summed_as_key(animal):
    units = ranking.words(animal, special=True)
    for block in ranking.blocks(animal, units, [(1, 0)]):
        np.testing.assert_allclose(block.weights, by_hand(animal, 1, 0), rtol=0, atol=1e-6)


def test_each_pair_is_ranked_by_its_strongest_head(animal):
    units = ranking.words(animal, special=False)
    heads = ranking.all_heads(animal)
    found = ranking.rank(animal, units, heads, include_self=False)
    every = np.stack([by_hand(animal, *head) for head in heads])
    assert len(found.weight) == 10 * 9
    assert (np.diff(found.weight) <= 0).all()
    for source, target, weight, layer, head in zip(*found[1:6], strict=True):
        pair = every[:, units.index[source], units.index[target]]
        assert weight == pytest.approx(pair.max(), abs=1e-6)
        assert heads[int(pair.argmax())] == (layer, head)


def test_what_is_left_out_is_what_special_tokens_take(animal):
    heads = ranking.all_heads(animal)
    units = ranking.words(animal, special=False)
    expected = np.mean([by_hand(animal, *head)[1:11][:, [0, 11]].sum(1).mean() for head in heads])
    found = ranking.rank(animal, units, heads, include_self=False)
    assert found.left_out == pytest.approx(expected, abs=1e-6)
    everything = ranking.words(animal, special=True)
    assert ranking.rank(animal, everything, heads, include_self=True).left_out == pytest.approx(
        0, abs=1e-6
    )


def test_a_profile_is_a_row_and_a_column_beside_the_mean_of_the_others(animal):
    units = ranking.words(animal, special=False)
    heads = ranking.all_heads(animal)
    at = units.labels.index("it")
    found = ranking.profile(animal, units, at, heads)
    for place, head in enumerate(heads):
        words = by_hand(animal, *head)[1:11, 1:11]
        others = [row for row in range(10) if row != at]
        np.testing.assert_allclose(found.reads[place], words[at], rtol=0, atol=1e-6)
        np.testing.assert_allclose(found.read_by[place], words[:, at], rtol=0, atol=1e-6)
        np.testing.assert_allclose(
            found.others_read[place], words[others].mean(0), rtol=0, atol=1e-6
        )
        for row in others:
            rest = [other for other in range(10) if other != row]
            assert found.others_read_it[place, row] == pytest.approx(
                words[rest, at].mean(), abs=1e-6
            )


def test_pieces_are_the_tokenizers_own(animal):
    units = ranking.pieces(animal, special=False)
    assert units.labels[8:10] == ("tir", "##ed")
    assert units.index == tuple(range(1, 12))


def test_a_word_reads_only_its_own_window_where_copies_count_as_the_word(make_run):
    # `b` stands in both windows and reads from the first; the second sees a copy of it
    run = make_run(["a", "_b", "_b", "_c"], layers=1, heads=1)
    copy = replace(run.tokens[3], word=2)
    run.tokens = (*run.tokens[:3], copy, *run.tokens[4:])
    run.words = (*run.words[:3], *run.words[4:])
    run.tokens = tuple(
        replace(token, word=min(token.word, 2) if at < 4 else token.word - 1)
        for at, token in enumerate(run.tokens)
    )
    run.starts = (0, 3)
    weights = run.weights()[0, 0]
    weights[:3, 3:] = weights[3:, :3] = 0
    units = ranking.words(run, special=True)
    assert units.labels == ("[CLS]", "a", "b", "c", "[SEP]")
    found = ranking.rank(run, units, [(0, 0)], include_self=True)
    links = {
        (units.labels[s], units.labels[t]): w
        for s, t, w in zip(found.source, found.target, found.weight, strict=True)
    }
    assert links["a", "b"] == weights[1, 2]
    assert links["c", "b"] == weights[4, 3]
    assert ("b", "c") not in links and ("a", "c") not in links


@pytest.mark.parametrize("room", [1, 40, 1 << 24])
def test_a_long_text_is_ranked_some_readers_at_a_time_with_the_same_result(
    animal, room, monkeypatch
):
    units, heads = ranking.words(animal, special=True), ranking.all_heads(animal)
    whole = ranking.rank(animal, units, heads, include_self=True)
    found = data.links(animal, units, heads, include_self=False, top=17)
    monkeypatch.setattr(ranking, "_BLOCK_CELLS", room)
    parts = ranking.rank(animal, units, heads, include_self=True)
    for one, other in zip(whole[1:], parts[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    assert data.links(animal, units, heads, include_self=False, top=17) == found


def test_links_too_many_to_hold_are_the_weakest_and_are_counted(animal, monkeypatch):
    units, heads = ranking.words(animal, special=True), ranking.all_heads(animal)
    whole = ranking.rank(animal, units, heads, include_self=True)
    monkeypatch.setattr(ranking, "_MOST_LINKS", 11)
    few = ranking.rank(animal, units, heads, include_self=True)
    assert len(few.weight) + few.weaker == len(whole.weight)
    assert few.weaker > 50
    np.testing.assert_array_equal(few.weight[:11], whole.weight[:11])
    for unit in range(len(units)):
        kept, every = few.weight[few.source == unit], whole.weight[whole.source == unit]
        np.testing.assert_array_equal(kept[:3], every[:3])
