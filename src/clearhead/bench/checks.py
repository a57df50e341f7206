"""Whether a result is right: against clearhead.reference, on sampled rows, before it is timed.

The budget is that of the conformance suite: four times the largest error of the naive formula in
the same precision, and four roundings of the result at least.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .. import reference
from .cases import DTYPES, Case, Inputs

Array = NDArray[Any]
BUDGET = 4.0


def of_budget(case: Case, inputs: Inputs, results: tuple[Array, ...]) -> float:
    """The largest error of `results` divided by what is allowed: right where it is at most 1.

    results  out (B, H, T, E), or with case.grad dq, dk and dv, in the layout of the inputs
    """
    expected = 3 if case.grad else 1
    if len(results) != expected:
        raise ValueError(f"results: are {len(results)} arrays, must be {expected}")
    tallies = [Tally(case.dtype) for _ in results]
    if case.grad:
        for b, g in {(0, 0), (case.B - 1, case.G - 1)}:
            _gradients(case, inputs, results, b, g, tallies)
    else:
        heads = case.B * case.H
        for i in np.unique(np.linspace(0, heads - 1, 4 if case.T > 64 else 32).astype(int)):
            _output(case, inputs, results[0], *divmod(int(i), case.H), tallies[0])
    return max(tally.of_budget for tally in tallies)


class Tally:
    """Largest errors so far, of a result and of the naive formula. One cell may be luck."""

    def __init__(self, dtype: str):
        finfo: Any = ml_dtypes.finfo
        self.eps = float(finfo(DTYPES[dtype]).eps)
        self.error = self.naive = self.largest = 0.0

    def add(self, got: Array, truth: Array, naive: Array) -> None:
        if got.shape != truth.shape:
            raise ValueError(f"results: have shape {got.shape}, must have {truth.shape}")
        error = np.abs(got.astype(np.float64) - truth).max()
        self.error = max(self.error, error if np.isfinite(error) else np.inf)
        self.naive = max(self.naive, np.abs(naive - truth).max())
        self.largest = max(self.largest, np.abs(truth).max())

    @property
    def of_budget(self) -> float:
        return float(self.error / (BUDGET * max(self.naive, self.eps * self.largest)))


def _output(case: Case, x: Inputs, result: Array, b: int, h: int, tally: Tally) -> None:
    """Some rows of a head."""
    rows = np.unique(np.linspace(0, case.T - 1, 32).astype(int))
    g = h // (case.H // case.G)
    q, k, v = x.q[b, h][rows], x.k[b, g], x.v[b, g]
    seen = case.seen(rows)
    bias = None if x.bias is None else x.bias[h][rows]
    truth, _ = reference.forward(q, k, v, mask=seen, bias=_wide(bias))
    p = _rounded(_naive_weights(q, k, seen, bias), case.dtype)
    tally.add(result[b, h][rows], truth, _rounded(p @ v.astype(np.float32), case.dtype))


def _gradients(
    case: Case, x: Inputs, results: tuple[Array, ...], b: int, g: int, tallies: list[Tally]
) -> None:
    """All rows of the query heads of a group."""
    heads = slice(g * (case.H // case.G), (g + 1) * (case.H // case.G))
    assert x.dout is not None
    arrays = x.dout[b, heads], x.q[b, heads], x.k[b, g : g + 1], x.v[b, g : g + 1]
    seen = case.seen(np.arange(case.T))
    bias = None if x.bias is None else x.bias[heads]
    truth = reference.backward(*arrays, mask=seen, bias=_wide(bias))
    naive = _naive_gradients(case, *arrays, seen, bias)
    got = results[0][b, heads], results[1][b, g : g + 1], results[2][b, g : g + 1]
    for tally, *triple in zip(tallies, got, truth[:3], naive, strict=True):
        tally.add(*triple)


def _naive_weights(q: Array, k: Array, seen: Array, bias: Array | None) -> Array:
    """Softmax as one writes it, in float32."""
    s = q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2)
    s *= np.float32(q.shape[-1] ** -0.5)
    if bias is not None:
        s += bias.astype(np.float32)
    s = np.where(seen, s, np.float32(-np.inf))
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.asarray(p / p.sum(-1, keepdims=True))


def _naive_gradients(
    case: Case, dout: Array, q: Array, k: Array, v: Array, seen: Array, bias: Array | None
) -> tuple[Array, Array, Array]:
    """The chain rule as one writes it, products rounded to the dtype."""
    p = _rounded(_naive_weights(q, k, seen, bias), case.dtype)
    q32, k32, v32, d32 = (a.astype(np.float32) for a in (q, k, v, dout))
    dp = _rounded(d32 @ v32.swapaxes(-1, -2), case.dtype)
    ds = _rounded(p * (dp - (p * dp).sum(-1, keepdims=True)), case.dtype)
    dx = ds * np.float32(case.D**-0.5)
    dk = (dx.swapaxes(-1, -2) @ q32).sum(0, keepdims=True)
    dv = (p.swapaxes(-1, -2) @ d32).sum(0, keepdims=True)
    return _rounded(dx @ k32, case.dtype), _rounded(dk, case.dtype), _rounded(dv, case.dtype)


def _rounded(x: Array, dtype: str) -> Array:
    return x.astype(DTYPES[dtype]).astype(np.float32)


def _wide(bias: Array | None) -> Array | None:
    return None if bias is None else bias.astype(np.float64)
