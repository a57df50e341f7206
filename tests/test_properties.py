"""Properties of attention over shapes, strides, dtypes, masks, biases and extreme values.

Hypothesis draws the calls; `clearhead.reference` says what is right. The bound on the difference is
the a-priori one for the formula: a score is a sum of D products, a weight is its exponential, an
output is a sum over S keys, and each step may round (`error_of_scores`, `bounds`). A mask is drawn
together with its meaning, written down here in NumPy, independent of `clearhead.masks`.
"""

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead import reference
from naive import terms_of_gradients, work_dtype

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]

# The same examples in every run; to look further, run with --hypothesis-seed and derandomize off.
examples = functools.partial(settings, deadline=None, derandomize=True)


class Call(NamedTuple):
    """q, k, v and options as `attention` takes them, and the same with the mask as an array."""

    q: Any
    k: Any
    v: Any
    options: dict[str, Any]
    meant: dict[str, Any]

    def __repr__(self):
        shapes = ", ".join(
            f"{n} {x.shape} {x.strides}" for n, x in zip("qkv", self[:3], strict=True)
        )
        said = {n: x.shape if isinstance(x, np.ndarray) else x for n, x in self.options.items()}
        return f"Call({self.q.dtype}, {shapes}, {said})"


# -- what is drawn


def whole(low, high):
    return st.integers(low, high)


@st.composite
def laid_out(draw, x):
    """The same array with its axes in another order in memory, some of them backwards."""
    if x.ndim == 0:
        return x
    order = draw(st.permutations(range(x.ndim)))
    flips = tuple(i for i in range(x.ndim) if draw(st.booleans()))
    memory = np.array(np.flip(x, flips).transpose(order), order="C")
    back = sorted(range(x.ndim), key=order.__getitem__)
    return np.flip(memory.transpose(back), flips)


@st.composite
def simple_masks(draw, lead, T, S, rng):
    t, s = np.arange(T)[:, None], np.arange(S)
    position = t + S - T
    kind = draw(
        st.sampled_from("causal window first prefix lengths documents dilated array".split())
    )
    if kind == "causal":
        offset = draw(st.none() | whole(-T, S))
        return ch.causal(offset), s <= t + (S - T if offset is None else offset)
    if kind == "window":
        left, right = draw(st.none() | whole(0, S)), draw(st.none() | whole(0, S))
        seen = np.ones((T, S), bool)
        seen &= True if left is None else position - s <= left
        seen &= True if right is None else s - position <= right
        return ch.window(left, right), seen
    if kind == "first":
        n = draw(whole(0, S))
        return ch.first_keys(n), np.broadcast_to(s < n, (T, S))
    if kind == "prefix":
        n = draw(whole(0, S))
        return ch.prefix(n), (position < n) & (s < n)
    if kind == "lengths":
        n = rng.integers(0, S + 1, size=lead)
        return ch.lengths(n), s < n[..., None, None, None]
    if kind == "documents":
        ids_t, ids_s = rng.integers(0, 3, size=T), np.sort(rng.integers(0, 3, size=S))
        return ch.documents(ids_t, ids_s), ids_t[:, None] == ids_s
    if kind == "dilated":
        step = draw(whole(1, 4))
        return ch.dilated(step), (position - s) % step == 0
    seen = rng.random((T, S)) < draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    return ch.allowed(seen), seen


@st.composite
def masks(draw, lead, T, S, rng):
    """A mask and its meaning as an array."""
    mask, seen = draw(simple_masks(lead, T, S, rng))
    for _ in range(draw(whole(0, 2))):
        other, also = draw(simple_masks(lead, T, S, rng))
        how = draw(st.sampled_from("&|~"))
        if how == "&":
            mask, seen = mask & other, seen & also
        elif how == "|":
            mask, seen = mask | other, seen | also
        else:
            mask, seen = ~mask & other, ~seen & also
    return mask, seen


