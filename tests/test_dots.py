"""bfloat16 by dot-product instructions, where the machine has them."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
import tiles
from clearhead import _native, reference

BFLOAT = ml_dtypes.bfloat16
pytestmark = tiles.BY_TILES
draw = functools.partial(tiles.draw, dtype=BFLOAT)

SIZES = [  # T, S, D, E: remainders of every tile, values of another size than the keys
    (64, 128, 64, 64),
    (67, 197, 33, 100),
    (131, 509, 80, 96),
    (17, 31, 100, 80),
    (16, 32, 1, 1),
    (129, 257, 128, 128),
    (65, 161, 160, 16),
    (33, 97, 256, 31),
]


def error(out, q, k, v, mask=None):
    want = reference.forward(*(x.astype(np.float64) for x in (q, k, v)), mask=mask)[0]
    return np.abs(out.astype(np.float64) - want).max()


def bits(x):
    return x.view(np.uint16)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("size", [0.2, 1.0, 8.0], ids=["flat", "usual", "peaked"])
@pytest.mark.parametrize(("T", "S", "D", "E"), SIZES)
def test_errors_are_those_of_pytorchs_kernel(T, S, D, E, size, causal, rng):
    torch = pytest.importorskip("torch", reason="the standard is PyTorch's kernel")
    q, k, v = draw(rng, T, S, D, E, size)
    mask = np.tri(T, S, S - T, dtype=bool) if causal else None
    tensors = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=None if mask is None else torch.from_numpy(mask), enable_gqa=True
    )
    ours = ch.attention(q, k, v, mask=ch.causal() if causal else None)
    # One draw: a rounding of the largest output is luck.
    luck = float(ml_dtypes.finfo(BFLOAT).eps) * float(np.abs(ours.astype(np.float64)).max()) / 2
    allowed = max(error(theirs.float().numpy(), q, k, v, mask), luck)
    assert error(ours, q, k, v, mask) <= 1.1 * allowed


@pytest.mark.parametrize("size", [1.0, 300.0], ids=["bounded", "unbounded"])
def test_the_output_is_the_same_with_and_without_lse_and_for_any_number_of_threads(size, rng):
    q, k, v = draw(rng, 197, 331, 64, 80, size)
    outs = []
    for threads in (1, 2, 7):
        ch.set_num_threads(threads)
        outs.append(ch.attention(q, k, v, mask=ch.causal()))
        outs.append(ch.attention_with_lse(q, k, v, mask=ch.causal())[0])
    assert all((bits(out) == bits(outs[0])).all() for out in outs)


def test_weights_are_those_of_the_dot_products(rng):
    """Normalised by the sum of the rounded weights: other bits than by conversion, ones as ones."""
    q, k, v = draw(rng, 131, 257, 64, 64)
    by_dots = ch.attention(q, k, v)
    ones = ch.attention(q, k, np.ones_like(v))
    assert _native.dot_products(10) > 0
    _native.choose_isa("avx512")
    assert _native.dot_products(10) == 0
    assert (bits(ch.attention(q, k, v)) != bits(by_dots)).any()
    assert (ones == 1).all()


def test_strided_rows_and_columns_are_packed_alike(rng):
    q, k, v = draw(rng, 67, 101, 48, 40)
    want = ch.attention(q, k, v)
    wide = [np.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), BFLOAT) for x in (q, k, v)]
    for w, x in zip(wide, (q, k, v), strict=True):
        w[..., ::2, ::3] = x
    assert (bits(ch.attention(*(w[..., ::2, ::3] for w in wide))) == bits(want)).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("hidden", [5, 100, 196], ids=["first", "middle", "last"])
def test_hidden_keys_and_values_have_no_effect(poison, hidden, rng):
    q, k, v = draw(rng, 67, 197, 64, 64)
    seen = np.ones((67, 197), bool)
    seen[:, hidden] = False
    seen[20:, 40:] = False
    clean = ch.attention_with_lse(q, k, v, mask=seen)
    k[:, :, hidden] = poison
    v[:, :, hidden] = poison
    got = ch.attention_with_lse(q, k, v, mask=seen)
    np.testing.assert_allclose(got.out.astype(float), clean.out.astype(float), atol=0.02)
    np.testing.assert_allclose(got.lse, clean.lse, rtol=1e-5)


@pytest.mark.parametrize("magnitude", [1e-30, 1e30], ids=["tiny", "huge"])
def test_values_of_any_magnitude_keep_their_digits(magnitude, rng):
    q, k, v = draw(rng, 33, 97, 64, 48, 2.0)
    v = (v.astype(np.float32) * np.float32(magnitude)).astype(BFLOAT)
    unit = float(np.abs(v.astype(np.float64)).max())
    assert error(ch.attention(q, k, v), q, k, v) <= 0.02 * unit


def test_2_to_the_x_is_within_two_units_in_the_last_place():
    """The polynomial of native/pairs_avx512.hpp, in float32 as it is evaluated there."""
    header = Path(__file__).parents[1] / "native" / "pairs_avx512.hpp"
    (written,) = re.findall(r"constexpr float c\[\] = \{([^}]*)\}", header.read_text())
    c = [np.float32(x.strip().rstrip("f")) for x in written.split(",")]
    assert len(c) == 5
    r = np.linspace(0, 1, 200_001, dtype=np.float32)
    tail = np.full_like(r, c[0])
    for coefficient in [*c[1:], np.float32(1)]:  # a product and a sum rounded once, as fma
        exact = tail.astype(np.float64) * r + np.float64(coefficient)
        tail = exact.astype(np.float32)
    truth = np.exp2(r.astype(np.float64))
    assert tail[0] == 1
    assert (np.abs(tail - truth) <= 2 * np.spacing(truth.astype(np.float32))).all()
    exact = np.polyval([*map(float, c), 1.0], r.astype(np.float64))
    assert (np.abs(exact - truth) <= 1.3e-7).all()


FORK = """
import os, ml_dtypes, numpy as np, clearhead as ch
x = np.random.default_rng(3).standard_normal((2, 197, 64)).astype(ml_dtypes.bfloat16)
ch.set_num_threads(2)
before = ch.attention(x, x, x)
child = os.fork()
if child == 0:
    ch.set_num_threads(2)
    os._exit(0 if (ch.attention(x, x, x).view("u2") == before.view("u2")).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ch.isa())
"""

# A signal stack with no room for the tile registers: the kernel then refuses them.
REFUSED = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
stack = Stack(ctypes.addressof(memory), 0, 4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
import clearhead as ch
print(ch.isa(), "amx" in ch.available_isas())
"""


def printed(script):
    free = {name: value for name, value in os.environ.items() if name != "CLEARHEAD_ISA"}
    run = subprocess.run([sys.executable, "-c", script], env=free, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_a_forked_child_has_the_tile_registers_too():
    assert printed(FORK) == ["0", "amx"]


def test_where_the_kernel_refuses_the_tile_registers_the_rest_runs():
    assert printed(REFUSED) == ["avx512", "False"]
