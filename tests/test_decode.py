"""Few queries against many keys: the rows of grouped heads together, the keys in shards."""

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import _native, reference
from subject import Sizes, Subject, laid_out

INF, NAN = np.inf, np.nan
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]

# Beyond a shard of 1024 keys or two, and as many rows as each way of working takes: 1 and 2 rows, a
# strip of a few fours, all lanes of a panel, heads that need two panels; in bfloat16 by tiles, rows
# that stand twice, one tile of 16 and three, and sizes of heads that are read from where they lie.
ONE = Sizes(B=2, H=3, G=3, T=1, S=2111, D=61, E=67)
TWO = Sizes(B=1, H=4, G=2, T=1, S=2053, D=64, E=64)
STRIP = Sizes(B=2, H=14, G=2, T=1, S=2063, D=37, E=83)
SHORT = Sizes(B=1, H=6, G=2, T=7, S=2081, D=67, E=31)
PANEL = Sizes(B=1, H=10, G=2, T=11, S=2069, D=31, E=43)
SPLIT = Sizes(B=1, H=71, G=1, T=1, S=1031, D=17, E=19)
TILE = Sizes(B=1, H=13, G=1, T=1, S=1123, D=96, E=160)
TILES = Sizes(B=1, H=6, G=2, T=11, S=1061, D=160, E=96)
SIZES = pytest.mark.parametrize(
    "n",
    [ONE, TWO, STRIP, SHORT, PANEL, SPLIT, TILE, TILES],
    ids=["one", "two", "strip", "short", "panel", "split", "tile", "tiles"],
)


class Decode(Subject):
    def attend(self, q, k, v, **options):
        return ch.attention_with_lse(q, k, v, **options)


@pytest.fixture(params=DTYPES, ids=["float64", "float32", "float16", "bfloat16"])
def subject(request, rng):
    own = Decode()
    own.dtype, own.rng = request.param, rng
    return own


@SIZES
def test_it_is_the_reference_in_every_way_of_working(n, subject) -> None:
    q, k, v = subject.qkv(n)
    subject.check(q, k, v)
    window = subject.window(n.T, n.S, 1499, 0)
    subject.check(q, k, v, mask=ch.window(1499, 0), array_mask=window)


