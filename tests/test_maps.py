"""AttentionMap: NumPy's indexing, the reference's weights, and the cost of what was asked only."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, basic_indices

import clearhead as ch
from clearhead import reference

RNG = np.random.default_rng(17)
H, G, T, S, D = 6, 2, 7, 11, 5
Q = RNG.normal(size=(2, H, T, D)).astype(np.float32)
K = RNG.normal(size=(2, G, S, D)).astype(np.float32)
BOOLS = RNG.random((2, 1, T, S)) < 0.6
BOOLS[0, 0, 3] = False  # a query that sees nothing
BIAS = RNG.normal(size=(H, T, S)).astype(np.float32)
BIAS[1, 2, 4] = -np.inf

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": ch.causal()},
    "booleans": {"mask": BOOLS},
    "rule of rules": {"mask": (ch.causal() & ch.window(left=2)) | ch.first_keys(1)},
    "lengths": {"mask": ch.lengths([3, 9])},
    "bias": {"bias": BIAS},
    "alibi": {"bias": ch.alibi(np.arange(1.0, H + 1) / 8)},
    "one alibi": {"bias": ch.alibi(0.25), "mask": ch.causal()},
    "relative": {"bias": ch.relative_bias(RNG.normal(size=(H, 5)), first=-2)},
    "softcap and scale": {"softcap": 1.5, "scale": 0.7, "mask": BOOLS},
    "sink": {"sink": RNG.normal(size=H).astype(np.float32), "mask": ch.causal()},
}


def expected(options: dict[str, Any]) -> np.ndarray:
    given = dict(options)
    if isinstance(given.get("mask"), ch.Mask):
        given["mask"] = given["mask"].to_array(T, S)
    if isinstance(given.get("bias"), ch.Bias):
        given["bias"] = given["bias"].to_array(T, S)
    return reference.weights(Q, K, **given)


@pytest.mark.parametrize("case", OPTIONS)
def test_the_whole_map_is_the_references_weights(case: str) -> None:
    amap = ch.attention_map(Q, K, **OPTIONS[case])
    whole = np.asarray(amap)
    assert whole.dtype == amap.dtype == np.float32
    assert whole.shape == amap.shape == (2, H, T, S)
    np.testing.assert_allclose(whole, expected(OPTIONS[case]), rtol=2e-5, atol=1e-7)


INDICES: dict[str, Any] = {
    "nothing": (),
    "ellipsis": ...,
    "one batch": 1,
    "one batch from the end": -1,
    "one row": (1, 4, 3),
    "one cell": (1, 4, 3, 10),
    "one cell from the end": (-2, -1, -3, -11),
    "one column": (slice(None), slice(None), slice(None), 7),
    "a tile": (0, 5, slice(2, 6), slice(3, 9)),
    "steps": (slice(None, None, -1), slice(1, None, 2), slice(6, 1, -2), slice(None, None, -3)),
    "an empty slice": (slice(None), slice(3, 3)),
    "no keys": (..., slice(4, 4)),
    "rows by an array": (0, 2, [5, 0, 0]),
    "heads by an array": (slice(None), np.array([5, 3]), 2),
    "columns by an array": (..., np.array([10, 0, -1])),
    "arrays side by side": (0, [1, 2, 5], [6, 0, -1], slice(1, 8, 3)),
    "arrays with a slice between": ([1, 0], slice(2, 5), [3, 6]),
    "arrays that broadcast": (0, 0, np.array([[1], [4]]), np.array([0, 5, 10])),
    "array and integer apart": (slice(None), [0, 3], slice(1, 4), 2),
    "an array of no elements": (0, 0, np.array([], int)),
    "booleans over rows": (0, 1, np.arange(T) % 2 == 0),
    "booleans over cells": (0, 3, BOOLS[0, 0] & (BIAS[0] > 0)),
    "booleans over everything": np.broadcast_to(BOOLS, (2, H, T, S)),
    "a new axis first": (None, 1),
    "new axes within and last": (0, None, 2, ..., None),
    "True": True,
    "a NumPy integer": (np.int8(1), np.uint16(2)),
}


@pytest.mark.parametrize("case", INDICES)
@pytest.mark.parametrize("options", ["booleans", "rule of rules", "bias", "alibi", "relative"])
def test_indexing_is_numpys(case: str, options: str) -> None:
    whole = expected(OPTIONS[options]).astype(np.float32)
    part = ch.attention_map(Q, K, **OPTIONS[options])[INDICES[case]]
    wanted = whole[INDICES[case]]
    assert type(part) is type(wanted)
    assert part.shape == wanted.shape and part.dtype == wanted.dtype
    np.testing.assert_allclose(part, wanted, rtol=2e-5, atol=1e-7)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_basic_index_is_numpys(data: st.DataObject) -> None:
    amap = ch.attention_map(Q, K, mask=ch.causal())
    index = data.draw(basic_indices(amap.shape, allow_newaxis=True, max_dims=8))
    part, wanted = amap[index], expected({"mask": ch.causal()})[index]
    assert part.shape == wanted.shape
    np.testing.assert_allclose(part, wanted, rtol=2e-5, atol=1e-7)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_index_arrays_are_numpys(data: st.DataObject) -> None:
    amap = ch.attention_map(Q, K, mask=BOOLS)
    shape = data.draw(array_shapes(max_dims=2, max_side=4))
    index = tuple(
        data.draw(
            st.one_of(
                arrays(np.int64, shape, elements=st.integers(-n, n - 1)),
                st.integers(-n, n - 1),
                st.slices(n),
            )
        )
        for n in amap.shape[: data.draw(st.integers(1, 4))]
    )
    part, wanted = amap[index], expected({"mask": BOOLS})[index]
    assert part.shape == wanted.shape
    np.testing.assert_allclose(part, wanted, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("index", [2, (0, 6), (0, 0, 0, 11), (0, 0, -8), [0, 2], (0,) * 5, 1.0])
@pytest.mark.parametrize("last", [(), (..., [0])])
def test_an_index_that_numpy_refuses_is_refused(index: Any, last: Any) -> None:
    amap, whole = ch.attention_map(Q, K), np.zeros((2, H, T, S))
    full = (index, *last) if not isinstance(index, tuple) else (*index, *last)
    with pytest.raises(IndexError) as theirs:
        whole[full]
    with pytest.raises(IndexError) as ours:
        amap[full]
    assert "\n" not in str(ours.value)
    assert type(theirs.value) is type(ours.value)


def test_one_head_has_no_head_axis() -> None:
    amap = ch.attention_map(Q[0, 0], K[0, 0], mask=ch.causal())
    assert amap.shape == (T, S) and amap.ndim == 2 and len(amap) == T and amap.size == T * S
    whole = reference.weights(Q[0, 0], K[0, 0], mask=ch.causal().to_array(T, S))
    np.testing.assert_allclose(amap, whole, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(amap[[1, 2], [3, 0]], whole[[1, 2], [3, 0]], rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(list(amap), whole, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_each_dtype_gives_weights_of_the_precision_it_is_computed_in(dtype: Any) -> None:
    q, k = Q.astype(dtype), K.astype(dtype)
    whole = np.asarray(ch.attention_map(q, k))
    assert whole.dtype == (np.float64 if dtype is np.float64 else np.float32)
    wanted = reference.weights(q.astype(np.float64), k.astype(np.float64))
    np.testing.assert_allclose(whole, wanted, rtol=1e-13 if dtype is np.float64 else 1e-5)


def test_a_float64_lse_makes_large_scores_exact() -> None:
    q, k = Q[0] * 30, K[0] * 30
    _, lse = reference.forward(q, k, k)
    exact = reference.weights(q, k)
    error = np.abs(np.asarray(ch.AttentionMap(q, k, lse)) - exact).max()
    rough = np.abs(np.asarray(ch.AttentionMap(q, k, lse.astype(np.float32))) - exact).max()
    assert error < 1e-6 < rough


def test_nan_reaches_exactly_the_rows_that_see_it_and_no_hidden_cell() -> None:
    q, k = Q.copy(), K.copy()
    q[0, 2, 5, 1] = np.nan
    k[1, 1, 9, 0] = np.nan
    whole = np.asarray(ch.attention_map(q, k, mask=ch.causal()))
    wanted = reference.weights(q, k, mask=ch.causal().to_array(T, S))
    np.testing.assert_array_equal(np.isnan(whole), np.isnan(wanted))
    assert np.isnan(whole).any() and not np.isnan(whole).all()


def test_a_query_that_sees_nothing_reads_nothing() -> None:
    amap = ch.attention_map(Q, K, mask=BOOLS)
    assert not amap[0, :, 3].any() and amap[1, :, 3].any()
    assert not amap[0, :, [3], [4]].any()


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 3)])
def test_empty_maps_are_empty_arrays(shape: tuple[int, int, int]) -> None:
    q = np.ones((2, shape[0], shape[2]), np.float32)
    k = np.ones((2, shape[1], shape[2]), np.float32)
    assert np.asarray(ch.attention_map(q, k)).shape == (2, shape[0], shape[1])


def test_a_window_of_a_huge_map_costs_what_the_window_costs() -> None:
    n = 131_072
    q, k = (RNG.standard_normal((1, n, 3)).astype(np.float32) for _ in range(2))
    amap = ch.AttentionMap(q, k, np.zeros((1, n), np.float32), mask=ch.causal())
    tracemalloc.start()
    tile = amap[0, n - 256 :, n - 256 :]
    row = amap[0, n // 2]
    cell = amap[0, 70_000, 60_000]
    repr(amap)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23
    assert tile.shape == (256, 256) and row.shape == (n,) and cell.shape == ()


@pytest.mark.parametrize("whole", [np.asarray, lambda amap: amap[...], lambda amap: amap[0, :]])
def test_too_large_a_result_is_refused_with_a_way_out(whole: Any) -> None:
    n = 131_072
    q = np.zeros((1, n, 1), np.float32)
    amap = ch.AttentionMap(q, q, np.zeros((1, n), np.float32))
    with pytest.raises(ValueError, match=r"takes 68,719,476,736 bytes.*amap\[0, :1024, :1024\]"):
        whole(amap)


def test_asarray_obeys_numpys_protocol() -> None:
    amap = ch.attention_map(Q, K)
    assert np.asarray(amap, np.float64).dtype == np.float64
    assert np.array(amap).shape == amap.shape
    np.testing.assert_array_equal(amap.__array__(np.float32), amap[...])
    with pytest.raises(ValueError, match="copy must not be False"):
        amap.__array__(copy=False)


def test_repr_says_the_sizes_and_the_rule() -> None:
    assert repr(ch.attention_map(Q, K, mask=ch.causal())) == (
        "AttentionMap(B0=2, H=6, T=7, S=11, D=5, float32, mask=causal())"
    )
    assert repr(ch.attention_map(Q[0], K[0], mask=BOOLS[0])) == (
        "AttentionMap(H=6, T=7, S=11, D=5, float32, mask=bool (1, 7, 11))"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"k": K[..., :3]}, "k: D is 3 but q has D = 5"),
        ({"k": np.zeros((2, 4, S, D), np.float32)}, "6 query heads are not a multiple of 4"),
        ({"k": np.zeros((3, G, S, D), np.float32)}, "do not broadcast"),
        ({"k": K[0, 0]}, "some have a head axis and some have none"),
        (
            {"lse": np.zeros((2, H, S), np.float32)},
            r"lse: shape is \(2, 6, 11\), must be \(..., H, T\) = \(2, 6, 7\)",
        ),
        ({"mask": BOOLS[..., :4]}, r"mask: shape is \(2, 1, 7, 4\), must broadcast"),
        ({"mask": ch.lengths([1, 2, 3])}, "lengths"),
        ({"bias": BIAS[:, :3]}, r"bias: shape is \(6, 3, 11\), must broadcast"),
        ({"bias": ch.alibi(np.ones(4))}, "has 4 heads, must have 1 or 6"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: dict[str, Any], says: str) -> None:
    given = {"q": Q, "k": K, "lse": np.zeros((2, H, T), np.float32)} | change
    with pytest.raises(ValueError, match=says):
        ch.AttentionMap(given.pop("q"), given.pop("k"), given.pop("lse"), **given)
