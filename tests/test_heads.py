"""What heads do, rollout, segments and given weights, against matrices that fit on a page."""

import json

import numpy as np
import pytest

import clearhead as ch
from clearhead.cli import main
from clearhead.models.heads import COLUMNS, MASSES
from clearhead.models.segments import split

T = 43
WORDS = [f"w{i % 19}" for i in range(T)]  # every word comes again after 19
NEAR = 16


def planted(kind):
    """A matrix (T, T) in which every query that can reads as `kind` says, others themselves."""
    a, ids = np.zeros((T, T)), [i % 19 for i in range(T)]
    for t in range(T):
        keys = {
            "previous": [t - 1] if t else [],
            "next": [t + 1] if t + 1 < T else [],
            "self": [t],
            "first": [0],
            "duplicate": [s for s in range(t) if ids[s] == ids[t]],
            "induction": [s for s in range(1, t) if ids[s - 1] == ids[t]],
            "near": [s for s in range(T) if abs(s - t) < NEAR],
        }[kind] or [t]
        a[t, keys] = 1 / len(keys)
    return a


KINDS = ("previous", "next", "self", "first", "duplicate", "induction", "near")


def mixed(rng, heads=3, T=T, causal=False):
    """Uneven weights (heads, T, T) whose rows sum to 1."""
    a = rng.random((heads, T, T)) ** 8
    a = np.tril(a) if causal else a
    return a / a.sum(-1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_head_of_each_kind_is_found(kind, rng):
    layers = np.stack([mixed(rng), mixed(rng)])
    layers[1, 2] = planted(kind)
    table = ch.from_weights(layers, WORDS).heads(near=NEAR)
    best = table.top(kind, 1)[0]
    assert (best.layer, best.head) == (1, 2)
    assert getattr(best, kind) == pytest.approx(1, abs=1e-5)
    assert table.top(kind)[1] is not best
    assert getattr(table.top(kind, 2)[1], kind) < 0.9


@pytest.mark.parametrize("causal", [False, True])
def test_every_column_is_what_the_whole_matrix_says(causal, rng):
    a = mixed(rng, causal=causal)
    table = ch.from_weights([a], WORDS).heads(near=NEAR)
    t, s = np.indices((T, T))
    ids = np.array([i % 19 for i in range(T)])
    after = np.concatenate([[-1], ids[:-1]])
    sets = {
        "previous": s == t - 1,
        "next": s == t + 1,
        "self": s == t,
        "first": s == 0,
        "special": np.zeros((T, T), bool),
        "duplicate": (ids[t] == ids[s]) & (s < t),
        "induction": (ids[t] == after[s]) & (s < t),
        "near": abs(t - s) < NEAR,
    }
    assert set(sets) == set(MASSES)
    for name, keys in sets.items():
        able = (keys & (a > 0)).any(-1)
        mean = np.array(
            [np.where(keys, one, 0).sum(-1)[ok].mean() if ok.any() else np.nan
             for one, ok in zip(a, able, strict=True)]
        )  # fmt: skip
        np.testing.assert_allclose(table.columns[name][0], mean, atol=1e-5, err_msg=name)
    distance = (a * abs(t - s)).sum(-1).mean(-1)
    np.testing.assert_allclose(table.columns["distance"][0], distance, rtol=1e-4)
    entropy = -np.where(a > 0, a * np.log(np.maximum(a, 1e-300)), 0).sum(-1).mean(-1)
    np.testing.assert_allclose(table.columns["entropy"][0], entropy, rtol=1e-4)


def test_a_causal_head_has_no_next_and_says_so_everywhere(rng):
    table = ch.from_weights([mixed(rng, causal=True)], WORDS).heads()
    assert np.isnan(table.columns["next"]).all()
    assert json.loads(table.to_json())["heads"][0]["next"] is None
    assert table.to_csv().splitlines()[1].split(",")[3] == ""
    assert " - " in str(table)


def test_the_table_sorts_by_any_column_and_fits_80_columns(rng):
    table = ch.from_weights([mixed(rng, 5), mixed(rng, 5)], WORDS).heads()
    for column in COLUMNS:
        values = [row[column] for row in table.rows(column) if row[column] is not None]
        assert values == sorted(values, reverse=True)
        assert len(table.rows(column)) == 10
    text = table.to_text("previous", 3)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    with pytest.raises(ValueError, match="column: is 'prev', must be one of previous, next"):
        table.top("prev")


def test_the_picture_has_a_cell_for_every_head(rng, tmp_path):
    run = ch.from_weights([mixed(rng, 5), mixed(rng, 5)], WORDS)
    table = run.heads()
    image = table.plot("entropy").images[0]
    np.testing.assert_array_equal(image.get_array(), table.columns["entropy"])
    table.save_plot(tmp_path / "heads.png", "previous")
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_bad_windows_are_refused(rng):
    run = ch.from_weights([mixed(rng)], WORDS)
    with pytest.raises(ValueError, match="near: is 0, must be"):
        run.heads(near=0)
    with pytest.raises(TypeError, match=r"near: is 1\.5, must be"):
        run.heads(near=1.5)


def test_head_statistics_are_linear_in_memory():
    # 32,768 x 32,768 weights of one head would be 4 GiB.
    import resource

    rng = np.random.default_rng(0)
    n = 8192
    q, k = rng.standard_normal((2, 1, n, 16), dtype=np.float32)
    amap = ch.attention_map(q, k, mask=ch.causal())
    from clearhead.models.heads import sums

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ids = rng.integers(0, 97, n)
    found = sums(amap, ids, ids == 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < n * n  # a quarter of the matrix in float32
    assert found.means[COLUMNS.index("first")] > 0


def rolled(layers):
    """The rollout of (L, H, T, T) by n x n products."""
    whole = np.eye(layers.shape[-1])
    for layer in layers:
        mean = layer.mean(0)
        whole = (mean + np.eye(len(mean))) / (1 + mean.sum(-1, keepdims=True)) @ whole
    return whole


@pytest.mark.parametrize("causal", [False, True])
def test_rollout_is_the_product_of_the_matrices(causal, rng):
    layers = np.stack([mixed(rng, causal=causal) for _ in range(5)])
    layers[2, :, 7] = 0  # a query that sees nothing
    words = [f"word{i}" for i in range(T)]
    run, whole = ch.from_weights(layers, words), rolled(layers)
    np.testing.assert_allclose(run.rollout_to("word11"), whole[11], atol=1e-6)
    np.testing.assert_allclose(run.rollout_from("word11"), whole[:, 11], atol=1e-6)
    np.testing.assert_allclose(run.rollout_to(slice(3, 8)), whole[3:8].mean(0), atol=1e-6)
    np.testing.assert_allclose(run.rollout_from(slice(3, 8)), whole[:, 3:8].sum(1), atol=1e-6)
    assert run.rollout_to(11).sum() == pytest.approx(1)


def test_rollout_needs_one_text_and_layers_without_gaps(rng):
    run = ch.from_weights([mixed(rng)[:, :5]], WORDS[:5], key_tokens=WORDS)
    with pytest.raises(ValueError, match="queries and keys are not the same tokens"):
        run.rollout_to("w1")
    with pytest.raises(ValueError, match="word: 'absent' is not in the text"):
        ch.from_weights([mixed(rng)], WORDS).rollout_to("absent")


def test_summaries_are_the_mean_and_the_maximum_over_heads_and_layers(rng):
    layers = np.stack([mixed(rng), mixed(rng)])
    run = ch.from_weights(layers, WORDS)
    np.testing.assert_allclose(run.mean(), layers.mean((0, 1)), atol=1e-6)
    np.testing.assert_allclose(run.maximum(), layers.max((0, 1)), atol=1e-6)
    np.testing.assert_allclose(run.mean([1]), layers[1].mean(0), atol=1e-6)


def test_the_strongest_keys_are_those_of_the_matrix(rng):
    a = mixed(rng)
    weights, keys = ch.from_weights([a], WORDS).top(0, 1, 3)
    order = np.argsort(-a[1], -1, kind="stable")[:, :3]
    np.testing.assert_array_equal(keys, order)
    np.testing.assert_allclose(weights, np.take_along_axis(a[1], order, -1), rtol=1e-5)


def test_segments_are_sums_over_keys_and_means_over_queries(rng):
    layers = np.stack([mixed(rng), mixed(rng)])
    words = [f"word{i}" for i in range(T)]
    run = ch.from_weights(layers, words)
    text = run.text
    cut = [text.index("word13 "), text.index("word29 ")]
    reading = run.group_by({"system": (0, cut[0]), "document": (cut[0], cut[1])})
    assert reading.names == ["system", "document", "(rest)"]
    parts = [slice(0, 13), slice(13, 29), slice(29, T)]
    expected = np.array(
        [[[[one[r, c].sum(-1).mean() for c in parts] for r in parts] for one in layer]
         for layer in layers]
    )  # fmt: skip
    np.testing.assert_allclose(reading.weights, expected, atol=1e-6)
    np.testing.assert_allclose(reading.overall().sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(reading.uniform[0], [[13 / T, 16 / T, 14 / T]] * 3, atol=1e-6)
    assert reading.counts.tolist() == [13, 16, 14]
    assert max(map(len, str(reading).splitlines())) <= 80
    assert json.loads(reading.to_json())["tokens"] == [13, 16, 14]


def test_a_text_is_split_by_a_marker_and_every_piece_has_a_name():
    text = "Read this.\n## One\nfirst\n## Two\nsecond\n## One\nthird"
    names = split(text, "## ")
    assert list(names) == ["(start)", "One", "Two", "One (2)"]
    assert "".join(text[a:b] for a, b in names.values()) == text


@pytest.mark.parametrize(
    ("segments", "says"),
    [
        ({"a": (0, 9), "b": (5, 12)}, "'a' and 'b' overlap"),
        ({"a": (5, 5)}, "must be .start, end. within the text"),
        ({"a": (0, 10**9)}, "must be .start, end. within the text"),
        ({"a": "not there"}, "is in the text 0 times"),
        ({"a": "w1"}, "times, must be there once"),
        ({}, "there are none"),
        ("##", "does not hold the marker"),
        ("", "the marker is empty"),
    ],
)
def test_bad_segments_are_one_sentence(segments, says, rng):
    with pytest.raises(ValueError, match=says):
        ch.from_weights([mixed(rng)], WORDS).group_by(segments)


def assert_given_back(run, a):
    """Weights kept as float32 logarithms are good to the rounding of those."""
    rounding = 2e-7 * (1 + np.abs(np.log(np.where(a > 0, a, 1))))
    assert (np.abs(run.map(0)[...] - a) <= rounding * a).all()


def test_given_weights_come_back_as_they_were_given(rng):
    a = mixed(rng).astype(np.float32)
    a[1, 5] = 0
    a[0, 3], a[0, 3, 2] = 0, 1
    for given in ([a], a[None], (a[None],), {"blocks.0.attn.hook_pattern": a[None], "other": 1}):
        run = ch.from_weights(given, WORDS)
        assert_given_back(run, a)
        assert run.certificate().holds
        assert run.certificate()[0].out_difference is None


def test_given_weights_may_be_saved_and_loaded(rng, tmp_path):
    run = ch.from_weights([mixed(rng)[:, :5]], WORDS[:5], key_tokens=WORDS)
    run.save(tmp_path / "run.safetensors")
    again = ch.load(tmp_path / "run.safetensors")
    np.testing.assert_array_equal(again.map(0)[...], run.map(0)[...])
    assert (again.tokens, again.keys) == (run.tokens, run.keys)
    assert again.links(top=5) == run.links(top=5)


def test_pictures_of_two_texts_are_refused_not_drawn_with_wrong_names(rng, tmp_path):
    run = ch.from_weights([mixed(rng)[:, :5]], WORDS[:5], key_tokens=WORDS)
    assert {run.keys.words[link.target].text for link in run.links("w1")} == set(WORDS)
    with pytest.raises(ValueError, match="5 tokens read 43 others"):
        run.plot(0, 1)
    run.to_html(tmp_path / "x.html")  # which has two texts: tests/shell/test_html.py
    run.save(tmp_path / "run.safetensors")
    assert main(["map", str(tmp_path / "run.safetensors")]) == 2
    assert main(["heads", str(tmp_path / "run.safetensors")]) == 0


def test_rows_of_a_sink_may_sum_to_less(rng):
    a = mixed(rng) * 0.7
    with pytest.raises(ValueError, match=r"row 0 sums to 0\.7, must be 1, or 0; sink=True"):
        ch.from_weights([a], WORDS)
    run = ch.from_weights([a], WORDS, sink=True)
    assert_given_back(run, a)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda a: a.__setitem__((1, 2, 3), np.nan), "is nan in head 1, row 2, key 3, must be"),
        (lambda a: a.__setitem__((1, 2, 3), -0.5), r"is -0\.5 in head 1, row 2, key 3"),
        (lambda a: a.__setitem__((1, 2), 0.5), "head 1, row 2 sums to 21.5, must be 1, or 0"),
    ],
)
def test_weights_that_are_none_are_refused_with_their_place(spoil, says, rng):
    a = mixed(rng)
    spoil(a)
    with pytest.raises(ValueError, match=says):
        ch.from_weights([a], WORDS)


