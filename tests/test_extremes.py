"""Numbers at the ends of what there is: infinite, huge, the lowest, all equal, and few of them."""

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import reference

INF, NAN = np.inf, np.nan
EVERY_DTYPE = pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
)


def draw(rng, dtype, T, S, D=16, E=5, H=2, size=1.0):
    """q, k, v, dout of H heads; scores of D ** 0.5 * size ** 2."""
    sizes = ((T, D, size), (S, D, size), (S, E, 1), (T, E, 1))
    return [(std * rng.normal(size=(H, n, m))).astype(dtype) for n, m, std in sizes]


def both(q, k, v, dout, **options):
    """(name, what comes out, what the reference says) of the forward and the backward pass."""
    out, lse = ch.attention_with_lse(q, k, v, **options)
    grads = ch.attention_grad(dout, q, k, v, out, lse, **options)
    want = reference.forward(q, k, v, **options), reference.backward(dout, q, k, v, **options)
    for name, got, truth in zip(
        ("out", "lse", *grads._fields), (out, lse, *grads), (*want[0], *want[1]), strict=True
    ):
        if truth is not None:
            yield name, got.astype(np.float64), truth


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


# -- infinite


@EVERY_DTYPE
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize(("T", "S"), [(3, 7), (67, 131)])
@pytest.mark.parametrize("where", ["query", "keys", "value", "all three"])
def test_an_infinite_score_is_a_weight_of_0_or_nan_and_hides_nothing(
    isa, dtype, where, T, S, masked, rng
):
    """A score of -inf that no mask made: 0 times what is infinite is NaN, as in any product."""
    q, k, v, dout = draw(rng, dtype, T, S)
    q = np.abs(q)  # scores of an infinite key all have its sign
    if where in ("query", "all three"):
        q[0, 1, 3] = INF
        k[0, :, 3] = -1  # a row of scores of -inf,
        q[1, 2] = -INF  # one of NaN
    if where in ("keys", "all three"):
        k[0, 2] = k[1, S - 1, 0] = -INF
        k[1, 0, 1] = INF
    if where in ("value", "all three"):
        v[0, 2, 1], v[1, S - 1, 0] = INF, -INF
    given = {"mask": rng.random((T, S)) < 0.7} if masked else {}
    for name, got, want in both(q, k, v, dout, **given):
        for kind in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(kind(got), kind(want), err_msg=name)


def test_pytorch_says_the_same_of_an_infinite_key(rng):
    torch = pytest.importorskip("torch", reason="the witness is PyTorch's autograd")
    q, k, v, dout = draw(rng, np.float64, 5, 7, H=1)
    q, k[0, 2, 1] = np.abs(q), -INF
    tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    weights = torch.softmax(tensors[0] @ tensors[1].mT * 16**-0.5, -1)
    (weights @ tensors[2]).backward(torch.from_numpy(dout))
    out, lse = ch.attention_with_lse(q, k, v)
    ours = ch.attention_grad(dout, q, k, v, out, lse)
    assert np.isnan(ours.q[..., 1]).all()
    for got, theirs in zip(ours, tensors, strict=False):
        np.testing.assert_allclose(got, theirs.grad.numpy(), rtol=1e-12, atol=1e-12)


# -- huge and lowest


@EVERY_DTYPE
@pytest.mark.parametrize("sign", [-1, 1], ids=["lowest", "largest"])
@pytest.mark.parametrize(("T", "S"), [(3, 5), (80, 130)])
def test_a_row_whose_every_bias_is_the_lowest_number_is_a_row_like_any(isa, dtype, T, S, sign, rng):
    """In log2 units, the kernels' own, that number is beyond the last."""
    q, k, v, dout = draw(rng, dtype, T, S)
    bias = np.zeros((T, S), dtype)
    bias[0] = sign * ml_dtypes.finfo(dtype).max
    eps = float(ml_dtypes.finfo(dtype).eps)
    for name, got, want in both(q, k, v, dout, bias=bias):
        # A product of n normal numbers has n^(1/2) times the rounding of one.
        allowed = 8 * eps * max(T, S) ** 0.5
        np.testing.assert_allclose(got, want, rtol=4 * eps, atol=allowed, err_msg=name)


