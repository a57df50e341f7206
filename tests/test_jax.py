"""clearhead.jax: jit, grad and vmap, against the core and against JAX's own attention."""

import subprocess
import sys

import numpy as np
import pytest

import clearhead as ch

jax = pytest.importorskip("jax", reason="this adapter is for JAX")
jnp = jax.numpy

from clearhead.jax import attention  # noqa: E402


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def make_inputs(rng, B=(2,), H=4, G=2, T=5, S=7, D=3, E=6, dtype=np.float64):
    shapes = (*B, H, T, D), (*B, G, S, D), (*B, G, S, E)
    return [jnp.asarray(rng.normal(size=shape).astype(dtype)) for shape in shapes]


def spelt(q, k, v, mask=None, bias=0.0, scale=None, softcap=None, sink=None):
    """The formula in JAX, which differentiates it itself."""
    k, v = (jnp.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * jnp.tanh(s / softcap)
    s = s + bias
    s = s if mask is None else jnp.where(mask, s, -jnp.inf)
    if sink is not None:
        sink = jnp.broadcast_to(sink[..., None, None], (*s.shape[:-1], 1))
        return jax.nn.softmax(jnp.concatenate([s, sink], -1), -1)[..., :-1] @ v
    return jax.nn.softmax(s, -1) @ v


def assert_close(got, want):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)


def test_it_is_the_core(rng):
    arrays = make_inputs(rng)
    mask = ch.causal() & ch.lengths([3, 7])
    out = attention(*arrays, mask=mask)
    assert isinstance(out, jax.Array)
    np.testing.assert_array_equal(out, ch.attention(*map(np.asarray, arrays), mask=mask))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_everything(compiled, rng):
    q, k, v = make_inputs(rng)
    bias, sink = jnp.asarray(rng.normal(size=(4, 1, 7))), jnp.asarray(rng.normal(size=4))
    seen = jnp.asarray(rng.random((5, 7)) < 0.7)

    def loss(function, q, k, v, bias, sink):
        out = function(q, k, v, mask=seen, bias=bias, sink=sink, softcap=2.0, scale=0.7)
        return jnp.square(out).sum()

    def gradients(function):
        f = jax.value_and_grad(lambda *x: loss(function, *x), argnums=(0, 1, 2, 3, 4))
        return (jax.jit(f) if compiled else f)(q, k, v, bias, sink)

    assert_close(gradients(attention), gradients(spelt))


@pytest.mark.parametrize("B", [(), (3, 2)])
def test_gradients_sum_over_broadcast_axes(B, rng):
    q, _, _ = make_inputs(rng, B=(3, 2))
    _, k, v = make_inputs(rng, B=B)
    mask = ch.causal()

    def gradients(f):
        return jax.grad(lambda *x: jnp.square(f(*x)).sum(), argnums=(0, 1, 2))(q, k, v)

    array = jnp.asarray(mask.to_array(5, 7))
    got = gradients(lambda *x: attention(*x, mask=mask))
    assert_close(got, gradients(lambda *x: spelt(*x, mask=array)))


def test_vmap_and_grad_in_either_order(rng):
    arrays = make_inputs(rng, B=(3, 2))
    mask = ch.causal() & ch.lengths([3, 7])

    def f(q, k, v):
        return jnp.square(attention(q, k, v, mask=mask)).sum()

    grad = jax.grad(f, argnums=(0, 1, 2))
    examples = [grad(*(x[i] for x in arrays)) for i in range(3)]
    want = [jnp.stack(x) for x in zip(*examples, strict=True)]
    assert_close(jax.jit(jax.vmap(grad))(*arrays), want)
    assert_close(jax.grad(lambda *x: jax.vmap(f)(*x).sum(), argnums=(0, 1, 2))(*arrays), want)


@pytest.mark.parametrize("own", [(), (4,), (2, 4)])
def test_vmap_over_some_arguments_of_any_rank(own, rng):
    q, k = jnp.asarray(rng.normal(size=(6, *own, 5, 3))), jnp.asarray(rng.normal(size=(*own, 7, 3)))
    bias = jnp.asarray(rng.normal(size=(5, 6, 7)))
    seen = jnp.asarray(rng.random((5, 7, 6)) < 0.8)

    def f(q, k, bias, seen):
        return jnp.square(attention(q, k, k, bias=bias, mask=seen)).sum()

    grad = jax.value_and_grad(f, argnums=(0, 1, 2))
    got = jax.vmap(grad, in_axes=(0, None, 1, 2))(q, k, bias, seen)
    for i in range(6):
        want = grad(q[i], k, bias[:, i], seen[..., i])
        assert_close(jax.tree.map(lambda x, i=i: x[i], got), want)


