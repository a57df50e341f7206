"""clearhead.torch: parity with PyTorch, forward and backward, eager, compiled and transformed."""

import functools
import subprocess
import sys

import numpy as np
import pytest

import clearhead as ch

torch = pytest.importorskip("torch", reason="this adapter is for PyTorch")
F = torch.nn.functional

from clearhead.torch import attention, scaled_dot_product_attention  # noqa: E402

f64 = torch.float64
gradcheck = functools.partial(torch.autograd.gradcheck, fast_mode=True)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(20251130)


def make_inputs(B=(2,), H=4, G=2, T=5, S=7, D=3, E=6, dtype=f64, grad=True):
    shapes = (*B, H, T, D), (*B, G, S, D), (*B, G, S, E)
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes]


RULES = {
    "causal": ch.causal(),
    "window and sinks": ch.causal() & (ch.window(left=2) | ch.first_keys(1)),
    "lengths": ch.lengths([3, 7]),
    "documents": ch.documents([0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 2]),
    "blocks": ch.blocks(np.array([[True, False], [True, True]]), 4),
    "not": ~ch.dilated(2),
    "array": ch.allowed(np.arange(35).reshape(5, 7) % 3 > 0),
}


# The operator


@pytest.mark.parametrize("mask", RULES.values(), ids=RULES.keys())
def test_masks_reach_the_core_and_gradients_are_right(mask):
    q, k, v = make_inputs()
    out = attention(q, k, v, mask=mask)
    want = ch.attention(*(x.detach().numpy() for x in (q, k, v)), mask=mask)
    np.testing.assert_array_equal(out.detach(), want)
    assert gradcheck(lambda *x: attention(*x, mask=mask), (q, k, v))


def test_gradients_of_bias_sink_softcap_and_scale():
    q, k, v = make_inputs()
    bias = torch.randn(4, 1, 7, dtype=f64, requires_grad=True)
    sink = torch.randn(4, dtype=f64, requires_grad=True)

    def call(q, k, v, bias, sink):
        return attention(q, k, v, bias=bias, sink=sink, softcap=2.0, scale=0.7)

    assert gradcheck(call, (q, k, v, bias, sink))


@pytest.mark.parametrize(
    "bias", [ch.alibi([0.1, 0.2, 0.3, 0.4]), ch.relative_bias([0.5, 0.1, -0.4], first=-1)]
)
def test_biases_by_rule(bias):
    q, k, v = make_inputs()
    assert gradcheck(lambda *x: attention(*x, bias=bias), (q, k, v))
    spelt = torch.from_numpy(np.broadcast_to(bias.to_array(5, 7), (4, 5, 7)).copy())
    np.testing.assert_allclose(
        attention(q, k, v, bias=bias).detach(), attention(q, k, v, bias=spelt).detach(), rtol=1e-12
    )


def test_a_bias_whose_gradient_is_not_asked_for_changes_nothing():
    q, k, v = make_inputs()
    fixed = torch.randn(4, 5, 7, dtype=f64)
    free = fixed.clone().requires_grad_()
    grads = [
        torch.autograd.grad(attention(q, k, v, bias=b).square().sum(), (q, k, v))
        for b in (fixed, free)
    ]
    for x, y in zip(*grads, strict=True):
        np.testing.assert_array_equal(x, y)


def test_leading_axes_broadcast_and_their_gradients_sum():
    q, _, _ = make_inputs(B=(3, 2))
    _, k, v = make_inputs(B=(2,))
    assert gradcheck(lambda *x: attention(*x, mask=ch.causal()), (q, k, v))


def test_one_head_without_its_axis():
    q, k, v = (x.detach()[0, 0].requires_grad_() for x in make_inputs())
    assert attention(q, k, v).shape == (5, 6)
    assert gradcheck(lambda *x: attention(*x, mask=ch.causal()), (q, k, v))


