"""Observation where scores are products of tiles: sizes that are worth packing, every statistic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import _native, reference
from clearhead.observation import add_received
from test_observe import ALL, NAMES, check_observation
from tiles import BY_TILES

pytestmark = BY_TILES

T, S = 197, 331  # no panel, no group and no stretch of keys comes out even
MASKS: dict[str, ch.Mask | None] = {
    "all": None,
    "causal": ch.causal(),
    "window": ch.causal() & ch.window(left=90),
    "dilated": ch.dilated(3) | ch.first_keys(40),
}
EVERYTHING: dict[str, Any] = {**ALL, "by_distance": 250, "pool": (23, 19), "top": 5}


def some(seed: int, D: int, dtype: Any = np.float32, size: float = 1.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(4, T, D)) * size
    return q.astype(dtype), rng.normal(size=(2, S, D)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", MASKS)
def test_every_statistic_under_a_mask(name: str, dtype: Any) -> None:
    q, k = some(1, 64, dtype)
    check_observation(q, k, {"mask": MASKS[name]}, EVERYTHING)


@pytest.mark.parametrize("keys", [3, 4, 8, 12, 64, 1100])
@pytest.mark.parametrize("name", MASKS)
def test_a_grid_alone_whatever_the_length_of_its_runs_of_keys(name: str, keys: int) -> None:
    q, k = some(9, 64)
    labels = np.arange(S) // keys
    odd = np.where(labels % 5 == 2, -1, labels // 2)
    for wanted in (
        {"group": (np.arange(T) // 7, labels)},
        {"group": (np.arange(T) // 7, odd), "entropy": True},
        {"pool": (T // 16, S // keys or 1), "group": (np.arange(T) % 3, labels[::-1].copy())},
        {"pool": (T // 16, S // keys or 1), "top": 3, "max": True},
        {"group": (np.arange(T) // 7, labels), "top": 40},
        {"pool": (T // 16, S // keys or 1), "top": 40},
    ):
        check_observation(q, k, {"mask": MASKS[name]}, wanted)


@pytest.mark.parametrize("bins", [(1, 1), (6, 20), (12, 80), (192, 320), (5, 40)])
def test_a_pool_whose_bins_hold_whole_fours_of_keys(bins: tuple[int, int]) -> None:
    q, k = (x[:, :n] for x, n in zip(some(10, 64), (192, 320), strict=True))
    for mask in (None, ch.causal()):
        check_observation(q, k, {"mask": mask}, {"pool": bins})
        check_observation(q, k, {"mask": mask}, {"pool": bins, "received": True})
        check_observation(q, k, {"mask": mask}, {"pool": bins, "top": 40})


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_pool_of_whole_fours_shows_what_is_no_number(bad: float) -> None:
    q, k = (x[:, :n] for x, n in zip(some(11, 64), (192, 320), strict=True))
    q[1, 40] = bad
    found = ch.attention_map(q, k).observe(pool=(12, 20))
    broken = np.isnan(found.pool_mean) & np.isnan(found.pool_max)
    assert broken[1, 2].all() and broken.sum() == 20


@pytest.mark.parametrize("top", [1, 8, 33, S])
def test_the_largest_sorted_or_listed(top: int) -> None:
    q, k = some(2, 33)
    check_observation(q, k, {"mask": MASKS["window"]}, {"top": top})


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 1.5},
        {"bias": ch.alibi(np.arange(1, 5) / 16)},
        {"bias": np.random.default_rng(3).normal(size=(4, T, S)).astype(np.float32)},
        {"softcap": 2.0, "bias": ch.alibi(np.ones(4)), "sink": np.ones(4, np.float32)},
        {"scale": 2.0, "sink": np.zeros(4, np.float32)},
    ],
    ids=["softcap", "rule", "array", "all", "scale"],
)
def test_scores_that_are_more_than_a_product(options: dict[str, Any]) -> None:
    q, k = some(4, 64)
    check_observation(q, k, {"mask": MASKS["causal"], **options}, EVERYTHING)


@pytest.mark.parametrize("merged", [(), ("head",)])
def test_the_same_bits_by_any_number_of_threads(merged: tuple[str, ...]) -> None:
    q, k = some(5, 64)
    wanted = EVERYTHING if not merged else {n: x for n, x in EVERYTHING.items() if n != "top"}
    amap = ch.attention_map(q, k, mask=ch.causal())
    ch.set_num_threads(1)
    one = amap.observe(**wanted, mean_over=merged)
    ch.set_num_threads(3)
    many = amap.observe(**wanted, mean_over=merged)
    for name in NAMES:
        if getattr(one, name) is not None:
            np.testing.assert_array_equal(getattr(one, name), getattr(many, name))


def largest_error(isa: str, q: Any, k: Any) -> float:
    """Of the largest weight of a row, relative."""
    _native.choose_isa(isa)
    got = ch.attention_map(q, k).observe(max=True).max
    want = reference.observe(q.astype(np.float64), k.astype(np.float64), max=True).max
    return float(np.max(np.abs(got - want) / want))


def test_scores_by_tiles_are_nearer_to_the_truth_than_by_multiply_adds() -> None:
    q, k = some(6, 64, size=8.0)
    assert largest_error("amx", q, k) < 0.75 * largest_error("avx512", q, k)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e25], ids=["nan", "inf", "huge"])
def test_a_hidden_key_that_parts_cannot_hold_changes_nothing(bad: float) -> None:
    q, k = some(7, 64)
    seen = np.ones((T, S), bool)
    seen[:, [3, 100]] = False
    clean = ch.attention_map(q, k, mask=seen).observe(**EVERYTHING)
    k[:, [3, 100]] = bad
    dirty = ch.attention_map(q, k, mask=seen).observe(**EVERYTHING)
    for name in ("pool_mean", "received", "entropy", "max", "by_distance"):
        np.testing.assert_allclose(getattr(dirty, name), getattr(clean, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e4, 6e4])
def test_the_largest_scores_may_come_late(size: float) -> None:
    """Six keys alike at the top, beyond the first group: a sixth each."""
    q = np.full((1, T, 64), size / 64, np.float32)
    k = np.full((1, S, 64), 0.99, np.float32)
    k[:, 130:136] = 1
    found = ch.attention_map(q, k, scale=1.0).observe(received=True, max=True)
    np.testing.assert_allclose(found.max, 1 / 6, rtol=1e-5)
    np.testing.assert_allclose(found.received.sum(), T, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("D", [16, 31, 64, 97])
def test_a_part_that_begins_and_ends_anywhere_is_that_part_of_the_matrix(
    dtype: Any, D: int
) -> None:
    q, k = some(8, D, dtype)
    amap = ch.attention_map(q[:1], k[:1])
    sums = np.zeros(S)
    add_received(amap._call(), (5, 190, 37, 299), sums)
    a = reference.weights(q[:1].astype(np.float64), k[:1].astype(np.float64))[0]
    np.testing.assert_allclose(sums[37:299], a[5:190, 37:299].sum(0), rtol=1e-5)
    assert not sums[:37].any() and not sums[299:].any()
