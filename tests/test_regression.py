"""kernel_regression and SoftLookup: attention as a weighted mean."""

import json
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch
from clearhead import reference, regression

GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden" / "articles.json"
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


def inputs(rng, dtype=np.float64, T=11, S=13, H=6, G=2, D=5, E=3, lead=(2,)):
    shapes = (*lead, H, T, D), (*lead, G, S, D), (*lead, G, S, E)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def epanechnikov(q, k):
    distance = ((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1)
    return np.maximum(0, 1 - distance / 6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["softmax", "gaussian", epanechnikov])
def test_it_is_the_formula(kernel, dtype, rng):
    q, k, v = inputs(rng, dtype)
    bandwidth = {} if callable(kernel) else {"bandwidth": 0.7}
    got = ch.kernel_regression(q, k, v, kernel=kernel, **bandwidth)
    truth = reference.kernel_regression(q, k, v, kernel=kernel, **bandwidth)
    assert got.dtype == dtype
    eps = 32 * np.finfo(np.promote_types(np.float32, got.dtype)).eps if dtype == np.float64 else 0
    eps = eps or 2 * float(ml_dtypes.finfo(dtype).eps) + 32 * np.finfo(np.float32).eps
    assert np.abs(got.astype(np.float64) - truth).max() < eps * np.abs(truth).max()


def test_softmax_attention_is_the_kernel_exp_of_the_product(rng):
    q, k, v = inputs(rng, D=4)
    np.testing.assert_array_equal(ch.kernel_regression(q, k, v, bandwidth=2), ch.attention(q, k, v))
    by_hand = ch.kernel_regression(q, k, v, kernel=lambda q, k: np.exp(q @ k.T / 2))
    np.testing.assert_allclose(by_hand, ch.attention(q, k, v), rtol=0, atol=1e-13)


def test_the_gaussian_kernel_is_attention_with_a_bias(rng):
    q, k, v = inputs(rng, lead=(), H=2)
    h = 0.8
    bias = -(k**2).sum(-1)[:, None, :] / (2 * h * h)
    want = ch.attention(q, k, v, scale=1 / h**2, bias=bias)
    got = ch.kernel_regression(q, k, v, kernel="gaussian", bandwidth=h)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)


