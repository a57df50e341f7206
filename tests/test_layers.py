"""The layers: against torch.nn.MultiheadAttention, central differences and each other."""

import json
from pathlib import Path

import numpy as np
import pytest

import clearhead as ch

torch = pytest.importorskip("torch", reason="torch.nn.MultiheadAttention is the oracle here")

GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden" / "articles.json"

# What torch can hold too: sizes and extras.
PARITY = {
    "plain": {},
    "no bias": {"bias": False},
    "own sizes": {"kdim": 5, "vdim": 7},
    "own sizes, no bias": {"kdim": 5, "vdim": 7, "bias": False},
    "more keys": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5, "vdim": 7},
}
D, H = 12, 3


def make_pair(rng, dtype=np.float64, **options):
    """The layer and torch's, of the same random parameters, biases too."""
    layer = ch.MultiHeadAttention(D, H, **options, dtype=dtype, seed=1)
    for name, x in layer.parameters.items():
        layer.parameters[name] = rng.normal(size=x.shape).astype(dtype) / 3
    torch_dtype = getattr(torch, np.dtype(dtype).name)
    oracle = torch.nn.MultiheadAttention(D, H, **options, batch_first=True, dtype=torch_dtype)
    oracle.load_state_dict({n: torch.from_numpy(x) for n, x in layer.state_dict().items()})
    return layer, oracle


def make_inputs(rng, layer, B=2, T=5, S=7):
    sizes = (T, layer.d_model), (S, layer.kdim), (S, layer.vdim)
    return [rng.normal(size=(B, *size)).astype(layer.dtype) for size in sizes]


