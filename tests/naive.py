"""Attention as one writes it, in low precision: how far from the truth an implementation may be.

`budget` turns its error into what the conformance suite allows. Where few cells matter that error
is a matter of luck; so scores are computed in the four ways that one writes them, `WAYS`, and the
largest error counts. It is wrong for hidden NaN, as one writes it; so budgets are taken on clean
inputs.
"""

import ml_dtypes
import numpy as np

from clearhead import reference


def work_dtype(dtype):
    """What arithmetic is done in, and what the lse is given in."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def budget(naives, truth, dtype, terms=None):
    """Four times the naive formula's largest error, and four roundings at least.

    Roundings are those of the result, or of the `terms` that add up to it, where they cancel.
    float64 cannot be held against a float64 reference: there it is the float32 error of the formula
    reduced by the ratio of the precisions, and once more for the reference itself.
    """
    finite = np.isfinite(truth)
    if not finite.any():
        return 0.0
    error = max(np.abs(x[finite].astype(np.float64) - truth[finite]).max() for x in naives)
    largest = np.abs((truth if terms is None else terms)[finite]).max()
    rounding = float(ml_dtypes.finfo(dtype).eps) * largest
    if dtype == np.float64:
        return 5 * max(error * np.finfo(np.float64).eps / np.finfo(np.float32).eps, rounding)
    return 4 * max(error, rounding)


def assert_within(got, want, allowed, name):
    """NaN and infinities exactly where they belong, the rest within the budget."""
    got = got.astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=name)
    assert np.isfinite(got[finite]).all(), f"{name}: NaN or inf where there is none"
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=allowed, err_msg=name)


def rounded(x, dtype):
    """x in float32, each number rounded to dtype. (float64 is judged by its float32 error.)"""
    return x.astype(np.float32) if dtype == np.float64 else x.astype(dtype).astype(np.float32)


def by_blas(q, k):
    return q @ k.swapaxes(-1, -2)


def by_loop(q, k):
    s = np.float32(0)
    for d in range(q.shape[-1]):
        s = s + q[..., :, None, d] * k[..., None, :, d]
    return s


# Whether the scale comes before the product, and how its terms are added up.
WAYS = [(first, product) for first in (False, True) for product in (by_blas, by_loop)]


def naive_scores(q, k, way, mask, bias, scale, softcap):
    """Scores in float32, step by step, and the slope of the softcap."""
    q, k = (x.astype(np.float32) for x in (q, k))
    if q.ndim > 2:
        k = np.repeat(k, q.shape[-3] // k.shape[-3], -3)
    scale = np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    first, product = way
    s = product(scale * q, k) if first else scale * product(q, k)
    slope = np.float32(1)
    if softcap is not None:
        s = np.tanh(s / np.float32(softcap))
        slope = 1 - s * s
        s = np.float32(softcap) * s
    s = s if bias is None else s + bias.astype(np.float32)
    return s if mask is None else np.where(mask, s, np.float32(-np.inf)), slope


def naive_forward(
    q, k, v, *, way=WAYS[0], mask=None, bias=None, scale=None, softcap=None, sink=None
):
    """The formula as one writes it, in float32, results of each product rounded to the dtype."""
    s, _ = naive_scores(q, k, way, mask, bias, scale, softcap)
    extra = np.float32(-np.inf) if sink is None else sink.astype(np.float32)[..., None, None]
    m = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), extra)
    m = np.where(m == -np.inf, np.float32(0), m)
    e = np.exp(s - m)
    total = e.sum(-1, keepdims=True) + np.exp(extra - m)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (m + np.log(total))[..., 0]
        p = np.where(total == 0, np.float32(0), rounded(e / total, q.dtype))
    v = v.astype(np.float32)
    if q.ndim > 2:
        v = np.repeat(v, q.shape[-3] // v.shape[-3], -3)
    out = rounded(p @ v, q.dtype)
    return out, np.broadcast_to(lse, out.shape[:-1])


def naive_backward(
    dout, q, k, v, out, lse, *, way=WAYS[0], mask=None, bias=None, scale=None, softcap=None,
    sink=None, minus=np.subtract,
):  # fmt: skip
    """The chain rule as one writes it, from the same out and lse, in the same way."""
    dtype, (s, slope) = q.dtype, naive_scores(q, k, way, mask, bias, scale, softcap)
    scale = np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    q32, k32, v32, dout, out, lse = (x.astype(np.float32) for x in (q, k, v, dout, out, lse))
    if q.ndim > 2:
        k32, v32 = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k32, v32))
    if minus is np.add:
        slope = np.float32(1)  # 1 - tanh^2 cancels too
        scale, q32, k32, v32, dout, out = (np.abs(x) for x in (scale, q32, k32, v32, dout, out))
    lse = np.where(lse == -np.inf, np.inf, lse)[..., None]
    p = rounded(np.exp(s - lse), dtype)
    delta = (dout * out).sum(-1, keepdims=True)
    ds = rounded(p * minus(rounded(dout @ v32.swapaxes(-1, -2), dtype), delta), dtype)
    dx = rounded(ds * slope * scale, dtype)
    dk, dv = dx.swapaxes(-1, -2) @ q32, p.swapaxes(-1, -2) @ dout
    if sink is not None:
        dsink = -(np.exp(sink.astype(np.float32)[..., None, None] - lse) * delta).sum((-2, -1))
    return reference.Gradients(
        q=rounded(summed_to(dx @ k32, q.shape), dtype),
        k=rounded(summed_to(dk, k.shape), dtype),
        v=rounded(summed_to(dv, v.shape), dtype),
        bias=None if bias is None else rounded(summed_to(ds, bias.shape), dtype),
        sink=None if sink is None else summed_to(dsink, sink.shape),
    )


def terms_of_gradients(*arrays, **options):
    """What the sums of the chain rule would be if nothing cancelled: their terms' magnitudes."""
    return naive_backward(*arrays, **options, minus=np.add)


def summed_to(x, shape):
    """x summed over broadcast axes, and over the query heads of each group."""
    if x.ndim > 2 and len(shape) > 2 and shape[-3] not in (1, x.shape[-3]):
        *lead, H, S, n = x.shape
        x = x.reshape(*lead, shape[-3], H // shape[-3], S, n).sum(-3)
    while x.ndim > len(shape):
        x = x.sum(0)
    axes = tuple(i for i, n in enumerate(shape) if n == 1)
    return x.sum(axes, keepdims=True)
