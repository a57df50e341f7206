"""The example of sparse patterns: each mask against its paper, cell by cell; and it runs."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import clearhead as ch
from clearhead import reference

PATH = Path(__file__).parents[1] / "examples" / "sparse_patterns.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("sparse_patterns", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_allows(mask, n, says, rng):
    """The rule in words, as a function of (t, s), is what the mask and the core have of it."""
    want = np.array([[says(t, s) for s in range(n)] for t in range(n)])
    np.testing.assert_array_equal(mask.to_array(n, n), want)
    q, k, v = rng.normal(size=(3, 2, n, 5))
    truth, _ = reference.forward(q, k, v, mask=want)
    np.testing.assert_allclose(ch.attention(q, k, v, mask=mask), truth, rtol=0, atol=1e-13)


def test_longformer(example, rng):
    mask = example.longformer(131, 7, global_tokens=(0, 61))
    assert_allows(mask, 131, lambda t, s: abs(t - s) <= 7 or {t, s} & {0, 61} != set(), rng)


def test_dilated_longformer(example, rng):
    mask = example.dilated_longformer(5, 3)
    assert_allows(mask, 97, lambda t, s: abs(t - s) <= 15 and (t - s) % 3 == 0, rng)


def test_big_bird(example, rng):
    n, block, drawn = 103, 8, 2
    mask = example.big_bird(n, block, drawn)
    seen = mask.to_array(n, n)
    by_block = seen[::block, ::block]  # first cell of each block: blocks are whole
    np.testing.assert_array_equal(seen, by_block.repeat(block, 0).repeat(block, 1)[:n, :n])
    row, col = np.indices(by_block.shape)
    fixed = (abs(row - col) <= 1) | (row == 0) | (col == 0)
    assert by_block[fixed].all()
    extra = (by_block & ~fixed).sum(1)
    assert extra.max() <= drawn and extra.sum() > 0
    assert_allows(mask, n, lambda t, s: seen[t, s], rng)


def test_streaming_llm(example, rng):
    mask = example.streaming_llm(recent=9, sinks=4)
    assert_allows(mask, 101, lambda t, s: s <= t and (t - s < 9 or s < 4), rng)
    assert mask.to_array(101, 101).sum(1).max() == 13


def test_it_runs_and_prints_what_each_allows(example, capsys):
    example.main(["--length", "256"])
    said = capsys.readouterr().out
    for name in ("Longformer: window(left=4, right=4) | documents((256,) array, ", "StreamingLLM"):
        assert name in said
    share = example.streaming_llm(8).allowed_count(256, 256) / 256**2
    assert f"{share:.1%} of 256 x 256 allowed" in said
    with pytest.raises(SystemExit):
        example.main(["--length", "3"])
    assert "--length: must be at least 16" in capsys.readouterr().err
