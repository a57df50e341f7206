"""read, AttentionRun and its file, on a small random model: links, windows, saving, refusing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clearhead as ch
import tiny_bert
from clearhead.models import read as read_module
from clearhead.models.bert import Bert
from clearhead.models.weights import CheckpointError, Tensors

TEXT = "The animal's road, the walking of 東京!"
LONG = " ".join(f"the {i} animal crossing the road." for i in range(17))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def run(folder: Path) -> ch.AttentionRun:
    return ch.read(TEXT, folder)


@pytest.fixture(scope="module")
def long_run(folder: Path) -> ch.AttentionRun:
    return ch.read(LONG, folder, window=True)


def test_a_run_holds_what_the_encoder_did(run: ch.AttentionRun, folder: Path) -> None:
    assert (run.model, run.text, run.notes, run.starts) == ("tiny", TEXT, (), (0,))
    assert (run.num_layers, run.num_heads) == (tiny_bert.LAYERS, tiny_bert.HEADS)
    ids = [token.id for token in run.tokens]
    for i, layer in enumerate(Bert(folder).layers(ids)):
        np.testing.assert_array_equal(run.layers[i].q, layer.q)
        np.testing.assert_array_equal(run.layers[i].k, layer.k)
        np.testing.assert_array_equal(run.layers[i].lse, layer.lse)
    T = len(ids)
    assert run.weights().shape == (tiny_bert.LAYERS, tiny_bert.HEADS, T, T)
    assert run.weights().dtype == np.float32
    np.testing.assert_allclose(run.weights().sum(-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(run.map(-1)[1], run.weights()[-1, 1])
    assert repr(run) == (
        f"AttentionRun('tiny', {T} tokens, {len(run.words)} words, 2 layers, 3 heads)"
    )


@pytest.mark.parametrize("which", ["run", "long_run"])
def test_word_weights_sum_keys_average_queries_and_make_1(
    which: str, request: pytest.FixtureRequest
) -> None:
    run: ch.AttentionRun = request.getfixturevalue(which)
    weights = run.weights()
    for layer in range(run.num_layers):
        words = run.word_weights(layer)
        np.testing.assert_allclose(words.sum(-1), 1, rtol=1e-5)
        for source in (0, 2, len(run.words) // 2, len(run.words) - 1):
            rows = weights[layer][:, list(run.words[source].tokens)].mean(1)
            for target in range(len(run.words)):
                own = [i for i, token in enumerate(run.tokens) if token.word == target]
                wanted = rows[:, own].sum(-1)
                np.testing.assert_allclose(words[:, source, target], wanted, rtol=1e-5, atol=1e-7)


def by_hand(run: ch.AttentionRun, keep: Callable[[int, int], bool]) -> list[tuple[Any, ...]]:
    """Every link from the word matrix, in the promised order."""
    found = [
        (-float(weights[head, source, target]), layer, head, source, target)
        for layer in range(run.num_layers)
        for weights in [run.word_weights(layer)]
        for head in range(run.num_heads)
        for source in range(len(run.words))
        for target in range(len(run.words))
        if keep(source, target)
    ]
    return [(layer, head, s, t, -w) for w, layer, head, s, t in sorted(found)]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("include_self", [False, True])
def test_links_are_the_word_matrix_strongest_first(
    run: ch.AttentionRun, special: bool, include_self: bool
) -> None:
    def keep(source: int, target: int) -> bool:
        names = run.words[source].special or run.words[target].special
        return (special or not names) and (include_self or source != target)

    wanted = by_hand(run, keep)
    found = run.links(special=special, include_self=include_self)
    assert [tuple(getattr(link, name) for name in link.__slots__) for link in found] == wanted
    for top in (0, 1, 7, len(wanted) + 5):
        assert run.links(special=special, include_self=include_self, top=top) == found[:top]


def test_links_of_a_word_are_what_it_reads(run: ch.AttentionRun) -> None:
    road = run.find("road")[0]
    found = run.links("road")
    assert {link.source for link in found} == {road}
    assert found == [link for link in run.links() if link.source == road]
    assert run.links(road) == found
    assert run.find("The") == [1] and len(run.find("THE")) == 2  # in any case, failing the exact
    assert run.links("[CLS]", special=True)[0].source == 0


def test_links_of_a_long_text_agree_with_its_word_matrix(long_run: ch.AttentionRun) -> None:
    is_special = [word.special for word in long_run.words]
    window_of = [np.searchsorted(long_run.starts, w.tokens[0], "right") for w in long_run.words]
    seen = {
        (source, target)
        for source, window in enumerate(window_of)
        for target in {
            token.word
            for i, token in enumerate(long_run.tokens)
            if np.searchsorted(long_run.starts, i, "right") == window
        }
    }
    wanted = by_hand(
        long_run,
        lambda s, t: s != t and (s, t) in seen and not is_special[s] and not is_special[t],
    )
    found = [tuple(getattr(link, name) for name in link.__slots__) for link in long_run.links()]
    assert found == wanted
    assert long_run.links(top=29) == long_run.links()[:29]


def test_windows_cover_the_text_and_each_word_reads_where_it_is_deepest(
    long_run: ch.AttentionRun, folder: Path
) -> None:
    limit = tiny_bert.POSITIONS
    edges = [*long_run.starts, len(long_run.tokens)]
    count = len(long_run.starts)
    assert count > 3 and f"{count} overlapping windows" in long_run.notes[0]
    assert long_run.text == LONG
    words = [word for word in long_run.words if not word.special]
    assert "".join(word.text for word in words) == LONG.replace(" ", "")
    windows = [long_run.tokens[a:b] for a, b in pairwise(edges)]
    for window in windows:
        assert limit - 15 < len(window) <= limit
        assert [token.special for token in window] == [True, *[False] * (len(window) - 2), True]
        assert window[-1].start == window[-2].end
        text = LONG[window[1].start : window[-2].end]  # whole words, as the model would read them
        alone = ch.read(text, folder)
        assert [token.id for token in window] == [token.id for token in alone.tokens]
    assert windows[0][1].start == 0 and windows[-1][-2].end == len(LONG)
    for a, b in pairwise(windows):
        assert len([t for t in a[1:-1] if t.start >= b[1].start]) > limit / 3
    place = {i: (i - a, b - 1 - i) for a, b in pairwise(edges) for i in range(a, b)}
    for index, word in enumerate(long_run.words):
        copies = [i for i, token in enumerate(long_run.tokens) if token.word == index]
        assert set(word.tokens) <= set(copies)
        if not word.special and len(copies) > len(word.tokens):
            depth = {i: min(place[i]) for i in copies}
            assert min(depth[i] for i in word.tokens) >= max(depth.values()) - len(word.tokens)


def test_a_window_is_what_the_model_reads_in_that_window_alone(
    long_run: ch.AttentionRun, folder: Path
) -> None:
    start, end = long_run.starts[2:4]
    ids = [token.id for token in long_run.tokens[start:end]]
    for i, layer in enumerate(Bert(folder).layers(ids)):
        own = long_run.map(i)[:, start:end]
        alone = np.asarray(ch.AttentionMap(layer.q, layer.k, layer.lse))
        np.testing.assert_array_equal(own[:, :, start:end], alone)
        assert not own[:, :, :start].any() and not own[:, :, end:].any()


def test_a_word_longer_than_a_window_is_read_where_most_of_it_is(folder: Path) -> None:
    run = ch.read("the road " + "x" * 90 + " the road", folder, window=True)
    assert any(len(word.tokens) > 40 for word in run.words)
    for layer in range(run.num_layers):
        np.testing.assert_allclose(run.word_weights(layer).sum(-1), 1, rtol=1e-5)


def test_cutting_ends_at_a_word_warns_and_is_kept_in_the_run(folder: Path) -> None:
    with pytest.warns(UserWarning, match="text: cut after character .* the model takes 61 tokens"):
        run = ch.read(LONG, folder, cut=True)
    assert tiny_bert.POSITIONS - 8 < len(run.tokens) <= tiny_bert.POSITIONS
    assert LONG.startswith(run.text) and LONG[len(run.text)] in " ."
    assert run.words[-2].end == len(run.text) == run.tokens[-1].start
    assert run.notes[0].startswith(f"cut after character {len(run.text)} of {len(LONG)}")
    np.testing.assert_array_equal(run.weights(), ch.read(run.text, folder).weights())


def test_cutting_a_word_that_is_too_long_cuts_within_it(folder: Path) -> None:
    with pytest.warns(UserWarning, match="cut after"):
        run = ch.read("x" * 90, folder, cut=True)
    assert len(run.tokens) == tiny_bert.POSITIONS
    assert [word.text for word in run.words] == ["[CLS]", "x" * 59, "[SEP]"]


def test_megabytes_are_refused_or_cut_without_being_tokenized(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    tokenized = read_module.encode

    def encode(tokenizer: Any, text: str) -> Any:
        seen.append(len(text))
        return tokenized(tokenizer, text)

    monkeypatch.setattr(read_module, "encode", encode)
    text = "the road " * 1_111_111
    with pytest.raises(ValueError, match=r"text: is more than [\d,]+ tokens, the model takes 61;"):
        ch.read(text, folder)
    with pytest.warns(UserWarning, match=r"cut after character \d+ of 9,999,999"):
        run = ch.read(text, folder, cut=True)
    assert len(run.text) < 999 and max(seen) < 100_000
    assert ch.read("x" * 70_000 + " road", folder).words[-2].text == "road"  # long, yet 4 tokens


def test_a_text_that_cannot_be_read_fetches_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_module, "resolve", lambda model: pytest.fail("fetched"))
    with pytest.raises(ValueError, match="text: is empty"):
        ch.read("")


def test_a_folder_of_pickles_is_explained(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ch.CheckpointError, match="holds only pickled weights"):
        ch.read("the road", tmp_path)


def test_window_and_cut_change_nothing_for_a_text_that_fits(
    run: ch.AttentionRun, folder: Path
) -> None:
    for options in ({"window": True}, {"cut": True}):
        again = ch.read(TEXT, folder, **options)  # type: ignore[arg-type]
        assert again.tokens == run.tokens and again.notes == ()
        np.testing.assert_array_equal(again.weights(), run.weights())


def test_progress_counts_windows(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    run = ch.read(LONG, folder, window=True, progress=lambda *done: seen.append(done))
    count = len(run.starts)
    assert seen == [(i + 1, count) for i in range(count)]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda run, folder: ch.read("", folder), "text: is empty"),
        (lambda run, folder: ch.read(LONG, folder), r"is 2\d\d tokens, the model takes 61; .*cut"),
        (lambda run, folder: ch.read(LONG, folder, window=True, cut=True), "both True"),
        (
            lambda run, folder: ch.read(LONG, folder, window=True, max_bytes=9999),
            "in windows would keep .* max_bytes is",
        ),
        (lambda run, folder: run.map(2), "layer: is 2, must be from 0 to 1"),
        (lambda run, folder: run.word_weights(-3), "layer: is -3, must be from 0 to 1"),
        (lambda run, folder: run.links("zebra"), "word: 'zebra' is not in the text, whose words"),
        (lambda run, folder: run.links(99), "word: is 99, must be from 0 to"),
        (lambda run, folder: run.links(top=-1), "top: is -1, must be at least 0"),
        (
            lambda run, folder: run.weights(max_bytes=99),
            "weights: .* is 99; take run.map",
        ),
        (lambda run, folder: run.word_weights(0, max_bytes=9), "word_weights: .* max_bytes is 9"),
    ],
)
def test_bad_input_is_one_sentence(
    run: ch.AttentionRun, folder: Path, call: Callable[..., Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        call(run, folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [1.5, None, "0", True])
def test_a_layer_that_is_no_integer_is_a_type_error(run: ch.AttentionRun, value: Any) -> None:
    with pytest.raises(TypeError, match=r"layer: is .*, must be an integer"):
        run.map(value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda run: ch.read("a word", 3), "model: is int, must be str or os.PathLike"),
        (lambda run: ch.read("a word", max_bytes="1"), "max_bytes: is str, must be an integer"),
        (lambda run: ch.load(3), "path: is int, must be str or os.PathLike"),
        (lambda run: run.save(None), "path: is NoneType, must be str or os.PathLike"),
        (lambda run: run.to_html(3), "path: is int, must be str or os.PathLike"),
        (lambda run: run.links(top="all"), "top: is str, must be an integer"),
        (lambda run: run.links(top=True), "top: is bool, must be an integer"),
        (lambda run: run.weights(max_bytes="1"), "max_bytes: is str, must be an integer"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(
    run: ch.AttentionRun, call: Callable[..., Any], says: str
) -> None:
    with pytest.raises(TypeError, match=f"^{says}$"):
        call(run)


def test_a_fetched_model_that_was_damaged_since_is_refused_with_the_way_to_mend_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path))
    fetched = tmp_path / "models" / "all-MiniLM-L6-v2"
    shutil.copytree(folder, fetched)
    assert ch.read(TEXT).model == "all-MiniLM-L6-v2"
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        os.truncate(fetched / name, 9)
        with pytest.raises(CheckpointError, match="; clearhead models remove all-MiniLM-L6-v2"):
            ch.read(TEXT)
    broken = shutil.copytree(fetched, tmp_path / "mine")
    with pytest.raises(CheckpointError) as refused:
        ch.read(TEXT, broken)
    assert "remove" not in str(refused.value)


@pytest.mark.parametrize("which", ["run", "long_run"])
def test_a_saved_run_comes_back_the_same(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run: ch.AttentionRun = request.getfixturevalue(which)
    path = tmp_path / "run.safetensors"
    run.save(path)
    again = ch.load(path)
    for name in ("model", "text", "tokens", "words", "starts", "notes"):
        assert getattr(again, name) == getattr(run, name)
    for ours, theirs in zip(again.layers, run.layers, strict=True):
        for a, b in zip(ours[:3], theirs[:3], strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype and not a.flags.owndata
    assert again.links(top=7) == run.links(top=7)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    said = subprocess.run(
        [sys.executable, "-c", "import os; print(os.umask(0))"], capture_output=True, check=True
    )
    return int(said.stdout)


def test_a_run_can_be_saved_over_the_file_that_it_was_loaded_from(
    run: ch.AttentionRun, tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    run.save(path)
    first = path.read_bytes()
    ch.load(path).save(path)
    assert path.read_bytes() == first


def test_a_run_that_cannot_be_written_leaves_nothing(
    run: ch.AttentionRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError):
        run.save(tmp_path / "no such folder" / "run.safetensors")
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        run.save(tmp_path / "taken")
    old = tmp_path / "old"
    old.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clearhead.models.runfile.write", full)
    with pytest.raises(OSError, match="No space left"):
        run.save(old)
    assert old.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "taken"]


def changed(
    tmp_path: Path, run: ch.AttentionRun, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> Path:
    """A saved run whose header and tensors were tampered with."""
    path = tmp_path / "run.safetensors"
    run.save(path)
    file = Tensors(path)
    arrays, metadata = {name: array.copy() for name, array in file.items()}, dict(file.metadata)
    header = json.loads(metadata["clearhead.run"])
    change(header, arrays)
    metadata["clearhead.run"] = header.pop("__instead", None) or json.dumps(header)
    tiny_bert.save_file(arrays, path, metadata if "__gone" not in header else {"format": "pt"})
    return path


TAMPERED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "not a run": (lambda h, a: h.update(__gone=True), "is not a run"),
    "a later version": (lambda h, a: h.update(version=3), "is of version 3, this clearhead"),
    "no version": (lambda h, a: h.pop("version"), "is of version None"),
    "a version true": (lambda h, a: h.update(version=True), "is of version True"),
    "no JSON": (lambda h, a: h.update(__instead="{"), "header is not JSON"),
    "a half surrogate": (lambda h, a: h.update(text="\ud800" * len(TEXT)), "not Unicode text"),
    "no text": (lambda h, a: h.pop("text"), "text: must be text"),
    "model a list": (lambda h, a: h.update(model=[]), "model: must be text"),
    "no tokens": (lambda h, a: h.update(tokens=[]), "tokens: must be a list"),
    "a token too many": (lambda h, a: h["tokens"].append(h["tokens"][-1]), r"layers\.0\.q: is"),
    "a token too short": (lambda h, a: h["tokens"][3].pop(), r"tokens\[3\]: must be"),
    "a token of text": (lambda h, a: h["tokens"].__setitem__(3, "x"), r"tokens\[3\]: must be"),
    "a token beyond": (lambda h, a: h["tokens"][3].__setitem__(3, 999), r"tokens\[3\]: must be"),
    "a token reversed": (lambda h, a: h["tokens"][3].__setitem__(2, 38), r"tokens\[3\]: must be"),
    "a token's word": (lambda h, a: h["tokens"][3].__setitem__(4, -1), r"tokens\[3\]: must be"),
    "a token of another word": (lambda h, a: h["tokens"][3].__setitem__(4, 1), r"words\[\d\]: its"),
    "a token special": (lambda h, a: h["tokens"][3].__setitem__(5, True), r"tokens\[3\]: must be"),
    "a word of nothing": (lambda h, a: h["words"][2].__setitem__(2, []), r"words\[2\]: its tokens"),
    "a word beyond": (lambda h, a: h["words"][2].__setitem__(1, 999), r"words\[2\]: must be"),
    "a word's tokens": (lambda h, a: h["words"][2].__setitem__(2, [999]), r"words\[2\]: its"),
    "a word's fraction": (lambda h, a: h["words"][2].__setitem__(2, [1.0]), r"words\[2\]: must be"),
    "starts late": (lambda h, a: h.update(starts=[1]), "starts: must rise from 0"),
    "starts falling": (lambda h, a: h.update(starts=[0, 5, 5]), "starts: must rise from 0"),
    "starts beyond": (lambda h, a: h.update(starts=[0, 999]), "starts: must rise from 0"),
    "notes": (lambda h, a: h.update(notes=[5]), "notes: must be texts"),
    "a layer without k": (lambda h, a: a.pop("layers.1.k"), "tensors must be layers"),
    "no layer": (lambda h, a: a.clear(), "tensors must be layers"),
    "a tensor more": (lambda h, a: a.update(x=np.zeros(1, np.float32)), "tensors must be layers"),
    "a k of integers": (
        lambda h, a: a.update({"layers.1.k": a["layers.1.k"].astype(np.int32)}),
        r"layers\.1\.k: is int32",
    ),
    "a k too short": (
        lambda h, a: a.update({"layers.1.k": a["layers.1.k"][:, :-1].copy()}),
        r"layers\.1\.k: is float32",
    ),
    "an lse transposed": (
        lambda h, a: a.update({"layers.0.lse": a["layers.0.lse"].T.copy()}),
        r"layers\.0\.lse: is float64",
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_run_file_that_contradicts_itself_is_refused(
    case: str, run: ch.AttentionRun, tmp_path: Path
) -> None:
    change, says = TAMPERED[case]
    path = changed(tmp_path, run, change)
    with pytest.raises(ch.CheckpointError, match=says) as refused:
        ch.load(path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_run_file_is_read_or_refused_but_nothing_else(
    run: ch.AttentionRun, tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "run.safetensors"
    run.save(path)
    damaged = bytearray(path.read_bytes())
    length = int.from_bytes(damaged[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, length + 8))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    path.write_bytes(damaged)
    try:
        again = ch.load(path)
        assert len(again.tokens) == len(run.tokens)
        with np.errstate(all="ignore"):
            again.links(top=3)
    except ch.CheckpointError as error:
        assert str(path) in str(error)


def test_fifty_texts_leave_memory_flat(folder: Path) -> None:
    script = (
        "import resource, sys, clearhead as ch\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for i in range(55):\n"
        "    ch.read('the road ' * 25 + str(i), sys.argv[1]).links(top=1)\n"
        "    if i == 4: first = peak()\n"
        "print(peak() - first)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        capture_output=True,
        check=True,
        env={**os.environ, "CLEARHEAD_NUM_THREADS": "1"},
    )
    assert int(said.stdout) < 8192  # KiB