def test_a_gradient_that_comes_expanded_or_transposed():
    q, k, v = make_inputs()
    out = attention(q, k, v)
    summed = torch.autograd.grad(out.sum(), q, retain_graph=True)[0]
    ones = torch.ones(out.mT.shape, dtype=f64).mT
    np.testing.assert_array_equal(summed, torch.autograd.grad(out, q, ones)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_as_near_to_float64_as_pytorch_is(dtype):
    given = [x.detach().to(dtype) for x in make_inputs(G=4, T=33, S=65, D=16, E=16)]
    dout = torch.randn(2, 4, 33, 16).to(dtype)

    def run(function, wider):
        arrays = [x.to(wider).requires_grad_() for x in given]
        out = function(*arrays)
        assert out.dtype == wider
        return out, *torch.autograd.grad(out, arrays, dout.to(wider))

    truths = run(attention, f64)
    pairs = zip(run(attention, dtype), run(F.scaled_dot_product_attention, dtype), strict=True)
    for truth, (got, theirs) in zip(truths, pairs, strict=True):
        ours, pytorchs = ((x.to(f64) - truth).abs().max() for x in (got, theirs))
        assert ours < 1.5 * pytorchs + torch.finfo(dtype).eps * truth.abs().max()


def test_opcheck():
    q, k, v = make_inputs()
    bias = torch.randn(4, 5, 7, dtype=f64, requires_grad=True)
    sink = torch.randn(4, dtype=f64, requires_grad=True)
    seen = torch.rand(5, 7) < 0.7
    op = torch.ops.clearhead.attention.default
    none = ("", [], "", 0, None, None)
    torch.library.opcheck(op, (q, k, v, None, None, [], *none))
    torch.library.opcheck(
        op, (q, k, v, bias, sink, [seen], "tensor", [], "", 0, 0.5, 3.0),
    )  # fmt: skip
    out, lse = op(q, k, v, None, None, [], *none)
    arrays = [x.detach() for x in (out, out, lse, q, k, v)]
    grad = torch.ops.clearhead.attention_grad.default
    torch.library.opcheck(grad, (*arrays, None, None, [], *none, False))


# torch.compile


@pytest.mark.parametrize("name", ["window and sinks", "lengths", "documents", "array"])
def test_it_compiles_in_one_graph(name):
    mask = RULES[name]
    q, k, v = make_inputs()
    torch.compiler.reset()

    def f(q, k, v):
        return attention(q, k, v, mask=mask, softcap=3.0) * 2

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    out, want = compiled(q, k, v), f(q, k, v)
    np.testing.assert_array_equal(out.detach(), want.detach())
    dout = torch.randn_like(want)
    for x, y in zip(
        torch.autograd.grad(out, (q, k, v), dout),
        torch.autograd.grad(want, (q, k, v), dout),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)


def test_a_mask_made_inside_and_sizes_that_change():
    torch.compiler.reset()
    bias = ch.alibi(0.5)

    def f(q, k, v):
        return attention(q, k, v, mask=ch.causal() & ch.window(left=2), bias=bias)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    for T, S in [(5, 7), (6, 7), (11, 13)]:
        arrays = make_inputs(T=T, S=S, grad=False)
        np.testing.assert_array_equal(compiled(*arrays), f(*arrays))


# Inductor calls what PyTorch itself has deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_inductor_takes_it_as_it_is():
    torch.compiler.reset()
    arrays = make_inputs(G=4)
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True)
    got, want = (f(*arrays, is_causal=True) for f in (compiled, scaled_dot_product_attention))
    np.testing.assert_array_equal(got.detach(), want.detach())
    dout = torch.randn_like(want)
    for x, y in zip(*(torch.autograd.grad(o, arrays, dout) for o in (got, want)), strict=True):
        np.testing.assert_array_equal(x, y)


# torch.func


def test_vmap_grad_and_both_in_either_order():
    vmap, grad = torch.func.vmap, torch.func.grad
    arrays = make_inputs(B=(3, 2), grad=False)
    mask = ch.causal() & ch.lengths([3, 7])

    def f(q, k, v):
        return attention(q, k, v, mask=mask).square().sum()

    one_by_one = [grad(f, argnums=(0, 1, 2))(*example) for example in zip(*arrays, strict=True)]
    want = [torch.stack(x) for x in zip(*one_by_one, strict=True)]
    per_example = vmap(grad(f, argnums=(0, 1, 2)))(*arrays)
    summed = grad(lambda *x: vmap(f)(*x).sum(), argnums=(0, 1, 2))(*arrays)
    for x, y, z in zip(per_example, summed, want, strict=True):
        torch.testing.assert_close(x, z, rtol=0, atol=1e-13)
        torch.testing.assert_close(y, z, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rank", [2, 3])
def test_vmap_over_some_arguments_of_any_rank(rank):
    vmap, grad = torch.func.vmap, torch.func.grad
    own = () if rank == 2 else (4,)
    q, k = torch.randn(6, *own, 5, 3, dtype=f64), torch.randn(*own, 7, 3, dtype=f64)
    bias = torch.randn(5, 6, 7, dtype=f64)
    mask = torch.rand(5, 7, 6) < 0.8
    dims = (0, None, 1, 2)

    def f(q, k, bias, mask):
        return attention(q, k, k, bias=bias, mask=mask)

    def loss(*x):
        return f(*x).square().sum()

    examples = [(q[i], k, bias[:, i], mask[..., i]) for i in range(6)]
    want = torch.stack([f(*x) for x in examples])
    torch.testing.assert_close(vmap(f, in_dims=dims)(q, k, bias, mask), want, rtol=0, atol=0)
    got = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=dims)(q, k, bias, mask)
    want = [grad(loss, argnums=(0, 1, 2))(*x) for x in examples]
    for x, y in zip(got, zip(*want, strict=True), strict=True):
        torch.testing.assert_close(x, torch.stack(y), rtol=0, atol=1e-13)


