"""Arrays of other libraries: the same kind comes out, on the same memory, never mixed."""

import array
import subprocess
import sys
import timeit

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead._arrays import any_arrays, to_numpy

torch = pytest.importorskip("torch", reason="these tests pass tensors of PyTorch")
jnp = pytest.importorskip("jax.numpy", reason="these tests pass arrays of JAX")


class OnlyDlpack:
    """An array of a library unknown to us, which has DLPack and nothing else."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class WithNamespace(OnlyDlpack):
    """The same, with the array API's way back."""

    def __array_namespace__(self):
        return WithNamespace

    @classmethod
    def from_dlpack(cls, x):
        return cls(x)


def make_inputs(rng, dtype=np.float32):
    return [rng.normal(size=shape).astype(dtype) for shape in [(4, 5, 3), (2, 7, 3), (2, 7, 2)]]


def to_torch(x):
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


KINDS = {
    torch.Tensor: to_torch,
    type(jnp.zeros(1)): jnp.asarray,
    memoryview: memoryview,
    WithNamespace: WithNamespace,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_same_kind_comes_out_with_the_same_numbers(kind, rng):
    q, k, v = make_inputs(rng)
    mask, bias = rng.random((5, 7)) < 0.6, rng.normal(size=(4, 1, 7)).astype(np.float32)
    sink = rng.normal(size=4).astype(np.float32)
    want = ch.attention_with_lse(q, k, v, mask=mask, bias=bias, sink=sink)
    give = KINDS[kind]
    got = ch.attention_with_lse(
        give(q), give(k), give(v), mask=give(mask), bias=give(bias), sink=give(sink)
    )
    assert type(got) is type(want)
    for x, y in zip(got, want, strict=True):
        assert type(x) is kind
        np.testing.assert_array_equal(to_numpy("x", x), y)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_torch_keeps_every_dtype(dtype, rng):
    q, k, v = make_inputs(rng, dtype)
    out = ch.attention(*(to_torch(x) for x in (q, k, v)), mask=ch.causal())
    assert str(out.dtype) == f"torch.{np.dtype(dtype).name}"
    np.testing.assert_array_equal(to_numpy("out", out), ch.attention(q, k, v, mask=ch.causal()))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_jax_keeps_every_dtype(dtype, rng):
    q, k, v = make_inputs(rng, dtype)
    out = ch.attention(*(jnp.asarray(x) for x in (q, k, v)))
    assert out.dtype == dtype
    np.testing.assert_array_equal(np.asarray(out), ch.attention(q, k, v))


def test_dlpack_without_a_namespace_comes_out_as_numpy(rng):
    arrays = make_inputs(rng)
    out = ch.attention(*(OnlyDlpack(x) for x in arrays))
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, ch.attention(*arrays))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.from_numpy(x),
        lambda x: torch.from_numpy(x).transpose(0, 1)[:, ::2],
        lambda x: torch.from_numpy(x).to(torch.bfloat16).transpose(0, 1),
        OnlyDlpack,
        memoryview,
        lambda x: memoryview(x)[::2],
        jnp.asarray,
    ],
    ids=["torch", "torch strided", "torch bfloat16", "dlpack", "buffer", "buffer strided", "jax"],
)
def test_they_are_views_and_no_copies(make):
    given = make(np.arange(64, dtype=np.float32).reshape(8, 8))
    one, other = to_numpy("q", given), to_numpy("q", given)
    assert np.shares_memory(one, other)
    if isinstance(given, torch.Tensor):
        assert one.ctypes.data == given.data_ptr()
        assert one.shape == tuple(given.shape)


def test_strided_and_expanded_tensors_are_read_where_they_are(rng):
    base = torch.from_numpy(rng.normal(size=(5, 4, 3)))
    q, k = base.transpose(0, 1), base[:, :1].transpose(0, 1).expand(4, 5, 3)
    out = ch.attention(q, k, k)
    want = ch.attention(*(np.ascontiguousarray(x.numpy()) for x in (q, k, k)))
    np.testing.assert_array_equal(out.numpy(), want)


def test_read_only_memory_is_read(rng):
    arrays = make_inputs(rng)
    for x in arrays:
        x.flags.writeable = False
    assert type(ch.attention(*(memoryview(x) for x in arrays))) is memoryview