@SIZES
def test_masks_biases_caps_and_sinks_are_those_of_each_head(n, subject) -> None:
    q, k, v = subject.qkv(n)
    mask = subject.rng.random((n.B, n.H, n.T, n.S)) < 0.5
    mask[:, 1, 0] = False
    bias = subject.draw(n.B, n.H, n.T, n.S, size=2)
    bias[..., n.S // 3] = -INF
    subject.check(q, k, v, mask=mask, bias=bias, softcap=3.0, sink=subject.draw(n.H))
    slopes = subject.rng.random(n.H)
    distance = np.arange(n.T)[:, None] + (n.S - n.T) - np.arange(n.S)
    rule = (-slopes[:, None, None] * np.abs(distance)).astype(np.float32)
    if subject.dtype in (np.float32, np.float64):
        out, lse = ch.attention_with_lse(q, k, v, bias=ch.alibi(slopes))
        want = ch.attention_with_lse(q, k, v, bias=rule.astype(subject.dtype))
        np.testing.assert_allclose(out, want.out, rtol=2e-4, atol=2e-6)
        np.testing.assert_allclose(lse, want.lse, rtol=2e-5)


def test_lengths_and_documents_end_shards_early(subject) -> None:
    n = STRIP
    q, k, v = subject.qkv(n)
    lengths = np.array([1500, 3])
    meant = np.arange(n.S) < lengths[:, None, None, None]
    subject.check(q, k, v, mask=ch.lengths(lengths), array_mask=meant)
    keys = np.arange(n.S) // 601
    subject.check(q, k, v, mask=ch.documents(np.array([2]), keys), array_mask=(keys == 2)[None])


@pytest.mark.parametrize("layout", ["transposed", "backwards", "heads inside", "unaligned"])
@pytest.mark.parametrize("n", [STRIP, SHORT, PANEL], ids=["strip", "short", "panel"])
def test_caches_of_any_strides(n, layout, subject) -> None:
    q, k, v = (laid_out(x, layout) for x in subject.qkv(n))
    subject.check(q, k, v)
    plain = np.ascontiguousarray(k)
    subject.check(q, plain, v)


@SIZES
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_what_is_hidden_has_no_effect_in_any_shard(n, poison, subject) -> None:
    q, k, v = subject.qkv(n)
    mask = np.ones((n.T, n.S), bool)
    hidden = [3, n.S // 2, n.S - 1]
    mask[:, hidden] = False
    bad_k, bad_v = k.copy(), v.copy()
    bad_k[..., hidden, :] = bad_v[..., hidden, :] = poison
    subject.check(q, bad_k, bad_v, clean=(q, k, v), mask=mask)


@SIZES
def test_nan_in_one_key_reaches_all_that_see_it_and_no_others(n, subject) -> None:
    q, k, v = subject.qkv(n)
    bad = k.copy()
    bad[0, 0, n.S - n.S // 3, 0] = NAN
    out, lse = subject.check(q, bad, v, clean=(q, k, v))
    group = n.H // n.G
    assert np.isnan(out[0, :group]).all() and np.isnan(lse[0, :group]).all()
    assert not np.isnan(out[0, group:]).any() and not np.isnan(out[1:]).any()
    # A shard whose only scores are NaN, beside others that are sound.
    bad[..., n.S - 5 :, :] = NAN
    seen = (np.arange(n.S) < 100) | (np.arange(n.S) >= n.S - 5)
    assert np.isnan(ch.attention(q, bad, v, mask=seen)).all()


@SIZES
def test_the_bits_do_not_depend_on_the_threads(n, subject) -> None:
    q, k, v = subject.qkv(n)
    before, results = ch.num_threads(), []
    try:
        for count in (1, 2, 5):
            ch.set_num_threads(count)
            out, lse = ch.attention_with_lse(q, k, v, sink=q[0, :, 0, 0])
            results.append(out.tobytes() + lse.tobytes())
    finally:
        ch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_one_far_key_outweighs_every_other_shard() -> None:
    """The states' references differ by more than float32 can tell apart."""
    q = np.ones((1, 4, 1, 16), np.float32)
    k = np.zeros((1, 1, 5003, 16), np.float32)
    v = np.zeros((1, 1, 5003, 16), np.float32)
    k[0, 0, 4001], v[0, 0, 4001] = 1e4, 7
    out, lse = ch.attention_with_lse(q, k, v, scale=1.0)
    assert (out == 7).all() and (lse == np.float32(16e4)).all()


def test_long_sums_keep_their_digits(rng) -> None:
    """Equal scores over 300,000 keys: each weight is far below the last digit of their sum."""
    q = np.zeros((1, 2, 1, 8), np.float32)
    k = np.zeros((1, 1, 300007, 8), np.float32)
    v = rng.normal(1, 1, size=(1, 1, 300007, 3)).astype(np.float32)
    out, lse = ch.attention_with_lse(q, k, v)
    np.testing.assert_allclose(out[0, :, 0], [v[0, 0].mean(0, dtype=np.float64)] * 2, rtol=2e-6)
    np.testing.assert_allclose(lse, np.log(300007), rtol=2e-7)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 12, 13, 16, 17, 32, 33, 64])
def test_a_query_does_not_depend_on_those_beside_it(rows, subject) -> None:
    """Every number of rows that a strip, a panel or tiles can hold, against each row alone."""
    n = Sizes(B=1, H=rows, G=1, T=1, S=157, D=64, E=96)
    q, k, v = subject.qkv(n)
    subject.check(q, k, v)
    out = subject.attend(q, k, v).out
    last = subject.attend(q[:, -1:], k, v).out
    eps = {2: 2**-7, 4: 2**-22, 8: 2**-50}[q.dtype.itemsize]
    np.testing.assert_allclose(*(x.astype(float) for x in (out[:, -1:], last)), rtol=eps, atol=eps)


@pytest.mark.parametrize(("D", "E"), [(64, 32), (33, 100), (32, 31), (1, 1)])
@pytest.mark.parametrize("S", [1, 31, 32, 95, 100])
def test_what_lies_beside_keys_and_values_is_not_taken_for_them(S, D, E, subject) -> None:
    n = Sizes(B=1, H=5, G=1, T=1, S=S, D=D, E=E)
    q, k, v = subject.qkv(n)
    beside = [np.full((x.shape[-2] + 70, x.shape[-1] + 70), NAN, x.dtype) for x in (q, k, v)]
    inside = []
    for x, wide in zip((q[0, :, 0], k[0, 0], v[0, 0]), beside, strict=True):
        wide[3 : 3 + x.shape[0], 5 : 5 + x.shape[1]] = x
        inside.append(wide[3 : 3 + x.shape[0], 5 : 5 + x.shape[1]])
    views = inside[0][None, :, None], inside[1][None, None], inside[2][None, None]
    subject.check(*views, clean=(q, k, v))


@pytest.mark.skipif("amx" not in ch.available_isas(), reason="a processor without bfloat16 tiles")
@pytest.mark.parametrize("heads", [1, 8, 9, 32])
def test_weights_of_few_queries_are_rounded_as_those_of_many(heads) -> None:
    """Two keys of weights 1 and 0.7505, which rounds to 0.75, and values that it makes cancel."""
    one, k = np.ones((1, heads, 1, 1), np.float32), np.zeros((1, 1, 2, 1), np.float32)
    k[..., 1, 0] = -1
    v = np.array([0.75, -1], np.float32).reshape(1, 1, 2, 1)
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in (one, k, v))
    before = ch.isa()
    try:
        _native.choose_isa("amx")
        out, lse = ch.attention_with_lse(q, k, v, scale=-np.log(0.7505))
        many = ch.attention(np.repeat(q, 64, axis=2), k, v, scale=-np.log(0.7505))
    finally:
        _native.choose_isa(before)
    assert (out == 0).all() and (many == 0).all()
    np.testing.assert_allclose(lse, np.log(1.7505), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [TWO, STRIP, SHORT, TILE], ids=["two", "strip", "short", "tile"])
