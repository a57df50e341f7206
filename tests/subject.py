"""What the conformance suite tests, an implementation of attention, and how it is held to account.

Results are held against `clearhead.reference`. The budget is derived, not tuned: four times the
error that the naive formula itself makes in that precision on that input, see `naive.budget`.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest

from clearhead import reference
from naive import (
    WAYS,
    assert_within,
    budget,
    naive_backward,
    naive_forward,
    terms_of_gradients,
    work_dtype,
)


class Sizes(NamedTuple):
    """Distinct primes (H a multiple of G), so that no swapped axis goes unnoticed."""

    B: int
    H: int
    G: int
    T: int
    S: int
    D: int
    E: int


SMALL = Sizes(B=2, H=6, G=3, T=5, S=11, D=7, E=13)
TILED = Sizes(B=1, H=2, G=1, T=67, S=197, D=37, E=31)  # beyond one panel and two blocks of a kernel
DECODE = Sizes(B=2, H=15, G=3, T=1, S=199, D=61, E=59)
ROUND = Sizes(B=1, H=2, G=2, T=64, S=96, D=64, E=64)  # what fast paths are made for
SINGLE = Sizes(B=1, H=1, G=1, T=3, S=1, D=1, E=1)
EVERY_SIZE = pytest.mark.parametrize(
    "sizes",
    [SMALL, TILED, DECODE, ROUND, SINGLE],
    ids=["small", "tiled", "decode", "round", "single"],
)
LAYOUTS = ["transposed", "backwards", "every third", "heads inside", "unaligned", "read-only"]


class Subject:
    """Subclasses give `attend`, and `gradients` if they have them."""

    dtype: Any = np.float32

    # -- what an implementation gives

    def attend(self, q, k, v, **options):
        """out (..., H, T, E) and lse (..., H, T)."""
        raise NotImplementedError

    def gradients(self, dout, q, k, v, out, lse, **options):
        """`reference.Gradients`."""
        raise NotImplementedError

    def supports(self, feature):
        """Feature: bias, softcap, sink, broadcasting."""
        return True

    def causal(self, T, S):
        """The mask that this implementation calls causal."""
        return np.tri(T, S, S - T, dtype=bool)

    def window(self, T, S, left, right):
        """The mask that this implementation calls a window; None: no limit on that side."""
        distance = np.arange(T)[:, None] + (S - T) - np.arange(S)
        left, right = (np.inf if n is None else n for n in (left, right))
        return (distance <= left) & (-distance <= right)

    # -- how it is held to that

    @pytest.fixture(autouse=True)
    def _random_numbers(self):
        self.rng = np.random.default_rng(2017)

    def need(self, *features):
        for feature in features:
            if not self.supports(feature):
                pytest.skip(f"{type(self).__name__} has no {feature}")

    def draw(self, *shape, size=1.0):
        """Normal numbers, exact in float32 and in this dtype."""
        x = np.asarray(size * self.rng.normal(size=shape), np.float32)
        return np.asarray(x, self.dtype)

    def qkv(self, n, size=1.0):
        return (
            self.draw(n.B, n.H, n.T, n.D, size=size),
            self.draw(n.B, n.G, n.S, n.D),
            self.draw(n.B, n.G, n.S, n.E),
        )

    def check(self, q, k, v, *, clean=None, array_mask=None, **options):
        """attend() is the reference, within the budget on these inputs (on `clean` ones, if given).

        `array_mask` is what options["mask"] means, where that is not an array.
        """
        got = self.attend(q, k, v, **options)
        if array_mask is not None:
            options["mask"] = array_mask
        want = reference.forward(q, k, v, **options)
        fair = (q, k, v) if clean is None else clean
        truth = reference.forward(*fair, **options)
        naives = [naive_forward(*fair, way=way, **options) for way in WAYS]
        naive_outs, naive_lses = zip(*naives, strict=True)
        assert got[0].dtype == self.dtype and got[0].shape == want[0].shape
        assert got[1].dtype == work_dtype(self.dtype) and got[1].shape == want[1].shape
        assert_within(got[0], want[0], budget(naive_outs, truth[0], self.dtype), "out")
        assert_within(got[1], want[1], budget(naive_lses, truth[1], got[1].dtype), "lse")
        return got

    def check_gradients(self, dout, q, k, v, *, clean=None, array_mask=None, **options):
        out, lse = self.attend(q, k, v, **options)
        got = self.gradients(dout, q, k, v, out, lse, **options)
        given, options = options, dict(options)
        if array_mask is not None:
            options["mask"] = array_mask
        want = reference.backward(dout, q, k, v, **options)
        fair = (dout, q, k, v) if clean is None else clean
        truth = reference.backward(*fair, **options)
        fair = (*fair, *((out, lse) if clean is None else self.attend(*fair[1:], **given)))
        naives = [naive_backward(*fair, way=way, **options) for way in WAYS]
        terms = terms_of_gradients(*fair, **options)
        rows = zip(want._fields, got, want, truth, terms, *naives, strict=True)
        for name, g, w, t, size, *n in rows:
            if w is None:
                assert g is None, name
                continue
            assert g.dtype == self.dtype and g.shape == w.shape, name
            assert_within(g, w, budget(n, t, self.dtype, size), name)


def tri(n):
    return np.tri(n.T, n.S, n.S - n.T, dtype=bool)


def laid_out(x, how):
    """The same numbers in another place."""
    if how == "transposed":  # D is not the innermost axis
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "backwards":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    if how == "every third":
        wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), x.dtype)
        wide[..., ::2, ::3] = x
        return wide[..., ::2, ::3]
    if how == "heads inside":  # (B, T, H, D) in memory, as projections leave it
        return np.ascontiguousarray(x.swapaxes(-3, -2)).swapaxes(-3, -2)
    if how == "unaligned":
        raw = np.zeros(x.nbytes + 1, np.uint8)
        raw[1:] = np.frombuffer(x.tobytes(), np.uint8)
        return raw[1:].view(x.dtype).reshape(x.shape)
    x = x.copy()
    x.flags.writeable = False
    return x
