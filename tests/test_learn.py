"""ch.learn: the chain rule, what training reaches, and every input it refuses."""

from __future__ import annotations

import os
import xml.dom.minidom
from pathlib import Path

import numpy as np
import pytest

from clearhead.cli import main
from clearhead.worked.learn import DUCK, DUCK_HELD_OUT, Lesson, learn, tokens
from clearhead.worked.learn import model as learn_model
from clearhead.worked.learn.figures import FIGURES, save_figures, word_scores
from clearhead.worked.learn.text import read_sentences, summary
from clearhead.worked.vectors import Vectors


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    return learn()


def small_batch(rng: np.random.Generator, words: int, senses: int) -> learn_model.Batch:
    """5 sentences of up to 7 tokens; a token occurs more than once, one sentence has length 1."""
    lengths = np.array([7, 3, 1, 5, 6])
    real = np.arange(7) < lengths[:, None]
    ids = np.where(real, rng.integers(0, words, (5, 7)), 0)
    position = np.array([2, 0, 0, 4, 3])
    return learn_model.Batch(ids, real, position, rng.integers(0, senses, 5))


@pytest.mark.parametrize(("heads", "block"), [(1, False), (2, False), (3, True), (1, True)])
def test_the_hand_written_chain_rule_agrees_with_finite_differences(
    heads: int, block: bool
) -> None:
    rng = np.random.default_rng(11)
    batch = small_batch(rng, words=13, senses=3)
    p = learn_model.parameters(rng, rng.standard_normal((13, 6)), 3, heads, block)
    f = learn_model.forward(p, batch, heads)
    gradient = learn_model.backward(p, batch, heads, f)
    assert gradient.keys() == p.keys()
    step = 1e-6
    for name, value in p.items():
        numeric = np.zeros_like(value)
        for at in np.ndindex(value.shape):
            moved = []
            for sign in (1, -1):
                shifted = value.copy()
                shifted[at] += sign * step
                q = p | {name: shifted}
                moved.append(learn_model.forward(q, batch, heads).loss(batch))
            numeric[at] = (moved[0] - moved[1]) / (2 * step)
        np.testing.assert_allclose(gradient[name], numeric, rtol=1e-5, atol=1e-8, err_msg=name)
        assert np.abs(numeric).max() > 1e-6, f"{name}: no gradient to compare"


def test_padding_changes_no_loss_and_gets_no_gradient() -> None:
    rng = np.random.default_rng(5)
    batch = small_batch(rng, words=13, senses=2)
    p = learn_model.parameters(rng, rng.standard_normal((13, 6)), 2, heads=2, block=True)
    other = learn_model.Batch(
        np.where(batch.real, batch.ids, 12), batch.real, batch.position, batch.sense
    )
    f, g = (learn_model.forward(p, b, 2) for b in (batch, other))
    np.testing.assert_array_equal(f.log_p, g.log_p)
    used = np.unique(batch.ids[batch.real])
    table = learn_model.backward(p, batch, 2, f)["table"]
    np.testing.assert_array_equal(table[np.setdiff1d(np.arange(13), used)], 0)


@pytest.mark.parametrize(("heads", "block"), [(1, False), (4, False), (2, True)])
def test_training_names_the_sense_of_sentences_it_never_saw(heads: int, block: bool) -> None:
    done = learn(heads=heads, block=block)
    assert done.loss[-1] < 0.01 < done.loss[0]
    assert done.accuracy(done.after, held_out=False) == 1
    assert done.accuracy(done.after, held_out=True) == 1
    assert done.separation(done.after) > 3 * done.separation(done.before)


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    one, two, three = learn(steps=20), learn(steps=20), learn(steps=20, seed=1)
    for name in one.after.parameters:
        np.testing.assert_array_equal(one.after.parameters[name], two.after.parameters[name])
    np.testing.assert_array_equal(one.loss, two.loss)
    assert one.loss[-1] != three.loss[-1]


def test_the_static_vector_is_one_and_the_contextual_ones_differ(lesson: Lesson) -> None:
    table = lesson.after.parameters["table"]
    np.testing.assert_array_equal(
        lesson.static(lesson.after), table[lesson.vocabulary.index("duck")]
    )
    assert len(np.unique(lesson.after.contextual.round(9), axis=0)) == len(lesson.sentences)
    np.testing.assert_allclose(lesson.plane(lesson.static(lesson.after)[None]), 0, atol=1e-12)


def test_every_row_of_weights_sums_to_one_over_the_real_tokens(lesson: Lesson) -> None:
    for sentence, weights in zip(lesson.sentences, lesson.after.weights, strict=True):
        assert weights.shape == (1, len(sentence.tokens), len(sentence.tokens))
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-12)