def test_keys_of_one_length_make_gaussian_and_softmax_the_same(rng):
    q, k, v = inputs(rng)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    softmax = ch.kernel_regression(q, k, v, bandwidth=0.49)
    gaussian = ch.kernel_regression(q, k, v, kernel="gaussian", bandwidth=0.7)
    np.testing.assert_allclose(gaussian, softmax, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gaussian_keeps_its_digits_far_from_the_origin(dtype, rng):
    """|q - k|^2 as |q|^2 - 2 q k + |k|^2 in float32 would have no digit left here."""
    q, k, v = inputs(rng, lead=(), H=1, G=1)
    q, k = (np.round(64 * x) / 64 + 4096 for x in (q, k))  # exact in float32
    truth = reference.kernel_regression(q, k, v, kernel="gaussian", bandwidth=0.5)
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    got = ch.kernel_regression(q, k, v, kernel="gaussian", bandwidth=0.5)
    np.testing.assert_allclose(got, truth, rtol=0, atol=32 * np.finfo(dtype).eps)


def test_far_from_every_key_the_nearest_one_counts(rng):
    x = np.array([[0.0], [1.0]])
    got = ch.kernel_regression(np.array([[1e6]]), x, x, kernel="gaussian", bandwidth=0.1)
    np.testing.assert_array_equal(got, [[1.0]])


@pytest.mark.parametrize("name", ["queries", "keys", "values"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("kernel", ["gaussian", epanechnikov])
def test_poison_goes_where_the_formula_says(kernel, poison, name, rng):
    arrays = dict(zip(["queries", "keys", "values"], inputs(rng, lead=(), H=2), strict=True))
    arrays[name][1, 3, 2] = poison
    with np.errstate(invalid="ignore"):
        got = ch.kernel_regression(**arrays, kernel=kernel)
        want = reference.kernel_regression(**arrays, kernel=kernel)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_where_the_kernel_sums_to_zero_the_result_is_zero(rng):
    q, k, v = inputs(rng)
    q[..., 0, :] += 100
    out = ch.kernel_regression(q, k, v, kernel=epanechnikov)
    assert (out[..., 0, :] == 0).all()
    assert (ch.kernel_regression(q, k[..., :0, :], v[..., :0, :], kernel="gaussian") == 0).all()
    assert (ch.kernel_regression(q, k[..., :0, :], v[..., :0, :], kernel=epanechnikov) == 0).all()


def test_one_head_without_its_axis_and_broadcast_leading_axes(rng):
    q, k, v = inputs(rng, H=1, G=1, lead=())
    for kernel in ["softmax", "gaussian", epanechnikov]:
        flat = ch.kernel_regression(q[0], k[0], v[0], kernel=kernel)
        np.testing.assert_array_equal(flat, ch.kernel_regression(q, k, v, kernel=kernel)[0])
        q2, k2, v2 = inputs(rng, lead=(2, 3))
        k2, v2 = k2[:1], v2[0]
        np.testing.assert_allclose(
            ch.kernel_regression(q2, k2, v2, kernel=kernel),
            reference.kernel_regression(q2, k2, v2, kernel=kernel),
            rtol=0,
            atol=1e-12,
        )


def test_a_callable_is_asked_in_blocks(rng, monkeypatch):
    monkeypatch.setattr(regression, "_ROWS", 3)
    monkeypatch.setattr(regression, "_KEYS", 5)
    asked = []

    def kernel(q, k):
        asked.append((q.shape, k.shape))
        return epanechnikov(q, k)

    q, k, v = inputs(rng)
    got = ch.kernel_regression(q, k, v, kernel=kernel)
    want = reference.kernel_regression(q, k, v, kernel=epanechnikov)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)
    assert max(q[0] for q, _ in asked) == 3
    assert max(k[0] for _, k in asked) == 5


@pytest.mark.parametrize("kernel", ["gaussian", lambda q, k: (q @ k.T) ** 2])
def test_memory_is_linear(kernel, rng):
    q, k, v = inputs(rng, np.float32, T=8192, S=8192, D=2, E=2, H=1, G=1, lead=())
    tracemalloc.start()
    ch.kernel_regression(q, k, v, kernel=kernel)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8192 * 8192 / 2  # not a bit for each pair


@pytest.mark.parametrize(
    "options, kind, words",
    [
        ({"kernel": "cosine"}, ValueError, "kernel: is 'cosine', must be"),
        ({"kernel": 2}, TypeError, "kernel: is int, must be"),
        ({"kernel": np.ones(3)}, TypeError, "kernel: is ndarray, must be"),
        ({"bandwidth": 0}, ValueError, "bandwidth: is 0, must be positive"),
        ({"bandwidth": np.nan}, ValueError, "bandwidth: is nan, must be positive"),
        ({"bandwidth": "1"}, TypeError, "bandwidth: is '1', must be a number"),
        ({"kernel": epanechnikov, "bandwidth": 1.0}, TypeError, "beside a callable kernel"),
        ({"kernel": lambda q, k: -np.ones((11, 13))}, ValueError, r"kernel: gave -1.0, must give"),
        ({"kernel": lambda q, k: np.ones(3)}, ValueError, r"kernel: gave \(3,\) for 11 queries"),
        ({"kernel": lambda q, k: "x"}, TypeError, r"kernel: gave <U1, must give real numbers"),
    ],
)
def test_bad_input_is_named(options, kind, words, rng):
    with pytest.raises(kind, match=words):
        ch.kernel_regression(*inputs(rng), **options)


# SoftLookup


@pytest.mark.skipif(
    not GOLDEN.is_file(),
    reason="the articles' numbers (shared/golden/articles.json) are not beside this checkout",
)
def test_the_article_mixes_its_colours():
    article = json.loads(GOLDEN.read_text(encoding="utf-8"))["soft_lookup"]
    colours = ch.SoftLookup(article["keys"], article["values_rgb"])
    sunset = colours.mix(article["weights_for_sunset"])
    np.testing.assert_allclose(sunset, article["result"], rtol=1e-15)
    for key, value in zip(article["keys"], article["values_rgb"], strict=True):
        np.testing.assert_array_equal(colours[key], value)
    # By a vector: keys at the unit vectors; the logs of the weights are the query.
    colours = ch.SoftLookup(article["keys"], article["values_rgb"], np.eye(4))
    weights = [article["weights_for_sunset"][key] for key in article["keys"]]
    query = np.log(np.maximum(weights, 1e-300))
    np.testing.assert_allclose(colours(query), article["result"], rtol=1e-14)
    assert [match.key for match in colours.top(query)] == ["Red", "Yellow", "Blue"]
    np.testing.assert_allclose([m.weight for m in colours.top(query)], [0.6, 0.3, 0.1], rtol=1e-14)


def make_lookup(rng, **options):
    return ch.SoftLookup("abcde", rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 4)), **options)


