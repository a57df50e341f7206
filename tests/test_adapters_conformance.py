"""The adapters pass the conformance suite: what they hand over, masks and gradients included."""

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import reference
from clearhead._arrays import to_numpy
from conformance import AttentionConformance
from gradient_conformance import GradientConformance

torch = pytest.importorskip("torch", reason="this suite is run through PyTorch's autograd")

import clearhead.torch  # noqa: E402


def tensor(x):
    """A tensor of the same memory where PyTorch can hold it: not backwards, aligned, writeable."""
    if not isinstance(x, np.ndarray):
        return x
    if any(n < 0 for n in x.strides) or not x.flags.aligned or not x.flags.writeable:
        x = x.copy()
    if any(n % x.itemsize for n in x.strides):
        x = x.copy()
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


class TestTorch(AttentionConformance, GradientConformance):
    dtype = np.float32

    def attend(self, q, k, v, **options):
        q, k, v = map(tensor, (q, k, v))
        options = {name: tensor(x) for name, x in options.items()}
        out = clearhead.torch.attention(q, k, v, **options)
        lse = ch.attention_with_lse(q, k, v, **options).lse
        return to_numpy("out", out), lse.numpy()

    def gradients(self, dout, q, k, v, out, lse, **options):
        given = {"q": q, "k": k, "v": v, **options}
        given = {name: tensor(x) for name, x in given.items()}
        wanted = [
            name for name in ("q", "k", "v", "bias", "sink") if torch.is_tensor(given.get(name))
        ]
        for name in wanted:
            given[name] = given[name].detach().requires_grad_()
        out = clearhead.torch.attention(**given)
        found = torch.autograd.grad(out, [given[name] for name in wanted], tensor(dout))
        arrays = {name: to_numpy(name, x) for name, x in zip(wanted, found, strict=True)}
        return reference.Gradients(**dict.fromkeys(("bias", "sink")) | arrays)

    def causal(self, T, S):
        return ch.causal()

    def window(self, T, S, left, right):
        return ch.window(left, right)


class TestTorchBfloat16(TestTorch):
    dtype = ml_dtypes.bfloat16
