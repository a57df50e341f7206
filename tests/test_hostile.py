"""Arguments that no one means to pass: a right answer or one sentence, never a crash."""

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import reference

INF, NAN = np.inf, np.nan
EPS = float(np.finfo(np.float64).eps)


def refused(error, words, call):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


# -- shapes


def test_sixteen_leading_axes_are_walked_and_seventeen_refused(rng):
    lead = (1,) * 7 + (2,) + (1,) * 7 + (3,)
    q, k = rng.normal(size=(*lead, 2, 5, 3)), rng.normal(size=(3, 1, 7, 3))
    np.testing.assert_allclose(ch.attention(q, k, k), reference.forward(q, k, k)[0], atol=16 * EPS)
    refused(ValueError, "q, k, v: 17 axes before the heads", lambda: ch.attention(q[None], k, k))
    far = k[(None,) * 17]  # of the result they are the leading axes as well
    refused(ValueError, "must be at most 16", lambda: ch.linear_attention(q, far, far))


def test_more_columns_than_scratch_can_hold_are_refused():
    one, wide = np.ones((1, 1), np.float32), np.broadcast_to(np.float32(1), (1, 2**58))
    refused(
        ValueError, r"q, k: D is .*, must be at most 2\*\*40", lambda: ch.attention(wide, wide, one)
    )
    refused(
        ValueError, r"v: E is .*, must be at most 2\*\*40", lambda: ch.attention(one, one, wide)
    )


def test_no_query_heads_beside_key_heads(rng):
    q, k = np.zeros((2, 0, 5, 3)), rng.normal(size=(2, 4, 7, 3))
    out, lse = ch.attention_with_lse(q, k, k)
    assert out.shape == (2, 0, 5, 3)
    grads = ch.attention_grad(out, q, k, k, out, lse)
    linear = ch.linear_attention_grad(ch.linear_attention(q, k, k), q, k, k)
    for dk in (grads.k, grads.v, linear.k, linear.v):
        assert dk.shape == k.shape and not dk.any()


def test_one_head_without_its_axis_takes_no_mask_of_many():
    q = np.ones((3, 4))
    mask = ch.allowed(np.ones((5, 2, 3, 3), bool))
    refused(ValueError, r"mask: is \(5, 2, 3, 3\)", lambda: ch.attention(q, q, q, mask=mask))
    mask = ch.lengths([3]) & mask
    refused(
        ValueError, r"is \(1,\), must be broadcastable", lambda: ch.attention(q, q, q, mask=mask)
    )


# -- kinds of arrays


def test_any_byte_but_zero_is_true():
    """NumPy, and views of bytes as booleans, know true values other than 1."""
    bytes_ = (
        np.arange(3 * 19, dtype=np.uint8).reshape(3, 19) * np.array([2, 0, 128], np.uint8)[:, None]
    )
    mask = bytes_.view(bool)
    q, k, v = np.zeros((3, 1)), np.zeros((19, 1)), np.eye(19)
    want, _ = reference.forward(q, k, v, mask=bytes_ != 0)
    for layout in (mask, np.ascontiguousarray(mask[:, ::-1])[:, ::-1]):  # by words and by bytes
        np.testing.assert_allclose(ch.attention(q, k, v, mask=layout), want, atol=4 * EPS)


def test_a_matrix_is_an_array_like_any(rng):
    """Of np.matrix, * is the product of matrices and every index a matrix again."""
    q, k, v = rng.normal(size=(3, 4, 4))
    out, lse = ch.attention_with_lse(q, k, v)
    calls = [
        (ch.attention_grad, (out, q, k, v, out, lse)),
        (ch.merge, ([out, out], [lse, lse])),
        (ch.linear_attention, (q, k, v)),
        (ch.linear_attention_grad, (out, q, k, v)),
        (lambda *x: ch.kernel_regression(*x, kernel="gaussian"), (q, k, v)),
        (lambda *x: ch.kernel_regression(*x, kernel=lambda a, b: np.exp(a @ b.T)), (q, k, v)),
    ]

    def as_matrix(x):
        if isinstance(x, list):
            return [as_matrix(item) for item in x]
        return x.view(np.matrix) if x.ndim == 2 else x

    for function, arrays in calls:
        want, got = function(*arrays), function(*map(as_matrix, arrays))
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for x, y in pairs:
            if y is not None:
                assert type(x) is np.ndarray
                np.testing.assert_array_equal(x, y)
    layer = ch.MultiHeadAttention(4, 2, dtype="float64")
    refused(TypeError, "x: matrix, must be a NumPy array", lambda: layer(as_matrix(q)))


