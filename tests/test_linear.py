"""linear_attention and its gradient, against the quadratic formula and central differences."""

import time
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import linear, reference
from naive import assert_within

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
MAPS = ["elu1", "relu"]


def inputs(rng, T=131, S=137, H=6, G=2, D=5, E=7, lead=(3,), dtype=np.float64):
    shapes = (*lead, H, T, D), (*lead, G, S, D), (*lead, G, S, E), (*lead, H, T, E)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def square(x):
    return np.concatenate([x * x, np.abs(x)], -1)


def square_pullback(x, df):
    D = x.shape[-1]
    return 2 * x * df[..., :D] + np.sign(x) * df[..., D:]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", [*MAPS, square])
def test_it_is_the_quadratic_formula(feature_map, causal, dtype, rng):
    q, k, v, _ = inputs(rng, dtype=dtype)
    got = ch.linear_attention(q, k, v, feature_map=feature_map, causal=causal)
    assert got.dtype == q.dtype
    truth = reference.linear_attention(q, k, v, feature_map=feature_map, causal=causal)
    # Sums of positive terms: a few roundings of the arithmetic, and one of the result.
    eps = 16 * np.finfo(linear.LSE_DTYPE[q.dtype]).eps + float(ml_dtypes.finfo(dtype).eps)
    assert_within(got, truth, eps * np.abs(truth).max(), "out")


@pytest.mark.parametrize("T, S", [(2, 5), (5, 2), (1, 300), (300, 1), (257, 129), (128, 384)])
@pytest.mark.parametrize("causal", [False, True])
def test_any_number_of_queries_and_keys(T, S, causal, rng):
    q, k, v, dout = inputs(rng, T=T, S=S)
    out = ch.linear_attention(q, k, v, causal=causal)
    truth = reference.linear_attention(q, k, v, causal=causal)
    np.testing.assert_allclose(out, truth, rtol=0, atol=1e-12)
    check_gradient(dout, q, k, v, "elu1", causal)


