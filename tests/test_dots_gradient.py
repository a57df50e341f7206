"""Gradients by dot-product instructions on bfloat16, where the machine has them."""

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
import tiles
from clearhead import _native, reference

pytestmark = tiles.BY_TILES

# Large enough that keys are worth packing, with remainders of every tile.
SIZES = [(512, 512, 64, 64), (461, 579, 80, 100), (450, 450, 72, 96), (193, 640, 128, 128)]


def draw(rng, T, S, D, E, **kinds):
    """q, k, v and dout."""
    q, k, v = tiles.draw(rng, T, S, D, E, **kinds)
    return q, k, v, rng.standard_normal((2, 4, T, E)).astype(q.dtype)


def gradients(isa, q, k, v, dout, forward=None, **options):
    """(dq, dk, dv, ...) on an instruction set, after its own forward pass or a given one's."""
    _native.choose_isa(isa)
    out, lse = forward or ch.attention_with_lse(q, k, v, **options)
    return ch.attention_grad(dout, q, k, v, out, lse, **options)


def errors(got, want):
    return np.array([np.sqrt(np.mean((x - w) ** 2)) for x, w in zip(got, want[:3], strict=False)])


@pytest.mark.parametrize("size", [0.2, 1.0, 8.0], ids=["flat", "usual", "peaked"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("T", "S", "D", "E"), SIZES)
def test_float32_is_nearer_to_the_formula_than_multiply_adds(T, S, D, E, causal, size, rng):
    q, k, v, dout = draw(rng, T, S, D, E, size=size)
    mask = np.tri(T, S, S - T, dtype=bool) if causal else None
    want = reference.backward(*(x.astype(np.float64) for x in (dout, q, k, v)), mask=mask)
    options = {"mask": ch.causal() if causal else None}
    ours = errors(gradients("amx", q, k, v, dout, **options)[:3], want)
    plain = errors(gradients("avx512", q, k, v, dout, **options)[:3], want)
    assert (ours < plain).all(), (ours / plain).round(2)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"softcap": 5.0}, {"softcap": 5.0}),
        ({"scale": 0.3}, {"scale": 0.3}),
        ({"sink": np.float32([0.5, -1, 2, 0])}, {"sink": np.float32([0.5, -1, 2, 0])}),
        ({"mask": ch.window(300)}, {"mask": None}),
    ],
    ids=["softcap", "scale", "sink", "window"],
)
def test_options_take_part(ours, theirs, rng):
    T = 320
    q, k, v, dout = draw(rng, T, T, 64, 64)
    if "mask" in theirs:
        theirs = {"mask": ours["mask"].to_array(T, T)}
    want = reference.backward(*(x.astype(np.float64) for x in (dout, q, k, v)), **theirs)
    got = gradients("amx", q, k, v, dout, **ours)
    plain = gradients("avx512", q, k, v, dout, **ours)
    assert (errors(got[:3], want) <= 1.1 * errors(plain[:3], want)).all()
    assert any((x != y).any() for x, y in zip(got[:3], plain[:3], strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_bits_are_the_same_for_any_number_of_threads_and_in_any_batch(dtype, rng):
    q, k, v, dout = draw(rng, 450, 450, 64, 64, dtype=dtype)
    all_of = {}
    for threads in (1, 2, 7):
        ch.set_num_threads(threads)
        all_of[threads] = gradients("amx", q, k, v, dout, mask=ch.causal())[:3]
    alone = gradients("amx", *(x[1:] for x in (q, k, v, dout)), mask=ch.causal())[:3]
    for one, two, seven, part in zip(*all_of.values(), alone, strict=True):
        assert one.tobytes() == two.tobytes() == seven.tobytes()
        assert one[1:].tobytes() == part.tobytes()


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e35, 1e-30], ids=str)
@pytest.mark.parametrize("where", ["q", "k", "v", "dout"])
def test_heads_whose_numbers_parts_cannot_hold_go_by_multiply_adds(where, value, rng):
    arrays = dict(zip(("q", "k", "v", "dout"), draw(rng, 320, 320, 64, 64), strict=True))
    x = arrays[where]
    heads = 2 if where in ("q", "dout") else 1  # those that read the first group's keys
    if value == 1e-30:
        x[0, :heads] *= np.float32(value)
    else:
        x[0, 0, 5, 7] = value
    _native.choose_isa("avx512")
    forward = ch.attention_with_lse(arrays["q"], arrays["k"], arrays["v"])
    tiles = gradients("amx", **arrays, forward=forward)
    plain = gradients("avx512", **arrays, forward=forward)
    for mine, theirs, n in zip(tiles[:3], plain[:3], (2, 1, 1), strict=True):
        assert mine[0, :n].tobytes() == theirs[0, :n].tobytes()
        assert mine[1].tobytes() != theirs[1].tobytes()


def test_a_hidden_key_need_not_be_finite(rng):
    q, k, v, dout = draw(rng, 320, 320, 64, 64)
    mask = np.ones((320, 320), dtype=bool)
    mask[:, 77] = False
    clean = gradients("avx512", q, k, v, dout, mask=mask)
    k[..., 77, :] = np.nan
    v[..., 77, :] = np.inf
    for mine, theirs in zip(gradients("amx", q, k, v, dout, mask=mask)[:3], clean[:3], strict=True):
        assert np.isfinite(mine).all()
        assert np.abs(mine - theirs).max() < 1e-4


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [100, 1e3, 1e4])
def test_weights_of_huge_scores_are_those_of_the_forward_pass(size, dtype, rng):
    """A score of 1e8 is rounded to 8: by another order of its sum, a weight of 1 would be e^8."""
    q, k, v, dout = draw(rng, 511, 511, 64, 64, dtype=dtype, size=size)
    k = (size * k.astype(np.float32)).astype(dtype)
    want = reference.backward(*(x.astype(np.float64) for x in (dout, q, k, v)))[2]
    ours, plain = (
        np.abs(gradients(isa, q, k, v, dout)[2].astype(np.float64) - want).max()
        for isa in ("amx", "avx512")
    )
    # Where two keys nearly tie, rounding decides in any float32.
    assert ours <= max(2 * plain, 4 * float(ml_dtypes.finfo(dtype).eps) * np.abs(want).max())
