"""ch.why: the experiments find what theory says, and say what they found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

import clearhead as ch
from clearhead import reference
from clearhead.cli import main
from clearhead.worked.why import memory, softmax
from clearhead.worked.why.evidence import Column, Evidence

GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden" / "articles.json"


def test_the_variance_of_a_dot_product_is_d_and_the_scaled_one_is_1() -> None:
    e = ch.why.scale(sizes=(2, 31, 307), samples=10_007)
    np.testing.assert_allclose(e["variance of q · k"], [2, 31, 307], rtol=0.06)
    np.testing.assert_allclose(e["variance of q · k / √d"], 1, rtol=0.06)


def test_without_scaling_entropy_and_gradient_vanish_and_with_it_they_stay() -> None:
    e = ch.why.saturation(sizes=(4, 64, 1024), keys=17, samples=300)
    for name in ("entropy", "gradient"):
        raw, scaled = e[f"{name} of q · k"], e[f"{name} of q · k / √d"]
        assert (np.diff(raw) < 0).all()
        assert raw[-1] < 0.2 * raw[0]
        np.testing.assert_allclose(scaled, scaled[0], rtol=0.05)
    assert (e["entropy of q · k / √d"] < np.log(17)).all()


def test_the_gradient_norm_is_that_of_the_softmax_jacobian() -> None:
    rng = np.random.default_rng(0)
    scores = (rng.standard_normal((35, 1)) * rng.standard_normal((35, 1))).reshape(5, 7)
    e = ch.why.saturation(sizes=(1,), keys=7, samples=5, seed=0)
    rows = softmax(scores)
    norms = [np.linalg.norm(np.diag(p) - np.outer(p, p)) for p in rows]
    np.testing.assert_allclose(e["gradient of q · k"], np.mean(norms), rtol=1e-12)
    entropies = [-np.sum(p * np.log(p)) for p in rows]
    np.testing.assert_allclose(e["entropy of q · k"], np.mean(entropies), rtol=1e-12)


def test_a_zero_after_the_softmax_is_wrong_and_a_mask_before_it_is_right() -> None:
    e = ch.why.mask(hidden=(0, 10, 300), keys=7)
    assert (e["sum of weights, zeroed after"] < 1).all()
    assert (e["error, zeroed after"][1:] > 0.1).all()
    assert np.isnan(e["error, zeroed and renormalised"][-1])
    assert (e["error, masked before"] < 1e-7).all()
    assert "NaN at 300" in e.answer


@pytest.mark.skipif(
    not GOLDEN.is_file(),
    reason="the articles' numbers (shared/golden/articles.json) are not beside this checkout",
)
def test_the_printed_softmax_of_the_articles_comes_out() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))["saturation"]
    for suffix in ("", "_times_8"):
        printed = golden[f"softmax{suffix}"]
        np.testing.assert_array_equal(softmax(golden[f"scores{suffix}"]).round(2), printed)


QUICK: dict[str, dict[str, int]] = {
    "scale": {"samples": 53},
    "saturation": {"samples": 5},
    "mask": {},
}


@pytest.mark.parametrize("name", QUICK)
def test_the_same_seed_prints_the_same_table_and_another_seed_does_not(name: str) -> None:
    one, same, other = (getattr(ch.why, name)(seed=s, **QUICK[name]) for s in (3, 3, 4))
    assert str(one) == str(same)
    assert str(one) != str(other)


@pytest.mark.parametrize("name", QUICK)
def test_tables_fit_80_columns_and_figures_are_drawn(name: str, tmp_path: Path) -> None:
    e = getattr(ch.why, name)(**QUICK[name])
    lines = str(e).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == e.question
    for label in e.plot().findobj(Text):
        assert label.get_parse_math() or "$" not in label.get_text()
    assert e.save(tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert e.save(tmp_path / "f.svg").read_bytes().startswith(b"<?xml")
    assert {p.name for p in tmp_path.iterdir()} == {"f.png", "f.svg"}


def test_every_row_and_column_of_a_table_is_printed_in_its_form() -> None:
    columns = (Column("a", np.array([1.0, 22.0]), ".0f"), Column("b c", np.array([0.5, np.nan])))
    lines = str(Evidence("Why?", "Because.", columns, lambda e, ax: None)).splitlines()
    assert [line.split() for line in lines[2:6]] == [
        ["a", "b", "c"],
        ["-" * 14, "-" * 14],
        ["1", "0.500"],
        ["22", "nan"],
    ]
    assert lines[-1] == "Because."


def test_an_unknown_column_or_suffix_is_named(tmp_path: Path) -> None:
    e = ch.why.mask()
    with pytest.raises(KeyError, match="column: 'x', must be one of hidden score"):
        e["x"]
    with pytest.raises(ValueError, match=r"path: 'f.gif', must end in .png or .svg"):
        e.save(tmp_path / "f.gif")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("scale", {"sizes": ()}, r"sizes: \[\], must be at least 1"),
        ("scale", {"samples": 0}, r"samples: \[0\], must be at least 1"),
        ("saturation", {"sizes": (4, -1)}, r"sizes: \[4, -1\], must be at least 1"),
        ("mask", {"keys": 1}, r"keys: \[0\], must be at least 1"),
        ("mask", {"hidden": (float("inf"),)}, "must be finite scores"),
        ("heads", {"counts": (3,), "size": 8}, "counts: 3 heads do not divide size 8"),
        ("tiling", {"lengths": (0,)}, r"lengths: \[0\], must be at least 1"),
    ],
)
def test_bad_input_is_one_sentence(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(ch.why, name)(**options)


def test_a_size_that_is_no_whole_number_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"sizes: \[1.5\], must be whole numbers"):
        ch.why.scale(sizes=(1.5,))  # type: ignore[arg-type]


def test_the_direct_formula_is_the_reference() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((n, d)).astype(np.float32) for n, d in ((5, 3), (7, 3), (7, 2)))
    expected = reference.forward(q, k, v)[0]
    np.testing.assert_allclose(memory.direct(q, k, v), expected, rtol=1e-5, atol=1e-6)


def test_the_command_prints_one_experiment_and_writes_its_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "mask", "--figures", str(tmp_path / "f")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(ch.why.mask().question)
    assert {p.name for p in (tmp_path / "f").iterdir()} == {"why-mask.png", "why-mask.svg"}


def test_the_command_names_the_experiments_when_it_does_not_know_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["why", "size"]) == 2
    assert capsys.readouterr().err == (
        "clearhead: name: 'size', must be one of scale, saturation, mask, heads, tiling\n"
    )


def test_heads_do_the_same_products_and_only_the_exponentials_grow() -> None:
    e = ch.why.heads(counts=(1, 3, 6), length=31, size=42, repeats=1)
    products = e["multiply-adds, millions"]
    np.testing.assert_allclose(products, (4 * 31 * 42**2 + 2 * 31**2 * 42) / 1e6)
    np.testing.assert_allclose(e["exponentials, millions"], np.array([1, 3, 6]) * 31**2 / 1e6)
    assert (e["milliseconds"] > 0).all()
    assert max(map(len, str(e).splitlines())) <= 80
    e.plot()


def test_tiles_give_the_direct_formula_and_leave_its_matrix_out(tmp_path: Path) -> None:
    e = ch.why.tiling(lengths=(256, 4096), size=32)
    assert (e["error, tiled"] < 1e-5).all()
    assert (e["error, direct"] < 1e-5).all()
    matrix = 4 * 4096**2 / 2**20
    assert e["MiB, direct"][-1] > matrix
    assert e["MiB, tiled"][-1] < matrix / 4
    assert max(map(len, str(e).splitlines())) <= 80
    e.save(tmp_path / "f.svg")


def test_a_measuring_process_that_fails_says_why() -> None:
    with pytest.raises(ValueError, match="measuring process failed with 1: KeyError: 'sideways'"):
        memory.peak_extra_bytes("sideways", 5, 3)
