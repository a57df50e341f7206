"""What every implementation of attention must do: a mixin of tests.

    class TestMine(AttentionConformance):
        dtype = np.float32
        def attend(self, q, k, v, **options): return out, lse
        def supports(self, feature): return feature != "softcap"

Each test draws its inputs, and `Subject.check` holds the results against `clearhead.reference`.
"""

import ml_dtypes
import numpy as np
import pytest

from naive import work_dtype
from subject import DECODE, EVERY_SIZE, LAYOUTS, ROUND, SMALL, TILED, Subject, laid_out, tri

INF, NAN = np.inf, np.nan


class AttentionConformance(Subject):
    # -- values

    @EVERY_SIZE
    @pytest.mark.parametrize("size", [0.1, 1.0, 30.0], ids=["flat", "usual", "peaked"])
    def test_flat_and_peaked_softmax(self, sizes, size):
        self.check(*self.qkv(sizes, size))

    @pytest.mark.parametrize("scale", [0.3, -1.0, 0.0])
    def test_scale(self, scale):
        self.check(*self.qkv(SMALL), scale=scale)

    def test_rank_two_is_one_head(self):
        q, k, v = (self.draw(*shape) for shape in ((5, 7), (11, 7), (11, 13)))
        self.check(q, k, v)
        self.check(q, k, v, mask=self.rng.random((5, 11)) < 0.5)

    def test_leading_axes_broadcast(self):
        self.need("broadcasting")
        n = SMALL
        q, k, v = (
            self.draw(3, 1, n.H, n.T, n.D),
            self.draw(n.B, n.G, n.S, n.D),
            self.draw(n.G, n.S, n.E),
        )
        self.check(q, k, v)
        self.check(q, k, v, mask=self.rng.random((n.B, 1, 1, n.S)) < 0.5)

    @pytest.mark.parametrize("sign", [1, -1])
    @pytest.mark.parametrize("sizes", [SMALL, TILED], ids=["small", "tiled"])
    def test_scores_of_ten_thousand_of_either_sign(self, sizes, sign):
        q, k, v = self.qkv(sizes)
        factor = sign * 1e4 * sizes.D**0.5 / sizes.D
        q = np.asarray(np.abs(q.astype(np.float64)) * factor / 4).astype(self.dtype)
        k = np.abs(k)
        self.check(q, k, v)
        self.check(q, k, v, mask=self.causal(sizes.T, sizes.S), array_mask=tri(sizes))

    @pytest.mark.parametrize("sizes", [SMALL, TILED], ids=["small", "tiled"])
    def test_scores_that_rise_along_the_keys_are_as_exact_as_others(self, sizes):
        self.need("bias")
        q, k, v = self.qkv(sizes)
        rising = np.linspace(-1000, 0, sizes.S).astype(np.float32).astype(self.dtype)
        self.check(q, k, v, bias=rising)
        self.check(q, k, v, bias=rising[::-1])

    @pytest.mark.parametrize("size", [1e4, 6e4, 1e30])
    def test_equal_huge_scores_share_their_row(self, size):
        if size > float(ml_dtypes.finfo(self.dtype).max):
            pytest.skip(f"{size} is not a number in this dtype")
        q = np.array([[size], [-size]]).astype(self.dtype)
        k = np.array([[1.0], [1.0], [-1.0]]).astype(self.dtype)
        v = np.array([[1.0], [3.0], [7.0]]).astype(self.dtype)
        out, lse = self.attend(q, k, v, scale=1.0)
        eps = float(ml_dtypes.finfo(self.dtype).eps)
        np.testing.assert_allclose(out.astype(np.float64), [[2.0], [7.0]], rtol=2 * eps)
        np.testing.assert_allclose(lse, [size, size], rtol=max(2 * eps, 2e-4 if size < 1e5 else 0))

    def test_a_shift_of_all_scores_of_a_row_shifts_its_lse_only(self):
        self.need("bias")
        q, k, v = self.qkv(SMALL)
        shift = self.draw(SMALL.T, 1, size=50)
        out, lse = self.attend(q, k, v)
        shifted, shifted_lse = self.check(q, k, v, bias=shift)
        rounding = 60 * float(ml_dtypes.finfo(work_dtype(self.dtype)).eps) * 50
        rounding += 4 * float(ml_dtypes.finfo(self.dtype).eps)
        np.testing.assert_allclose(
            shifted.astype(np.float64), out.astype(np.float64), rtol=0, atol=rounding
        )
        np.testing.assert_allclose(
            shifted_lse, lse + shift[:, 0].astype(np.float64), rtol=1e-5, atol=1e-5
        )

    # -- masks

    @pytest.mark.parametrize("shape", [(2, 5), (5, 2), (67, 197), (197, 67), (64, 64), (1, 9)])
    def test_causal_ends_bottom_right(self, shape):
        n = SMALL._replace(T=shape[0], S=shape[1])
        q, k, v = self.qkv(n)
        self.check(q, k, v, mask=self.causal(n.T, n.S), array_mask=tri(n))

    @pytest.mark.parametrize("sides", [(2, 0), (0, 3), (3, 2), (0, 0), (None, 1), (1, None)])
    @pytest.mark.parametrize("shape", [(5, 11), (11, 5), (67, 131)])
    def test_window_distances_are_inclusive(self, shape, sides):
        n = SMALL._replace(T=shape[0], S=shape[1], B=1)
        meant = Subject.window(self, n.T, n.S, *sides)
        self.check(*self.qkv(n), mask=self.window(n.T, n.S, *sides), array_mask=meant)

    @pytest.mark.parametrize("sizes", [SMALL, TILED, DECODE], ids=["small", "tiled", "decode"])
    @pytest.mark.parametrize("axes", ["BHTS", "HTS", "TS", "S", "T1", "B11S", "H11", ""])
    def test_boolean_masks_of_every_shape(self, sizes, axes):
        shape = tuple(1 if axis == "1" else getattr(sizes, axis) for axis in axes)
        self.check(*self.qkv(sizes), mask=np.asarray(self.rng.random(shape) < 0.6))

    def test_scores_below_every_finite_fill_do_not_attend_to_what_is_hidden(self):
        q, k, v = self.qkv(SMALL)
        if self.dtype in (np.float32, np.float64) and self.supports("bias"):
            low = np.full((1, SMALL.S), -1e30, self.dtype)
            self.check(q, k, v, bias=low, mask=self.rng.random((SMALL.T, SMALL.S)) < 0.5)
            out, _ = self.attend(q, k, v, bias=np.full_like(low, np.finfo(self.dtype).min))
            assert (np.abs(out).sum(-1) > 0).all()
        mask = np.ones((SMALL.T, SMALL.S), bool)
        mask[:, 4:] = False
        self.check(-np.abs(q) * self.dtype(100), np.abs(k) * self.dtype(100), v, mask=mask)

    # -- bias, softcap, sink

    @pytest.mark.parametrize("sizes", [SMALL, TILED], ids=["small", "tiled"])
    @pytest.mark.parametrize("axes", ["BHTS", "HTS", "TS", "S", "T1", "B1T1", ""])
    def test_bias_of_every_shape(self, sizes, axes):
        self.need("bias")
        shape = tuple(1 if axis == "1" else getattr(sizes, axis) for axis in axes)
        self.check(*self.qkv(sizes), bias=self.draw(*shape, size=2))

    @pytest.mark.parametrize("sizes", [SMALL, TILED], ids=["small", "tiled"])
    def test_softcap_comes_before_the_mask_and_the_bias(self, sizes):
        self.need("softcap", "bias")
        q, k, v = self.qkv(sizes, size=5)
        mask = self.rng.random((sizes.T, sizes.S)) < 0.5
        self.check(q, k, v, softcap=1.5, mask=mask)
        self.check(q, k, v, softcap=1.5, bias=self.draw(sizes.T, sizes.S, size=3), mask=mask)

    def test_padding_takes_no_weight_from_scores_that_are_all_negative(self):
        self.need("softcap")
        q, k, v = self.qkv(TILED)
        self.check(-np.abs(q), np.abs(k), v, softcap=20.0)
        causal = {"mask": self.causal(TILED.T, TILED.S), "array_mask": tri(TILED)}
        self.check(-np.abs(q), np.abs(k), v, softcap=20.0, **causal)

    @pytest.mark.parametrize("size", [1.0, 1000.0])
    @pytest.mark.parametrize("sizes", [SMALL, TILED, DECODE], ids=["small", "tiled", "decode"])
    def test_a_sink_takes_part_in_the_maximum_and_the_lse(self, sizes, size):
        self.need("sink")
        q, k, v = self.qkv(sizes)
        sink = self.draw(sizes.H, size=size)
        mask = self.rng.random((sizes.T, sizes.S)) < 0.5
        mask[0] = False
        self.check(q, k, v, sink=sink)
        self.check(q, k, v, sink=sink, mask=mask)
        self.check(q, k, v, sink=self.draw(sizes.B, sizes.H, size=size), softcap=2.0)
        nothing = np.full(sizes.H, -INF, self.dtype)
        self.check(q, k, v, sink=nothing, mask=mask)

    # -- nothing to see

    @pytest.mark.parametrize("sizes", [SMALL, TILED, DECODE], ids=["small", "tiled", "decode"])
    def test_an_empty_row_gives_zero_and_minus_infinity(self, sizes):
        q, k, v = self.qkv(sizes)
        mask = self.rng.random((sizes.T, sizes.S)) < 0.5
        mask[:: max(sizes.T // 3, 1)] = False
        out, lse = self.check(q, k, v, mask=mask)
        assert (out[..., ~mask.any(-1), :] == 0).all()
        assert (lse[..., ~mask.any(-1)] == -INF).all()
        self.check(q, k, v, mask=np.array(False))

    def test_a_bias_of_minus_infinity_hides_as_a_mask_does(self):
        self.need("bias")
        q, k, v = self.qkv(SMALL)
        mask = self.rng.random((SMALL.T, SMALL.S)) < 0.5
        mask[3] = False
        self.check(q, k, v, bias=np.where(mask, 0, -INF).astype(self.dtype))

    @pytest.mark.parametrize("axis", ["B", "T", "S"])
    def test_axes_of_size_zero(self, axis):
        n = SMALL._replace(**{axis: 0})
        out, lse = self.attend(*self.qkv(n))
        assert out.shape == (n.B, n.H, n.T, n.E) and lse.shape == (n.B, n.H, n.T)
        assert (out == 0).all() and (lse == -INF).all()

    # -- NaN and inf

    @pytest.mark.parametrize("sizes", [SMALL, TILED], ids=["small", "tiled"])
    @pytest.mark.parametrize("which", ["q", "k"])
    def test_nan_reaches_exactly_the_rows_that_see_it(self, sizes, which):
        q, k, v = self.qkv(sizes)
        mask = self.rng.random((sizes.T, sizes.S)) < 0.5
        mask[2] = False
        bad_q, bad_k = q.copy(), k.copy()
        if which == "q":
            bad_q[0, 1, :3, 3] = NAN
        else:
            bad_k[0, 0, -2, 1] = NAN
        for options in (
            {"mask": mask},
            {},
            {"mask": self.causal(*mask.shape), "array_mask": tri(sizes)},
        ):
            out, lse = self.check(bad_q, bad_k, v, clean=(q, k, v), **options)
            assert np.isnan(out).any()
            assert (np.isnan(out).all(-1) == np.isnan(lse)).all()

    def test_nan_survives_where_every_other_score_is_huge(self):
        q, k, v = self.qkv(SMALL, size=100)
        bad = k.copy()
        bad[:, :, 10] = NAN
        self.check(q, bad, v, clean=(q, k, v))
        bad = k.copy()
        bad[:, :, 0] = NAN
        self.check(q, bad, v, clean=(q, k, v))

    @pytest.mark.parametrize("poison", [NAN, INF, -INF])
    @pytest.mark.parametrize("sizes", [SMALL, TILED], ids=["small", "tiled"])
    def test_poison_in_a_visible_value_stays_in_its_column(self, sizes, poison):
        q, k, v = self.qkv(sizes, size=0.3)  # flat, so that no weight underflows to 0
        mask = self.rng.random((sizes.T, sizes.S)) < 0.5
        bad = v.copy()
        bad[0, 0, 6, 5] = poison
        self.check(q, k, bad, clean=(q, k, v), mask=mask)

    @pytest.mark.parametrize("poison", [NAN, INF, -INF])
    @pytest.mark.parametrize("sizes", [SMALL, TILED, DECODE], ids=["small", "tiled", "decode"])
    def test_what_is_hidden_has_no_effect(self, sizes, poison):
        q, k, v = self.qkv(sizes)
        mask = self.rng.random((sizes.T, sizes.S)) < 0.5
        mask[:, 3:9] = False
        bad_k, bad_v = k.copy(), v.copy()
        bad_k[..., 3:6, :], bad_v[..., 6:9, :] = poison, poison
        clean = q, k, v
        self.check(q, bad_k, bad_v, clean=clean, mask=mask)
        if self.supports("bias"):
            hidden = np.where(mask, 0, -INF).astype(self.dtype)
            self.check(q, bad_k, bad_v, clean=clean, bias=hidden)
        # the keys after the last row's window, and those before it
        n = sizes
        bad_k, bad_v = k.copy(), v.copy()
        bad_k[..., -1, :] = bad_v[..., -1, :] = poison
        rows = slice(0, n.T - 1)
        meant = tri(n)[rows]
        self.check(q[..., rows, :], bad_k, bad_v, clean=(q[..., rows, :], k, v), mask=meant)

    # -- memory

    @pytest.mark.parametrize("sizes", [SMALL, TILED, ROUND], ids=["small", "tiled", "round"])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_any_strides(self, sizes, layout):
        q, k, v = (laid_out(x, layout) for x in self.qkv(sizes))
        before = [x.copy() for x in (q, k, v)]
        self.check(q, k, v)
        mask = laid_out(self.rng.random((sizes.H, sizes.T, sizes.S)) < 0.5, layout)
        options = {"mask": mask}
        if self.supports("bias"):
            options["bias"] = laid_out(self.draw(sizes.H, sizes.T, sizes.S), layout)
        self.check(q, k, v, **options)
        for x, was in zip((q, k, v), before, strict=True):
            np.testing.assert_array_equal(x, was)

    def test_strides_of_zero(self):
        n = SMALL
        q = np.broadcast_to(self.draw(1, 1, n.T, n.D), (n.B, n.H, n.T, n.D))
        k = np.broadcast_to(self.draw(n.B, 1, n.S, n.D), (n.B, n.G, n.S, n.D))
        v = np.broadcast_to(self.draw(n.G, 1, n.E), (n.B, n.G, n.S, n.E))
        self.check(q, k, v)
        self.check(q, np.broadcast_to(self.draw(1), k.shape), v)

    def test_the_same_call_gives_the_same_bits(self):
        q, k, v = self.qkv(TILED)
        first, second = self.attend(q, k, v), self.attend(q, k, v)
        for x, y in zip(first, second, strict=True):
            assert x.tobytes() == y.tobytes()
