"""What every gradient of attention must do: the mixin for implementations that have one.

class TestMyGradients(GradientConformance):
    def attend(self, q, k, v, **options): return out, lse
    def gradients(self, dout, q, k, v, out, lse, **options): return Gradients(...)
"""

import numpy as np
import pytest

from subject import EVERY_SIZE, SMALL, TILED, Subject, laid_out, tri

INF, NAN = np.inf, np.nan


class GradientConformance(Subject):
    @EVERY_SIZE
    @pytest.mark.parametrize("size", [0.1, 10.0], ids=["flat", "peaked"])
    def test_gradients(self, sizes, size):
        q, k, v = self.qkv(sizes, size)
        self.check_gradients(self.draw(sizes.B, sizes.H, sizes.T, sizes.E), q, k, v)

    @pytest.mark.parametrize("sizes", [SMALL, TILED], ids=["small", "tiled"])
    @pytest.mark.parametrize("options", ["mask", "causal", "bias", "softcap", "sink", "all"])
    def test_gradients_with(self, sizes, options):
        self.need("bias", "softcap", "sink")
        n = sizes
        mask = self.rng.random((n.T, n.S)) < 0.5
        mask[1] = False  # a row that sees nothing,
        mask[:, 2] = False  # a key that nobody sees
        given = {
            "mask": {"mask": mask},
            "causal": {"mask": self.causal(n.T, n.S), "array_mask": tri(n)},
            "bias": {"bias": self.draw(n.H, 1, n.S)},
            "softcap": {"softcap": 2.0},
            "sink": {"sink": self.draw(n.H)},
        }
        given["all"] = given["bias"] | given["softcap"] | given["sink"] | given["mask"]
        dout = self.draw(n.B, n.H, n.T, n.E)
        self.check_gradients(dout, *self.qkv(n, size=3), **given[options])

    @pytest.mark.parametrize("axes", ["BHTS", "HTS", "TS", "1S", "T1", "B1T1", ""])
    def test_bias_gradients_sum_over_what_was_broadcast(self, axes):
        self.need("bias")
        n = SMALL
        shape = tuple(1 if axis == "1" else getattr(n, axis) for axis in axes)
        dout = self.draw(n.B, n.H, n.T, n.E)
        self.check_gradients(dout, *self.qkv(n), bias=self.draw(*shape))

    def test_gradients_of_broadcast_inputs_have_their_shape(self):
        self.need("broadcasting")
        n = SMALL
        q, k, v = (
            self.draw(3, 1, n.H, n.T, n.D),
            self.draw(n.B, n.G, n.S, n.D),
            self.draw(n.G, n.S, n.E),
        )
        dout = self.draw(3, n.B, n.H, n.T, n.E)
        self.check_gradients(dout, q, k, v)
        flat = self.draw(n.T, n.D), self.draw(n.S, n.D), self.draw(n.S, n.E)
        self.check_gradients(self.draw(n.T, n.E), *flat)

    @pytest.mark.parametrize("poison", [NAN, INF])
    @pytest.mark.parametrize("sizes", [SMALL, TILED], ids=["small", "tiled"])
    def test_what_is_hidden_has_no_effect_on_gradients(self, sizes, poison):
        q, k, v = self.qkv(sizes)
        dout = self.draw(sizes.B, sizes.H, sizes.T, sizes.E)
        mask = self.rng.random((sizes.T, sizes.S)) < 0.5
        mask[:, 3:9] = False
        mask[2] = False
        bad_q, bad_k, bad_v = q.copy(), k.copy(), v.copy()
        bad_q[..., 2, :], bad_k[..., 3:6, :], bad_v[..., 6:9, :] = poison, poison, poison
        bad, clean = (dout, bad_q, bad_k, bad_v), (dout, q, k, v)
        self.check_gradients(*bad, clean=clean, mask=mask)
        if self.supports("bias"):
            bias = self.draw(sizes.T, sizes.S)
            self.check_gradients(*bad, clean=clean, mask=mask, bias=bias)
            hidden = np.where(mask, bias, -INF).astype(self.dtype)
            self.check_gradients(*bad, clean=clean, bias=hidden)

    def test_nan_reaches_exactly_the_gradients_of_what_it_touches(self):
        q, k, v = self.qkv(SMALL)
        dout = self.draw(SMALL.B, SMALL.H, SMALL.T, SMALL.E)
        mask = self.rng.random((SMALL.T, SMALL.S)) < 0.5
        bad = q.copy()
        bad[0, 3, 2] = NAN
        self.check_gradients(dout, bad, k, v, clean=(dout, q, k, v), mask=mask)
        if self.supports("sink"):
            sink = self.draw(SMALL.H)
            sink[3] = -INF  # no sink at the head that is NaN,
            sink[2] = -2000  # one that is far off at its neighbour,
            sink[4] = 300  # one that leaves nothing to the keys
            bad[0, 2, 1] = NAN
            self.check_gradients(dout, bad, k, v, clean=(dout, q, k, v), mask=mask, sink=sink)
            bad_v = v.copy()
            bad_v[0, 1:, 0, 0] = NAN
            self.check_gradients(dout, q, k, bad_v, clean=(dout, q, k, v), mask=mask, sink=sink)
        if self.supports("bias"):
            for shape in ((SMALL.H, SMALL.T, SMALL.S), (SMALL.S,)):
                options = {"mask": mask, "bias": self.draw(*shape)}
                self.check_gradients(dout, bad, k, v, clean=(dout, q, k, v), **options)

    @pytest.mark.parametrize("layout", ["transposed", "backwards", "heads inside", "read-only"])
    def test_gradients_of_any_strides(self, layout):
        for n in (SMALL, TILED):
            dout, q, k, v = (
                laid_out(x, layout) for x in (self.draw(n.B, n.H, n.T, n.E), *self.qkv(n))
            )
            self.check_gradients(dout, q, k, v)

    @pytest.mark.parametrize("axis", ["B", "T", "S"])
    def test_gradients_of_empty_axes_are_zero(self, axis):
        n = SMALL._replace(**{axis: 0})
        q, k, v = self.qkv(n)
        out, lse = self.attend(q, k, v)
        grads = self.gradients(np.ones_like(out), q, k, v, out, lse)
        for g, x in zip(grads[:3], (q, k, v), strict=True):
            assert g.shape == x.shape and (g == 0).all()