def test_nested_vmap_and_a_jacobian():
    q, k, v = make_inputs(B=(3, 2), grad=False)
    twice = torch.func.vmap(torch.func.vmap(attention))(q, k, v)
    np.testing.assert_array_equal(twice, attention(q, k, v))
    got = torch.func.jacrev(attention)(q[0], k[0], v[0])
    want = torch.autograd.functional.jacobian(lambda q: attention(q, k[0], v[0]), q[0])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-13)


def test_a_second_derivative_is_an_error_and_never_zero():
    q, k, v = make_inputs()
    (first,) = torch.autograd.grad(attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        first.sum().backward()

    def slope(q):
        return torch.func.grad(lambda q: attention(q, k, v).sum())(q).sum()

    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.func.grad(slope)(q.detach())


# scaled_dot_product_attention: everything PyTorch's function says

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": "bool"},
    "floating": {"attn_mask": "float"},
    "scaled": {"scale": 0.3},
}
SHAPES = {
    "4 axes": ((2, 4, 5, 3), (2, 4, 7, 3), (2, 4, 7, 6)),
    "more queries": ((2, 4, 7, 3), (2, 4, 5, 3), (2, 4, 5, 3)),
    "3 axes": ((4, 5, 3), (4, 7, 3), (4, 7, 6)),
    "2 axes": ((5, 3), (7, 3), (7, 6)),
    "5 axes": ((2, 3, 4, 5, 3), (2, 3, 4, 7, 3), (2, 3, 4, 7, 6)),
    "broadcast batch": ((2, 4, 5, 3), (1, 4, 7, 3), (2, 1, 7, 3)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_it_is_pytorchs_function_forward_and_backward(case, shapes):
    arrays = [torch.randn(shape, dtype=f64, requires_grad=True) for shape in shapes]
    T, S = shapes[0][-2], shapes[1][-2]
    options = dict(case)
    if options.get("attn_mask") == "bool":
        options["attn_mask"] = torch.rand(T, S) < 0.7
        options["attn_mask"][:, 0] = True
    elif options.get("attn_mask") == "float":
        options["attn_mask"] = torch.randn(T, S, dtype=f64, requires_grad=True)
        arrays.append(options["attn_mask"])
    got = scaled_dot_product_attention(*arrays[:3], **options)
    want = F.scaled_dot_product_attention(*arrays[:3], **options)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    dout = torch.randn_like(want)
    for x, y in zip(
        torch.autograd.grad(got, arrays, dout), torch.autograd.grad(want, arrays, dout), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_only_with_enable_gqa(causal):
    q, k, v = make_inputs(H=6, G=2)
    options = {"is_causal": causal, "enable_gqa": True}
    got = scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(
        got, F.scaled_dot_product_attention(q, k, v, **options), rtol=0, atol=1e-13
    )
    with pytest.raises(ValueError, match=r"have 6, 2 and 2 heads, must broadcast; enable_gqa=True"):
        scaled_dot_product_attention(q, k, v)
    with pytest.raises(ValueError, match="have 6, 4 and 4 heads, must broadcast"):
        scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), enable_gqa=True)


def test_keys_and_values_of_different_groups():
    q, k, _ = make_inputs(H=6, G=2)
    _, _, v = make_inputs(H=6, G=3)
    got = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    want = attention(q, k.repeat_interleave(3, 1), v.repeat_interleave(2, 1))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-13)


def test_one_query_head_meets_many_key_heads():
    q, k, v = make_inputs(H=1, G=4)
    got = scaled_dot_product_attention(q, k, v)
    want = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_that_sees_no_key_is_zero_in_value_and_gradient(kind):
    arrays = make_inputs(G=4, E=3)
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    if kind == "float":
        mask = torch.zeros(5, 7, dtype=f64).masked_fill(~mask, -torch.inf)
    out = scaled_dot_product_attention(*arrays, attn_mask=mask)
    assert (out[..., 2, :] == 0).all()
    grads = torch.autograd.grad(out.square().sum(), arrays)
    assert all(x.isfinite().all() for x in grads)
    assert (grads[0][..., 2, :] == 0).all()