def test_shapes_and_kinds_that_do_not_fit_are_refused(rng):
    a = mixed(rng)
    with pytest.raises(ValueError, match=r"weights\[0\]: shape is \(3, 43, 43\), must be"):
        ch.from_weights([a], WORDS[:-1])
    with pytest.raises(ValueError, match="hold no layer"):
        ch.from_weights([], WORDS)
    with pytest.raises(ValueError, match=r"without blocks\.N\.attn\.hook_pattern"):
        ch.from_weights({"x": a}, WORDS)
    with pytest.raises(TypeError, match="is None, must be an array"):
        ch.from_weights((None,), WORDS)
    with pytest.raises(TypeError, match="tokens: must be a sequence of texts"):
        ch.from_weights([a], "text")


def test_a_zero_is_a_key_that_was_seen_and_not_read_unless_no_query_reads_ahead():
    a = np.zeros((1, 5, 5))
    a[0, :, 0] = 1
    assert ch.from_weights([a], list("abcde")).map(0).mask == ch.causal()
    assert ch.from_weights([a], list("abcde")).heads().columns["previous"][0, 0] == 0.25
    a[0, 1] = np.eye(5)[3]
    run = ch.from_weights([a], list("abcde"))
    assert run.map(0).mask is None
    np.testing.assert_array_equal(run.map(0)[...], a)
    assert run.heads().columns["next"][0, 0] == 0


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda run: run.links(top=2.5), TypeError, "top: is float, must be an integer"),
        (lambda run: run.links(top=True), TypeError, "top: is bool, must be an integer"),
        (lambda run: run.heads().top("self", 1.5), TypeError, "count: is 1.5, must be"),
        (lambda run: run.heads().top("self", -1), ValueError, "count: is -1, must be at least 0"),
        (lambda run: run.mean(layers=3), ValueError, "layers: is 3, must be a list"),
        (lambda run: run.maximum(layers=[]), ValueError, r"layers: is \[\], must be a list"),
        (lambda run: run.rollout_to(slice(3, 3)), ValueError, "holds none of"),
        (lambda run: run.group_by({3: (0, 5)}), TypeError, "a name is 3, must be text"),
        (lambda run: run.group_by({"(rest)": (0, 5)}), ValueError, "must be another name"),
        (lambda run: run.save("nowhere/x"), FileNotFoundError, "nowhere"),
        (lambda run: run.save("."), (OSError, ValueError), "\\."),
        (lambda run: run.map(0)[0, 0, 99], IndexError, "index 99 is out of bounds for axis 2"),
        (lambda run: run.map(0).plot(head="a"), TypeError, "head: is 'a', must be a whole number"),
        (lambda run: run.map(0).group([[0], [0, 1]], [0]), ValueError, "group rows: is ragged"),
    ],
)
def test_a_wrong_question_is_one_sentence(ask, error, says):
    run = ch.from_weights(np.full((2, 3, 7, 7), 1 / 7), [f"w{i}" for i in range(7)])
    with pytest.raises(error, match=says):
        ask(run)


