"""Observation and products of a map against the whole matrix, in every instruction set."""

from __future__ import annotations

import math
import signal
import threading
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead import reference

H, G = 6, 2
ALL: dict[str, Any] = {
    "received": True,
    "entropy": True,
    "max": True,
    "by_distance": 13,
}
NAMES = (
    "pool_mean",
    "pool_max",
    "group",
    "top_weights",
    "top_keys",
    "received",
    "entropy",
    "max",
    "by_distance",
)
# What statistics of small scores may be off by.
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5, np.float16: 1e-5, ml_dtypes.bfloat16: 1e-5}


def plain(options: dict[str, Any], T: int, S: int) -> dict[str, Any]:
    """The options as the reference takes them: arrays in place of rules."""
    made = dict(options)
    if isinstance(made.get("mask"), ch.Mask):
        made["mask"] = made["mask"].to_array(T, S)
    if isinstance(made.get("bias"), ch.Bias):
        made["bias"] = made["bias"].to_array(T, S)
    return made


def tolerance_for(q: Any, k: Any, scale: float | None = None, bias: Any = None, **_: Any) -> float:
    """A weight is off by its score's error, and an entropy by as much: a few roundings of what the
    score is the sum of."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    a, b = np.abs(q.astype(np.float64)), np.abs(k.astype(np.float64))
    if q.ndim > 2:
        b = np.repeat(b, q.shape[-3] // k.shape[-3], axis=-3)
    size = abs(scale) * a @ b.mT
    if bias is not None:
        size = size + np.where(np.isfinite(bias), np.abs(bias), 0)
    eps = np.finfo(np.float64 if q.dtype == np.float64 else np.float32).eps
    return max(TOLERANCE[q.dtype.type], 8 * eps * size.max(initial=0))


def check_observation(q: Any, k: Any, options: dict[str, Any], wanted: dict[str, Any]) -> None:
    T, S = q.shape[-2], k.shape[-2]
    got = ch.attention_map(q, k, **options).observe(**wanted)
    want = reference.observe(q, k, **plain(options, T, S), **wanted)
    tolerance = tolerance_for(q, k, **plain(options, T, S))
    for name in NAMES:
        mine, theirs = getattr(got, name), getattr(want, name)
        if theirs is None:
            assert mine is None
        elif name == "top_keys":
            whole = reference.weights(q, k, **plain(options, T, S))
            check_keys(mine, theirs, whole, tolerance)
        else:
            assert mine.shape == theirs.shape, name
            scale = max(1.0, T / 8) if name in ("received", "by_distance") else 1.0
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance * scale)


def check_keys(mine: Any, theirs: Any, weights: Any, tolerance: float) -> None:
    """The reference's keys; where two are as strong as each other to rounding, either."""
    np.testing.assert_array_equal(mine < 0, theirs < 0)
    ranks = np.sort(mine, axis=-1)
    assert not ((np.diff(ranks, axis=-1) == 0) & (ranks[..., 1:] >= 0)).any(), "a key twice"
    own = np.take_along_axis(weights, np.maximum(mine, 0), -1)
    best = np.take_along_axis(weights, np.maximum(theirs, 0), -1)
    np.testing.assert_allclose(own[mine >= 0], best[mine >= 0], rtol=tolerance, atol=tolerance)


def some_arrays(seed: int, T: int, S: int, D: int, dtype: Any, lead: tuple[int, ...] = ()) -> Any:
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(*lead, H, T, D)).astype(dtype)
    k = rng.normal(size=(*lead, G, S, D)).astype(dtype)
    return q, k, rng