def test_chunks_of_every_remainder_give_the_same(rng, monkeypatch):
    q, k, v, dout = inputs(rng, T=23, S=29, lead=())
    truth = reference.linear_attention(q, k, v, causal=True)
    for chunk in range(1, 31):
        monkeypatch.setattr(linear, "_CHUNK", chunk)
        monkeypatch.setattr(linear, "_ABSORB", 1 + chunk // 2)
        out = ch.linear_attention(q, k, v, causal=True)
        np.testing.assert_allclose(out, truth, rtol=0, atol=1e-12)
        check_gradient(dout, q, k, v, "elu1", True)


def test_one_head_without_its_axis_and_leading_axes_that_broadcast(rng):
    q, k, v, _ = inputs(rng, H=1, G=1, lead=())
    flat = ch.linear_attention(q[0], k[0], v[0], causal=True)
    np.testing.assert_array_equal(flat, ch.linear_attention(q, k, v, causal=True)[0])
    q, k, v, _ = inputs(rng, T=11, S=13, lead=(2, 3))
    k, v = k[:1, :1], v[:, :1]
    out = ch.linear_attention(q, k, v)
    np.testing.assert_allclose(out, reference.linear_attention(q, k, v), rtol=0, atol=1e-12)


def check_gradient(dout, q, k, v, feature_map, causal):
    """Against the chain rule on whole matrices: p = f(q) f(k)^T, out = p v / sum(p)."""
    f, pullback = linear._feature_map(feature_map)
    H, G = q.shape[-3], k.shape[-3]
    fq, fk, vv = f(q), np.repeat(f(k), H // G, -3), np.repeat(v, H // G, -3)
    T, S = q.shape[-2], k.shape[-2]
    p = (fq @ fk.mT) * (np.tri(T, S, S - T) if causal else 1)
    total = p.sum(-1, keepdims=True)
    a = np.divide(p, total, out=np.zeros_like(p), where=total != 0)
    dp = dout @ vv.mT - (dout * (a @ vv)).sum(-1, keepdims=True)
    dp = np.divide(dp, total, out=np.zeros_like(dp), where=total != 0)
    dp *= np.tri(T, S, S - T) if causal else 1

    def by_group(x):
        return x.reshape(*x.shape[:-3], G, H // G, *x.shape[-2:]).sum(-3)

    want = (
        pullback(q, dp @ fk),
        pullback(k, by_group(dp.mT @ fq)),
        by_group(a.mT @ dout),
    )
    got = ch.linear_attention_grad(dout, q, k, v, feature_map=feature_map, causal=causal)
    for name, x, y in zip("qkv", got, want, strict=True):
        assert x.shape == {"q": q, "k": k, "v": v}[name].shape
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-11 * (1 + np.abs(y).max()), err_msg=name)


@pytest.mark.parametrize("feature_map", [*MAPS, (square, square_pullback)])
@pytest.mark.parametrize("causal", [False, True])
def test_its_gradient_is_the_chain_rule_on_whole_matrices(feature_map, causal, rng):
    q, k, v, dout = inputs(rng)
    check_gradient(dout, q, k, v, feature_map, causal)


@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("causal", [False, True])
def test_its_gradient_is_that_of_central_differences(feature_map, causal, rng):
    shapes = {"lead": (2,), "T": 5, "S": 7, "H": 2, "G": 1, "D": 3, "E": 2}
    arrays = inputs(rng, **shapes)
    dout = arrays.pop()
    arrays[1] = arrays[1][:1]  # k broadcasts over the batch: its gradient sums over it
    grads = ch.linear_attention_grad(dout, *arrays, feature_map=feature_map, causal=causal)
    step = 1e-6
    for position, gradient in enumerate(grads):
        numeric = np.zeros(arrays[position].shape)
        for index in np.ndindex(numeric.shape):
            ends = []
            for sign in (1, -1):
                moved = [x.copy() for x in arrays]
                moved[position][index] += sign * step
                out = ch.linear_attention(*moved, feature_map=feature_map, causal=causal)
                ends.append((dout * out).sum())
            numeric[index] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(gradient, numeric, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_its_gradient_in_low_precision_is_that_of_float64(dtype, rng):
    q, k, v, dout = inputs(rng, dtype=dtype)
    got = ch.linear_attention_grad(dout, q, k, v, causal=True)
    wide = [x.astype(np.float64) for x in (dout, q, k, v)]
    want = ch.linear_attention_grad(*wide, causal=True)
    eps = 64 * np.finfo(np.float32).eps + float(ml_dtypes.finfo(dtype).eps)
    for x, y in zip(got, want, strict=True):
        assert x.dtype == dtype
        assert_within(x, y, eps * np.abs(y).max(), "gradient")


def test_a_row_of_weights_that_sum_to_zero_gives_zero_and_passes_nothing_back(rng):
    q, k, v, dout = inputs(rng, T=11, S=13)
    q[..., 4, :], q[..., 5, :] = -1.0, 1.0  # relu: no feature is on, all are
    out = ch.linear_attention(q, k, v, feature_map="relu")
    assert (out[..., 4, :] == 0).all()
    assert (out[..., 5, :] != 0).all()
    grads = ch.linear_attention_grad(dout, q, k, v, feature_map="relu")
    without = dout.copy()
    without[..., 4, :] = 0
    for x, y in zip(
        grads, ch.linear_attention_grad(without, q, k, v, feature_map="relu"), strict=True
    ):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_reaches_exactly_the_rows_that_see_it(name, poison, rng):
    q, k, v, _ = inputs(rng, T=150, S=150, H=2, G=2, lead=())
    clean = ch.linear_attention(q, k, v, causal=True)
    arrays = {"q": q, "k": k, "v": v}
    arrays[name][1, 140, 2] = poison
    out = ch.linear_attention(q, k, v, causal=True)
    poisoned = ~np.isfinite(out)
    want = np.zeros(poisoned.shape, bool)
    if name == "q":
        want[1, 140] = True
    elif name == "k":
        want[1, 140:] = True
    else:
        want[1, 140:, 2] = True
    np.testing.assert_array_equal(poisoned, want)
    np.testing.assert_allclose(out[~want], clean[~want], rtol=0, atol=1e-13)


def test_a_query_that_sees_no_key_gives_zero_even_if_it_is_nan(rng):
    q, k, v, _ = inputs(rng, T=5, S=2)
    q[..., 0, :] = np.nan
    assert (ch.linear_attention(q, k, v, causal=True)[..., :3, :] == 0).all()
    q, k, v, _ = inputs(rng, T=3, S=0)
    np.testing.assert_array_equal(ch.linear_attention(q, k, v), np.zeros((3, 6, 3, 7)))


@pytest.mark.parametrize("empty", [{"T": 0}, {"S": 0}, {"lead": (0,)}, {"H": 0, "G": 0}])
@pytest.mark.parametrize("causal", [False, True])
def test_empty_inputs_give_zeros_of_the_right_shape(empty, causal, rng):
    q, k, v, dout = inputs(rng, **empty)
    out = ch.linear_attention(q, k, v, causal=causal)
    assert out.shape == dout.shape
    assert (out == 0).all()
    for x, y in zip(ch.linear_attention_grad(dout, q, k, v, causal=causal), (q, k, v), strict=True):
        np.testing.assert_array_equal(x, np.zeros_like(y))


def test_strides_do_not_matter(rng):
    q, k, v, _ = inputs(rng)
    want = ch.linear_attention(q, k, v, causal=True)
    turned = [np.asfortranarray(x[..., ::-1, :])[..., ::-1, :] for x in (q, k, v)]
    assert all(x.strides[-2] < 0 for x in turned)
    for x in turned:
        x.flags.writeable = False
    np.testing.assert_allclose(ch.linear_attention(*turned, causal=True), want, rtol=0, atol=1e-13)


def test_a_long_sequence_keeps_its_digits(rng):
    T = 30_000
    q, k, v, _ = inputs(rng, T=T, S=T, H=1, G=1, D=3, E=2, lead=(), dtype=np.float32)
    v += 100
    out = ch.linear_attention(q, k, v, causal=True)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    truth = ch.linear_attention(*wide, causal=True)
    assert np.abs(out - truth).max() < 8 * np.finfo(np.float32).eps * 100


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear(causal, rng):
    T = 8192
    q, k, v, dout = inputs(rng, T=T, S=T, H=1, G=1, D=16, E=16, lead=(), dtype=np.float32)
    tracemalloc.start()
    ch.linear_attention_grad(dout, q, k, v, causal=causal)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * q.nbytes < T * T  # not a byte for each pair


def test_time_is_linear(rng):
    def seconds(T):
        q, k, v, _ = inputs(rng, T=T, S=T, H=1, G=1, D=32, E=32, lead=(), dtype=np.float32)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            ch.linear_attention(q, k, v, causal=True)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(32768) < 12 * seconds(8192)  # 4 times if linear, 16 if quadratic


@pytest.mark.parametrize(
    "change, kind, words",
    [
        ({"feature_map": "elu"}, ValueError, "feature_map: is 'elu', must be"),
        ({"feature_map": 3}, TypeError, "feature_map: is int, must be"),
        ({"feature_map": lambda x: [1]}, TypeError, "feature_map: gave list, must give"),
        ({"feature_map": lambda x: x[..., 0]}, ValueError, "feature_map: gave .* must give"),
        ({"feature_map": lambda x: x > 0}, TypeError, "feature_map: gave bool, must give"),
        ({"causal": 1}, TypeError, "causal: is 1, must be True or False"),
        ({"q": [[1.0]]}, TypeError, "q: a list, must be an array"),
        ({"k": np.zeros((2, 9, 3))}, ValueError, "k: D is 3 but q has D = 5"),
    ],
)
def test_bad_input_is_named(change, kind, words, rng):
    q, k, v, _ = inputs(rng, lead=())
    arguments = {"q": q, "k": k, "v": v, **change}
    with pytest.raises(kind, match=words):
        ch.linear_attention(**arguments)


def test_the_gradient_of_a_bare_callable_is_refused(rng):
    q, k, v, dout = inputs(rng)
    with pytest.raises(TypeError, match="without its pullback"):
        ch.linear_attention_grad(dout, q, k, v, feature_map=np.abs)
    with pytest.raises(ValueError, match="dout: shape is"):
        ch.linear_attention_grad(dout[..., :1], q, k, v)
    with pytest.raises(TypeError, match="dout: dtype is float32, must be float64 as q"):
        ch.linear_attention_grad(dout.astype(np.float32), q, k, v)