@pytest.mark.parametrize("kernel", ["softmax", "gaussian", lambda q, k: np.exp(q @ k.T)])
def test_an_answer_is_the_mean_by_its_own_weights(kernel, rng):
    lookup = make_lookup(rng, kernel=kernel)
    vector = rng.normal(size=4)
    weights = lookup.weights(vector)
    assert list(weights) == list("abcde")
    assert sum(weights.values()) == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(lookup(vector), lookup.mix(weights), rtol=0, atol=1e-14)


def test_a_sharp_kernel_finds_the_exact_key(rng):
    lookup = make_lookup(rng, kernel="gaussian", bandwidth=1e-3)
    np.testing.assert_array_equal(lookup(lookup._vectors[3]), lookup["d"])


def test_top_matches_are_sorted_and_of_equals_the_earlier_is_first():
    lookup = ch.SoftLookup(["x", "y", "z"], [1, 2, 3], [[0.0], [1.0], [0.0]])
    top = lookup.top([1.0], 5)
    assert [match.key for match in top] == ["y", "x", "z"]
    assert top[0].value == 2.0
    assert top[1].weight == top[2].weight == pytest.approx(1 / (2 + np.e))


def test_it_is_a_collection_of_its_keys(rng):
    lookup = make_lookup(rng)
    assert len(lookup) == 5
    assert list(lookup) == list("abcde")
    assert "c" in lookup and "x" not in lookup
    assert repr(lookup) == "SoftLookup(5 keys, values (5, 2, 3), vectors (5, 4))"
    with pytest.raises(KeyError):
        lookup["x"]
    with pytest.raises(KeyError):
        lookup.mix({"x": 1.0})


def test_a_value_of_weight_zero_has_no_effect():
    lookup = ch.SoftLookup("ab", [1.0, np.nan])
    assert lookup.mix({"a": 2.0, "b": 0.0}) == 1.0


@pytest.mark.parametrize(
    "make, kind, words",
    [
        (lambda: ch.SoftLookup("aba", [1, 2, 3]), ValueError, "keys: 'a' is there twice"),
        (lambda: ch.SoftLookup([], []), ValueError, "keys: there is none"),
        (lambda: ch.SoftLookup(3, [1]), TypeError, "keys: .*, must be names that can be hashed"),
        (lambda: ch.SoftLookup([[1]], [1]), TypeError, "keys: unhashable"),
        (lambda: ch.SoftLookup("a", [1]).mix([1]), TypeError, "weights: list, must be a mapping"),
        (lambda: ch.SoftLookup("a", [1]).mix({"a": 1j}), ValueError, "weights: 'a' has 1j"),
        (lambda: ch.SoftLookup("ab", [1]), ValueError, r"values: shape is \(1,\), must be \(2,"),
        (lambda: ch.SoftLookup("ab", ["x", "y"]), TypeError, "values: are <U1"),
        (lambda: ch.SoftLookup("ab", [[1], [1, 2]]), ValueError, "values: has rows of different"),
        (lambda: ch.SoftLookup("a", [1], [1]), ValueError, r"vectors: shape is \(1,\), must be"),
        (lambda: ch.SoftLookup("a", [1], kernel="x"), ValueError, "kernel: is 'x'"),
        (lambda: ch.SoftLookup("a", [1])([1.0]), ValueError, "vectors: there are none"),
        (lambda: ch.SoftLookup("a", [1], [[1]])([1, 2]), ValueError, r"vector: shape is \(2,\)"),
        (lambda: ch.SoftLookup("a", [1], [[1]])(["x"]), TypeError, "vector: is <U1"),
        (lambda: ch.SoftLookup("a", [1], [[1]]).top([1], 0), ValueError, "n: is 0"),
        (lambda: ch.SoftLookup("a", [1], [[1]]).top([1], 1.5), TypeError, "n: is 1.5"),
        (lambda: ch.SoftLookup("a", [1]).mix({"a": -1}), ValueError, "weights: 'a' has -1"),
        (lambda: ch.SoftLookup("a", [1]).mix({"a": np.inf}), ValueError, "weights: 'a' has inf"),
        (lambda: ch.SoftLookup("a", [1]).mix({}), ValueError, "weights: sum to 0"),
    ],
)
def test_a_bad_lookup_is_named(make, kind, words):
    with pytest.raises(kind, match=words):
        make()
