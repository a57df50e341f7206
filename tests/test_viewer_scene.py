"""The scene of a run: every tile, row, column and sum against the materialised matrix."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import clearhead as ch
import made_runs
from clearhead.models.run import LayerState
from clearhead.viewer import pyramid, units
from clearhead.viewer.scene import Scene
from clearhead.viewer.shelf import Shelf

LOCAL = ch.causal() & ch.window(left=4)
NO_LEAVE: dict[str, Any] = {"special": False, "sinks": False, "columns": []}
HEADS = {"one": [[1, 2]], "three": [[0, 1], [1, 0], [1, 2]]}
RUNS = {
    "full": made_runs.run(61),
    "causal": made_runs.run(61, masks=(ch.causal(),)),
    "differing": made_runs.run(61, masks=(ch.causal(), LOCAL)),
    "blocks": made_runs.run(61, masks=(ch.blocks(np.eye(9, dtype=bool), 7) | ch.first_keys(2),)),
    "wide": made_runs.run(23, 47, masks=(ch.causal(),)),
    "tall": made_runs.run(47, 23),
}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 4 x 4 cells over a base of 8: several blocks, and levels that are reduced."""
    monkeypatch.setattr(pyramid, "CELLS", 4)
    monkeypatch.setattr(pyramid, "_BASE", 3)


def tokens_of(run: ch.AttentionRun, unit: str) -> tuple[list[list[int]], list[list[int]]]:
    """The tokens of each unit as it reads, and as it is read."""
    scene = Scene(run)
    if unit == "tokens":
        return [[t] for t in range(len(run.tokens))], [[s] for s in range(len(run.keys.tokens))]
    if unit == "words":
        read: list[list[int]] = [[] for _ in run.keys.words]
        for s, token in enumerate(run.keys.tokens):
            read[token.word].append(s)
        return [list(word.tokens) for word in run.words], read
    about = scene.answer("about", {}).json
    sides = about["rows"], about["columns"] or about["rows"]
    rows, columns = ([list(range(a, b)) for a, b in side[unit]] for side in sides)
    return rows, columns


def matrix(
    run: ch.AttentionRun,
    heads: list[list[int]],
    join: str = "mean",
    unit: str = "tokens",
    gone: tuple[int, ...] = (),
) -> np.ndarray:
    """A picture by its definition, float64, NaN where hidden."""
    rows, columns = tokens_of(run, unit)
    found, seen = [], []
    for layer, head in heads:
        amap = run.map(layer)
        T, S = amap.shape[-2:]
        whole = amap[head].astype(np.float64)
        sees = np.ones((T, S), bool) if amap.mask is None else amap.mask.to_array(T, S)
        sees = sees.copy()
        whole[:, list(gone)], sees[:, list(gone)] = 0, False
        if gone:
            whole = whole / np.maximum(whole.sum(1), 1e-300)[:, None]
        whole = np.stack([whole[:, own].sum(1) for own in columns], 1)
        found.append(np.stack([whole[own].mean(0) for own in rows]))
        sees = np.stack([sees[:, own].any(1) for own in columns], 1)
        seen.append(np.stack([sees[own].any(0) for own in rows]))
    joined = np.mean(found, 0) if join == "mean" else np.max(found, 0)
    joined[~np.any(seen, 0)] = np.nan
    return joined