@st.composite
def options_for(draw: st.DrawFn, T: int, S: int, dtype: Any, rng: Any) -> dict[str, Any]:
    masks: list[Any] = [
        None,
        ch.causal(),
        ch.causal() & ch.window(left=draw(st.integers(0, 40))),
        ch.window(left=3, right=2) | ch.first_keys(2),
        ch.dilated(3),
        rng.random((H, T, S)) < draw(st.sampled_from([0.02, 0.5, 0.98])),
        np.zeros((T, S), bool),
    ]
    options: dict[str, Any] = {"mask": masks[draw(st.integers(0, len(masks) - 1))]}
    bias = draw(st.sampled_from(["none", "array", "holes", "alibi"]))
    if bias in ("array", "holes"):
        options["bias"] = rng.normal(size=(H, T, S)).astype(dtype)
        if bias == "holes":
            options["bias"][rng.random((H, T, S)) < 0.3] = -np.inf
    elif bias == "alibi":
        options["bias"] = ch.alibi(np.arange(1, H + 1) / 16)
    if draw(st.booleans()):
        options["softcap"] = 1.5
    if draw(st.booleans()):
        options["sink"] = rng.normal(size=H).astype(dtype)
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, 0.3, 2.0]))
    return options


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_statistic_is_the_references(isa: str, dtype: Any, data: st.DataObject) -> None:
    T, S = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 220))
    q, k, rng = some_arrays(
        data.draw(st.integers(0, 99)), T, S, data.draw(st.integers(1, 19)), dtype
    )
    options = data.draw(options_for(T, S, dtype, rng))
    wanted: dict[str, Any] = {
        name: value for name, value in ALL.items() if data.draw(st.booleans())
    }
    if data.draw(st.booleans()):
        wanted["pool"] = data.draw(st.tuples(st.integers(1, T), st.integers(1, S)))
    if data.draw(st.booleans()):
        sort = np.sort if data.draw(st.booleans()) else np.asarray
        wanted["group"] = sort(rng.integers(-1, 9, T)), sort(rng.integers(-1, 12, S))
    if data.draw(st.booleans()):
        wanted["top"] = data.draw(st.integers(1, S))
    check_observation(q, k, options, wanted)