def test_every_public_function_of_arrays_takes_them(rng):
    q, k, v = (torch.from_numpy(x) for x in make_inputs(rng))
    out, lse = ch.attention_with_lse(q, k, v)
    grads = ch.attention_grad(out, q, k, v, out, lse)
    assert [type(x) for x in grads] == [torch.Tensor] * 3 + [type(None)] * 2
    merged = ch.merge([out, out], [lse, lse])
    assert type(merged.out) is torch.Tensor
    np.testing.assert_allclose(merged.lse, lse + np.log(2), rtol=1e-6)
    assert type(ch.linear_attention(q, k, v)) is torch.Tensor
    assert type(ch.kernel_regression(q, k, v, kernel="gaussian")) is torch.Tensor
    assert type(ch.linear_attention_grad(out, q, k, v).v) is torch.Tensor


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: {"q": torch.from_numpy(q)},
        lambda q, k, v: {"v": jnp.asarray(v)},
        lambda q, k, v: {"q": torch.from_numpy(q), "k": torch.from_numpy(k), "v": jnp.asarray(v)},
        lambda q, k, v: {"bias": torch.zeros(5, 7)},
        lambda q, k, v: {"mask": torch.ones(5, 7, dtype=torch.bool)},
    ],
)
def test_mixed_kinds_are_an_error_that_says_so(change, rng):
    q, k, v = make_inputs(rng)
    with pytest.raises(TypeError, match=r"arrays of different kinds: .* is .*must all be of one"):
        ch.attention(**{"q": q, "k": k, "v": v, **change(q, k, v)})


def test_a_mixture_inside_a_sequence_is_found_and_named(rng):
    out, lse = ch.attention_with_lse(*make_inputs(rng))
    with pytest.raises(TypeError, match=r"outs\[0\] is numpy.ndarray, outs\[1\] is torch.Tensor"):
        ch.merge([out, torch.from_numpy(out)], [lse, lse])


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda x: x.requires_grad_(), "requires grad, .* clearhead.torch.attention"),
        (lambda x: x.to("meta"), "q: a torch.Tensor on meta, must be on the CPU"),
        (lambda x: x.to_sparse(), "layout torch.sparse_coo, must be strided"),
        (lambda x: x.to(torch.float8_e4m3fn), "q: a torch.Tensor of torch.float8_e4m3fn"),
        (lambda x: x.to(torch.int64), "q: dtype is int64, must be float64, float32"),
    ],
)
def test_a_tensor_that_cannot_be_taken_says_why(spoil, words, rng):
    q, k, v = (torch.from_numpy(x) for x in make_inputs(rng))
    with pytest.raises(TypeError, match=words):
        ch.attention(spoil(q), k, v)


def test_under_no_grad_a_parameter_is_a_tensor_like_any(rng):
    q, k, v = (torch.from_numpy(x) for x in make_inputs(rng))
    with torch.no_grad():
        out = ch.attention(torch.nn.Parameter(q), k, v)
    np.testing.assert_array_equal(out, ch.attention(q, k, v))


def test_traced_arrays_are_sent_to_the_adapters(rng):
    import jax

    q, k, v = (jnp.asarray(x) for x in make_inputs(rng))
    with pytest.raises(TypeError, match=r"a JAX tracer, .* clearhead.jax.attention"):
        jax.jit(ch.attention)(q, k, v)
    q, k, v = (torch.from_numpy(x)[None] for x in make_inputs(rng))
    with pytest.raises(TypeError, match=r"under torch.compile and torch.func call clearhead.torch"):
        torch.func.vmap(ch.attention)(q, k, v)


@pytest.mark.parametrize(
    "x, words",
    [
        ([[1.0]], "q: a list, must be an array"),
        ("text", "q: a str, must be an array"),
        (np.float32(1), "q: numpy.float32, must be an array"),
        (np.ma.masked_array([[1.0]]), "q: a masked array, must be a plain one"),
        (b"bytes", "q: dtype is uint8, must be"),
        (array.array("d", [1.0]), "q: has 1 axis, must be"),
    ],
)
def test_what_is_no_array_is_still_refused_by_name(x, words):
    k = x if isinstance(x, bytes | array.array) else np.zeros((1, 1))
    with pytest.raises((TypeError, ValueError), match=words):
        ch.attention(x, k, k)


def test_a_nested_list_does_not_blind_it_to_tensors_in_lists(rng):
    out, lse = ch.attention_with_lse(*make_inputs(rng))
    with pytest.raises(TypeError):
        ch.merge([[out]], [[lse]])
    out, lse = torch.from_numpy(out), torch.from_numpy(lse)
    assert type(ch.merge([out], [lse]).out) is torch.Tensor


def test_no_library_is_imported_for_arrays_of_numpy():
    code = (
        "import sys, numpy as np, clearhead as ch; x = np.zeros((2, 3)); ch.attention(x, x, x);"
        "ch.attention(memoryview(x), memoryview(x), memoryview(x));"
        "assert not {'torch', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_costs_numpy_nothing_that_can_be_felt():
    def bare(q, k, v):
        return q

    wrapped = any_arrays(bare)
    x = np.zeros((2, 3))
    n = 20_000
    cost = min(timeit.repeat(lambda: wrapped(x, x, x), number=n, repeat=9))
    cost -= min(timeit.repeat(lambda: bare(x, x, x), number=n, repeat=9))
    assert cost / n < 1e-6  # 0.2 microseconds on a quiet machine