def pooled(cells: np.ndarray, level: int, pool: str) -> np.ndarray:
    """Bins of 2^level cells: over those that are not NaN."""
    side = 1 << level
    out = np.full((-(-cells.shape[0] // side), -(-cells.shape[1] // side)), np.nan)
    for r, c in np.ndindex(out.shape):
        own = cells[r * side : (r + 1) * side, c * side : (c + 1) * side]
        own = own[~np.isnan(own)]
        if own.size:
            out[r, c] = own.mean() if pool == "mean" else own.max()
    return out


def asked(heads: list[list[int]], **more: Any) -> dict[str, Any]:
    return {"heads": heads, "join": "mean", "unit": "tokens", "leave": NO_LEAVE, **more}


def whole_level(scene: Scene, picture: dict[str, Any], level: int, pool: str, shape: Any) -> Any:
    """All tiles of a level side by side; each is asked for until it is done."""
    side = pyramid.CELLS << level
    bands = []
    for row in range(-(-shape[0] // side)):
        band = []
        for column in range(-(-shape[1] // side)):
            place = {"level": level, "row": row, "column": column, "pool": pool}
            while True:
                answer = scene.answer("tile", picture | place)
                if answer.json["done"]:
                    break
            assert answer.json["pending"] == []
            (values,) = answer.arrays
            assert values.shape == (answer.json["rows"], answer.json["columns"])
            known = values[~np.isnan(values)]
            assert answer.json["top"] == (known.max() if known.size else None)
            band.append(values)
        bands.append(np.concatenate(band, 1))
    return np.concatenate(bands)


# Weights are float32 in [0, 1], of scores that are off by some units in their last place.
CLOSE = {"rtol": 3e-5, "atol": 3e-6}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("join", ["mean", "max"])
@pytest.mark.parametrize("which", HEADS)
@pytest.mark.parametrize("name", RUNS)
def test_a_tile_is_the_pool_of_the_matrix_at_every_zoom(
    name: str, which: str, join: str, pool: str
) -> None:
    run, heads = RUNS[name], HEADS[which]
    scene = Scene(run)
    for unit in scene.units:
        cells = matrix(run, heads, join, unit)
        picture = asked(heads, join=join, unit=unit)
        for level in (0, 1, 2, 3, 4, 6, 9):
            found = whole_level(scene, picture, level, pool, cells.shape)
            np.testing.assert_allclose(found, pooled(cells, level, pool), **CLOSE)


@pytest.mark.parametrize("unit", ["tokens", "words", "sentences"])
@pytest.mark.parametrize("name", ["causal", "differing", "wide"])
def test_columns_that_are_left_out_are_hidden_and_the_rows_sum_to_one_again(
    name: str, unit: str
) -> None:
    run, heads = RUNS[name], HEADS["three"]
    scene = Scene(run)
    columns = tokens_of(run, unit)[1]
    special = [s for s, token in enumerate(run.keys.tokens) if token.special]
    gone = tuple(sorted({*special, *columns[1]}))
    leave = {"special": True, "sinks": False, "columns": [1]}
    picture = asked(heads, unit=unit, leave=leave)
    cells = matrix(run, heads, unit=unit, gone=gone)
    R, C = cells.shape
    window = scene.answer("window", picture | {"rows": [0, R], "columns": [0, C]})
    np.testing.assert_allclose(window.arrays[0], cells, **CLOSE)
    found = whole_level(scene, picture, 2, "mean", (R, C))
    np.testing.assert_allclose(found, pooled(cells, 2, "mean"), **CLOSE)
    sums = np.nansum(window.arrays[0], 1)
    assert np.all((np.abs(sums - 1) < 1e-4) | np.isnan(cells).all(1) | (sums < 1))


def test_what_is_left_out_is_said_and_is_what_the_rows_are_divided_by() -> None:
    run = made_runs.run(61, masks=(ch.causal(),), peak=3.0)
    scene = Scene(run)
    picture = asked([[1, 2]], leave={"special": True, "sinks": False, "columns": [5, 6]})
    before = run.map(1)[2].astype(np.float64)
    removed = before[:, [0, 5, 6]].sum(1)
    said = scene.answer("removed", picture).json
    assert said["columns"] == [0, 5, 6]
    assert said["mean"] == pytest.approx(removed.mean(), abs=1e-6)
    assert said["row_of_most"] == int(removed.argmax())
    row = scene.answer("row", picture | {"index": 40})
    assert row.json["removed"] == pytest.approx(removed[40], abs=1e-6)
    kept = ~np.isnan(row.arrays[0])
    assert np.flatnonzero(~kept).tolist() == [0, 5, 6, *range(41, 61)]
    np.testing.assert_allclose(
        row.arrays[0][kept], (before[40] / (1 - removed[40]))[kept], rtol=1e-4
    )


def test_a_row_that_gave_all_but_a_ten_millionth_away_is_still_exact() -> None:
    """1 - removed is 2e-8 here: subtracted from 1 in float32 it would be nothing at all."""
    T, D = 29, 5
    rng = np.random.default_rng(5)
    q, k = rng.normal(size=(1, T, D)), rng.normal(size=(1, T, D))
    q[..., 0], k[..., 0] = 1.0, 0.0
    k[0, 0, 0] = 20.0 * D**0.5
    q, k = q.astype(np.float32), k.astype(np.float32)
    amap = ch.attention_map(q, k)
    mine = made_runs.reading(T)
    state = LayerState(q, k, amap.lse)
    scene = Scene(ch.AttentionRun("made", *mine, [state]))
    picture = asked([[0, 0]], leave={"special": False, "sinks": False, "columns": [0]})
    found = scene.answer("window", picture | {"rows": [0, T], "columns": [1, T]}).arrays[0]
    scores = (q[0].astype(np.float64) @ k[0].T.astype(np.float64))[:, 1:] * D**-0.5
    want = np.exp(scores - scores.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    assert scene.answer("removed", picture).json["most"] > 1 - 1e-7
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_a_sink_that_nobody_knows_of_keeps_its_share() -> None:
    weights = np.random.default_rng(7).dirichlet(np.ones(12), (1, 3, 11))[..., :11] * 0.9
    run = ch.from_weights(weights, list("abcdefghijk"), sink=True)
    scene = Scene(run)
    picture = asked([[0, 1]], leave={"special": False, "sinks": False, "columns": [2, 7]})
    found = scene.answer("window", picture | {"rows": [0, 11], "columns": [0, 11]}).arrays[0]
    want = weights[0, 1].copy()
    want /= 1 - want[:, [2, 7]].sum(1, keepdims=True)
    want[:, [2, 7]] = np.nan
    np.testing.assert_allclose(found, want, **CLOSE)


def test_a_bias_of_minus_infinity_hides_and_a_weight_that_underflows_does_not() -> None:
    bias = np.zeros((19, 19), np.float32)
    bias[4, 5:9], bias[6, 3] = -np.inf, -500.0
    run = made_runs.run(19, layers=1, bias=bias)
    cells = Scene(run).answer("window", asked([[0, 0]], rows=[0, 19], columns=[0, 19])).arrays[0]
    assert np.argwhere(np.isnan(cells)).tolist() == [[4, 5], [4, 6], [4, 7], [4, 8]]
    assert cells[6, 3] == 0


def test_a_bias_of_minus_infinity_by_distance_hides_those_distances() -> None:
    values = np.array([0.0, -np.inf, 1.0, 0.5, -np.inf, -np.inf])
    run = made_runs.run(19, layers=1, bias=ch.relative_bias(values, first=-2))
    cells = Scene(run).answer("window", asked([[0, 0]], rows=[0, 19], columns=[0, 19])).arrays[0]
    t, s = np.indices((19, 19))
    hidden = np.isneginf(values[np.clip(t - s + 2, 0, 5)])
    np.testing.assert_array_equal(np.isnan(cells), hidden)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_runs_of_other_precisions_have_tiles_too(dtype: Any) -> None:
    run = made_runs.run(31, masks=(ch.causal(),), dtype=dtype)
    for pool in ("mean", "max"):
        for level in (0, 2):
            found = whole_level(Scene(run), asked([[0, 1]]), level, pool, (31, 31))
            want = pooled(matrix(run, [[0, 1]]), level, pool)
            np.testing.assert_allclose(found, want, **CLOSE)


def test_cells_are_those_of_the_map_itself() -> None:
    run = RUNS["causal"]
    scene = Scene(run)
    tile = scene.answer("tile", asked([[1, 2]], pool="max", level=0, row=0, column=0)).arrays[0]
    row = scene.answer("row", asked([[1, 2]], index=40)).arrays[0]
    column = scene.answer("column", asked([[1, 2]], index=7)).arrays[0]
    for i, j in ((40, 7), (60, 0), (33, 33), (59, 41)):
        np.testing.assert_allclose(tile[i, j], run.map(1)[2, i, j], rtol=1e-6)
    np.testing.assert_allclose(row[:41], run.map(1)[2, 40, :41], rtol=1e-6)
    np.testing.assert_allclose(column[7:], run.map(1)[2, 7:, 7], rtol=1e-6)
    assert np.isnan(row[41:]).all() and np.isnan(column[:7]).all()


def test_the_largest_of_several_heads_says_whose_it_is() -> None:
    run, heads = RUNS["full"], HEADS["three"]
    each = np.stack([run.map(layer)[head] for layer, head in heads])
    row = Scene(run).answer("row", asked(heads, join="max", index=17)).arrays
    column = Scene(run).answer("column", asked(heads, join="max", index=3)).arrays
    np.testing.assert_array_equal(row[1], each[:, 17].argmax(0))
    np.testing.assert_array_equal(column[1], each[:, :, 3].argmax(0))


def test_a_newline_that_everybody_reads_is_a_sink_and_the_last_token_is_not() -> None:
    T = 97
    rng = np.random.default_rng(1)
    weights = np.tril(rng.random((1, 2, T, T)) + 0.5)
    weights[..., :, 31] *= np.tril(np.ones((T, T)))[:, 31] * 60
    weights /= weights.sum(-1, keepdims=True)
    tokens = [f"w{i}" for i in range(T)]
    tokens[31] = "\n"
    scene = Scene(ch.from_weights(weights, tokens))
    said = scene.answer("removed", asked([[0, 0], [0, 1]])).json
    assert [key for key, _ in said["sinks"]] == [31]
    share = weights[0, :, 31:, 31].mean()
    assert said["sinks"][0][1] == pytest.approx(share, rel=1e-5)
    assert said["rows_asked"] == T
    left = scene.answer("removed", asked([[0, 0]], leave={"sinks": True})).json
    assert left["columns"] == [31]


def test_words_of_windows_read_from_one_window_only(tmp_path: Any) -> None:
    import tiny_bert

    folder = tiny_bert.write(tmp_path / "tiny")
    run = ch.read(" ".join(f"the {i} animal road." for i in range(19)), folder, window=True)
    assert len(run.starts) > 1
    scene = Scene(run)
    W = len(run.words)
    found = scene.answer("window", asked([[1, 2]], unit="words", rows=[0, W], columns=[0, W]))
    np.testing.assert_allclose(np.nan_to_num(found.arrays[0]), run.word_weights(1)[2], **CLOSE)
    assert scene.answer("about", {}).json["windows"] == list(run.starts)


def test_about_names_axes_and_what_there_is() -> None:
    about = Scene(RUNS["wide"]).answer("about", {}).json
    assert not about["square"] and about["causal"] and not about["can"]["rollout"]
    assert len(about["rows"]["tokens"]) == 23 and len(about["columns"]["tokens"]) == 47
    run = RUNS["full"]
    about = Scene(run).answer("about", {}).json
    assert about["square"] and about["columns"] is None and not about["causal"]
    assert about["rows"]["text"] == run.text
    for [text, _, start, end, word, special], token in zip(
        about["rows"]["tokens"], run.tokens, strict=True
    ):
        assert (text, start, end, word, special) == (
            token.text,
            token.start,
            token.end,
            token.word,
            token.special,
        )
    assert about["units"] == ["tokens", "words", "sentences", "documents"]
    for name in ("sentences", "documents"):
        spans = about["rows"][name]
        assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
        assert spans[-1][1] == 61


def test_documents_are_those_of_a_packed_sequence() -> None:
    ids = np.repeat([4, 9, 2], [11, 17, 3])
    run = made_runs.run(31, layers=1, masks=(ch.documents(ids) & ch.causal(),))
    about = Scene(run).answer("about", {}).json
    assert about["rows"]["documents"] == [(0, 11), (11, 28), (28, 31)]


def test_heads_and_rollout_are_those_of_the_run() -> None:
    run = RUNS["causal"]
    scene = Scene(run)
    heads = scene.answer("heads", {})
    table = run.heads()
    for name, values in zip(heads.json["measures"], heads.arrays, strict=True):
        np.testing.assert_allclose(values, table.columns[name], rtol=1e-6)
    word = next(i for i, one in enumerate(run.words) if len(one.tokens) == 3)
    tokens = [token.word for token in run.keys.tokens]
    to = scene.answer("rollout", {"index": word, "unit": "words", "direction": "to"}).arrays[0]
    want = np.bincount(tokens, run.rollout_to(word))
    np.testing.assert_allclose(to, want, rtol=1e-5, atol=1e-7)
    of = scene.answer("rollout", {"index": word, "unit": "words", "direction": "from"}).arrays[0]
    each = run.rollout_from(word)
    want = [each[list(one.tokens)].mean() for one in run.words]
    np.testing.assert_allclose(of, want, rtol=1e-5, atol=1e-7)


def test_steps_end_in_the_weighted_value_and_the_output_of_the_row() -> None:
    plain = made_runs.run(19, layers=1, heads=4, masks=(ch.causal(),))
    v = np.random.default_rng(5).normal(size=(2, 19, 7)).astype(np.float32)  # two heads share one
    v[1, 18] = np.nan  # hidden from row 11
    state = plain.layers[0]._replace(v=v)
    run = ch.AttentionRun("made", plain.text, plain.tokens, plain.words, [state])
    ask = {"layer": 0, "head": 3, "row": 11, "column": 4}
    value, weighted, output = Scene(run).answer("steps", ask).json["values"]
    weights = run.map(0)[3, 11].astype(np.float64)
    np.testing.assert_array_equal(value, v[1, 4])
    np.testing.assert_array_equal(weighted, weights[4] * v[1, 4].astype(np.float64))
    terms = weights[:12, None] * v[1, :12].astype(np.float64)
    rounding = 12 * np.finfo(np.float64).eps * np.abs(terms).sum(axis=0)
    assert (np.abs(output - terms.sum(axis=0)) <= rounding).all()
    hidden = Scene(run).answer("steps", ask | {"column": 18}).json
    assert hidden["values"][1] == [0] * 7
    without = Scene(plain).answer("steps", ask).json
    assert without["values"] is None and "saved" in without["values_why"]


@pytest.mark.parametrize(
    "rules",
    [{}, {"softcap": 1.5}, {"bias": ch.alibi(np.array([0.1, 0.2, 0.3]))}, {"scale": 0.7}],
    ids=["plain", "softcap", "bias", "scale"],
)
def test_steps_lead_from_query_and_key_to_the_weight(rules: dict[str, Any]) -> None:
    run = made_runs.run(31, layers=1, masks=(ch.causal(),), **rules)
    scene = Scene(run)
    at = {"layer": 0, "head": 1, "row": 20, "column": 11}
    step = scene.answer("steps", at).json
    assert step["products"] == [a * b for a, b in zip(step["q"], step["k"], strict=True)]
    assert step["score"] == pytest.approx(sum(step["products"]))
    assert step["scaled"] == pytest.approx(step["scale"] * step["score"])
    if step["softcap"]:
        assert step["capped"] == pytest.approx(1.5 * np.tanh(step["scaled"] / 1.5))
    logit = step["capped"] + (step["bias"] or 0)
    assert step["logit"] == pytest.approx(logit)
    assert step["weight"] == pytest.approx(np.exp(logit - step["lse"]), rel=1e-5)
    assert step["weight"] == pytest.approx(run.map(0)[1, 20, 11])
    weights = run.map(0)[1, 20]
    assert [key for key, _ in step["row"]] == np.argsort(-weights, kind="stable")[:10].tolist()
    assert step["rank"] == 1 + (weights > weights[11]).sum()
    assert step["rest"] == pytest.approx(1 - sum(w for _, w in step["row"]), abs=1e-6)
    hidden = scene.answer("steps", at | {"column": 21}).json
    assert hidden["masked"] and hidden["logit"] is None and hidden["weight"] == 0


WRONG = {
    "no such question": ("tyle", {}, "question: must be one of"),
    "no heads": ("tile", {}, "heads: is None, must be"),
    "a head too far": ("row", {"heads": [[0, 9]], "index": 0}, "head: is 9, must be from 0 to 2"),
    "a row too far": ("row", {"heads": [[0, 0]], "index": 61}, "index: is 61, must be from 0"),
    "a truth for a number": ("row", {"heads": [[0, 0]], "index": True}, "index: is True"),
    "a tile outside": (
        "tile",
        {"heads": [[0, 0]], "level": 0, "row": 1, "column": 0},
        "row: is 1, must be from 0 to 0",
    ),
    "a level beyond": (
        "tile",
        {"heads": [[0, 0]], "level": 99, "row": 0, "column": 0},
        "level: is 99",
    ),
    "no such unit": ("row", {"heads": [[0, 0]], "unit": "lines", "index": 0}, "unit: is 'lines'"),
    "no such pool": (
        "tile",
        {"heads": [[0, 0]], "pool": "min", "level": 0, "row": 0, "column": 0},
        "pool: is 'min'",
    ),
    "a column too far": (
        "row",
        {"heads": [[0, 0]], "index": 0, "leave": {"columns": [61]}},
        "leave: a column: is 61, must be",
    ),
    "a window backwards": (
        "window",
        {"heads": [[0, 0]], "rows": [5, 4], "columns": [0, 1]},
        "rows: is 4, must be from 5",
    ),
    "a picture of nothing but text": ("row", {"heads": "all", "index": 0}, "heads: is 'all'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_asked_is_refused_in_one_sentence(name: str) -> None:
    question, arguments, sentence = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=f"^{sentence.replace('[', chr(92) + '[')}"):
        Scene(RUNS["full"]).answer(question, arguments)


def test_a_window_of_too_many_cells_is_refused() -> None:
    run = made_runs.run(1201, layers=1, heads=1)
    with pytest.raises(ValueError, match="window: is 1,442,401 cells, must be at most 1,048,576"):
        Scene(run).answer("window", asked([[0, 0]], rows=[0, 1201], columns=[0, 1201]))


@pytest.mark.usefixtures("small_tiles")
def test_strips_near_what_is_looked_at_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyramid, "_STRIP_PRODUCTS", 1)  # a strip is one row of cells
    monkeypatch.setattr(pyramid, "PATIENCE_S", 0.0)
    run = RUNS["full"]
    scene = Scene(run)
    picture = asked([[0, 0]], level=4, row=0, column=0, pool="max", near=[35, 2])
    done: list[int] = []
    for _ in range(3):
        answer = scene.answer("tile", picture)
        assert not answer.json["done"]
        chosen, made = scene._picture(picture)
        tiles = pyramid.Pyramid(made, (scene._own, chosen), scene._shelf)
        blocks = [tiles._block("max", 3, row, 0) for row in range(2)]
        own = np.concatenate([block.done for block in blocks])
        done += [i for i in np.flatnonzero(own).tolist() if i not in done]
    assert done == [4, 3, 5]  # rows of 8 tokens: 35 lies in the fifth


@pytest.mark.usefixtures("small_tiles")
def test_what_is_still_to_come_is_named_and_is_not_taken_for_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyramid, "_STRIP_PRODUCTS", 1)
    run = RUNS["full"]
    scene = Scene(run)
    place = {"level": 2, "row": 0, "column": 0, "pool": "mean"}
    first = scene.answer("tile", asked([[0, 0]], **place), lambda: True)
    assert first.json["done"] is False
    assert first.json["pending"] == [[0, 4, 0, 4]] and np.isnan(first.arrays[0]).all()
    assert first.json["top"] is None
    last = scene.answer("tile", asked([[0, 0]], **place))
    assert last.json["done"] and not np.isnan(last.arrays[0]).any()


def test_a_shelf_holds_what_fits_and_forgets_what_was_not_asked_for_longest() -> None:
    shelf = Shelf(100)
    made = []

    def make(name: str, size: int) -> Any:
        return shelf.get(name, lambda: (made.append(name) or name, size))

    for name in ("a", "b", "a", "c"):  # 40 each: c pushes b out, a was asked for again
        make(name, 40)
    assert shelf.held == 80 and made == ["a", "b", "c"]
    make("a", 40), make("b", 40)
    assert made == ["a", "b", "c", "b"]
    assert make("huge", 101) == "huge" and shelf.held <= 100
    assert make("huge", 101) == "huge" and made[-2:] == ["huge", "huge"]


def test_answers_come_as_their_bytes_say() -> None:
    answer = Scene(RUNS["full"]).answer("row", asked([[0, 0]], index=3))
    raw = answer.to_bytes()
    n = int.from_bytes(raw[:4], "little")
    said = json.loads(raw[4 : 4 + n])
    assert said["arrays"] == [[61]]
    start = 4 + n + -n % 4
    assert start % 4 == 0
    np.testing.assert_array_equal(np.frombuffer(raw[start:], "<f4"), answer.arrays[0])


SENTENCES = {
    "It rained. Dr. A. Lee saw 3.14 frogs! Yes": [
        "It rained.",
        "Dr. A. Lee saw 3.14 frogs!",
        "Yes",
    ],
    "東京は雨。はい！": ["東京は雨。", "はい！"],
    'He said "no." Then left.': ['He said "no."', "Then left."],
    "one\ntwo": ["one", "two"],
    "क्या? हाँ।ठीक": ["क्या?", "हाँ।", "ठीक"],
    "see e.g. this, etc. and more": ["see e.g. this, etc. and more"],
    "no end": ["no end"],
}


@pytest.mark.parametrize("text", SENTENCES)
def test_sentences_end_where_a_reader_would_say(text: str) -> None:
    ends = units.sentence_ends(text)
    found = [text[a:b].strip() for a, b in zip([0, *ends], ends, strict=False)]
    assert found == SENTENCES[text]
