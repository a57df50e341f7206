"""Attention as one writes it, in low precision: how far from the truth an implementation may be.

`budget` turns its error into what the conformance suite allows. Where few cells matter that error
is a matter of luck, so the formula is written both ways, scale * (q k^T) and (scale * q) k^T, and
the larger error counts. It is wrong for hidden NaN, as one writes it; so budgets are taken on clean
inputs.
"""

import ml_dtypes
import numpy as np

from clearhead import reference


def work_dtype(dtype):
    """What arithmetic is done in, and what the lse is given in."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def budget(naives, truth, dtype):
    """Four times the naive formula's largest error, and four roundings of the result at least.

    float64 cannot be held against a float64 reference: there it is the float32 error of the formula
    reduced by the ratio of the precisions, and once more for the reference itself.
    """
    finite = np.isfinite(truth)
    if not finite.any():
        return 0.0
    error = max(np.abs(x[finite].astype(np.float64) - truth[finite]).max() for x in naives)
    rounding = float(ml_dtypes.finfo(dtype).eps) * np.abs(truth[finite]).max()
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


def naive_scores(q, k, scale_first, mask, bias, scale, softcap, sink):
    """softmax(scale q k^T): scores, weights, the sink's share and lse in float32, step by step."""
    dtype = q.dtype
    q, k = (x.astype(np.float32) for x in (q, k))
    if q.ndim > 2:
        k = np.repeat(k, q.shape[-3] // k.shape[-3], -3)
    scale = np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    kt = k.swapaxes(-1, -2)
    s = (scale * q) @ kt if scale_first else scale * (q @ kt)
    capped = s = s if softcap is None else np.float32(softcap) * np.tanh(s / np.float32(softcap))
    s = s if bias is None else s + bias.astype(np.float32)
    s = s if mask is None else np.where(mask, s, np.float32(-np.inf))
    extra = np.float32(-np.inf) if sink is None else sink.astype(np.float32)[..., None, None]
    m = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), extra)
    m = np.where(m == -np.inf, np.float32(0), m)
    e, e_sink = np.exp(s - m), np.exp(extra - m)
    total = e.sum(-1, keepdims=True) + e_sink
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (m + np.log(total))[..., 0]
        p = np.where(total == 0, np.float32(0), rounded(e / total, dtype))
        share = np.where(total == 0, np.float32(0), e_sink / total)
    return capped, p, share, lse


def naive_forward(
    q, k, v, *, scale_first=False, mask=None, bias=None, scale=None, softcap=None, sink=None
):
    """The formula as one writes it, in float32, results of each product rounded to the dtype."""
    v32 = v.astype(np.float32)
    if q.ndim > 2:
        v32 = np.repeat(v32, q.shape[-3] // v.shape[-3], -3)
    _, p, _, lse = naive_scores(q, k, scale_first, mask, bias, scale, softcap, sink)
    out = rounded(p @ v32, q.dtype)
    return out, np.broadcast_to(lse, out.shape[:-1])


def naive_backward(
    dout, q, k, v, *, scale_first=False, mask=None, bias=None, scale=None, softcap=None, sink=None
):
    """The chain rule as one writes it, in the same way."""
    dtype = q.dtype
    capped, p, share, _ = naive_scores(q, k, scale_first, mask, bias, scale, softcap, sink)
    scale = np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    q32, k32, v32, dout = (x.astype(np.float32) for x in (q, k, v, dout))
    if q.ndim > 2:
        k32, v32 = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k32, v32))
    out = rounded(p @ v32, dtype)
    delta = (dout * out).sum(-1, keepdims=True)
    ds = rounded(p * (rounded(dout @ v32.swapaxes(-1, -2), dtype) - delta), dtype)
    slope = np.float32(1) if softcap is None else 1 - (capped / np.float32(softcap)) ** 2
    dx = rounded(ds * slope * scale, dtype)
    dk, dv = dx.swapaxes(-1, -2) @ q32, p.swapaxes(-1, -2) @ dout
    return reference.Gradients(
        q=rounded(summed_to(dx @ k32, q.shape), dtype),
        k=rounded(summed_to(dk, k.shape), dtype),
        v=rounded(summed_to(dv, v.shape), dtype),
        bias=None if bias is None else rounded(summed_to(ds, bias.shape), dtype),
        sink=None if sink is None else summed_to(-(share * delta).sum((-2, -1)), sink.shape),
    )


def summed_to(x, shape):
    """x summed over broadcast axes, and over the query heads of each group."""
    if x.ndim > 2 and len(shape) > 2 and shape[-3] not in (1, x.shape[-3]):
        x = x.reshape(*x.shape[:-3], shape[-3], -1, *x.shape[-2:]).sum(-3)
    while x.ndim > len(shape):
        x = x.sum(0)
    axes = tuple(i for i, n in enumerate(shape) if n == 1)
    return x.sum(axes, keepdims=True)