@pytest.mark.parametrize("options", PARITY.values(), ids=PARITY.keys())
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_torchs_layer_forward_and_backward(options, masked, rng):
    layer, oracle = make_pair(rng, **options)
    arrays = make_inputs(rng, layer)
    seen = rng.random((5, 7)) < 0.6
    seen[:, 0] = True
    mask = {"mask": seen} if masked else {}
    y, pullback = layer.vjp(*arrays, **mask)
    np.testing.assert_array_equal(layer(*arrays, **mask), y)

    tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
    torch_mask = torch.from_numpy(~seen) if masked else None
    want, want_weights = oracle(*tensors, attn_mask=torch_mask, average_attn_weights=False)
    np.testing.assert_allclose(y, want.detach(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        layer.weights(*arrays, **mask)[...], want_weights.detach()[..., :7], rtol=0, atol=1e-12
    )

    dy = rng.normal(size=y.shape)
    want.backward(torch.from_numpy(dy))
    *inputs, grads = pullback(dy)
    for got, tensor in zip(inputs, tensors, strict=True):
        np.testing.assert_allclose(got, tensor.grad, rtol=0, atol=1e-11)
    assert grads.keys() == layer.parameters.keys()
    for name, parameter in oracle.named_parameters():
        np.testing.assert_allclose(grads[name], parameter.grad, rtol=0, atol=1e-10, err_msg=name)


def test_self_attention_and_the_average_of_heads(rng):
    layer, oracle = make_pair(rng)
    x = rng.normal(size=(2, 5, D))
    tensor = torch.from_numpy(x).requires_grad_()
    want, average = oracle(tensor, tensor, tensor)
    np.testing.assert_allclose(layer(x), want.detach(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(layer.average_weights(x), average.detach(), rtol=0, atol=1e-13)
    dy = rng.normal(size=want.shape)
    want.backward(torch.from_numpy(dy))
    _, pullback = layer.vjp(x)
    dx, _ = pullback(dy)
    np.testing.assert_allclose(dx, tensor.grad, rtol=0, atol=1e-11)


def test_padding_by_lengths_is_torchs_key_padding_mask(rng):
    layer, oracle = make_pair(rng)
    x = rng.normal(size=(2, 5, D))
    padding = np.arange(5) >= np.array([[3], [5]])
    tensor = torch.from_numpy(x)
    want, _ = oracle(tensor, tensor, tensor, key_padding_mask=torch.from_numpy(padding))
    got = layer(x, mask=ch.lengths([3, 5]))
    np.testing.assert_allclose(got, want.detach(), rtol=0, atol=1e-12)


def test_a_row_that_sees_no_key_gives_the_output_bias(rng):
    """Torch's layer gives NaN here."""
    layer, _ = make_pair(rng)
    x = rng.normal(size=(2, 5, D))
    y, pullback = layer.vjp(x, mask=ch.lengths([0, 5]))
    np.testing.assert_array_equal(y[0], np.tile(layer.parameters["out_proj.bias"], (5, 1)))
    dx, _ = pullback(np.ones_like(y))
    np.testing.assert_array_equal(dx[0], np.zeros((5, D)))


def test_one_sequence_without_a_batch_axis(rng):
    layer, _ = make_pair(rng)
    x = rng.normal(size=(5, D))
    np.testing.assert_array_equal(layer(x), layer(x[None])[0])
    y, pullback = layer.vjp(x)
    dx, _ = pullback(y)
    assert dx.shape == (5, D)


GROUPED = {
    "grouped": {"num_kv_heads": 1},
    "narrow heads": {"d_head": 2},
    "all at once": {
        "num_kv_heads": 1, "d_head": 5, "kdim": 7, "vdim": 11, "add_bias_kv": True,
        "add_zero_attn": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", GROUPED.values(), ids=GROUPED.keys())
def test_gradients_of_what_torch_cannot_hold_are_central_differences(options, rng):
    layer = ch.MultiHeadAttention(6, 3, **options, dtype="float64", seed=3)
    arrays = make_inputs(rng, layer, B=2, T=3, S=5)
    mask = ch.causal() & ch.window(left=2)
    y, pullback = layer.vjp(*arrays, mask=mask)
    dy = rng.normal(size=y.shape)
    *inputs, grads = pullback(dy)

    def check(place, gradient):
        """A few places of each array, drawn once: every index would be a slow test."""
        for index in rng.integers(0, place.size, 8):
            at = np.unravel_index(index, place.shape)
            old, step = place[at], 1e-6
            ends = []
            for moved in (old + step, old - step):
                place[at] = moved
                ends.append((dy * layer(*arrays, mask=mask)).sum())
            place[at] = old
            assert gradient[at] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-7)

    for given, gradient in zip(arrays, inputs, strict=True):
        check(given, gradient)
    for name, gradient in grads.items():
        check(layer.parameters[name], gradient)


def test_grouped_heads_are_heads_that_share_their_keys(rng):
    layer = ch.MultiHeadAttention(D, 6, num_kv_heads=2, dtype="float64", seed=5)
    full = ch.MultiHeadAttention(D, 6, dtype="float64")
    p = layer.parameters
    shared = [
        np.repeat(p[name].reshape(2, 2, D), 3, axis=0).reshape(D, D)
        for name in ("k_proj_weight", "v_proj_weight")
    ]
    full.load_state_dict(
        {
            "in_proj_weight": np.concatenate([p["q_proj_weight"], *shared]),
            "in_proj_bias": np.zeros(3 * D),
            "out_proj.weight": p["out_proj.weight"],
            "out_proj.bias": p["out_proj.bias"],
        }
    )
    x = rng.normal(size=(2, 5, D))
    np.testing.assert_allclose(layer(x), full(x), rtol=0, atol=1e-13)


# Decoding


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1}, {"add_bias_kv": True}])
@pytest.mark.parametrize("steps", [[1] * 23, [7, 1, 1, 13, 1], [23]])
def test_decoding_in_any_steps_is_the_causal_pass(options, steps, rng):
    layer = ch.MultiHeadAttention(D, H, **options, dtype="float64", seed=7)
    x = rng.normal(size=(2, 23, D))
    cache, parts = ch.KeyValueCache(), []
    for part in np.split(x, np.cumsum(steps)[:-1], axis=1):
        parts.append(layer.decode(part, cache))
    assert len(cache) == 23
    want = layer(x, mask=ch.causal())
    np.testing.assert_allclose(np.concatenate(parts, 1), want, rtol=0, atol=1e-13)


def test_decoding_with_a_window_and_back_to_an_earlier_point(rng):
    layer = ch.MultiHeadAttention(D, H, dtype="float64", seed=7)
    x = rng.normal(size=(11, D))
    mask = ch.causal() & (ch.window(left=3) | ch.first_keys(1))
    cache = ch.KeyValueCache()
    layer.decode(x[:6], cache, mask=mask)
    layer.decode(rng.normal(size=(3, D)), cache, mask=mask)  # a draft, refused
    cache.truncate(6)
    rest = layer.decode(x[6:], cache, mask=mask)
    np.testing.assert_allclose(rest, layer(x, mask=mask)[6:], rtol=0, atol=1e-13)


# The article


@pytest.mark.skipif(
    not GOLDEN.is_file(),
    reason="the articles' numbers (shared/golden/articles.json) are not beside this checkout",
)
def test_the_articles_torch_example_to_every_printed_digit():
    article = json.loads(GOLDEN.read_text(encoding="utf-8"))
    x = np.array(article["single_head_numpy"]["X"], np.float32)
    torch.manual_seed(42)
    oracle = torch.nn.MultiheadAttention(embed_dim=3, num_heads=1, batch_first=True)
    layer = ch.MultiHeadAttention.from_state_dict(oracle.state_dict(), num_heads=1)
    printed = article["multihead_torch"]
    # Its eighth digits are float32 roundings, which torch itself does not repeat from one release
    # to the next: 0.08282746 is 0.08282748 in float64. One rounding of 1 is allowed.
    eps = float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(layer(x), printed["Y"], rtol=0, atol=eps)
    np.testing.assert_allclose(layer.average_weights(x), printed["A"], rtol=0, atol=eps)


# One head


def test_a_single_head_is_the_formula_and_its_gradient(rng):
    head = ch.SingleHeadAttention(5, 3, dtype="float64", seed=1)
    x, context = rng.normal(size=(2, 7, 5)), rng.normal(size=(2, 11, 5))
    mask = ch.causal()
    tensors = {n: torch.from_numpy(p).requires_grad_() for n, p in head.parameters.items()}
    tx, tc = (torch.from_numpy(z).requires_grad_() for z in (x, context))
    bias = torch.from_numpy(np.where(mask.to_array(7, 11), 0, -np.inf))
    scores = tx @ tensors["query"] @ (tc @ tensors["key"]).mT / 3**0.5
    weights = torch.softmax(scores + bias, -1)
    want = weights @ tc @ tensors["value"]
    y, pullback = head.vjp(x, context, mask=mask)
    np.testing.assert_allclose(y, want.detach(), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(head(x, context, mask=mask), y)
    amap = head.weights(x, context, mask=mask)
    np.testing.assert_allclose(amap[:, 0], weights.detach(), rtol=0, atol=1e-13)
    dy = rng.normal(size=y.shape)
    want.backward(torch.from_numpy(dy))
    dx, dcontext, grads = pullback(dy)
    np.testing.assert_allclose(dx, tx.grad, rtol=0, atol=1e-12)
    np.testing.assert_allclose(dcontext, tc.grad, rtol=0, atol=1e-12)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(grads[name], tensor.grad, rtol=0, atol=1e-12)
    dx, _ = head.vjp(x)[1](dy)
    both = head.vjp(x, x)[1](dy)
    np.testing.assert_allclose(dx, both[0] + both[1], rtol=0, atol=1e-13)


def test_the_same_seed_draws_the_same_parameters():
    for make in (ch.SingleHeadAttention, lambda d, **o: ch.MultiHeadAttention(d, 2, **o)):
        one, same, other = (make(8, seed=seed).parameters for seed in (1, 1, 2))
        name = next(iter(one))
        np.testing.assert_array_equal(one[name], same[name])
        assert (one[name] != other[name]).any()
        assert 0.5 < np.abs(one[name]).max() / (6 / sum(one[name].shape)) ** 0.5 <= 1


# Errors


@pytest.mark.parametrize(
    "arguments, kind, words",
    [
        ({"num_heads": 5}, ValueError, "d_model: 12 is not a multiple of num_heads = 5"),
        ({"num_kv_heads": 2}, ValueError, "num_heads: 3 is not a multiple of num_kv_heads = 2"),
        ({"d_model": 0}, ValueError, "d_model: is 0, must be at least 1"),
        ({"num_heads": 1.5}, TypeError, "num_heads: is 1.5, must be a whole number"),
        ({"num_heads": True}, TypeError, "num_heads: is True, must be a whole number"),
        ({"dtype": "float16"}, TypeError, "dtype: is float16, must be float32 or float64"),
    ],
)
def test_a_wrong_layer_is_named(arguments, kind, words):
    with pytest.raises(kind, match=words):
        ch.MultiHeadAttention(**{"d_model": D, "num_heads": H, **arguments})


def test_wrong_input_is_named(rng):
    layer = ch.MultiHeadAttention(D, H, kdim=5)
    x, context, value = make_inputs(rng, layer)
    with pytest.raises(TypeError, match="x: list, must be a NumPy array"):
        layer([[1.0]])
    with pytest.raises(TypeError, match="x: dtype is float64, must be float32 as the layer's"):
        layer(x.astype(np.float64), context, value)
    with pytest.raises(ValueError, match=r"context: shape is \(2, 7, 4\), must be \(..., n, 5\)"):
        layer(x, context[..., :4], value)
    with pytest.raises(ValueError, match=r"context: shape is \(2, 7, 5\), must be \(..., n, 12\)"):
        layer(x, context)  # without a value the context is both
    _, pullback = layer.vjp(x, context, value)
    with pytest.raises(ValueError, match="dy: shape is"):
        pullback(x[:1])
