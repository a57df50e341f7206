"""Random calls of attention's relatives and adapters: the right answer or one named error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead import reference

torch = pytest.importorskip("torch", reason="PyTorch's function is one of the oracles")

from clearhead.torch import scaled_dot_product_attention  # noqa: E402

F = torch.nn.functional
FEW = settings(max_examples=80, deadline=None, derandomize=True)
SIZE = st.integers(0, 9)


@st.composite
def calls(draw):
    """q, k and v whose sizes may or may not fit; most do."""
    T, S, D, E, G, share = (draw(SIZE) for _ in range(6))
    H = G * share
    leads = [draw(st.sampled_from([(), (1,), (2,), (3, 1), (3, 2)])) for _ in range(3)]
    shapes = [[*leads[0], H, T, D], [*leads[1], G, S, D], [*leads[2], G, S, E]]
    if draw(st.integers(0, 3)) == 0:
        which = draw(st.integers(0, 2))
        shapes[which][draw(st.integers(0, len(shapes[which]) - 1))] = draw(SIZE)
    if draw(st.booleans()):
        shapes = [shape[-2:] for shape in shapes]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return [rng.normal(size=shape) for shape in shapes]


@FEW
@given(calls(), st.sampled_from(["elu1", "relu"]), st.booleans())
def test_linear_attention(arrays, feature_map, causal):
    options = {"feature_map": feature_map, "causal": causal}
    try:
        out = ch.linear_attention(*arrays, **options)
    except ValueError as error:
        assert str(error).partition(":")[0] in ("q", "k", "v", "k, v", "q, k", "q, k, v")
        return
    want = reference.linear_attention(*arrays, **options)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-9 * (1 + abs(want).max(initial=0)))
    grads = ch.linear_attention_grad(np.ones_like(out), *arrays, **options)
    for x, gradient in zip(arrays, grads, strict=True):
        assert gradient.shape == x.shape
        assert np.isfinite(gradient).all()


@FEW
@given(calls(), st.sampled_from(["softmax", "gaussian"]), st.floats(0.1, 10))
def test_kernel_regression(arrays, kernel, bandwidth):
    options = {"kernel": kernel, "bandwidth": bandwidth}
    try:
        out = ch.kernel_regression(*arrays, **options)
    except ValueError as error:
        assert str(error).partition(":")[0] in ("q", "k", "v", "k, v", "q, k", "q, k, v")
        return
    want = reference.kernel_regression(*arrays, **options)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-11)


@FEW
@given(calls(), st.sampled_from([None, "causal", "bool", "float"]), st.booleans())
def test_scaled_dot_product_attention(arrays, mask, enable_gqa):
    q, k, v = (torch.from_numpy(x) for x in arrays)
    options = {"enable_gqa": enable_gqa and q.dim() > 2}  # PyTorch fails on rank 2 with it
    T, S = q.shape[-2], k.shape[-2]
    if mask == "causal":
        options["is_causal"] = True
    elif mask is not None:
        seen = torch.from_numpy(np.indices((T, S)).sum(0) % 3 > 0)
        added = torch.zeros(T, S, dtype=q.dtype).masked_fill(~seen, -torch.inf)
        options["attn_mask"] = seen if mask == "bool" else added
    try:
        got = scaled_dot_product_attention(q, k, v, **options)
    except ValueError as error:
        assert ": " in str(error)
        return
    if 0 in (*q.shape, *k.shape, *v.shape):
        assert (got == 0).all()  # there PyTorch's own answer depends on which kernel it picks
        return
    want = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
