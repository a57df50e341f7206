"""`clearhead map` from its arguments to what it prints and writes, with a small model."""

import csv
import io
import json
import os
import sys

import numpy as np
import pytest

import clearhead
import tiny_bert
from clearhead.cli import main

TEXT = "The animal crossed the road because it was tired."


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_bert.write(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def clearhead_map(model, tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str, stdin: bytes = b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        given = [] if "--model" in args else ["--model", model]
        code = main(["map", *args, *given])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def refused(result, sentence: str) -> None:
    """Exit code 2, nothing on stdout, and one sentence on stderr that holds `sentence`."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("clearhead: ") and err.count("\n") == 1
    assert sentence in err


# -- what it shows -------------------------------------------------------------------------------


def test_a_text_gives_the_overview(clearhead_map):
    code, out, err = clearhead_map(TEXT)
    assert (code, err) == (0, "")
    assert out.startswith(TEXT + "\ntiny: 2 layers × 3 heads, ")
    assert "Strongest links" in out and "What each word reads most" in out and "Left out:" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_text_a_file_and_stdin_give_the_same(clearhead_map, tmp_path):
    (tmp_path / "notes.txt").write_text(TEXT)
    expected = clearhead_map(TEXT)
    assert clearhead_map("notes.txt") == expected
    assert clearhead_map("-", stdin=TEXT.encode()) == expected


def test_a_file_that_might_have_been_a_text_is_named(clearhead_map, tmp_path):
    (tmp_path / "animal").write_text(TEXT)
    code, out, err = clearhead_map("animal")
    assert code == 0 and out.startswith(TEXT)
    assert err == "clearhead: animal is the name of a file here, and its text is read\n"


def test_links_agree_with_the_runs_own(clearhead_map, model):
    run = clearhead.read(TEXT, model=model)
    for options, given in (
        ({}, []),
        ({"special": True, "include_self": True}, ["--special", "--self"]),
    ):
        page = json.loads(clearhead_map(TEXT, "--json", "-", *given)[1])
        expected = run.links(top=1000, **options)
        assert len(page["links"]) == len(expected)
        for link, own in zip(page["links"], expected, strict=True):
            at = own.layer, own.head, own.source, own.target
            assert (link["layer"], link["head"], link["from"], link["to"]) == at
            assert link["weight"] == pytest.approx(own.weight, abs=1e-6)


def test_a_word_is_found_as_written_in_any_case_and_by_number(clearhead_map):
    assert "What it reads (number 7)" in clearhead_map(TEXT, "--word", "it")[1]
    assert "What it reads (number 7)" in clearhead_map(TEXT, "--word", "IT")[1]
    assert "What it reads (number 7)" in clearhead_map(TEXT, "--word", "7")[1]
    both = clearhead_map("it is it", "--word", "it")[1]
    assert "What it reads (number 1)" in both and "What it reads (number 3)" in both


def test_one_head_is_a_heat_map_and_raw_tokens_are_the_tokenizers(clearhead_map):
    _, out, _ = clearhead_map("a road", "--layer", "1", "--head", "2")
    assert "Layer 1 head 2" in out and "\n2 road " in out
    _, out, _ = clearhead_map("it", "--layer", "1", "--head", "2", "--raw-tokens")
    assert "##t" in out
    assert "##t" not in clearhead_map("it", "--layer", "1", "--head", "2")[1]


def test_one_layer_narrows_the_ranking(clearhead_map):
    out = clearhead_map(TEXT, "--layer", "1", "--csv", "-")[1]
    assert {row["layer"] for row in csv.DictReader(io.StringIO(out))} == {"1"}


def test_one_word_narrows_the_links(clearhead_map):
    page = json.loads(clearhead_map(TEXT, "--word", "it", "--json", "-")[1])
    ends = [
        (page["words"][x["from"]]["text"], page["words"][x["to"]]["text"]) for x in page["links"]
    ]
    assert len(ends) == 6 * 9 * 2
    assert all("it" in pair for pair in ends)


# -- what it writes ------------------------------------------------------------------------------


def test_every_kind_of_file_at_once(clearhead_map, model, tmp_path):
    kinds = {"html": "a.html", "png": "a.png", "json": "a.json", "csv": "a.csv", "npz": "a.npz"}
    options = [word for kind, name in kinds.items() for word in (f"--{kind}", name)]
    code, out, err = clearhead_map(TEXT, *options, "--save", "a.safetensors", "--top", "7")
    assert code == 0 and out.startswith(TEXT)
    names = [*kinds.values(), "a.safetensors"]
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert [line.split()[2].rstrip(",") for line in err.splitlines()] == names
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert len(json.loads((tmp_path / "a.json").read_text())["links"]) == 7
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 8
    run = clearhead.read(TEXT, model=model)
    with np.load("a.npz") as file:
        np.testing.assert_array_equal(file["weights"], run.weights())


def test_a_saved_run_is_shown_as_the_text_was(clearhead_map, model, capsys):
    expected = clearhead_map(TEXT, "--save", "a.safetensors")[1]
    assert main(["map", "a.safetensors"]) == 0
    assert capsys.readouterr().out == expected
    refused(clearhead_map("a.safetensors", "--model", model), "was read already")


def test_stdout_holds_the_numbers_and_nothing_else(clearhead_map):
    _, out, err = clearhead_map(TEXT, "--json", "-")
    assert json.loads(out)["text"] == TEXT and err == ""
    _, out, _ = clearhead_map("it", "--raw-tokens", "--json", "-")
    assert json.loads(out)["between"] == "tokens"


# -- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_text_is_refused(clearhead_map, text):
    refused(clearhead_map(text), "TEXT: is empty")
    refused(clearhead_map("-", stdin=text.encode()), "standard input: is empty")


def test_what_is_not_text_is_refused(clearhead_map, tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    refused(clearhead_map("a.png"), "a.png: is not text, see byte 0; it must be text in UTF-8")
    refused(clearhead_map("-", stdin=b"abc\0def"), "standard input: is not text, see byte 3")
    refused(clearhead_map("ab\udc80c"), "TEXT: is not UTF-8")
    refused(clearhead_map("."), "'.' is a folder")
    refused(clearhead_map("no/such.txt"), "there is no such file")


def test_a_long_text_is_refused_with_both_ways_out(clearhead_map):
    long = "the road " * 40
    refused(
        clearhead_map(long), "the model takes 61; read it in windows (--window) or cut it (--cut)"
    )
    refused(clearhead_map(long, "--window", "--cut"), "window, cut")
    code, out, err = clearhead_map(long, "--cut")
    assert code == 0
    assert (
        err == "clearhead: the text was cut after character 264 of 360: the model takes 61 tokens\n"
    )
    assert "The text was cut after character 264" in " ".join(out.split())
    code, out, err = clearhead_map(long, "--window", "--word", "road", "--html", "a.html")
    assert code == 0 and "overlapping windows" in err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--layer", "2"], "layer: 2 is not in this model; it has 0 to 1"),
        (["--layer", "-1"], "layer: -1 is not in this model; it has 0 to 1"),
        (["--layer", "0", "--head", "3"], "head: 3 is not in this model; it has 0 to 2"),
        (["--head", "0"], "head: 0 is not enough; say which layer with --layer"),
        (["--word", "animals"], "word: 'animals' is not in the text; near it are animal"),
        (["--word", "12"], "word: '12' is not in the text; it begins The, animal, crossed"),
        (["--top", "0"], "--top"),
        (["--layer", "x"], "--layer"),
        (["--frob"], "--frob"),
        (["--model", "/no/such/folder"], "/no/such/folder' is neither"),
        (["--model", "."], "holds neither model.safetensors nor"),
    ],
)
def test_a_choice_that_is_not_there_is_refused(clearhead_map, tmp_path, options, sentence):
    refused(clearhead_map(TEXT, *options, "--html", "map.html"), sentence)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--html", "no/map.html"], "html: 'no/map.html' is in a folder that does not exist"),
        (["--png", "."], "png: '.' is a folder"),
        (["--png", "-"], "png: - is for json and csv"),
        (["--json", "-", "--csv", "-"], "csv: '-' is also the file of json"),
        (["--json", "a", "--csv", "./a"], "csv: './a' is also the file of json"),
        (["--save", "/dev/null"], "save: '/dev/null' is a device"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_opened(
    clearhead_map, tmp_path, options, sentence
):
    refused(clearhead_map(TEXT, *options, "--model", "/no/such/folder"), sentence)
    assert os.listdir(tmp_path) == []


def test_the_text_is_not_overwritten(clearhead_map, tmp_path):
    (tmp_path / "notes.txt").write_text(TEXT)
    refused(
        clearhead_map("notes.txt", "--json", "notes.txt"), "json: 'notes.txt' is the text to read"
    )
    assert (tmp_path / "notes.txt").read_text() == TEXT


@pytest.mark.parametrize("option", ["--html", "--png", "--json", "--csv", "--npz"])
def test_a_full_disk_is_one_sentence_and_leaves_no_other_file(clearhead_map, tmp_path, option):
    other = "--html" if option != "--html" else "--csv"
    result = clearhead_map(TEXT, other, "other", option, "/dev/full")
    refused(result, "/dev/full: No space left on device")
    assert os.listdir(tmp_path) == []


def test_a_broken_run_is_refused(clearhead_map, tmp_path, capsys):
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 100)
    assert main(["map", "a.safetensors"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "a.safetensors" in err


# -- one text that reads another -----------------------------------------------------------------


@pytest.fixture
def two_texts(tmp_path) -> str:
    weights = np.random.default_rng(3).dirichlet(np.ones(7), (2, 3, 5)).astype(np.float32)
    run = clearhead.from_weights(weights, list("abcde"), key_tokens=["</script>", *"tuvwxy"])
    run.save(tmp_path / "cross.safetensors")
    return str(tmp_path / "cross.safetensors")


def test_a_text_that_reads_another_is_written_as_a_page(two_texts, capsys, tmp_path):
    page = tmp_path / "page.html"
    assert main(["map", two_texts, "--html", str(page), "--layer", "1", "--head", "2"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and str(page) in err
    data = page.read_text("utf-8").partition('<script id="run" type="application/json">')[2]
    about = json.loads(data.partition("</script>")[0])["about"]
    assert [token[0] for token in about["columns"]["tokens"]] == ["</script>", *"tuvwxy"]
    assert about["opening"]["heads"] == [[1, 2]]


@pytest.mark.parametrize(
    ("options", "beside"),
    [((), ""), (("--csv", "x.csv", "--html", "x.html"), "csv"), (("--word", "a"), "word")],
)
def test_lists_of_links_are_refused_between_two_texts_and_nothing_is_written(
    two_texts, capsys, tmp_path, monkeypatch, options, beside
):
    monkeypatch.chdir(tmp_path)
    code = main(["map", two_texts, *options])
    refused((code, *capsys.readouterr()), "5 tokens read 7 others; --html FILE or")
    assert not list(tmp_path.glob("x.*"))
    if beside:
        code = main(["map", two_texts, *options])
        refused((code, *capsys.readouterr()), f"without --{beside}")