@st.composite
def calls(draw, dtypes=tuple(DTYPES), poison=True):
    dtype = draw(st.sampled_from(dtypes))
    rng = np.random.default_rng(draw(whole(0, 2**32 - 1)))
    lead = draw(st.sampled_from([(), (1,), (2,), (3, 2)]))
    G, per_group = draw(whole(1, 3)), draw(whole(1, 3))
    T = draw(whole(0, 9) | st.sampled_from([63, 64, 65]))
    S = draw(whole(0, 9) | st.sampled_from([95, 96, 97, 200]))
    D, E = draw(whole(1, 9) | st.just(32)), draw(whole(1, 9) | st.just(32))
    H = G * per_group

    def normal(*shape, size=1.0):
        return np.asarray(np.asarray(size * rng.normal(size=shape), np.float32), dtype)

    q = normal(*lead, H, T, D, size=draw(st.sampled_from([0.0, 0.1, 1.0, 30.0, 3000.0])))
    k, v = normal(*lead, G, S, D), normal(*draw(st.sampled_from([lead, lead[1:]])), G, S, E)
    options, meant = {}, {}
    if draw(st.booleans()):
        options["mask"], meant["mask"] = draw(masks(lead, T, S, rng))
    if draw(st.booleans()):
        shape = (*lead, H, T, S)[draw(whole(0, len(lead) + 3)) :]
        shape = tuple(n if draw(st.booleans()) else 1 for n in shape)
        bias = normal(*shape, size=3.0)
        bias[rng.random(shape) < draw(st.sampled_from([0.0, 0.3]))] = -np.inf
        options["bias"] = draw(laid_out(bias))
    if draw(st.booleans()):
        options["scale"] = draw(st.just(0.0) | st.floats(1e-3, 2) | st.floats(-2, -1e-3))
    if draw(st.booleans()):
        options["softcap"] = draw(st.floats(0.1, 50))
    if draw(st.booleans()):
        options["sink"] = normal(H, size=draw(st.sampled_from([1.0, 100.0])))
    if poison and S and draw(st.booleans()):
        which = draw(st.sampled_from([q, k, v]))
        if which.size:
            which.reshape(-1)[rng.integers(which.size)] = np.nan
    q, k, v = (draw(laid_out(x)) for x in (q, k, v))
    return Call(q, k, v, options, {**options, **meant})


# -- how far from the truth one may be


def eps(dtype):
    return float(ml_dtypes.finfo(dtype).eps)