@EVERY_DTYPE
@pytest.mark.parametrize("size", [1e3, 3e5, 1e7, 1e9], ids=str)
@pytest.mark.parametrize(("T", "S"), [(3, 9), (67, 131), (300, 300)])
def test_the_gradient_of_huge_scores_is_that_of_the_largest(isa, dtype, T, S, size, rng):
    """lse is rounded to 128 near 2e9: if shift is, all weights of a row are 0 or infinite."""
    if dtype == np.float16 and size > 1e4:
        pytest.skip("float16 ends at 65504")
    q, k, v, dout = draw(rng, dtype, T, S, 64, 64, size=size)
    bias = rng.normal(size=(T, S)).astype(dtype)
    best = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)).argmax(-1)
    winners = np.eye(S)[best]
    dv = winners.swapaxes(-1, -2) @ dout.astype(np.float64)
    out, lse = ch.attention_with_lse(q, k, v, bias=bias)
    grads = ch.attention_grad(dout, q, k, v, out, lse, bias=bias)
    assert all(np.isfinite(x.astype(np.float64)).all() for x in grads if x is not None)
    # A near tie goes either way in float32: of T rows, one.
    wrong = np.abs(grads.v.astype(np.float64) - dv) > 4 * float(ml_dtypes.finfo(dtype).eps) * (
        winners.swapaxes(-1, -2) @ np.abs(dout.astype(np.float64)) + 1
    )
    assert wrong.any(-1).sum(-1).max() <= 2
    # dS is the rounding of a weight times a difference of products of 64 numbers
    assert np.median(np.abs(grads.bias.astype(np.float64))) <= 64 * float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("T", [80, 450])
@pytest.mark.parametrize("S", [65, 130, 450])
def test_beside_scores_far_below_0_no_weight_falls_on_keys_that_are_not_there(
    isa, dtype, T, S, rng
):
    """A tile of keys is filled up with zeros: their score 0 would weigh 2^200."""
    q, k, v, dout = draw(rng, dtype, T, S, 64, 64)
    q[..., 0], k[..., 0] = 32, -32
    eps = float(ml_dtypes.finfo(dtype).eps)
    for name, got, want in both(q, k, v, dout):
        # Scores of 128 have 128 times the rounding of scores of 1.
        allowed = 8 * 128 * float(np.finfo(np.float32).eps) + 4 * eps
        assert rms(got - want) <= allowed * max(1, rms(want)), name


def test_a_head_whose_gradient_parts_cannot_hold_has_the_scores_of_multiply_adds(isa, rng):
    """Its forward pass went by tiles: lse is of scores in another order."""
    q, k, v, dout = draw(rng, np.float32, 512, 512, 64, 64, size=1e4)
    dout[0, 0, 0] = 2.0**31
    for _, got, want in both(q, k, v, dout):
        assert np.isfinite(got).all() == np.isfinite(want).all()


def test_huge_scores_beside_the_lowest_bias_are_numbers(isa, rng):
    """Their sum is the lowest number, a neighbour or -inf; a reference stays among numbers."""
    q, k, v, dout = draw(rng, np.float32, 70, 130)
    bias = np.full((70, 130), np.finfo(np.float32).min)
    for name, got, _ in both(q * np.float32(1e32), k, v, dout, bias=bias):
        assert np.isfinite(got).all(), name


# -- equal and few


@pytest.mark.parametrize("value", [1.0, 0.1, 0.7, np.pi])
@pytest.mark.parametrize("S", [7, 100, 1000, 16384])
@pytest.mark.parametrize("T", [1, 4, 67])
def test_of_equal_keys_a_constant_value_comes_back(isa, T, S, value, rng):
    """Of n equal terms, added one after another, every sum k rounds by k/2 eps: n/4 eps in all."""
    k = np.repeat(rng.normal(size=(1, 16)), S, 0).astype(np.float32)
    q, v = rng.normal(size=(T, 16)).astype(np.float32), np.full((S, 3), value, np.float32)
    blocks = 96 / 4 + S / 96 / 4  # of keys, and of blocks
    allowed = (blocks + 2) * float(np.finfo(np.float32).eps)  # 1 / sum, and times it
    np.testing.assert_allclose(ch.attention(q, k, v), np.float32(value), rtol=allowed)


@pytest.mark.parametrize("size", [1.0, 2.0])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (2, 1), (1, 2), (3, 3), (8, 8), (7, 61), (67, 1)])
def test_of_few_queries_or_keys_dv_errs_no_more_than_the_formula(isa, T, S, size, rng):
    """lse is rounded, and strips add up a score in another order: its rounding has to go."""
    ours, naive = [], []
    for _ in range(20):
        q, k, v, dout = draw(rng, np.float32, T, S, size=size, H=4)
        out, lse = ch.attention_with_lse(q, k, v)
        s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
        e = np.exp(s - s.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        want = reference.backward(dout, q, k, v).v
        ours.append(ch.attention_grad(dout, q, k, v, out, lse).v - want)
        naive.append(p.swapaxes(-1, -2) @ dout - want)
    # Where there is one key, the formula's weight is 1 exactly: half a rounding for ours.
    half = float(np.finfo(np.float32).eps) / 2 if S == 1 else 0
    assert rms(ours) <= 2 * rms(naive) + half
