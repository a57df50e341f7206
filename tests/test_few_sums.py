"""Few queries in float32 and float16 by products of bfloat16 tiles, each number a sum of parts."""

import numpy as np
import pytest

import clearhead as ch
from test_sums import BOTH, F16, F32, assert_right, by_tiles
from tiles import BY_TILES, by_multiply_adds, draw, same

pytestmark = BY_TILES

# H, G, T, S, D, E: 13 to 32 rows of a group; one tile of queries or two; remainders of every tile,
# block and shard.
SIZES = [
    (26, 2, 1, 1123, 64, 64),
    (6, 2, 7, 2081, 33, 100),
    (8, 1, 2, 97, 61, 31),
    (4, 1, 8, 1061, 160, 257),
    (17, 1, 1, 31, 7, 1),
    (32, 1, 1, 1, 128, 128),
]
EVERY = pytest.mark.parametrize(("H", "G", "T", "S", "D", "E"), SIZES)


def few(rng, H, G, T, S, D, E, dtype=F32, size=1.0):
    return draw(rng, T, S, D, E, size, dtype, B=1, H=H, G=G)


@BOTH
@EVERY
def test_remainders_of_rows_keys_and_columns_are_right(H, G, T, S, D, E, dtype, rng):
    q, k, v = few(rng, H, G, T, S, D, E, dtype, 2.0)
    assert_right(ch.attention_with_lse(q, k, v), q, k, v)


@BOTH
def test_they_take_the_tiles_where_enough_rows_share_a_key(dtype, rng):
    for heads in (13, 16, 17, 32):
        by_tiles(*few(rng, heads, 1, 1, 509, 64, 64, dtype))
    for heads in (12, 33):
        q, k, v = few(rng, heads, 1, 1, 509, 64, 64, dtype)
        same(ch.attention(q, k, v), by_multiply_adds(q, k, v).out)


@BOTH
@EVERY
def test_whatever_stands_beside_a_score_is_right(H, G, T, S, D, E, dtype, rng):
    q, k, v = few(rng, H, G, T, S, D, E, dtype)
    seen = rng.random((1, H, T, S)) < 0.6
    seen[0, 1] = False  # rows that see nothing
    bias = rng.standard_normal((H, T, S)).astype(dtype)
    bias[0, :, S // 2] = -np.inf
    sink = rng.standard_normal(H).astype(dtype)
    for options in ({"mask": seen}, {"bias": bias}, {"softcap": 2.0}, {"sink": sink}):
        assert_right(ch.attention_with_lse(q, k, v, **options), q, k, v, **options)
    options = {"mask": seen, "bias": bias, "softcap": 3.0, "sink": sink}
    assert_right(ch.attention_with_lse(q, k, v, **options), q, k, v, **options)


@BOTH
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("hidden", [False, True], ids=["seen", "hidden"])
def test_what_is_not_finite_is_left_to_multiply_adds(hidden, poison, dtype, rng):
    q, k, v = few(rng, 26, 2, 1, 1123, 64, 48, dtype)
    mask = np.ones((1, 1123), bool)
    mask[:, 700] = not hidden
    v[..., 700, 3] = poison
    got, theirs = (f(q, k, v, mask=mask) for f in (ch.attention_with_lse, by_multiply_adds))
    assert np.isfinite(got.out[..., [0, 1, 2, 4]]).all()
    assert np.isfinite(got.out).all() == hidden
    np.testing.assert_array_equal(np.isnan(got.out), np.isnan(theirs.out))
    k[..., 700, 5] = poison
    got, theirs = (f(q, k, v, mask=mask) for f in (ch.attention_with_lse, by_multiply_adds))
    np.testing.assert_array_equal(np.isnan(got.out), np.isnan(theirs.out))


@pytest.mark.parametrize(
    ("q_size", "k_size", "v_size"),
    [(1e-33, 1e33, 1), (1e25, 1e-25, 1), (1, 1, 1e-33), (1, 1, 1e-40), (1e19, 1e19, 1)],
    ids=["small queries", "large queries", "small values", "subnormal values", "huge scores"],
)
def test_numbers_that_parts_cannot_hold_are_left_to_multiply_adds(q_size, k_size, v_size, rng):
    q, k, v = few(rng, 16, 1, 1, 509, 32, 32)
    q, k, v = ((x * size).astype(F32) for x, size in ((q, q_size), (k, k_size), (v, v_size)))
    got, theirs = ch.attention_with_lse(q, k, v), by_multiply_adds(q, k, v)
    same(got.out, theirs.out)
    same(got.lse, theirs.lse)


@pytest.mark.parametrize(("k_size", "v_size"), [(1e-38, 1), (1e30, 1), (1, 1e-20), (1, 1e30)])
def test_numbers_that_parts_hold_keep_their_digits(k_size, v_size, rng):
    q, k, v = few(rng, 16, 1, 1, 509, 32, 32)
    k, v = (k * F32(k_size)).astype(F32), (v * F32(v_size)).astype(F32)
    q = (q / F32(min(k_size, 1e30) if k_size > 1 else 1)).astype(F32)
    assert_right(ch.attention_with_lse(q, k, v), q, k, v)


@BOTH
def test_caches_of_other_strides_are_right(dtype, rng):
    q, k, v = few(rng, 16, 1, 1, 509, 61, 67, dtype)
    want = ch.attention(q, k, v)
    turned = [np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2) for x in (k, v)]
    assert_right(ch.attention_with_lse(q, *turned), q, k, v)
    wide = [np.full((1, 1, 1100, x.shape[-1] + 9), np.nan, dtype) for x in (k, v)]
    for whole, x in zip(wide, (k, v), strict=True):
        whole[:, :, : 2 * 509 : 2, 5 : 5 + x.shape[-1]] = x
    inside = [
        w[:, :, : 2 * 509 : 2, 5 : 5 + x.shape[-1]] for w, x in zip(wide, (k, v), strict=True)
    ]
    same(ch.attention(q, *inside), want)


@BOTH
@EVERY
def test_threads_change_no_bit(H, G, T, S, D, E, dtype, rng):
    q, k, v = few(rng, H, G, T, S, D, E, dtype)
    results = []
    for threads in (1, 2, 5):
        ch.set_num_threads(threads)
        results.append(ch.attention_with_lse(q, k, v))
    for other in results[1:]:
        same(other.out, results[0].out)
        same(other.lse, results[0].lse)


def test_float16_has_two_parts(rng):
    """Values of the size of a subnormal float16 show what a second part holds."""
    q, k, v = few(rng, 16, 1, 1, 640, 64, 64, F16)
    v = (v.astype(F32) * 3e-6).astype(F16)
    assert_right(ch.attention_with_lse(q, k, v), q, k, v)
