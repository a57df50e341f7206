"""A part of the matrix observed by itself, in every instruction set, against the whole matrix."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import reference
from clearhead.observation import add_part, add_received, part_lse

T, S, D = 331, 457, 13
PART = 101, 307, 53, 399  # neither begins nor ends with a panel or a block
RNG = np.random.default_rng(17)
MASKS = {
    "all": None,
    "causal": ch.causal(),
    "window": ch.causal() & ch.window(left=90) | ch.first_keys(61),
    "documents": ch.documents(np.arange(T) // 50, np.arange(S) // 70),
    "blocks": ch.blocks(RNG.random((48, 66)) < 0.5, 7),
    "dilated": ch.dilated(3) & ch.prefix(350),
    "array": ch.allowed(RNG.random((T, S)) < 0.7),
}
BIASES = {
    "none": None,
    "alibi": ch.alibi(0.05),
    "by distance": ch.relative_bias([0.1, -1, 0.4], -7),
}
# Weights in float32 are off by a few roundings of their score; here scores stay below 32.
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5, ml_dtypes.bfloat16: 1e-5}


def made(name: str, bias: str, dtype: Any) -> tuple[ch.AttentionMap, np.ndarray]:
    rng = np.random.default_rng(11)
    q = rng.normal(size=(1, T, D)).astype(dtype)
    k = rng.normal(size=(1, S, D)).astype(dtype)
    mask, rule = MASKS[name], BIASES[bias]
    seen = None if mask is None else mask.to_array(T, S)
    added = None if rule is None else rule.to_array(T, S)
    weights = reference.weights(q, k, mask=seen, bias=added)[0]
    return ch.attention_map(q, k, mask=mask, bias=rule), weights


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("name", MASKS)
def test_a_part_adds_its_own_weights_to_the_grid_and_no_others(
    name: str, bias: str, dtype: Any
) -> None:
    amap, weights = made(name, bias, dtype)
    t0, t1, s0, s1 = PART
    inside = weights[t0:t1, s0:s1]
    rows, cols = np.arange(t1 - t0) // 5, np.arange(s1 - s0) // 3 % 29
    rows[40:47] = cols[100:111] = -1
    shape = rows.max() + 1, cols.max() + 1
    sums, largest = np.zeros(shape), np.zeros(shape, amap.dtype)
    add_part(amap._call(), PART, rows, cols, sums, largest)
    want, most = np.zeros(shape), np.zeros(shape)
    at = np.ix_(rows >= 0, cols >= 0)
    grid = rows[rows >= 0][:, None], cols[cols >= 0][None]
    np.add.at(want, grid, inside[at])
    np.maximum.at(most, grid, inside[at])
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(sums, want, rtol=near, atol=near)
    np.testing.assert_allclose(largest, most, rtol=near, atol=near)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MASKS)
def test_received_and_lse_of_a_part_are_its_own(name: str, dtype: Any) -> None:
    amap, weights = made(name, "alibi", dtype)
    t0, t1, s0, s1 = PART
    received, lse = np.zeros(S), np.full(T, 7.0)
    add_received(amap._call(), PART, received)
    part_lse(amap._call(), PART, lse)
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(received[s0:s1], weights[t0:t1, s0:s1].sum(0), rtol=near, atol=near)
    assert not received[:s0].any() and not received[s1:].any()
    assert (lse[:t0] == 7).all() and (lse[t1:] == 7).all()
    with np.errstate(invalid="ignore"):  # a row that sees nothing at all
        share = np.exp(lse[t0:t1] - amap.lse[0, t0:t1])
    want = weights[t0:t1, s0:s1].sum(1)
    np.testing.assert_allclose(np.nan_to_num(share), want, rtol=10 * near, atol=near)


def test_parts_side_by_side_are_the_whole() -> None:
    amap, weights = made("causal", "none", np.float32)
    total = np.zeros((1, 1))
    for t0, t1 in ((0, 77), (77, 78), (78, T)):
        for s0, s1 in ((0, 129), (129, S)):
            zero = np.zeros(t1 - t0, np.int64), np.zeros(s1 - s0, np.int64)
            add_part(amap._call(), (t0, t1, s0, s1), *zero, total)
    assert total[0, 0] == pytest.approx(weights.sum(), rel=1e-5)


def test_a_part_outside_of_the_matrix_is_refused_and_an_empty_one_adds_nothing() -> None:
    amap, _ = made("all", "none", np.float32)
    with pytest.raises(ValueError, match="part: lies outside"):
        add_received(amap._call(), (0, T + 1, 0, S), np.zeros(S))
    received = np.zeros(S)
    for part in ((5, 5, 0, S), (9, 3, 0, S), (0, T, 8, 8), (0, T, 8, 2)):
        add_received(amap._call(), part, received)
    assert not received.any()