MAKERS = {
    "n_per_batch": ch.lengths,
    "query_ids": ch.documents,
    "pattern": lambda x: ch.blocks(x, 2),
    "array": ch.allowed,
    "slopes": ch.alibi,
    "values": ch.relative_bias,
    "vector": ch.SoftLookup("ab", [1, 2], [[0.0], [1.0]]),
    "vectors": lambda x: ch.SoftLookup("ab", [1, 2], x),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_no_plain_array_is_refused_by_every_rule(name):
    make = MAKERS[name]
    refused(ValueError, f"{name}: has rows of different lengths", lambda: make([[1], [1, 2]]))
    refused(TypeError, f"{name}: a masked array", lambda: make(np.ma.array([1, 2], mask=[0, 1])))
    torch = pytest.importorskip("torch", reason="one of these arrays is PyTorch's")
    learned = torch.ones(2, 1, requires_grad=True)
    refused(TypeError, f"{name}: a torch.Tensor that requires grad", lambda: make(learned))


def test_ids_beyond_int64_are_refused_and_none_is_taken_for_another():
    ids = np.array([2**64 - 1], np.uint64)
    refused(ValueError, r"query_ids: has .* must be below 2\*\*63", lambda: ch.documents(ids, [-1]))
    far = np.array([2**62, -(2**63), 2**63 - 1])
    q = np.zeros((3, 2))
    np.testing.assert_array_equal(ch.attention(q, q, np.eye(3), mask=ch.documents(far)), np.eye(3))


# -- numbers


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {"sink": [-INF, INF, NAN, 0]},
        {"bias": [0, INF, -INF]},
        {"bias": [[0], [NAN], [INF]]},
        {"bias": [0, NAN, 0], "softcap": 2.0},
    ],
    ids=["sink", "bias", "rows", "softcap"],
)
def test_a_bias_or_sink_that_is_no_number_is_as_in_the_reference(isa, dtype, options, rng):
    """+inf divides infinity by itself; rows that see no key keep out of it."""
    q, k, v, dout = rng.normal(size=(4, 4, 3, 5)).astype(dtype)
    options = {n: x if n == "softcap" else np.array(x, dtype) for n, x in options.items()}
    options["mask"] = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1]], bool)
    out, lse = ch.attention_with_lse(q, k, v, **options)
    grads = ch.attention_grad(dout, q, k, v, out, lse, **options)
    want = *reference.forward(q, k, v, **options), *reference.backward(dout, q, k, v, **options)
    eps = float(ml_dtypes.finfo(dtype).eps)
    for got, truth in zip((out, lse, *grads), want, strict=True):
        if truth is not None:
            got = got.astype(np.float64)
            np.testing.assert_allclose(got, truth, rtol=16 * eps, atol=16 * eps)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("T", "S"), [(67, 101), (5, 2503)])
def test_a_row_that_sees_no_key_gives_0_beside_any_sink(isa, dtype, T, S, rng):
    """In panels and in strips, whose shards of keys are merged."""
    q = rng.normal(size=(4, T, 5)).astype(dtype)
    k, v = rng.normal(size=(2, 4, S, 5)).astype(dtype)
    mask = rng.random((T, S)) < 0.5
    mask[1] = False
    options = {"sink": np.array([-INF, INF, NAN, 0], dtype), "mask": mask}
    out, lse = ch.attention_with_lse(q, k, v, **options)
    want, want_lse = reference.forward(q, k, v, **options)
    np.testing.assert_array_equal(out[:, 1].astype(float), 0)
    np.testing.assert_array_equal(np.isnan(out.astype(float)), np.isnan(want))
    np.testing.assert_array_equal(np.isnan(lse), np.isnan(want_lse))


def test_the_largest_bias_is_a_number_and_takes_everything(isa):
    q, v = np.zeros((1, 1), np.float32), np.array([[1], [2]], np.float32)
    bias = np.array([0, np.finfo(np.float32).max], np.float32)
    assert ch.attention(q, v, v, bias=bias) == [[2]]


def test_a_softcap_out_of_all_proportion_to_the_scale_is_refused():
    q = np.zeros((2, 3), np.float32)
    call = {"scale": 1e30, "softcap": 1e-30}
    refused(ValueError, "softcap: 1e-30, must be at least", lambda: ch.attention(q, q, q, **call))


def test_slopes_that_are_no_numbers_are_refused():
    refused(ValueError, "slopes: has NaN or inf", lambda: ch.alibi([1.0, INF]))