def test_without_training_nothing_has_moved_and_with_it_the_query_finds_the_cues() -> None:
    still = learn(steps=1, rate=1e-12)
    np.testing.assert_allclose(
        still.after.parameters["W_Q"], still.before.parameters["W_Q"], atol=1e-9
    )
    done = learn()
    score = dict(zip(done.vocabulary, word_scores(done, done.after), strict=True))
    assert max(score, key=lambda w: score[w]) not in ("the", "a", "duck", "we")


def test_given_vectors_are_kept_and_everything_else_is_trained() -> None:
    vocabulary = sorted({t for group in DUCK.values() for s in group for t in tokens(s)})
    matrix = np.random.default_rng(2).standard_normal((len(vocabulary), 11)).astype(np.float32)
    done = learn(vectors=Vectors(tuple(vocabulary), matrix))
    np.testing.assert_array_equal(done.after.parameters["table"], matrix)
    assert done.loss[-1] < 0.05


def test_vectors_may_come_from_a_file_and_a_word_without_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("bat 1 2 3\nold 0 1 0\nwooden 3 1 1\nother 5 5 5\n")
    two = {"a": ["old bat"], "b": ["wooden bat"]}
    done = learn(two, steps=2, vectors=path, word="bat")
    np.testing.assert_array_equal(done.static(done.after), [1, 2, 3])
    with pytest.raises(ValueError, match="vectors: none for 'flies' and 1 other words"):
        learn({"a": ["bat flies"], "b": ["bat hits"]}, vectors=path)
    with pytest.raises(ValueError, match="heads, size: 2 heads of 3 numbers"):
        learn(two, vectors=path, heads=2)


def test_three_senses_of_a_word_of_ones_own() -> None:
    mine = {
        "bank": ["The spring of money dried up", "A spring in the budget"],
        "season": ["In spring the trees bloom", "Every spring birds return"],
        "coil": ["The spring is made of steel", "Steel spring under load"],
    }
    done = learn(mine, word="Spring", heads=3, size=6, steps=400)
    assert (done.word, done.senses) == ("spring", ("bank", "season", "coil"))
    assert done.accuracy(done.after, held_out=False) == 1
    assert np.isnan(done.accuracy(done.after, held_out=True))


def test_the_shared_word_is_found_and_doubt_is_an_error() -> None:
    two = {"a": ["old bat flies"], "b": ["wooden bat hits"]}
    assert learn(two, steps=1).word == "bat"
    with pytest.raises(ValueError, match=r"word: all sentences share \['bat', 'the'\]"):
        learn({"a": ["the bat flies"], "b": ["the bat hits"]})
    with pytest.raises(ValueError, match="word: no word is in all sentences, must be named"):
        learn({"a": ["one"], "b": ["two"]})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sentences": {"a": ["x y"]}}, ValueError, "sentences: 1 sense, must be at least 2"),
        ({"sentences": {"a": "x", "b": ["x"]}}, TypeError, "'a' is a single string"),
        ({"sentences": {"a": [], "b": ["x"]}}, ValueError, "'a' has none"),
        (
            {"sentences": {"a": ["x"], "b": ["x"]}, "word": "y"},
            ValueError,
            "does not hold the word",
        ),
        ({"held_out": {"fish": ["A duck"]}}, ValueError, "sense 'fish' is not among"),
        (
            {"held_out": {"bird": ["A quacking duck"]}},
            ValueError,
            "'quacking' occurs in no training",
        ),
        ({"sentences": ["A duck"]}, TypeError, "sentences: list, must be a mapping"),
        ({"sentences": {"a": [5], "b": ["x"]}}, TypeError, "'a' holds what is no string"),
        ({"word": 5}, TypeError, "word: 5, must be a string"),
        ({"heads": 1.0}, TypeError, "heads: 1.0, must be a whole number"),
        ({"rate": "1"}, TypeError, "rate: '1', must be a number"),
        ({"heads": 3}, ValueError, "heads, size: 3 heads of 8 numbers, must divide"),
        ({"heads": 0}, ValueError, "heads, size: 0 heads"),
        ({"size": 1}, ValueError, "size at least 2"),
        ({"steps": 0}, ValueError, "steps: 0, must be at least 1"),
        ({"rate": float("nan")}, ValueError, "rate: nan, must be finite and above 0"),
        ({"rate": 1e30}, ValueError, r"rate: 1e\+30 makes the loss"),
    ],
)
def test_bad_input_is_one_sentence(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        learn(**options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_ctrl_c_ends_training_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clearhead.worked.learn.backward", interrupt)
    with pytest.raises(KeyboardInterrupt):
        learn(progress=True)


def test_the_summary_fits_80_columns_and_says_what_changed(lesson: Lesson) -> None:
    text = summary(lesson)
    assert str(lesson) == text
    assert max(map(len, text.splitlines())) <= 80
    assert "right on 4 held-out sentences" in text
    assert f"{lesson.loss[0]:.4f}" in text
    assert f"{lesson.loss[-1]:.4f}" in text


def test_a_sentence_file_gives_the_sentences_and_those_held_out(tmp_path: Path) -> None:
    path = tmp_path / "duck.txt"
    lines = ["# comment", ""]
    lines += [f"{sense}: {s}" for sense, group in DUCK.items() for s in group]
    lines += [f"? {sense}: {s}" for sense, group in DUCK_HELD_OUT.items() for s in group]
    path.write_text("\n".join(lines))
    training, held_out = read_sentences(path)
    assert {k: tuple(v) for k, v in training.items()} == DUCK
    assert {k: tuple(v) for k, v in held_out.items()} == DUCK_HELD_OUT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "f.txt: no sentences"),
        (b"? a: x", "f.txt: no sentences"),
        (b"a: x\nno colon", "f.txt: line 2: 'no colon', must be 'sense: sentence'"),
        (b"a: x\n: y", "line 2: ': y', must be"),
        (b"a: x\nb:  ", "line 2: 'b:', must be"),
        (b"a: \xff", "f.txt: line 1 is not UTF-8"),
        (b"a: " + b"x" * 20_000, "line 1: 20003 characters, must be one sentence"),
        (b"x" * 10_000_001, "more than 10000000 bytes"),
    ],
)
def test_a_malformed_sentence_file_names_the_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_sentences(path)


