"""Every implementation in the tree passes the conformance suite."""

import numpy as np

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