# -- sizes and states


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("D", "E"), [(1009, 1), (1, 1013), (1013, 1009)])
def test_a_thousand_columns_beside_one(isa, dtype, D, E, rng):
    q, k = (rng.normal(size=(2, n, D)).astype(dtype) for n in (3, 5))
    v, dout = (rng.normal(size=(2, n, E)).astype(dtype) for n in (5, 3))
    out, lse = ch.attention_with_lse(q, k, v)
    grads = ch.attention_grad(dout, q, k, v, out, lse)
    want = *reference.forward(q, k, v), *reference.backward(dout, q, k, v)[:3]
    eps = float(ml_dtypes.finfo(dtype).eps)
    for got, truth in zip((out, lse, *grads[:3]), want, strict=True):
        # A sum of n products of normal numbers has n^(1/2) times the rounding of one.
        allowed = 4 * max(D, E) ** 0.5 * eps
        np.testing.assert_allclose(got.astype(np.float64), truth, rtol=4 * eps, atol=allowed)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_states_merge_in_any_order_and_any_brackets(dtype, rng):
    """The empty state is the identity, whatever its out holds."""
    q, k, v = (rng.normal(size=(2, n, 3)).astype(dtype) for n in (5, 17, 17))
    whole = ch.attention_with_lse(q, k, v)
    a, b, c = (
        ch.attention_with_lse(q, k[:, s], v[:, s]) for s in (slice(0, 1), slice(1, 9), slice(9, 17))
    )
    nothing = ch.AttentionWithLse(np.full_like(whole.out, NAN), np.full_like(whole.lse, -INF))

    def merge(*states):
        return ch.merge(*zip(*states, strict=True))

    eps = float(ml_dtypes.finfo(dtype).eps)
    ways = [merge(a, b, c), merge(c, nothing, a, b), merge(merge(a, b), c), merge(a, merge(c, b))]
    for out, lse in ways:
        assert out.dtype == dtype and lse.dtype == whole.lse.dtype
        np.testing.assert_allclose(lse, whole.lse, rtol=0, atol=4 * np.finfo(lse.dtype).eps * 4)
        np.testing.assert_allclose(out.astype("f8"), whole.out.astype("f8"), rtol=0, atol=8 * eps)
    same = merge(nothing, a)
    assert same.out.tobytes() == a.out.tobytes() and same.lse.tobytes() == a.lse.tobytes()
    out, lse = merge(nothing, nothing)
    assert not out.any() and (lse == -INF).all()


@pytest.mark.parametrize("rule", ["alibi", "relative"])
@pytest.mark.parametrize("shape", [(67, 131), (131, 67)])
def test_a_bias_by_rule_is_its_array_forward_and_backward(isa, rule, shape, rng):
    T, S = shape
    q, k, v, dout = (rng.normal(size=(2, 4, n, 3)) for n in (T, S, S, T))
    if rule == "alibi":
        bias = ch.alibi([0.5, 0.0, 0.1, -0.01])
    else:
        values = rng.normal(size=(4, 40))
        values[1, 7] = -INF
        bias = ch.relative_bias(values, first=-9)
    given = {"mask": ch.window(left=50), "sink": rng.normal(size=4), "softcap": 3.0}
    array = np.ascontiguousarray(bias.to_array(T, S))
    out, lse = ch.attention_with_lse(q, k, v, bias=bias, **given)
    want = ch.attention_with_lse(q, k, v, bias=array, **given)
    np.testing.assert_allclose(out, want.out, atol=16 * EPS)
    np.testing.assert_allclose(lse, want.lse, atol=16 * EPS)
    got = ch.attention_grad(dout, q, k, v, out, lse, bias=bias, **given)
    same = ch.attention_grad(dout, q, k, v, *want, bias=array, **given)
    assert got.bias is None
    for x, y in zip((*got[:3], got.sink), (*same[:3], same.sink), strict=True):
        np.testing.assert_allclose(x, y, atol=16 * EPS * max(shape))  # sums of so many


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("seed", range(12))
def test_rows_of_huge_scores_see_their_keys(seed, dtype, isa):
    """Near 2e9 a reference is rounded to 128: above the largest score, every weight would be 0."""
    rng = np.random.default_rng(seed)
    q, k, v = ((size * rng.normal(size=(64, 64))).astype(dtype) for size in (3e4, 3e4, 1))
    out, lse = ch.attention_with_lse(q, k, v)
    best = np.argmax(q.astype(np.float64) @ k.astype(np.float64).T, axis=1)
    assert np.isfinite(lse).all()
    rounding = 2 * float(ml_dtypes.finfo(dtype).eps) * np.abs(v[best].astype(np.float64))
    assert (np.abs(out.astype(np.float64) - v[best].astype(np.float64)) <= rounding).all()