def error_of_scores(call):
    """How far the scores of each row may be off: D + 8 roundings of the largest terms."""
    q, k = (np.nan_to_num(np.abs(x.astype(np.float64))) for x in (call.q, call.k))
    k = np.repeat(k, q.shape[-3] // k.shape[-3], -3)
    scale = abs(call.meant.get("scale", q.shape[-1] ** -0.5))
    terms = scale * (q @ k.mT).max(-1, initial=0)
    bias = call.meant.get("bias")
    if bias is not None:
        finite = np.where(np.isfinite(bias.astype(np.float64)), np.abs(bias.astype(np.float64)), 0)
        terms = terms + finite.max(initial=0)
    sink = call.meant.get("sink")
    if sink is not None:
        terms = terms + np.abs(sink.astype(np.float64)).max(initial=0)
    return (q.shape[-1] + 8) * eps(work_dtype(call.q.dtype)) * (terms + 1)


def bounds(call):
    """Allowed differences of out and of lse."""
    clean = [np.nan_to_num(x.astype(np.float64)) for x in (call.q, call.k, call.v)]
    size, _ = reference.forward(clean[0], clean[1], np.abs(clean[2]), **call.meant)
    _, lse = reference.forward(*clean, **call.meant)
    row = error_of_scores(call)
    work = eps(work_dtype(call.q.dtype))
    sums = (call.k.shape[-2] + 16) * work
    out = (2 * row + sums + 2 * eps(call.q.dtype))[..., None] * size
    # A weight or a result below the smallest number may be 0.
    smallest = float(ml_dtypes.finfo(work_dtype(call.q.dtype)).tiny)
    out = out + smallest * np.abs(clean[2]).sum() + float(ml_dtypes.finfo(call.q.dtype).tiny)
    lse = row + sums + 4 * work * np.abs(np.where(np.isfinite(lse), lse, 0))
    return out, lse


def assert_close(got, want, allowed):
    """NaN and infinities where they belong, the rest as near as allowed."""
    got, want = got.astype(np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    assert np.isfinite(got[finite]).all(), "NaN or inf where there is none"
    allowed = np.broadcast_to(allowed, want.shape)[finite]
    excess = np.abs(got[finite] - want[finite]) - allowed
    assert (excess <= 0).all(), f"{excess.max()} beyond the bound"


# -- properties


@examples(max_examples=300)
@given(calls())
def test_attention_is_the_reference(call):
    out, lse = ch.attention_with_lse(call.q, call.k, call.v, **call.options)
    want_out, want_lse = reference.forward(call.q, call.k, call.v, **call.meant)
    out_bound, lse_bound = bounds(call)
    assert out.dtype == call.q.dtype and lse.dtype == work_dtype(call.q.dtype)
    assert_close(out, want_out, out_bound)
    assert_close(lse, want_lse, lse_bound)
    alone = ch.attention(call.q, call.k, call.v, **call.options)
    assert alone.tobytes() == out.tobytes()


@examples(max_examples=150)
@given(calls())
def test_its_gradient_is_the_reference(call):
    q, k, v = call.q, call.k, call.v
    out, lse = ch.attention_with_lse(q, k, v, **call.options)
    dout = np.asarray(np.random.default_rng(0).normal(size=out.shape), q.dtype)
    got = ch.attention_grad(dout, q, k, v, out, lse, **call.options)
    want = reference.backward(dout, q, k, v, **call.meant)
    clean = [np.nan_to_num(x.astype(np.float64)) for x in (q, k, v)]
    state = reference.forward(*clean, **call.meant)
    terms = terms_of_gradients(dout.astype(np.float64), *clean, *state, **call.meant)
    steps = sum(q.shape[-2:]) + sum(v.shape[-2:]) + 16
    # A weight below the smallest number may be 0, whatever it would have been multiplied by.
    # (In float32 for every dtype, for the terms are found in float32.)
    smallest = float(np.finfo(np.float32).tiny) * np.abs(dout.astype(np.float64)).sum()
    for x in clean:
        smallest *= 1 + np.abs(x).max(initial=0)
    smallest += float(ml_dtypes.finfo(q.dtype).tiny)
    for name, g, w, size in zip(want._fields, got, want, terms, strict=True):
        assert (g is None) == (w is None)
        if w is not None:
            assert g.dtype == q.dtype and g.shape == w.shape, name
            # A weight is off by what its score is; 1 is the most by which any weight is.
            relative = 4 * np.minimum(error_of_scores(call).max(initial=0), 1)
            relative += steps * eps(work_dtype(q.dtype)) + 8 * eps(q.dtype)
            assert_close(g, w, relative * np.abs(size).max(initial=0) + smallest)


@examples(max_examples=60)
@given(calls(poison=False), whole(0, 2**32 - 1))
def test_the_order_of_the_keys_does_not_matter(call, seed):
    order = np.random.default_rng(seed).permutation(call.k.shape[-2])
    options = dict(call.meant)
    for name in ("mask", "bias"):
        if name in options and np.ndim(options[name]) and options[name].shape[-1] != 1:
            options[name] = options[name][..., order]
    k, v = call.k[..., order, :], call.v[..., order, :]
    results = ch.attention_with_lse(call.q, k, v, **options)
    wants = ch.attention_with_lse(call.q, call.k, call.v, **call.options)
    for result, want, bound in zip(results, wants, bounds(call), strict=True):
        assert_close(result, want, 2 * bound)


@examples(max_examples=60)
@given(calls(poison=False))
def test_every_key_twice_adds_log_two_to_the_lse(call):
    assume("sink" not in call.options)
    options = dict(call.meant)
    for name in ("mask", "bias"):
        if name in options and np.ndim(options[name]) and options[name].shape[-1] != 1:
            options[name] = np.concatenate([options[name]] * 2, -1)
    twice = [np.concatenate([x, x], -2) for x in (call.k, call.v)]
    out, lse = ch.attention_with_lse(call.q, *twice, **options)
    want_out, want_lse = ch.attention_with_lse(call.q, call.k, call.v, **call.options)
    out_bound, lse_bound = bounds(call)
    sums = 4 * call.k.shape[-2] * eps(work_dtype(call.q.dtype))
    assert_close(out, want_out, 3 * out_bound)
    assert_close(lse, want_lse + np.log(2), 3 * lse_bound + sums)


@examples(max_examples=60)
@given(calls(), whole(0, 200))
def test_shards_of_the_keys_merge_to_the_whole(call, cut):
    S = call.k.shape[-2]
    cut = min(cut, S)
    outs, lses = [], []
    for part in (slice(0, cut), slice(cut, S)):
        options = dict(call.meant)
        for name in ("mask", "bias"):
            if name in options and np.ndim(options[name]) and options[name].shape[-1] != 1:
                options[name] = options[name][..., part]
        if outs:  # a sink belongs to one shard
            options.pop("sink", None)
        k, v = call.k[..., part, :], call.v[..., part, :]
        state = ch.attention_with_lse(call.q, k, v, **options)
        outs.append(state.out)
        lses.append(state.lse)
    merged = ch.merge(outs, lses)
    wants = reference.forward(call.q, call.k, call.v, **call.meant)
    for result, want, bound in zip(merged, wants, bounds(call), strict=True):
        assert_close(result, want, 4 * bound)


@examples(max_examples=60)
@given(calls())
def test_batches_together_are_batches_apart_to_the_bit(call):
    assume(call.q.ndim > 3 and call.q.shape[0])
    together = ch.attention_with_lse(call.q, call.k, call.v, **call.meant)
    for b in range(call.q.shape[0]):
        options = dict(call.meant)
        for name in ("mask", "bias"):
            x = options.get(name)
            if np.ndim(x) == call.q.ndim:
                options[name] = x[b if x.shape[0] > 1 else 0]
        v = call.v[b] if call.v.ndim == call.q.ndim else call.v
        alone = ch.attention_with_lse(call.q[b], call.k[b], v, **options)
        for x, y in zip(together, alone, strict=True):
            assert x[b].tobytes() == y.tobytes()


@examples(max_examples=60)
@given(calls())
def test_the_number_of_threads_changes_no_bit(call):
    before = ch.num_threads()
    results = []
    try:
        for count in (1, 2, 7):
            ch.set_num_threads(count)
            out, lse = ch.attention_with_lse(call.q, call.k, call.v, **call.options)
            grads = ch.attention_grad(out, call.q, call.k, call.v, out, lse, **call.options)
            results.append([x.tobytes() for x in (out, lse, *grads) if x is not None])
    finally:
        ch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


@examples(max_examples=100)
@given(calls(dtypes=(np.float64,), poison=False))
def test_weights_are_shares(call):
    """Values that are unit vectors make the output the row of weights."""
    S = call.k.shape[-2]
    assume(S and "sink" not in call.options)
    values = np.broadcast_to(np.eye(S), (*call.k.shape[:-1], S))
    p = ch.attention(call.q, call.k, values, **call.options)
    assert (p >= 0).all()
    total = p.sum(-1)
    _, lse = ch.attention_with_lse(call.q, call.k, values, **call.options)
    np.testing.assert_allclose(total, np.where(lse == -np.inf, 0, 1), rtol=0, atol=1e-13)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0).sum(-1)
    assert (entropy <= np.log(S) + 1e-12).all()


# -- bad input


JUNK = st.sampled_from(
    [None, True, 3, "causal", b"x", [1.0], {}, np.float32(1), np.zeros(3, np.int32)]
    + [
        np.zeros((2, 3), dtype)
        for dtype in (np.float32, np.float64, np.int64, bool, complex, object)
    ]
    + [np.zeros((1, 2, 3, 4), np.float16), np.zeros((2, 0, 3), np.float32), np.array(1.0)]
    + [np.array(["a"]), np.zeros((2, 3), "M8[s]"), float("nan"), -1, np.inf, 10**400]
    + [ch.causal(), ch.lengths([1, 2, 3]), ch.allowed(np.ones((7, 7), bool)), ch.documents([1, 2])]
)


@examples(max_examples=400)
@given(st.sampled_from("q k v mask bias scale softcap sink".split()), JUNK, st.data())
@example("mask", ch.documents([1, 2]), None)
def test_whatever_is_passed_gives_a_result_or_one_sentence(name, junk, data):
    arguments = {
        "q": np.zeros((2, 4, 3, 5), np.float32),
        "k": np.zeros((2, 2, 7, 5), np.float32),
        "v": np.zeros((2, 2, 7, 6), np.float32),
        name: junk,
    }
    if data is not None and data.draw(st.booleans()):
        arguments[data.draw(st.sampled_from("q k v mask bias scale softcap sink".split()))] = (
            data.draw(JUNK)
        )
    arrays = [arguments.pop(x) for x in "qkv"]
    try:
        out = ch.attention(*arrays, **arguments)
    except (TypeError, ValueError) as error:
        message = str(error)
        assert "\n" not in message and names_an_argument(message), message
    else:
        assert np.shape(out)[-1] == np.shape(arrays[2])[-1]


def names_an_argument(message):
    """Whether the sentence begins with the arguments that it is about."""
    if message.startswith("arrays of different kinds: "):
        message = message.partition(": ")[2].replace(" is", ":")
    first = message.split(":")[0].replace(",", " ").split()
    return set(first) <= {"q", "k", "v", "mask", "bias", "scale", "softcap", "sink"}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_beyond_two_to_the_31_elements_are_found(dtype):
    """Of an array that large, only the rows in use are ever touched."""
    step = 2**25
    try:
        large = np.zeros(66 * step, dtype)
    except MemoryError:
        pytest.skip("this machine does not promise memory that is not used")
    x = large.reshape(66, step)[:, :3]
    x[:] = np.random.default_rng(1).normal(size=x.shape)
    small = x.copy()
    assert x.strides[0] // x.itemsize * 65 > 2**31
    for got, want in zip(
        ch.attention_with_lse(x, x, x), ch.attention_with_lse(*[small] * 3), strict=True
    ):
        np.testing.assert_array_equal(got, want)
    heads = x[:, None, None, :]
    out, lse = ch.attention_with_lse(heads, heads, heads)
    np.testing.assert_array_equal(out[:, 0, 0], small)
    grads = ch.attention_grad(out, heads, heads, heads, out, lse)
    # The rounding of lse shows in the weight of the only key.
    rounding = 2 * np.abs(lse).max() * np.finfo(dtype).eps
    np.testing.assert_allclose(grads.v[:, 0, 0], small, rtol=rounding)