@pytest.mark.parametrize(
    ("weights", "tokens", "says"),
    [
        (None, ["a"], "weights: is NoneType, must be an array"),
        (5, ["a"], "weights: is int, must be an array"),
        ([[[[1.0]]]], None, "tokens: must be a sequence of texts"),
        ([[[[1.0]]]], 5, "tokens: must be a sequence of texts"),
    ],
)
def test_weights_and_tokens_of_other_kinds_are_refused(weights, tokens, says):
    with pytest.raises(TypeError, match=says):
        ch.from_weights(weights, tokens)
    with pytest.raises(TypeError, match="model: is NoneType, must be text"):
        ch.from_weights([[[[1.0]]]], ["a"], model=None)


def test_the_steps_of_a_generation_are_stitched_to_one_map(rng):
    # transformers 26174: attentions come as 6 x 6, 1 x 7, 1 x 8, ...
    scores = np.where(np.tri(8, dtype=bool), rng.normal(size=(2, 3, 8, 8)), -np.inf)
    whole = np.exp(scores)
    whole /= whole.sum(-1, keepdims=True)
    ends = ((0, 6), (6, 7), (7, 8))
    steps = tuple(tuple(layer[None, :, a:b, :b] for layer in whole) for a, b in ends)
    run = ch.from_weights(steps, [f"w{i}" for i in range(8)])
    for layer in range(2):
        np.testing.assert_allclose(run.map(layer)[...], whole[layer], atol=1e-6)
    assert "mask=causal()" in repr(run.map(1))


def test_long_names_of_segments_leave_room_for_the_numbers():
    names = [f"a document whose title is rather long, number {i}" for i in range(2)]
    tokens = ["## " + names[0], "x", "## " + names[1], "y"]
    run = ch.from_weights(np.full((1, 1, 4, 4), 0.25), tokens)
    lines = str(run.group_by("## ")).splitlines()
    assert lines[1].split() == ["reads", "tokens", "what", "share", "uniform", "times"]
    assert max(map(len, lines)) <= 80
    cut = [line.split()[-3:] for line in lines if "…" in line]
    assert cut == [["50.0%", "50.0%", "1.00"]] * 4
