"""Every implementation in the tree passes the conformance suite.

The core is tried in each instruction set that this machine has: the choice is made at import, so
`test_isas.py` runs this file again in processes of their own.
"""

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import reference
from conformance import AttentionConformance
from gradient_conformance import GradientConformance


class TestReference(AttentionConformance, GradientConformance):
    """The specification holds itself to the suite: no test asks for more than it decides."""

    dtype = np.float64

    def attend(self, q, k, v, **options):
        return reference.forward(q, k, v, **options)

    def gradients(self, dout, q, k, v, out, lse, **options):
        return reference.backward(dout, q, k, v, **options)


class TestFloat32(AttentionConformance, GradientConformance):
    dtype = np.float32

    def attend(self, q, k, v, **options):
        result = ch.attention_with_lse(q, k, v, **options)
        alone = ch.attention(q, k, v, **options)
        assert alone.tobytes() == result.out.tobytes()
        return result

    def gradients(self, dout, q, k, v, out, lse, **options):
        return ch.attention_grad(dout, q, k, v, out, lse, **options)

    def causal(self, T, S):
        return ch.causal()

    def window(self, T, S, left, right):
        return ch.window(left, right)


class TestFloat64(TestFloat32):
    dtype = np.float64


class TestFloat16(TestFloat32):
    dtype = np.float16


class TestBfloat16(TestFloat32):
    dtype = ml_dtypes.bfloat16


class TestOneThread(TestFloat32):
    @pytest.fixture(autouse=True)
    def _one_thread(self):
        before = ch.num_threads()
        ch.set_num_threads(1)
        yield
        ch.set_num_threads(before)
