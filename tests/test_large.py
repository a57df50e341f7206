"""Offsets beyond 2^31 elements, in memory that is mostly never touched."""

import numpy as np
import pytest

import clearhead as ch
from clearhead import reference

FAR = 2**31 + 7


@pytest.fixture(scope="module")
def far_apart() -> np.ndarray:
    """(1, 1, 3, 5): rows more than 2^30 elements apart, 8 GiB of address space, few pages used."""
    try:
        memory = np.zeros(FAR + 64, np.float32)
    except MemoryError:
        pytest.skip("no 8 GiB of address space")
    view = np.lib.stride_tricks.as_strided(
        memory, (1, 1, 3, 5), (0, 0, (FAR // 2) * 4, 4), writeable=True
    )
    view[...] = np.random.default_rng(0).normal(size=view.shape)
    return view


@pytest.mark.parametrize("isa", ch.available_isas())
def test_offsets_do_not_wrap_at_32_bits(far_apart: np.ndarray, isa: str) -> None:
    from clearhead import _native

    before = ch.isa()
    _native.choose_isa(isa)
    try:
        x = far_apart
        out, lse = ch.attention_with_lse(x, x, x)
        want, _ = reference.forward(x, x, x)
        np.testing.assert_allclose(out, want, atol=1e-5)
        got = ch.attention_grad(out, x, x, x, out, lse)
        dense = np.array(x)
        same = ch.attention_grad(out, dense, dense, dense, out, lse)
        for a, b in zip(got[:3], same[:3], strict=True):
            assert a.tobytes() == b.tobytes()
    finally:
        _native.choose_isa(before)