def test_every_figure_is_written_as_png_and_svg_with_the_same_bytes_each_time(
    tmp_path: Path, lesson: Lesson
) -> None:
    written = save_figures(lesson, tmp_path / "new" / "folder")
    assert {p.name for p in written} == {f"{n}.{k}" for n in FIGURES for k in ("png", "svg")}
    assert sorted(os.listdir(written[0].parent)) == sorted(p.name for p in written)
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert xml.dom.minidom.parse(str(path)).documentElement.tagName == "svg"
    again = lesson.save_figures(tmp_path / "again", formats=["svg"])
    for path in again:
        assert path.read_bytes() == (written[0].parent / path.name).read_bytes()


def test_figures_of_long_sentences_many_numbers_and_a_block_say_what_they_leave_out(
    tmp_path: Path,
) -> None:
    long = {
        "a": [" ".join(f"w{i}" for i in range(17)) + " bat"],
        "b": ["bat " + " ".join("longword" * i for i in range(19))],
        "c": ["bat z"],
    }
    done = learn(long, size=26, heads=2, block=True, steps=3)
    assert len(done.save_figures(tmp_path, formats=["svg"])) == len(FIGURES)
    texts = [t.get_text() for t in done.plot("projection").axes[0].texts]
    assert "\n12 × 12 of 18 × 26" in texts
    assert {"bat", "w16", "w6"} < set(texts)  # the word and the eleven before it
    assert "w5" not in texts
    said = [t.get_text() for t in done.plot("static-to-contextual").axes[0].texts]
    assert {"…", "bat", "w16"} < set(said)


def test_words_and_senses_of_any_script_are_drawn_without_a_warning(tmp_path: Path) -> None:
    mine = {"$鸟$": ["鸭子 在 池塘"], "躲": ["你 鸭子 \U0001f986 躲"], "\ue000x": ["\u16a0 鸭子"]}
    done = learn(mine, word="鸭子", steps=3)
    assert len(done.save_figures(tmp_path, formats=["png"])) == len(FIGURES)


def test_an_unknown_figure_or_format_is_named(tmp_path: Path, lesson: Lesson) -> None:
    with pytest.raises(ValueError, match="name: 'nope', must be one of static-to-contextual"):
        lesson.plot("nope")
    with pytest.raises(ValueError, match="formats: 'gif', must be among png, svg"):
        save_figures(lesson, tmp_path / "x", formats=["gif"])
    assert not (tmp_path / "x").exists()


def test_the_command_prints_the_summary_and_writes_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bat.txt"
    path.write_text("animal: the old bat flies\ntool: a wooden bat hits\n")
    folder = tmp_path / "figures"
    assert main(["learn", str(path), "--steps", "40", "--figures", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "“bat” in 2 senses: animal, tool" in out
    assert str(folder / "plane.svg") in out
    assert len(list(folder.iterdir())) == 2 * len(FIGURES)


def test_the_command_gives_a_bad_file_one_sentence_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bat.txt"
    path.write_text("animal: the old bat flies\nhits\n")
    assert main(["learn", str(path)]) == 2
    assert capsys.readouterr().err == (
        "clearhead: bat.txt: line 2: 'hits', must be 'sense: sentence'\n"
    )
