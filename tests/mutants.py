"""A correct attention in pieces, and wrong ones that differ in one piece each.

Each is the habit of a famous code or a classic slip. `test_mutants.py` wants `TestCorrect` accepted
and every other class rejected; this file is not collected by itself.
"""

import numpy as np

from clearhead.reference import Gradients
from conformance import AttentionConformance
from gradient_conformance import GradientConformance

INF = np.inf


class Pieces:
    """Online over blocks of keys, as a kernel does it; in float64, given out in float32."""

    block = 8

    def heads(self, x, H):
        return np.repeat(x, H // x.shape[-3], axis=-3)

    def factor(self, D, E):
        return D**-0.5

    def capped(self, s, softcap):
        return s if softcap is None else softcap * np.tanh(s / softcap)

    def hidden(self, s, seen):
        return np.where(seen, s, -INF)

    def scores(self, q, k, seen, bias, softcap):
        s = self.capped(q @ k.mT, softcap)
        return self.hidden(s if bias is None else s + np.where(bias == -INF, 0, bias), seen)

    def larger(self, m, s):
        return np.maximum(m, s.max(-1, keepdims=True))

    def start(self, shape, sink):
        """m, total of a row that has seen no key."""
        m = np.full(shape, -INF) if sink is None else np.broadcast_to(sink, shape)
        return m, np.exp(m - self.finite(m))

    def finite(self, m):
        return np.where(m == -INF, 0, m)

    def exp(self, x):
        return np.exp(x)

    def end(self, total, m, sink):
        return total

    def values(self, p, seen, v):
        if np.isfinite(v).all():
            return p @ v
        return np.where(seen[..., None], p[..., None] * v[..., None, :, :], 0).sum(-2)

    def result(self, out, m, total):
        return np.where(total == 0, 0, out / total)

    def log(self, m, total):
        return m + np.log(total)

    def last(self, S):
        return S

    def prepared(self, q, k, v, mask, bias, sink):
        """Everything in float64, with all H heads, and every (T, S) array spread out."""
        q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
        flat = q.ndim == 2
        if flat:
            q, k, v = q[None], k[None], v[None]
        k, v = self.heads(k, q.shape[-3]), self.heads(v, q.shape[-3])
        lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        q, k, v = (np.broadcast_to(x, lead + x.shape[-2:]) for x in (q, k, v))
        seen = np.broadcast_to(True if mask is None else mask, (*lead, q.shape[-2], k.shape[-2]))
        if bias is not None:
            bias = np.broadcast_to(bias.astype(np.float64), seen.shape)
            seen = seen & (bias != -INF)
        sink = None if sink is None else sink.astype(np.float64)[..., None, None]
        return flat, q, k, v, seen, bias, sink

    @np.errstate(all="ignore")
    def attend(self, q, k, v, *, mask=None, bias=None, scale=None, softcap=None, sink=None):
        kind = q.dtype
        flat, q, k, v, seen, bias, sink = self.prepared(q, k, v, mask, bias, sink)
        q = q * (self.factor(q.shape[-1], v.shape[-1]) if scale is None else scale)
        m, total = self.start((*q.shape[:-1], 1), sink)
        out = np.zeros((*q.shape[:-1], v.shape[-1]))
        for i in range(0, self.last(k.shape[-2]), self.block):
            block = np.s_[..., i : min(i + self.block, self.last(k.shape[-2]))]
            part = None if bias is None else bias[block]
            s = self.scores(q, k[(*block, np.s_[:])], seen[block], part, softcap)
            old, m = m, self.larger(m, s)
            shrink, p = self.exp(old - self.finite(m)), self.exp(s - self.finite(m))
            total = total * shrink + p.sum(-1, keepdims=True)
            out = out * shrink + self.values(p, seen[block], v[(*block, np.s_[:])])
        total = self.end(total, m, sink)
        out, lse = self.result(out, m, total).astype(kind), self.log(m, total)[..., 0].astype(kind)
        return (out[0], lse[0]) if flat else (out, lse)

    # -- the gradient, from lse

    def delta(self, dout, out, p):
        return (dout * out).sum(-1, keepdims=True)

    def slope(self, s, softcap):
        return 1.0 if softcap is None else 1 - (s / softcap) ** 2

    def touched(self, ds, seen):
        return np.where(seen, ds, 0)

    def by_group(self, x, shape):
        if len(shape) < 3 or x.shape[-3] == shape[-3]:
            return x
        groups = shape[-3]
        return x.reshape(*x.shape[:-3], groups, x.shape[-3] // groups, *x.shape[-2:]).sum(-3)

    def summed(self, x, shape):
        x = self.by_group(x, shape)
        x = x.sum(tuple(range(x.ndim - len(shape))))
        return x.sum(tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)

    def key_scale(self, scale):
        return scale

    def sink_share(self, sink, lse):
        lse = lse[..., None]
        return np.where(lse == -INF, 0, np.exp(sink - lse))

    def whole(self, total):
        """The weights' sum: 1 but for the rounding of lse, which is as large as that of scores."""
        return np.where(total == 0, 1, total)

    @np.errstate(all="ignore")
    def gradients(
        self, dout, q, k, v, out, lse, *, mask=None, bias=None, scale=None, softcap=None, sink=None
    ):
        kind, shapes = q.dtype, [np.shape(x) for x in (q, k, v, bias, sink)]
        _, q, k, v, seen, b, sink = self.prepared(q, k, v, mask, bias, sink)
        dout, out, lse = (x.astype(np.float64) for x in (dout, out, lse))
        scale = self.factor(q.shape[-1], v.shape[-1]) if scale is None else scale
        s = self.capped(scale * q @ k.mT, softcap)
        biased = s if b is None else s + b
        p = np.where(seen, np.exp(biased - lse[..., None]), 0)
        share = np.zeros_like(lse)[..., None] if sink is None else self.sink_share(sink, lse)
        total = self.whole(p.sum(-1, keepdims=True) + np.abs(share))
        p, share = np.where(seen, p / total, 0), share / total
        delta = self.delta(dout, out, p)
        ds = self.touched(p * (dout @ v.mT - delta), seen)
        dx = self.touched(ds * self.slope(s, softcap), seen)
        dq = scale * self.values(dx, seen, k)
        dk = self.key_scale(scale) * self.values(dx.mT, seen.mT, q)
        dv = self.values(p.mT, seen.mT, dout)
        dsink = None
        if sink is not None:
            dsink = np.where(sink[..., 0, 0] == -INF, 0, -(share * delta)[..., 0].sum(-1))
        grads = [dq, dk, dv, None if b is None else ds, dsink]
        return Gradients(
            *(
                None if g is None else self.summed(g, shape).astype(kind)
                for g, shape in zip(grads, shapes, strict=True)
            )
        )


class TestCorrect(Pieces, AttentionConformance, GradientConformance):
    pass


class Forward(Pieces, AttentionConformance):
    pass


class Backward(Pieces, GradientConformance):
    pass


# -- masks


class TestCausalTopLeft(Forward):  # PyTorch's is_causal
    def causal(self, T, S):
        return np.tri(T, S, dtype=bool)


class TestWindowOneTooWide(Forward):
    def window(self, T, S, left, right):
        return super().window(T, S, None if left is None else left + 1, right)


class TestWindowExclusive(Forward):
    def window(self, T, S, left, right):
        return super().window(T, S, left, None if right is None else right - 1)


class TestFiniteMinimumHides(Forward):  # MLX, equinox: an empty row is the mean of V
    def hidden(self, s, seen):
        return np.where(seen, s, np.finfo(np.float32).min)

    def values(self, p, seen, v):
        return p @ v


class TestMinusTenBillionHides(Forward):  # picoGPT, BERT
    def hidden(self, s, seen):
        return s + np.where(seen, 0, -1e10)

    def values(self, p, seen, v):
        return p @ v


class TestCapAfterMask(Forward):
    def scores(self, q, k, seen, bias, softcap):
        s = self.hidden(q @ k.mT, seen)
        s = s if bias is None else s + np.where(bias == -INF, 0, bias)
        return s if softcap is None else softcap * np.tanh(s / softcap)

    def values(self, p, seen, v):
        return p @ v


class TestBiasBeforeCap(Forward):
    def scores(self, q, k, seen, bias, softcap):
        s = q @ k.mT + (0 if bias is None else np.where(bias == -INF, 0, bias))
        return self.hidden(self.capped(s, softcap), seen)


class TestCapForgotten(Forward):
    def capped(self, s, softcap):
        return s


# -- the online softmax


class TestMaximumFromMinusTenThousand(Forward):  # llm.c's reference
    def larger(self, m, s):
        return np.maximum(-1e4, super().larger(m, s))


class TestMaximumForgotten(Forward):
    def larger(self, m, s):
        return np.maximum(m, 0)


class TestNotRescaled(Forward):
    def exp(self, x):
        return np.where(x.shape[-1] == 1, 1, np.exp(x))


class TestNanSwallowed(Forward):  # max_ps(NaN, c) is c
    def larger(self, m, s):
        return np.fmax(m, np.fmax.reduce(s, -1, keepdims=True))

    def exp(self, x):
        return np.exp(np.fmax(x, -700.0)) * (np.fmax(x, -700.0) > -700.0)


class TestSinkOutsideTheMaximum(Forward):  # an early kernel with sinks
    def start(self, shape, sink):
        return super().start(shape, None)

    def end(self, total, m, sink):
        total = total.astype(np.float32)
        return total if sink is None else total + np.exp((sink - self.finite(m)).astype(np.float32))


class TestSinkNotInLse(Forward):
    def start(self, shape, sink):
        return super().start(shape, None)

    def result(self, out, m, total):
        return super().result(out, m, total + self.extra)

    def end(self, total, m, sink):
        self.extra = 0 if sink is None else np.exp(sink - self.finite(m))
        return total


class TestLastKeyDropped(Forward):
    def last(self, S):
        return max(S - 1, min(S, 1))


class TestPaddedKeysTakeWeight(Forward):  # a tile's padding has score 0
    def end(self, total, m, sink):
        return total + np.exp(-self.finite(m)) * (total > 0)


class TestInfinityIsFiftyThousand(Forward):
    def larger(self, m, s):
        return np.maximum(super().larger(m, s), -5e4)

    def start(self, shape, sink):
        m, total = super().start(shape, sink)
        return np.maximum(m, -5e4), total


# -- results


class TestLseOfEmptyRowPlusInfinity(Forward):  # flash-attention
    def log(self, m, total):
        return np.where(total == 0, INF, super().log(m, total))


class TestLseOfEmptyRowZero(Forward):  # PyTorch on the CPU
    def log(self, m, total):
        return np.where(total == 0, 0, super().log(m, total))


class TestLseInBaseTwo(Forward):  # flashinfer
    def log(self, m, total):
        return super().log(m, total) / np.log(2)


class TestEmptyRowIsNan(Forward):  # softmax of a row of -inf
    def result(self, out, m, total):
        return out / total


class TestNanToZero(Forward):  # TransformerLens
    def result(self, out, m, total):
        return np.nan_to_num(super().result(out, m, total), nan=0.0, posinf=INF, neginf=-INF)


class TestZeroTimesInfinity(Forward):
    def values(self, p, seen, v):
        return p @ v


# -- sizes


class TestHeadsTiled(Forward):
    def heads(self, x, H):
        tiles = (1,) * (x.ndim - 3) + (H // x.shape[-3], 1, 1)
        return np.tile(x, tiles)


class TestScaledByE(Forward):
    def factor(self, D, E):
        return E**-0.5


class TestNotScaled(Forward):
    def factor(self, D, E):
        return 1.0


# -- gradients


class TestGradientHeadsTiled(Backward):
    def by_group(self, x, shape):
        if len(shape) < 3 or x.shape[-3] == shape[-3]:
            return x
        groups = shape[-3]
        return x.reshape(*x.shape[:-3], x.shape[-3] // groups, groups, *x.shape[-2:]).sum(-4)


class TestCapHasSlopeOne(Backward):
    def slope(self, s, softcap):
        return 1.0


class TestKeyGradientNotScaled(Backward):
    def key_scale(self, scale):
        return 1.0


class TestGradientOfHiddenIsNan(Backward):  # 0 * (NaN - delta)
    def touched(self, ds, seen):
        return ds


class TestSinkLeftOutOfDelta(Backward):  # as if the weights summed to 1
    def delta(self, dout, out, p):
        share = p.sum(-1, keepdims=True)
        return super().delta(dout, out, p) / np.where(share == 0, 1, share)


class TestSinkGradientOfTheWrongSign(Backward):
    def sink_share(self, sink, lse):
        return -super().sink_share(sink, lse)


class TestGradientZeroTimesInfinity(Backward):
    def gradients(self, *args, **options):
        self.values = lambda p, seen, v: p @ v
        return super().gradients(*args, **options)
