"""The specification against mathematics: closed forms, finite differences, the laws it promises."""

import itertools
import math

import numpy as np
import pytest

from clearhead import reference

INF, NAN = np.inf, np.nan

# Distinct primes, so that no swapped axis goes unnoticed; H = 6 = 2 * 3 for grouped heads.
B, H, G, T, S, D, E = 2, 6, 3, 5, 11, 7, 13


@pytest.fixture
def rng():
    return np.random.default_rng(2017)


@pytest.fixture
def qkv(rng):
    return (
        rng.normal(size=(B, H, T, D)),
        rng.normal(size=(B, G, S, D)),
        rng.normal(size=(B, G, S, E)),
    )


def one_row(q, keys, values, scale=1.0):
    """Attention of one query by the definition, one number at a time."""
    scores = [scale * sum(a * b for a, b in zip(q, key, strict=True)) for key in keys]
    total = sum(math.exp(s) for s in scores)
    out = [
        sum(math.exp(s) * value[e] for s, value in zip(scores, values, strict=True)) / total
        for e in range(len(values[0]))
    ]
    return out, math.log(total)


# -- forward


def test_every_row_is_the_definition_written_as_loops(qkv):
    q, k, v = qkv
    out, lse = reference.forward(q, k, v)
    assert out.shape == (B, H, T, E) and lse.shape == (B, H, T)
    for b, h, t in np.ndindex(B, H, T):
        group = h // 2
        row, total = one_row(q[b, h, t], k[b, group], v[b, group], D**-0.5)
        np.testing.assert_allclose(out[b, h, t], row, rtol=1e-13)
        np.testing.assert_allclose(lse[b, h, t], total, rtol=1e-13)