def test_what_pytorchs_cpu_kernel_gets_wrong_is_right_here():
    q, k, v = make_inputs(H=1, G=1, E=3, grad=False)
    poisoned = q.clone()
    poisoned[0, 0, 1] = torch.nan  # there a NaN query gives 0
    out = scaled_dot_product_attention(poisoned, k, v)
    assert out[0, 0, 1].isnan().all() and out[0, 0, [0, 2, 3, 4]].isfinite().all()

    poisoned, mask = k.clone(), torch.ones(5, 7, dtype=torch.bool)
    poisoned[0, 0, 3] = torch.nan  # there rows that do not see a NaN key are spoiled too
    mask[:4, 3] = False
    out = scaled_dot_product_attention(q[:1], poisoned[:1], v[:1], attn_mask=mask)
    assert out[0, 0, 4].isnan().all() and out[0, 0, :4].isfinite().all()

    poisoned = v.clone()
    poisoned[0, 0, 3] = torch.inf  # hidden, it must not meet its weight 0
    out = scaled_dot_product_attention(q[:1], k[:1], poisoned[:1], attn_mask=mask)
    assert out[0, 0, :4].isfinite().all()

    longer = torch.cat([v, v], -2)  # there S is that of the values: it reads past the keys
    with pytest.raises(ValueError, match="v: S is 14 but k has S = 7"):
        scaled_dot_product_attention(q, k, longer)


@pytest.mark.parametrize(
    "options, kind, words",
    [
        ({"dropout_p": 0.1}, ValueError, "dropout_p: is 0.1, must be 0: attention is exact here"),
        (
            {"is_causal": True, "attn_mask": torch.ones(5, 7, dtype=torch.bool)},
            ValueError,
            "attn_mask, is_causal: are both given",
        ),
        (
            {"attn_mask": torch.ones(5, 7, dtype=torch.int64)},
            TypeError,
            "attn_mask: is torch.int64",
        ),
        ({"attn_mask": torch.ones(5, 6, dtype=torch.bool)}, ValueError, "mask: shape is"),
        ({"attn_mask": [[True]]}, TypeError, "attn_mask: list, must be a torch.Tensor or None"),
        ({"is_causal": "no"}, TypeError, "is_causal: is 'no', must be True or False"),
        ({"enable_gqa": 1}, TypeError, "enable_gqa: is 1, must be True or False"),
    ],
)
def test_wrong_options_are_named(options, kind, words):
    with pytest.raises(kind, match=words):
        scaled_dot_product_attention(*make_inputs(G=4), **options)


def test_wrong_arrays_are_named():
    q, k, v = make_inputs()
    for arguments, kind, words in [
        ((q.detach().numpy(), k, v), TypeError, "q: ndarray, must be a torch.Tensor"),
        ((q, k.float(), v), TypeError, "k: dtype is float32, must be float64 as q"),
        ((q[0, 0, 0], k, v), ValueError, "q: has 1 axis, must be"),
        ((torch.cat([q, q[:1]]), k, v), ValueError, "leading axes .* do not broad"),
    ]:
        with pytest.raises(kind, match=words):
            attention(*arguments)
    with pytest.raises(TypeError, match=r"mask: ndarray, must be a Mask or a boolean torch.Tensor"):
        attention(q, k, v, mask=np.ones((5, 7), bool))
    with pytest.raises(TypeError, match=r"bias: float, must be a torch.Tensor or a rule"):
        attention(q, k, v, bias=1.0)
    with pytest.raises(TypeError, match=r"scale: a torch.Tensor, must be a number"):
        attention(q, k, v, scale=torch.tensor(0.5))
    for name, number, kind in [("scale", "1", TypeError), ("softcap", True, TypeError)]:
        with pytest.raises(kind, match=f"{name}: a .*, must be a number"):
            attention(q, k, v, **{name: number})
    with pytest.raises(ValueError, match="q: has 1 axis, must be"):  # not an index out of range
        attention(q[0, 0, 0], k, v, mask=ch.causal())
    with pytest.raises(ValueError, match="lengths"):
        attention(q, k, v, mask=ch.lengths([1, 2, 3]))
    with pytest.raises(ValueError, match="has 3 heads, must have 1 or 4"):
        attention(q, k, v, bias=ch.alibi([1, 2, 3]))


def test_without_pytorch_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import clearhead.torch\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "clearhead.torch needs PyTorch: pip install 'clearhead[torch]'\n"
