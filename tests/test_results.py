"""Large results take the memory of earlier ones that nobody holds any more."""

import gc

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import _native

MIB = 2**20
SHAPE = 1, 5, 1024, 67  # 1.3 MiB in float32


def draw(dtype: type = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    return [rng.normal(size=SHAPE).astype(dtype) for _ in range(3)]


def leave_behind(value: float, count: int = 4) -> None:
    """Results of this value, no longer held."""
    q, k, v = draw()
    gone = [ch.attention(q, k, v) for _ in range(count)]
    for result in gone:
        result.fill(value)


def test_a_large_result_takes_the_memory_of_one_that_is_gone() -> None:
    q, k, v = draw()
    out = ch.attention(q, k, v)
    address = out.ctypes.data
    del out
    assert ch.attention(q, k, v).ctypes.data == address


def test_the_memory_of_a_result_is_not_taken_while_a_view_of_it_is_held() -> None:
    q, k, v = draw()
    view = ch.attention(q, k, v)[0, 1, 3:17].T
    before = view.copy()
    leave_behind(np.nan)
    np.testing.assert_array_equal(view, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "mask",
    [None, ch.causal(), ch.lengths([0]), ~ch.first_keys(200) & ch.causal(), ch.window(left=2)],
    ids=["full", "causal", "nothing", "rows and keys left out", "window"],
)
def test_what_an_earlier_result_left_is_written_over(dtype: type, mask: ch.Mask | None) -> None:
    q, k, v = draw(dtype)
    found = []
    for left_behind in (np.nan, 0):
        leave_behind(left_behind)
        out, lse = ch.attention_with_lse(q, k, v, mask=mask)
        gradients = ch.attention_grad(v, q, k, v, out, lse, mask=mask)
        found.append([out, *gradients[:3]])
    for one, other in zip(*found, strict=True):
        assert np.isfinite(one.astype(np.float64)).all()
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("over", [(), "head"])
@pytest.mark.parametrize(
    "mask",
    [None, ch.lengths([0]), ~ch.first_keys(200) & ch.causal(), ch.window(left=2)],
    ids=["full", "nothing", "rows and keys left out", "window"],
)
def test_what_an_earlier_observation_left_is_written_over(
    dtype: type, over: str, mask: ch.Mask | None
) -> None:
    seen = ch.attention_map(*draw(dtype)[:2], mask=mask)

    def observe() -> list[np.ndarray]:
        one = seen.observe(pool=(600, 513), top=None if over else 64, mean_over=over)
        results = [one.pool_mean, one.pool_max, one.top_weights, one.top_keys]
        return [x for x in results if x is not None]

    before = [x.copy() for x in observe()]
    for left_behind in (-77, 2**40):
        for x in observe():
            x.fill(left_behind)
        del x
        for one, other in zip(before, observe(), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("shape", "over"), [((0, 2, 600, 4), "batch"), ((1, 0, 600, 4), "head")])
def test_what_no_head_adds_to_is_zero_whatever_stood_there(
    shape: tuple[int, ...], over: str
) -> None:
    seen = ch.attention_map(*[np.ones(shape, np.float32)] * 2)
    for _ in range(2):
        one = seen.observe(pool=(600, 600), mean_over=over)
        for x in (one.pool_mean, one.pool_max):
            assert x is not None and x.size >= 600 * 600
            assert not x.any()
            x.fill(7)
        del one, x


def test_no_more_than_64_mib_of_results_are_kept() -> None:
    leave_behind(0, count=83)  # 2 MiB each, or nearly
    gc.collect()
    assert 32 * MIB < _native.kept_bytes() <= 64 * MIB


def test_a_small_result_is_an_array_of_its_own() -> None:
    q = np.zeros((1, 2, 3, 5), np.float32)
    assert ch.attention(q, q, q).flags.owndata
