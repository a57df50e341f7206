"""`clearhead heads` and `clearhead map --segments` on a saved run."""

import csv
import json

import numpy as np
import pytest

import clearhead as ch
from clearhead.cli import main

WORDS = "## one a b ## two c d".split()


@pytest.fixture
def saved(tmp_path):
    rng = np.random.default_rng(0)
    weights = rng.random((2, 3, 8, 8))
    weights[1, 2] = np.eye(8, k=-1)
    weights[1, 2, 0, 0] = 1
    run = ch.from_weights(weights / weights.sum(-1, keepdims=True), WORDS)
    run.save(tmp_path / "run.safetensors")
    return str(tmp_path / "run.safetensors")


def test_the_table_is_sorted_cut_and_fits_the_terminal(saved, capsys):
    assert main(["heads", saved, "--sort", "previous", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0].isdigit()]
    assert rows[0][:3] == ["1", "2", "100"]
    assert len(rows) == 2
    assert max(map(len, lines)) <= 80


def test_json_csv_and_picture_are_written(saved, tmp_path, capsys):
    files = [str(tmp_path / name) for name in ("a.json", "a.csv", "a.png")]
    args = ["heads", saved, "--json", files[0], "--csv", files[1], "--png", files[2]]
    assert main(args) == 0
    heads = json.loads((tmp_path / "a.json").read_text())["heads"]
    assert len(heads) == 6
    assert heads[5]["previous"] == pytest.approx(1, abs=1e-5)
    with open(files[1], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["entropy"]) for row in rows] == [head["entropy"] for head in heads]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert main(["heads", saved, "--json", "-"]) == 0
    assert "layer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--sort", "prev"], "column: is 'prev', must be one of previous"),
        (["--png", "-"], "png: - is for json and csv"),
        (["--near", "0"], "near"),
    ],
)
def test_bad_options_are_one_sentence_and_code_2(saved, args, says, capsys):
    assert main(["heads", saved, *args]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_segments_by_a_marker(saved, capsys):
    assert main(["map", saved, "--segments", "##"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith((" one", "one")) for line in lines)
    assert main(["map", saved, "--segments", "##", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["segments"] == ["one a b", "two c d", "(rest)"]
    assert main(["map", saved, "--segments", "%%"]) == 2
    assert "does not hold the marker '%%'" in capsys.readouterr().err
    assert main(["map", saved, "--segments", "##", "--html", "x.html"]) == 2
    assert "leave out --html" in capsys.readouterr().err