def test_nested_vmap(rng):
    q, k, v = make_inputs(rng, B=(3, 2))
    np.testing.assert_array_equal(jax.vmap(jax.vmap(attention))(q, k, v), attention(q, k, v))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_low_precision(dtype, rng):
    arrays = [x.astype(dtype) for x in make_inputs(rng)]
    got = jax.jit(jax.grad(lambda *x: attention(*x).sum(), argnums=(0, 2)))(*arrays)
    out = attention(*arrays)
    exact = [x.astype(jnp.float64) for x in arrays]
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(out.astype(jnp.float64), spelt(*exact), rtol=0, atol=8 * eps)
    want = jax.grad(lambda *x: spelt(*x).sum(), argnums=(0, 2))(*exact)
    for x, y in zip(got, want, strict=True):
        assert x.dtype == dtype
        np.testing.assert_allclose(x.astype(jnp.float64), y, rtol=0, atol=16 * eps)


def test_it_agrees_with_jaxs_own_function(rng):
    """jax.nn.dot_product_attention has heads behind time, and aligns `is_causal` top-left."""
    q, k, v = make_inputs(rng, E=3)
    swapped = [x.swapaxes(-3, -2) for x in (q, k, v)]
    for options, mask in [({}, None), ({"is_causal": True}, ch.causal(offset=0))]:
        want = jax.nn.dot_product_attention(*swapped, **options).swapaxes(-3, -2)
        # Its softmax is in float32, whatever the dtype.
        np.testing.assert_allclose(attention(q, k, v, mask=mask), want, rtol=0, atol=1e-6)


def test_jit_compiles_once_for_equal_masks(rng):
    arrays, traces = make_inputs(rng), []

    @jax.jit
    def f(q, k, v):
        traces.append(1)
        return attention(q, k, v, mask=ch.causal() & ch.window(left=2))

    f(*arrays)
    f(*arrays)
    assert len(traces) == 1


def test_large_arrays_do_not_wait_for_each_other(rng):
    q, k, v = make_inputs(rng, B=(1,), H=8, G=8, T=1024, S=1024, D=32, E=32, dtype=np.float32)
    f = jax.jit(jax.grad(lambda q: attention(q, k, v, mask=ch.causal()).sum()))
    assert jnp.isfinite(f(q + 1)).all()


def test_forward_mode_and_second_derivatives_are_errors(rng):
    q, k, v = make_inputs(rng)
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        jax.jvp(lambda q: attention(q, k, v), (q,), (q,))
    with pytest.raises(ValueError, match="Pure callbacks do not support JVP"):
        jax.grad(lambda q: jax.grad(lambda q: attention(q, k, v).sum())(q).sum())(q)


def test_errors_come_at_tracing_in_the_words_of_attention(rng):
    q, k, v = make_inputs(rng)
    for arguments, options, kind, words in [
        (([1.0], k, v), {}, TypeError, "q: list, must be a jax.Array"),
        ((q, k[..., :2], v), {}, ValueError, "k: D is 2 but q has D = 3"),
        ((q, k.astype(np.float32), v), {}, TypeError, "k: dtype is float32, must be float64"),
        ((q, k, v), {"mask": jnp.ones((5, 6), bool)}, ValueError, "mask: shape is"),
        ((q, k, v), {"mask": ch.lengths([1, 2, 3])}, ValueError, "mask: lengths"),
        ((q, k, v), {"bias": ch.alibi([1, 2, 3])}, ValueError, "3 heads, must have 1 or 4"),
        ((q, k, v), {"softcap": 0.0}, ValueError, "softcap: 0.0"),
    ]:
        with pytest.raises(kind, match=words):
            attention(*arguments, **options)
    with pytest.raises(ValueError, match="k: D is 2 but q has D = 3"):
        jax.jit(attention)(q, k[..., :2], v)


def test_without_jax_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "try:\n    import clearhead.jax\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "clearhead.jax needs JAX: pip install 'clearhead[jax]'\n"
