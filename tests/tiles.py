"""What tests of the tile registers share: where they run, what they draw, who else computes it."""

import numpy as np
import pytest

import clearhead as ch
from clearhead import _native

# A module's `pytestmark`: its tests begin on the tiles, and may change isa and threads.
BY_TILES = [
    pytest.mark.skipif(
        "amx" not in ch.available_isas(), reason="a processor without dot products of bfloat16"
    ),
    pytest.mark.usefixtures("on_tiles"),
]


def draw(rng, T, S, D, E, size=1.0, dtype=np.float32, B=2, H=4, G=2):
    """q, k and v; `size` is that of q alone."""
    shapes = ((B, H, T, D), size), ((B, G, S, D), 1.0), ((B, G, S, E), 1.0)
    return [(std * rng.standard_normal(shape)).astype(dtype) for shape, std in shapes]


def by_multiply_adds(q, k, v, **options):
    """out and lse by the kernels of AVX-512, which the same machine has."""
    _native.choose_isa("avx512")
    result = ch.attention_with_lse(q, k, v, **options)
    _native.choose_isa("amx")
    return result


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tobytes() == b.tobytes()