def test_order_is_scale_softcap_bias_mask_softmax_with_sink(qkv, rng):
    q, k, _ = qkv
    bias, sink = rng.normal(size=(H, T, S)), rng.normal(size=H)
    mask = rng.random((B, 1, T, S)) < 0.7
    a = reference.weights(q, k, mask=mask, bias=bias, scale=0.9, softcap=1.7, sink=sink)
    for b, h, t in np.ndindex(B, H, T):
        s = [
            1.7 * math.tanh(0.9 * (q[b, h, t] @ k[b, h // 2, j]) / 1.7) + bias[h, t, j]
            for j in range(S)
        ]
        e = [math.exp(x) if mask[b, 0, t, j] else 0.0 for j, x in enumerate(s)]
        total = sum(e) + math.exp(sink[h])
        np.testing.assert_allclose(a[b, h, t], [x / total for x in e], rtol=1e-12)


@pytest.mark.parametrize(
    ("shape", "picture"),
    [
        ((2, 5), ["11110", "11111"]),
        ((5, 2), ["00", "00", "00", "10", "11"]),
    ],
)
def test_causal_pictures(rng, shape, picture):
    T, S = shape
    mask = np.array([[cell == "1" for cell in row] for row in picture])
    q, k, v = rng.normal(size=(T, D)), rng.normal(size=(S, D)), rng.normal(size=(S, E))
    out, lse = reference.forward(q, k, v, mask=mask)
    for t in range(T):
        seen = t + S - T + 1
        if seen <= 0:
            assert (out[t] == 0).all() and lse[t] == -INF
        else:
            row, total = one_row(q[t], k[:seen], v[:seen], D**-0.5)
            np.testing.assert_allclose(out[t], row, rtol=1e-13)
            np.testing.assert_allclose(lse[t], total, rtol=1e-13)
    causal = reference.linear_attention(q, k, v, causal=True)
    f = reference.FEATURE_MAPS["elu1"]
    for t in range(T):
        seen = max(t + S - T + 1, 0)
        a = f(k[:seen]) @ f(q[t])
        np.testing.assert_allclose(causal[t], a @ v[:seen] / a.sum() if seen else 0, rtol=1e-12)


def test_rows_of_weights_sum_to_one_less_the_share_of_the_sink(qkv):
    q, k, _ = qkv
    np.testing.assert_allclose(reference.weights(q, k).sum(-1), 1, rtol=1e-14)
    sink = np.linspace(-1, 3, H)
    rows = reference.weights(q, k, sink=sink).sum(-1)
    _, lse = reference.forward(q, k, np.zeros((B, G, S, E)), sink=sink)
    np.testing.assert_allclose(rows, 1 - np.exp(sink[:, None] - lse), rtol=1e-13)


def test_a_sink_is_a_key_of_that_score_with_value_zero(qkv, rng):
    q, k, v = qkv
    sink = rng.normal(size=(B, H)) + 3
    extra = np.concatenate([np.zeros((B, H, T, S)), np.repeat(sink[..., None, None], T, 2)], -1)
    more_k = np.concatenate([k, np.zeros((B, G, 1, D))], -2)
    more_v = np.concatenate([v, np.zeros((B, G, 1, E))], -2)
    out, lse = reference.forward(q, k, v, sink=sink)
    want_out, want_lse = reference.forward(q, more_k, more_v, bias=extra)
    np.testing.assert_allclose(out, want_out, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-13)


def test_leading_axes_broadcast_and_rank_two_is_one_head(qkv, rng):
    q, k, v = qkv
    wide = rng.normal(size=(3, 1, H, T, D))
    out, lse = reference.forward(wide, k, v[:1])
    assert out.shape == (3, B, H, T, E) and lse.shape == (3, B, H, T)
    np.testing.assert_array_equal(out[2, 1], reference.forward(wide[2, 0], k[1], v[0])[0])
    flat, flat_lse = reference.forward(q[0, 0], k[0, 0], v[0, 0], sink=np.array([0.5]))
    full, full_lse = reference.forward(q[0, :1], k[0, :1], v[0, :1], sink=np.array(0.5))
    np.testing.assert_array_equal(flat, full[0])
    np.testing.assert_array_equal(flat_lse, full_lse[0])


@pytest.mark.parametrize("size", [1e4, 1e30, 1e300])
def test_huge_scores_neither_overflow_nor_lose_ties(size):
    k = np.array([[1.0], [1.0], [-1.0]])
    out, lse = reference.forward([[size], [-size]], k, [[1.0], [3.0], [7.0]], scale=1.0)
    np.testing.assert_array_equal(out, [[2.0], [7.0]])
    np.testing.assert_allclose(lse, [size, size], rtol=1e-4)


def test_finfo_min_as_a_bias_hides_nothing_and_minus_infinity_hides(rng):
    q, k, v = rng.normal(size=(T, D)), rng.normal(size=(S, D)), rng.normal(size=(S, E))
    low = np.full((T, S), np.finfo(np.float64).min)
    np.testing.assert_allclose(reference.weights(q, k, bias=low).sum(-1), 1)
    bias = np.where(np.arange(S) < 4, 0.0, -INF)
    out, lse = reference.forward(q, k, v, bias=bias)
    want_out, want_lse = reference.forward(q, k[:4], v[:4])
    np.testing.assert_allclose(out, want_out, rtol=1e-13)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-13)


# -- nothing to see


def test_an_empty_row_gives_zero_and_minus_infinity_and_no_gradient(qkv):
    q, k, v = qkv
    mask = np.ones((T, S), bool)
    mask[3] = False
    dout = np.ones((B, H, T, E))
    for hidden in ({"mask": mask}, {"bias": np.where(mask, 0.0, -INF)}):
        out, lse = reference.forward(q, k, v, **hidden)
        assert (out[..., 3, :] == 0).all() and (lse[..., 3] == -INF).all()
        assert np.isfinite(np.delete(lse, 3, -1)).all()
        grads = reference.backward(dout, q, k, v, **hidden)
        assert (grads.q[..., 3, :] == 0).all()
        assert all(np.isfinite(g).all() for g in grads if g is not None)
    out, lse = reference.forward(q, k, v, mask=mask, sink=np.arange(H) * 1.0)
    assert (out[..., 3, :] == 0).all()
    np.testing.assert_array_equal(lse[..., 3], np.broadcast_to(np.arange(H), (B, H)))


@pytest.mark.parametrize("sizes", [{"S": 0}, {"T": 0}, {"B": 0}])
def test_axes_of_size_zero(sizes):
    n = {"B": B, "T": T, "S": S, **sizes}
    q, k, v = (
        np.ones((n["B"], H, n["T"], D)),
        np.ones((n["B"], G, n["S"], D)),
        np.ones((n["B"], G, n["S"], E)),
    )
    out, lse = reference.forward(q, k, v)
    assert out.shape == (n["B"], H, n["T"], E) and lse.shape == (n["B"], H, n["T"])
    assert (out == 0).all() and (lse == -INF).all()
    grads = reference.backward(np.ones_like(out), q, k, v, sink=np.zeros(H))
    for g, x in zip(grads[:3], (q, k, v), strict=True):
        assert g.shape == x.shape and (g == 0).all()
    everything = {"pool": (2, 3), "top": 2, "received": True, "entropy": True, "max": True}
    assert not any(np.any(x) for x in reference.observe(q, k, **everything)[:2] if x is not None)


# -- NaN and inf


def test_nan_reaches_exactly_the_rows_that_see_it(qkv, rng):
    q, k, v = qkv
    mask = rng.random((B, 1, T, S)) < 0.5
    mask[..., 2, :] = False
    clean, clean_lse = reference.forward(q, k, v, mask=mask)

    bad_q = q.copy()
    bad_q[1, 4, :2, 3] = NAN
    bad_q[1, 4, 2, 3] = NAN  # sees no key
    out, lse = reference.forward(bad_q, k, v, mask=mask)
    hit = np.zeros((B, H, T), bool)
    hit[1, 4, :2] = True
    assert_poisoned(out, lse, hit, clean, clean_lse)

    bad_k = k.copy()
    bad_k[0, 2, 7, 1] = NAN
    out, lse = reference.forward(q, bad_k, v, mask=mask)
    hit = np.zeros((B, H, T), bool)
    hit[0, 4:6] = mask[0, 0, :, 7]
    assert hit.any() and not hit[0, 4:6].all()
    assert_poisoned(out, lse, hit, clean, clean_lse)


def assert_poisoned(out, lse, hit, clean, clean_lse):
    assert np.isnan(out[hit]).all() and np.isnan(lse[hit]).all()
    np.testing.assert_array_equal(out[~hit], clean[~hit])
    np.testing.assert_array_equal(lse[~hit], clean_lse[~hit])


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_poison_in_a_visible_value_stays_in_its_column_of_the_rows_that_see_it(qkv, rng, poison):
    q, k, v = qkv
    mask = rng.random((T, S)) < 0.5
    bad = v.copy()
    bad[1, 0, 6, 5] = poison
    out, lse = reference.forward(q, k, bad, mask=mask)
    clean, clean_lse = reference.forward(q, k, v, mask=mask)
    hit = np.zeros(out.shape, bool)
    hit[1, :2, mask[:, 6], 5] = True
    assert hit.any()
    np.testing.assert_array_equal(out[hit], np.full(hit.sum(), poison))
    np.testing.assert_allclose(out[~hit], clean[~hit], rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(lse, clean_lse)


@pytest.mark.parametrize("how", ["mask", "bias"])
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_what_is_hidden_has_no_effect_on_any_result_or_gradient(qkv, rng, poison, how):
    q, k, v = qkv
    mask = rng.random((T, S)) < 0.6
    mask[:, 4] = False
    mask[1] = False
    hidden = {"mask": mask} if how == "mask" else {"bias": np.where(mask, 0.0, -INF)}
    options = {"softcap": 2.0, "sink": np.zeros(H), **hidden}
    dout = rng.normal(size=(B, H, T, E))
    bad_q, bad_k, bad_v = q.copy(), k.copy(), v.copy()
    bad_q[..., 1, :], bad_k[..., 4, :], bad_v[..., 4, :] = poison, poison, poison
    got = reference.forward(bad_q, bad_k, bad_v, **options)
    got += reference.backward(dout, bad_q, bad_k, bad_v, **options)
    want = reference.forward(q, k, v, **options) + reference.backward(dout, q, k, v, **options)
    for x, y in zip(got, want, strict=True):
        assert (x is None) == (y is None)
        if y is not None:
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


def test_nan_gradients_reach_exactly_what_the_poisoned_rows_touch(qkv, rng):
    q, k, v = qkv
    mask = rng.random((T, S)) < 0.5
    q[0, 3, 2] = NAN
    grads = reference.backward(np.ones((B, H, T, E)), q, k, v, mask=mask)
    hit_q = np.zeros((B, H, T, D), bool)
    hit_q[0, 3, 2] = mask[2].any()
    hit_k = np.zeros((B, G, S), bool)
    hit_k[0, 1] = mask[2]
    np.testing.assert_array_equal(np.isnan(grads.q), hit_q)
    np.testing.assert_array_equal(np.isnan(grads.k).all(-1), hit_k)
    np.testing.assert_array_equal(np.isnan(grads.v).any(-1), hit_k)


# -- gradients


def central_differences(f, x, step=1e-5):
    """The gradient of the number f() with respect to every cell of x, by moving it both ways."""
    grad = np.empty_like(x)
    for i in np.ndindex(x.shape):
        old = x[i]
        x[i] = old + step
        above = f()
        x[i] = old - step
        grad[i] = (above - f()) / (2 * step)
        x[i] = old
    return grad


@pytest.mark.parametrize("softcap", [None, 0.8])
@pytest.mark.parametrize("mask", [None, "rows", "causal"])
@pytest.mark.parametrize("extras", [False, True])
def test_gradients_are_finite_differences(rng, softcap, mask, extras):
    H, G, T, S, D, E = 4, 2, 3, 5, 2, 3
    q, k, v = (
        rng.normal(size=(2, H, T, D)),
        rng.normal(size=(1, G, S, D)),  # broadcast: its gradient sums over the batch
        rng.normal(size=(2, G, S, E)),
    )
    options = {"softcap": softcap, "scale": 0.7}
    if mask == "rows":
        options["mask"] = (rng.random((2, 1, T, S)) < 0.6) & (np.arange(T) != 1)[:, None]
    if mask == "causal":
        options["mask"] = np.tri(T, S, S - T, dtype=bool)
    if extras:
        options |= {"bias": rng.normal(size=(H, 1, S)), "sink": rng.normal(size=(2, H))}
    dout = rng.normal(size=(2, H, T, E))

    grads = reference.backward(dout, q, k, v, **options)
    inputs = {"q": q, "k": k, "v": v, "bias": options.get("bias"), "sink": options.get("sink")}
    for name, x in inputs.items():
        grad = getattr(grads, name)
        if x is None:
            assert grad is None
            continue
        want = central_differences(
            lambda: float((dout * reference.forward(q, k, v, **options)[0]).sum()), x
        )
        np.testing.assert_allclose(grad, want, rtol=1e-6, atol=1e-8, err_msg=name)


def test_gradients_of_rank_two_and_of_broadcast_extras_have_the_shape_of_what_was_given(rng):
    q, k, v = rng.normal(size=(T, D)), rng.normal(size=(S, D)), rng.normal(size=(S, E))
    grads = reference.backward(
        np.ones((T, E)), q, k, v, bias=rng.normal(size=(S,)), sink=np.array([0.3])
    )
    assert [g.shape for g in grads] == [(T, D), (S, D), (S, E), (S,), (1,)]
    wide = reference.backward(
        np.ones((B, H, T, E)),
        rng.normal(size=(H, T, D)),
        rng.normal(size=(B, G, S, D)),
        rng.normal(size=(1, G, S, E)),
        bias=np.zeros((1, 1, T, 1)),
        sink=np.array(0.0),
    )
    assert [g.shape for g in wide] == [(H, T, D), (B, G, S, D), (1, G, S, E), (1, 1, T, 1), ()]
    # Raising all scores of a row together with its sink changes nothing.
    assert abs(wide.sink) > 1e-3
    np.testing.assert_allclose(wide.bias.sum(), -wide.sink, rtol=1e-12)


# -- merging


def test_three_shards_in_all_six_orders_merge_to_the_whole(qkv, rng):
    q, k, v = qkv
    mask = rng.random((T, S)) < 0.5
    mask[:, :4] = np.arange(T)[:, None] == 1  # the first shard is empty for most rows,
    mask[2] = False  # and all of them for one
    whole = reference.forward(q, k, v, mask=mask)
    cuts = [slice(0, 4), slice(4, 5), slice(5, S)]
    states = [reference.forward(q, k[..., c, :], v[..., c, :], mask=mask[:, c]) for c in cuts]
    for order in itertools.permutations(states):
        all_at_once = reference.merge(*zip(*order, strict=True))
        first_two = reference.merge(*zip(*order[:2], strict=True))
        one_by_one = reference.merge(*zip(first_two, order[2], strict=True))
        for merged in (all_at_once, one_by_one):
            np.testing.assert_allclose(merged[0], whole[0], rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(merged[1], whole[1], rtol=1e-13)


def test_the_empty_shard_is_the_identity_and_two_of_them_are_empty(qkv):
    out, lse = reference.forward(*qkv)
    empty = reference.forward(qkv[0], qkv[1][..., :0, :], qkv[2][..., :0, :])
    for outs in ([out, empty[0]], [empty[0], out]):
        merged = reference.merge(outs, [lse if o is out else empty[1] for o in outs])
        np.testing.assert_array_equal(merged[0], out)
        np.testing.assert_array_equal(merged[1], lse)
    nothing = reference.merge([empty[0]] * 2, [empty[1]] * 2)
    assert (nothing[0] == 0).all() and (nothing[1] == -INF).all()


# -- observing


def test_observations_are_what_their_names_say(qkv, rng):
    q, k, _ = qkv
    mask = rng.random((B, 1, T, S)) < 0.6
    mask[..., 3, :] = np.arange(S) == 8  # fewer than the top three
    a = reference.weights(q, k, mask=mask)
    rows, cols = np.array([0, 0, -1, 1, 1]), np.array([2, 2, 0, 0, 0, -1, 1, 1, 2, 2, 2])
    seen = reference.observe(
        q, k, mask=mask, pool=(2, 3), group=(rows, cols), top=3, received=True,
        entropy=True, max=True, by_distance=S + T,
    )  # fmt: skip

    for r, c in np.ndindex(2, 3):
        cell = a[..., [slice(0, 2), slice(2, 5)][r], :]
        cell = cell[..., [slice(0, 3), slice(3, 7), slice(7, 11)][c]]
        np.testing.assert_allclose(seen.pool_mean[..., r, c], cell.mean((-2, -1)))
        np.testing.assert_array_equal(seen.pool_max[..., r, c], cell.max((-2, -1)))
    for r, c in np.ndindex(2, 3):
        block = a[..., rows == r, :][..., cols == c].sum(-1).mean(-1)
        np.testing.assert_allclose(seen.group[..., r, c], block)
    for i in np.ndindex(B, H, T):
        order = sorted(range(S), key=lambda s: -a[i][s])[:3]
        order = [s if a[i][s] > 0 else -1 for s in order]
        assert seen.top_keys[i].tolist() == order
        want = [a[i][s] if s >= 0 else 0.0 for s in order]
        np.testing.assert_array_equal(seen.top_weights[i], want)
    assert seen.top_keys[0, 0, 3].tolist() == [8, -1, -1]
    np.testing.assert_allclose(seen.received, a.sum(-2))
    np.testing.assert_array_equal(seen.max, a.max(-1))
    positive = np.where(a > 0, a, 1)
    np.testing.assert_allclose(seen.entropy, -(positive * np.log(positive)).sum(-1), atol=1e-14)
    for d in range(S + T):
        diagonal = sum(a[..., t, s] for t in range(T) for s in range(S) if t + S - T - s == d)
        np.testing.assert_allclose(seen.by_distance[..., d], diagonal)
    assert reference.observe(q, k) == (None,) * 9


def test_a_poisoned_row_spoils_only_its_own_statistics(qkv):
    q, k, _ = qkv
    q[0, 0, 1] = NAN
    seen = reference.observe(q, k, pool=(T, S), group=(np.arange(T), np.zeros(S, int)), top=2)
    hit = np.zeros((B, H, T), bool)
    hit[0, 0, 1] = True
    np.testing.assert_array_equal(np.isnan(seen.group[..., 0]), hit)
    np.testing.assert_array_equal(np.isnan(seen.pool_max).all(-1), hit)
    np.testing.assert_array_equal((seen.top_keys == -1).all(-1), hit)


# -- relatives


@pytest.mark.parametrize("name", ["elu1", "relu"])
def test_linear_attention_is_its_recurrence(qkv, name):
    q, k, v = qkv
    f = {
        "elu1": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
        "relu": lambda x: np.maximum(x, 0),
    }[name]
    out = reference.linear_attention(q, k, v, feature_map=name, causal=True)
    for b, h in np.ndindex(B, H):
        state, total = np.zeros((D, E)), np.zeros(D)
        for s in range(S):
            fk = f(k[b, h // 2, s])
            state, total = state + np.outer(fk, v[b, h // 2, s]), total + fk
            t = s - (S - T)
            if t >= 0:
                fq = f(q[b, h, t])
                np.testing.assert_allclose(out[b, h, t], fq @ state / (fq @ total), rtol=1e-11)
    np.testing.assert_array_equal(
        reference.linear_attention(q, k, v, feature_map=f),
        reference.linear_attention(q, k, v, feature_map=name),
    )


def test_a_query_without_features_reads_nothing(rng):
    q, k, v = -np.ones((T, D)), rng.normal(size=(S, D)), rng.normal(size=(S, E))
    assert (reference.linear_attention(q, k, v, feature_map="relu") == 0).all()


def test_attention_is_softmax_kernel_regression_and_the_gaussian_is_nadaraya_watson(rng):
    q, k, v = rng.normal(size=(T, D)), rng.normal(size=(S, D)), rng.normal(size=(S, E))
    np.testing.assert_allclose(
        reference.kernel_regression(q, k, v, bandwidth=D**0.5), reference.forward(q, k, v)[0]
    )
    distance = np.sqrt(((q[:, None] - k) ** 2).sum(-1))
    kernel = np.exp(-(distance**2) / (2 * 0.9**2))
    want = kernel @ v / kernel.sum(-1, keepdims=True)
    for how in ("gaussian", lambda q, k: kernel):
        got = reference.kernel_regression(q, k, v, kernel=how, bandwidth=0.9)
        np.testing.assert_allclose(got, want, rtol=1e-12)
    far = reference.kernel_regression(q + 1e3, k, v, kernel="gaussian", bandwidth=0.9)
    assert np.isfinite(far).all()  # exp(-1e6) is 0 in float64; the nearest key still answers
    unlike = reference.kernel_regression(q, k, v, kernel=lambda q, k: np.zeros((T, S)))
    assert (unlike == 0).all()


def test_inputs_are_left_as_they_were(qkv):
    before = [x.copy() for x in qkv]
    for x in qkv:
        x.flags.writeable = False
    reference.forward(*qkv, softcap=3.0)
    reference.backward(np.ones((B, H, T, E)), *qkv, softcap=3.0)
    for x, y in zip(qkv, before, strict=True):
        np.testing.assert_array_equal(x, y)