def test_a_batch_whose_keys_are_shared_is_the_reference_too(isa: str) -> None:
    rng = np.random.default_rng(3)
    q = rng.normal(size=(3, 1, H, 67, 8)).astype(np.float32)
    k = rng.normal(size=(5, G, 101, 8)).astype(np.float32)
    options = {"mask": ch.lengths([0, 17, 50, 100, 101])}
    wanted = ALL | {"pool": (7, 11), "top": 3, "group": (np.arange(67) // 3, np.arange(101) % 5)}
    check_observation(q, k, options, wanted)


def test_one_head_without_its_axis_has_no_head_axis_in_its_observation() -> None:
    q, k, _ = some_arrays(0, 37, 41, 5, np.float64)
    amap = ch.attention_map(q[0], k[0], mask=ch.causal())
    found = amap.observe(pool=(3, 4), received=True, top=2)
    assert found.received.shape == (41,)
    assert found.pool_mean.shape == found.pool_max.shape == (3, 4)
    assert found.top_keys.shape == (37, 2)
    check_observation(q[0], k[0], {"mask": ch.causal()}, ALL | {"pool": (3, 4), "top": 2})


@pytest.mark.parametrize("top", [1, 8, 32, 33, 90, 500])
def test_of_equal_weights_the_lower_keys_are_kept(isa: str, top: int) -> None:
    rng = np.random.default_rng(top)
    k = rng.integers(0, 3, (1, 500, 1)).astype(np.float32)  # three scores, each many times
    found = ch.attention_map(np.ones((1, 70, 1), np.float32), k).observe(top=top)
    expected = np.argsort(-k[0, :, 0], kind="stable")[:top]
    np.testing.assert_array_equal(found.top_keys, np.broadcast_to(expected, (1, 70, top)))


@pytest.mark.parametrize("top", [4, 40])
def test_keys_whose_weights_underflow_keep_their_order(isa: str, top: int) -> None:
    k = -np.arange(60, dtype=np.float32).reshape(1, 60, 1) * 300
    found = ch.attention_map(np.ones((1, 1, 1), np.float32), k, scale=1.0).observe(top=top)
    np.testing.assert_array_equal(found.top_keys[0, 0], np.arange(top))
    np.testing.assert_array_equal(found.top_weights[0, 0, 1:], 0)


def test_nan_reaches_exactly_what_the_rows_that_see_it_add_to(isa: str) -> None:
    q, k, _ = some_arrays(5, 90, 130, 7, np.float32)
    q[2, 41, 3] = np.nan
    k[1, 60, 0] = np.nan  # seen by rows from 60 - 40 = 20 on, of heads 3 to 5
    wanted = ALL | {"pool": (9, 13), "top": 3, "group": (np.arange(90) // 9, np.arange(130) // 10)}
    check_observation(q, k, {"mask": ch.causal()}, wanted)
    amap = ch.attention_map(q, k, mask=ch.causal())
    rows = {tuple(int(i) for i in row) for row in amap.nan_rows()}
    assert rows == {(2, 41)} | {(h, t) for h in (3, 4, 5) for t in range(20, 90)}
    assert "NaN in 211 rows, the first at (2, 41)" in repr(amap)


def test_what_is_hidden_has_no_effect_whatever_it_is(isa: str) -> None:
    q, k, _ = some_arrays(6, 33, 200, 7, np.float32)
    wanted = ALL | {"pool": (3, 5), "top": 3}
    mask = ch.first_keys(150)
    clean = ch.attention_map(q, k, mask=mask).observe(**wanted)
    k[:, 150:] = [np.nan, np.inf, -np.inf, 1e38, np.nan, 0, 3]
    dirty = ch.attention_map(q, k, mask=mask).observe(**wanted)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(clean, name), getattr(dirty, name), name)


@pytest.mark.parametrize("size", [1e2, 1e4, 6e4])
def test_huge_scores_give_weights_right_to_the_rounding_of_the_scores(
    isa: str, size: float
) -> None:
    """Two keys alike at the top: one half each, though their lse has no digit left for it."""
    q = np.full((1, 70, 1), size, np.float32)
    k = np.repeat(np.array([1.0, -1.0, 1.0, 0.5], np.float32), 3).reshape(1, 12, 1)
    found = ch.attention_map(q, k, scale=1.0).observe(received=True, max=True, entropy=True)
    np.testing.assert_allclose(found.max, 1 / 6, rtol=1e-5)
    np.testing.assert_allclose(found.received.sum(), 70, rtol=1e-5)
    np.testing.assert_allclose(found.entropy, math.log(6), rtol=1e-4)


def test_the_same_bits_for_any_number_of_threads() -> None:
    q, k, _ = some_arrays(7, 700, 500, 16, np.float32)
    amap = ch.attention_map(q, k, mask=ch.causal())
    wanted = ALL | {"pool": (50, 31), "top": 5, "group": (np.arange(700) % 3, np.arange(500) // 2)}
    before, found = ch.num_threads(), []
    try:
        for count in (1, 2, 5):
            ch.set_num_threads(count)
            found.append((amap.observe(**wanted), amap.observe(received=True, mean_over=("head",))))
    finally:
        ch.set_num_threads(before)
    for whole, mean in found[1:]:
        for name in NAMES:
            np.testing.assert_array_equal(getattr(whole, name), getattr(found[0][0], name), name)
        np.testing.assert_array_equal(mean.received, found[0][1].received)


@pytest.mark.parametrize("over", [("head",), ("batch",), ("batch", "head"), "head"])
def test_means_are_those_of_what_is_kept_for_each_head(over: Any) -> None:
    q, k, _ = some_arrays(8, 45, 61, 8, np.float32, lead=(2, 3))
    amap = ch.attention_map(q, k)
    wanted = ALL | {"pool": (4, 6), "group": (np.arange(45) // 9, np.arange(61) % 4)}
    each, mean = amap.observe(**wanted), amap.observe(**wanted, mean_over=over)
    axes = ((0, 1) if "batch" in over else ()) + ((2,) if "head" in over else ())
    for name in ("pool_mean", "group", "received", "entropy", "by_distance"):
        expected = getattr(each, name).mean(axes, keepdims=True)
        np.testing.assert_allclose(getattr(mean, name), expected, rtol=1e-12, atol=1e-15)
    for name in ("pool_max", "max"):
        expected = getattr(each, name).max(axes, keepdims=True)
        np.testing.assert_array_equal(getattr(mean, name), expected)


def test_parents_of_a_pool_are_sums_of_their_children() -> None:
    q, k, _ = some_arrays(9, 64, 96, 8, np.float32)
    amap = ch.attention_map(q, k, mask=ch.causal())
    fine, coarse = amap.observe(pool=(32, 48)), amap.observe(pool=(8, 12))
    blocks = fine.pool_mean.reshape(H, 8, 4, 12, 4)
    np.testing.assert_allclose(coarse.pool_mean, blocks.mean((2, 4)), rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(
        coarse.pool_max, fine.pool_max.reshape(H, 8, 4, 12, 4).max((2, 4))
    )


def test_grouped_rows_sum_to_1_where_every_key_has_a_group() -> None:
    q, k, rng = some_arrays(10, 70, 90, 8, np.float32)
    group = ch.attention_map(q, k).group(rng.integers(-1, 7, 70), rng.integers(0, 5, 90))
    np.testing.assert_allclose(group.sum(-1), 1, rtol=1e-6)


def test_maps_without_rows_or_keys_have_empty_or_zero_observations() -> None:
    empty = ch.attention_map(np.zeros((H, 0, 4), np.float32), np.zeros((G, 9, 4), np.float32))
    assert empty.observe(received=True).received.tolist() == np.zeros((H, 9)).tolist()
    blind = ch.attention_map(np.zeros((H, 7, 4), np.float32), np.zeros((G, 0, 4), np.float32))
    found = blind.observe(entropy=True, max=True, by_distance=3)
    for x in (found.entropy, found.max, found.by_distance):
        np.testing.assert_array_equal(x, 0)


@pytest.mark.parametrize("top", [1, 2, 3, 8, 33, 60])
def test_of_equal_weights_the_lower_keys_are_kept_in_their_order(isa: str, top: int) -> None:
    rng = np.random.default_rng(12)
    k = rng.integers(0, 3, (1, 61, 1)).astype(np.float32)  # many ties, the largest anywhere
    q = np.ones((1, 19, 1), np.float32)
    found = ch.attention_map(q, k).observe(top=top)
    want = np.argsort(-k[0, :, 0], kind="stable")[:top]
    np.testing.assert_array_equal(found.top_keys, np.broadcast_to(want, (1, 19, top)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("T", [7, 64, 100])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_hidden_key_that_is_not_finite_adds_nothing(
    isa: str, dtype: Any, T: int, bad: float
) -> None:
    q, k = np.ones((1, T, 8), dtype), np.ones((1, 64, 8), dtype)
    k[:, 5] = bad
    amap = ch.attention_map(q, k, mask=~ch.first_keys(6))
    received = amap.observe(received=True).received
    assert (received[:, :6] == 0).all()
    np.testing.assert_allclose(received[:, 6:], T / 58, rtol=1e-5)
    assert ((np.ones((1, T), np.float32) @ amap)[..., :6] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("T", [16, 200])
def test_what_is_observed_is_as_exact_as_the_weights(isa: str, dtype: Any, T: int) -> None:
    """Scores near 0 among 860 keys: lse is far larger than they, and may not round them."""
    rng = np.random.default_rng(13)
    q = (rng.normal(size=(1, T, 64)) / 8).astype(dtype)
    k = (rng.normal(size=(1, 860, 64)) / 8).astype(dtype)
    amap = ch.attention_map(q, k)
    want = reference.weights(q, k)
    most = amap.observe(max=True).max
    error = np.abs(most - want.max(-1)).max() / want.max()
    assert error < 16 * np.finfo(dtype).eps


# Products.


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_products_are_those_with_the_whole_matrix(
    isa: str, dtype: Any, data: st.DataObject
) -> None:
    T, S = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 130))
    q, k, rng = some_arrays(data.draw(st.integers(0, 99)), T, S, 9, dtype)
    options = data.draw(options_for(T, S, dtype, rng))
    amap = ch.attention_map(q, k, **options)
    whole = reference.weights(q, k, **plain(options, T, S))
    kind = np.float64 if dtype == np.float64 else np.float32
    near = tolerance_for(q, k, **plain(options, T, S))
    check = {"rtol": near, "atol": 4 * near}
    for shape in [(S,), (S, 3), (1, S, 3), (H, S, 3)]:
        v = rng.normal(size=shape).astype(kind)
        out = amap @ v
        assert out.dtype == kind
        np.testing.assert_allclose(out, whole @ v, **check)
    v = rng.normal(size=(G, S, 3)).astype(kind)  # as `attention` takes them
    np.testing.assert_allclose(amap @ v, whole @ np.repeat(v, H // G, 0), **check)
    for shape in [(T,), (3, T), (1, 2, T), (H, 3, T)]:
        x = rng.normal(size=shape).astype(kind)
        assert (x @ amap).dtype == kind
        np.testing.assert_allclose(x @ amap, x @ whole, **check)


def test_products_of_one_head_broadcast_as_numpys_do() -> None:
    q, k, rng = some_arrays(11, 20, 30, 4, np.float64)
    amap = ch.attention_map(q[0], k[0], mask=ch.causal())
    whole = np.asarray(amap)
    v, x = rng.normal(size=(2, 3, 30, 5)), rng.normal(size=(2, 3, 4, 20))
    np.testing.assert_allclose(amap @ v, whole @ v, atol=1e-14)
    np.testing.assert_allclose(x @ amap, x @ whole, atol=1e-14)
    np.testing.assert_allclose(np.matmul(x, amap), x @ whole, atol=1e-14)


def test_functions_of_numpy_get_the_whole_matrix_and_its_limit() -> None:
    q, k, _ = some_arrays(12, 20, 30, 4, np.float32)
    amap = ch.attention_map(q, k)
    np.testing.assert_array_equal(np.log1p(amap), np.log1p(np.asarray(amap)))
    np.testing.assert_allclose(np.sum(amap, axis=-1), 1, rtol=1e-6)
    large = ch.attention_map(q, k, max_bytes=1000)
    with pytest.raises(ValueError, match="ask for a window"):
        np.log1p(large)


def test_ones_at_the_left_are_what_each_key_received(isa: str) -> None:
    q, k, _ = some_arrays(13, 300, 200, 8, np.float32)
    amap = ch.attention_map(q, k)
    np.testing.assert_allclose(np.ones(300) @ amap, amap.observe(received=True).received, rtol=1e-6)


# The pass as a call: progress, interruption, other libraries' arrays.


def long_map() -> ch.AttentionMap:
    q = np.random.default_rng(0).normal(size=(1, 1 << 15, 64)).astype(np.float32)
    return ch.attention_map(q, q, lse=np.zeros((1, 1 << 15), np.float32))


def test_progress_is_told_on_the_callers_thread_and_ends_the_pass_by_raising() -> None:
    seen = []

    class Enough(Exception):
        pass

    def progress(done: int, total: int) -> None:
        seen.append((done, total, threading.get_ident()))
        if len(seen) == 2:
            raise Enough

    start = time.perf_counter()
    with pytest.raises(Enough):
        long_map().observe(entropy=True, progress=progress)
    assert time.perf_counter() - start < 60
    (first, total, thread), (second, _, _) = seen
    assert 0 <= first <= second < total
    assert thread == threading.get_ident()


def test_ctrl_c_ends_the_pass() -> None:
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(100):
            long_map().observe(entropy=True)
    timer.join()


def test_torch_tensors_make_a_map_too() -> None:
    torch = pytest.importorskip("torch")
    q, k, _ = some_arrays(14, 20, 30, 4, np.float32)
    amap = ch.attention_map(torch.from_numpy(q), torch.from_numpy(k))
    np.testing.assert_array_equal(np.asarray(amap), np.asarray(ch.attention_map(q, k)))


# Bad input.

MAP = ch.attention_map(*some_arrays(15, 20, 30, 4, np.float32)[:2])


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        ({"top": 31}, ValueError, "top: is 31, must be at most S = 30"),
        ({"top": 0}, ValueError, "top: is 0, must be at least 1"),
        ({"top": 2.0}, TypeError, "top: is 2.0, must be a whole number"),
        ({"top": True}, TypeError, "top: is True, must be a whole number"),
        ({"top": 2, "mean_over": ("head",)}, ValueError, "top: .* without mean_over"),
        ({"pool": (21, 3)}, ValueError, r"pool: is \(21, 3\), must be at most .*\(20, 30\)"),
        ({"pool": (3, 31)}, ValueError, r"pool: is \(3, 31\), must be at most"),
        ({"pool": (0, 3)}, ValueError, r"pool\[0\]: is 0, must be at least 1"),
        ({"pool": 3}, TypeError, "pool: is 3, must be two whole numbers"),
        ({"pool": (2, 2.5)}, TypeError, r"pool\[1\]: is 2.5, must be a whole number"),
        ({"group": (range(19), range(30))}, ValueError, r"group rows: shape is \(19,\), must be"),
        ({"group": (range(20), range(20))}, ValueError, r"group cols: shape is \(20,\), must be"),
        ({"group": (range(20), np.full(30, -2))}, ValueError, "group cols: has -2, must be at"),
        ({"group": (np.ones(20), range(30))}, TypeError, "group rows: dtype is float64, must be"),
        ({"group": np.ones(20)}, TypeError, "group: is ndarray, must be a pair"),
        ({"group": (range(20), np.full(30, 2**40))}, ValueError, "return_inverse"),
        ({"group": ([10**6] * 20, [10**6] * 30)}, ValueError, "group: .* takes .* bytes"),
        ({"by_distance": -1}, ValueError, "by_distance: is -1, must be at least 1"),
        ({"progress": 3}, TypeError, "progress: is 3, must be a function"),
        ({"mean_over": ("row",)}, ValueError, "mean_over: is .*, must hold nothing but"),
    ],
)
def test_a_wrong_wish_is_one_sentence(wanted: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        MAP.observe(**wanted)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: MAP @ np.ones(20), r"amap @ v: v is \(20,\), must be \(S,\) or .* with S = 30"),
        (lambda: MAP @ np.ones((4, 30, 2)), "must have 1 head, 2 as k has, or 6"),
        (lambda: np.ones(30) @ MAP, r"x @ amap: x is \(30,\), must be \(T,\) or .* with T = 20"),
        (lambda: np.ones((4, 2, 20)) @ MAP, "must be broadcastable to"),
        (lambda: MAP.plot(head=6), "head: is 6, must be below"),
        (lambda: MAP.plot(rows=slice(5, 5)), "rows: is .*, must be a slice of step 1"),
        (lambda: MAP.plot(cols=slice(0, 9, 2)), "cols: is .*, must be a slice of step 1"),
    ],
)
def test_a_wrong_operand_is_one_sentence(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_17_billion_cells_are_refused_and_the_way_out_works() -> None:
    q = np.zeros((1, 131072, 2), np.float32)
    amap = ch.attention_map(q, q, lse=np.full((1, 131072), math.log(131072)))
    with pytest.raises(ValueError, match=r"takes 68,719,476,736 bytes.*pool=\(1024, 1024\)"):
        np.asarray(amap)
    np.testing.assert_allclose(amap[0, :2, :2], 1 / 131072, rtol=1e-6)


# Pictures.


@pytest.mark.parametrize("size", [40, 700])
def test_a_plot_shows_a_needle_at_any_size(size: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    k = np.zeros((G, size, 2), np.float32)
    k[1, size // 2] = 30
    q = np.zeros((H, size, 2), np.float32)
    q[5, size // 3] = 1
    ax = ch.attention_map(q, k).plot(head=-1)
    image = ax.images[0].get_array()
    row, col = np.unravel_index(int(np.argmax(image)), image.shape)
    assert image[row, col] > 0.99
    left, right, bottom, top = ax.images[0].get_extent()
    assert abs(top + (row + 0.5) * (bottom - top) / image.shape[0] - size // 3) <= 1
    assert abs(left + (col + 0.5) * (right - left) / image.shape[1] - size // 2) <= 1
    pyplot.close("all")