def test_every_instruction_set_decodes_alike(n, dtype, rng) -> None:
    own = Decode()
    own.dtype, own.rng = dtype, rng
    q, k, v = own.qkv(n)
    before = ch.isa()
    try:
        for isa in ch.available_isas():
            _native.choose_isa(isa)
            own.check(q, k, v, sink=own.draw(n.H))
    finally:
        _native.choose_isa(before)


def test_decoding_with_a_cache_is_the_last_row_of_the_whole(rng) -> None:
    n = STRIP._replace(T=1200, S=1200)
    q, k, v = (
        rng.normal(size=(n.H, n.T, n.D)).astype(np.float32),
        rng.normal(size=(n.G, n.S, n.D)).astype(np.float32),
        rng.normal(size=(n.G, n.S, n.E)).astype(np.float32),
    )
    cache = ch.KeyValueCache()
    cache.append(k[:, :1150], v[:, :1150])
    for t in range(1150, 1200, 7):
        stop = min(t + 7, 1200)
        keys, values = cache.append(k[:, t:stop], v[:, t:stop])
        out = ch.attention(q[:, t:stop], keys, values, mask=ch.causal())
        seen = np.arange(stop) <= np.arange(t, stop)[:, None]
        want = reference.forward(q[:, t:stop], k[:, :stop], v[:, :stop], mask=seen)[0]
        np.testing.assert_allclose(out, want, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("T", [1, 5, 12, 31])
def test_a_value_that_is_not_finite_stays_in_its_column(T, value, dtype):
    q, k = np.ones((2, T, 8), dtype), np.ones((2, 70, 8), dtype)
    v = np.ones((2, 70, 5), dtype)
    v[0, 33, 1] = value
    out = ch.attention(q, k, v).astype(np.float64)
    assert np.isfinite(out[1]).all() and np.isfinite(out[0][:, [0, 2, 3, 4]]).all()
    np.testing.assert_array_equal(out[0, :, 1], np.full(T, value))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_few_queries_with_huge_scores_find_their_key(dtype, rng):
    q, k, v = (
        (size * rng.standard_normal((n, 64))).astype(dtype)
        for n, size in ((1, 1e5), (65, 1e5), (65, 1))
    )
    out, lse = ch.attention_with_lse(q, k, v)
    best = np.argmax(q.astype(np.float64) @ k.astype(np.float64).T)
    assert np.isfinite(lse).all()
    np.testing.assert_array_equal(out[0], v[best])
