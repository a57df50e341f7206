"""clearhead cost: counts that can be counted otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clearhead as ch
from clearhead.cli import main

GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden" / "articles.json"


def cells(table: ch.Cost) -> dict[tuple[int, str], int]:
    return {(row.length, row.kind): row.cells for row in table.rows}


def test_cells_are_those_that_the_masks_allow() -> None:
    mask = (ch.causal() & ch.window(left=4)) | ch.first_keys(2)
    for T in (1, 7, 300):
        found = cells(ch.cost(T, heads=3, layers=2, window=10, documents=4, mask=mask))
        sizes = [len(part) for part in np.array_split(np.arange(T), min(4, T))]
        ids = np.repeat(np.arange(len(sizes)), sizes)
        for kind, rule in {
            "dense": ch.window(),
            "causal": ch.causal(),
            "window 10": ch.causal() & ch.window(left=9),
            "packed in 4": ch.documents(ids),
            repr(mask): mask,
        }.items():
            assert found[T, kind] == 6 * rule.to_array(T, T).sum(), (T, kind)
        assert found[T, "linear"] == 0


def test_bytes_are_those_of_the_arrays() -> None:
    q = np.zeros((5, 70, 16), np.float16)
    amap = ch.attention_map(q, q)
    dense = ch.cost(70, heads=5, head_size=16, dtype="float16").rows[0]
    assert dense.map_bytes == q.nbytes * 2 + amap.lse.nbytes
    assert dense.matrix_bytes == 5 * 70 * 70 * 2
    assert dense.operations == 5 * 70 * 70 * 16 * 2 * 2


@pytest.mark.skipif(
    not GOLDEN.exists(),
    reason="the articles' numbers (shared/golden/articles.json) are not beside this checkout",
)
def test_the_table_of_the_article() -> None:
    printed = json.loads(GOLDEN.read_text())["score_cells"]
    found = cells(ch.cost([int(T) for T in printed]))
    assert {T: found[int(T), "dense"] for T in printed} == printed


def test_the_quadratic_table_that_every_article_prints() -> None:
    found = cells(ch.cost([512, 2048, 8192, 32768]))
    dense = [n for (_, kind), n in found.items() if kind == "dense"]
    assert dense == [262_144, 4_194_304, 67_108_864, 1_073_741_824]


def test_the_command_prints_a_table_of_80_columns_or_json(capsys: Any) -> None:
    arguments = ["cost", "512", "1048576", "--heads", "128", "--layers", "126"]
    arguments += ["--window", "4096", "--documents", "12", "--head-size", "128"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "1,048,576  dense" in text
    assert main([*arguments, "--dtype", "bfloat16", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["rows"][0]["matrix_bytes"] == 512 * 512 * 2 * 128 * 126
    assert table["rows"][-1]["matrix_bytes"] is None


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"lengths": 0}, ValueError, "lengths: is 0, must be at least 1"),
        ({"lengths": [8, 1.5]}, TypeError, "lengths: is 1.5, must be a whole number"),
        ({"heads": -1}, ValueError, "heads: is -1, must be at least 1"),
        ({"dtype": "int8"}, ValueError, "dtype: is 'int8', must be one of float64"),
        ({"window": 0}, ValueError, "window: is 0, must be at least 1"),
        ({"mask": "causal"}, TypeError, "mask: is str, must be a Mask"),
    ],
)
def test_a_wrong_size_is_one_sentence(wrong: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ch.cost(**({"lengths": 8} | wrong))
