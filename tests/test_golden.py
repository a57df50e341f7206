"""The numbers that the two articles print, reproduced: to every digit where the recipe is given."""

import json
from pathlib import Path

import numpy as np
import pytest

from clearhead import reference

GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden" / "articles.json"

pytestmark = pytest.mark.skipif(
    not GOLDEN.is_file(),
    reason="the articles' numbers (shared/golden/articles.json) are not beside this checkout",
)


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def assert_printed(computed, printed, digits):
    """Equal to the digits shown: half a unit of the last significant one, for each number."""
    computed, printed = np.asarray(computed), np.asarray(printed)
    last = 10.0 ** (np.floor(np.log10(np.abs(np.where(printed == 0, 1, printed)))) - digits + 1)
    assert computed.shape == printed.shape
    np.testing.assert_array_less(np.abs(computed - printed), 0.5000001 * last)


def test_single_head_from_its_seed(golden):
    article = golden["single_head_numpy"]
    randn = np.random.RandomState(42).randn
    x = np.array(article["X"])
    q, k, v = (x @ randn(3, 3) for _ in "QKV")
    # NumPy prints eight decimals.
    for name, computed in (("Q", q), ("K", k), ("V", v)):
        np.testing.assert_allclose(computed, article[name], rtol=0, atol=0.51e-8, err_msg=name)
    assert_printed(reference.weights(q, k), article["A"], digits=9)
    out, lse = reference.forward(q, k, v)
    np.testing.assert_allclose(out, article["Y"], rtol=0, atol=0.51e-8)
    scores = q @ k.T / np.sqrt(3)
    np.testing.assert_allclose(lse, np.log(np.exp(scores).sum(-1)), rtol=1e-14)


def test_single_head_from_its_printed_arrays(golden):
    article = golden["single_head_numpy"]
    out, _ = reference.forward(article["Q"], article["K"], article["V"])
    np.testing.assert_allclose(out, article["Y"], rtol=0, atol=2e-8)
    np.testing.assert_allclose(
        reference.weights(article["Q"], article["K"]), article["A"], rtol=1e-7
    )


def test_multi_head_from_its_torch_seed(golden):
    torch = pytest.importorskip("torch", reason="torch writes the parameters of this example")
    article = golden["multihead_torch"]
    torch.manual_seed(42)
    layer = torch.nn.MultiheadAttention(embed_dim=3, num_heads=1, batch_first=True)
    state = {name: x.numpy().astype(np.float64) for name, x in layer.state_dict().items()}
    x = np.array(golden["single_head_numpy"]["X"])
    q, k, v = np.split(x @ state["in_proj_weight"].T + state["in_proj_bias"], 3, axis=-1)
    # The article computed in float32, and its numbers are below 1: one rounding of 1 is allowed.
    eps = float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(reference.weights(q, k), article["A"], rtol=0, atol=eps)
    out = reference.forward(q, k, v)[0] @ state["out_proj.weight"].T + state["out_proj.bias"]
    np.testing.assert_allclose(out, article["Y"], rtol=0, atol=eps)


def test_soft_lookup_mixes_the_colours(golden):
    article = golden["soft_lookup"]
    share = [article["weights_for_sunset"][key] for key in article["keys"]]
    colour = reference.kernel_regression(
        [[1.0]], np.ones((4, 1)), article["values_rgb"], kernel=lambda q, k: np.array([share])
    )
    np.testing.assert_allclose(colour, [article["result"]], rtol=1e-15)
    # The same as attention: a score of log(weight), -inf for Green.
    with np.errstate(divide="ignore"):
        bias = np.log([share])
    out, lse = reference.forward([[0.0]], np.ones((4, 1)), article["values_rgb"], bias=bias)
    np.testing.assert_allclose(out, [article["result"]], rtol=1e-15)
    np.testing.assert_allclose(lse, 0, atol=1e-15)


@pytest.mark.parametrize("name", ["", "_times_8"])
def test_softmax_saturates(golden, name):
    article = golden["saturation"]
    scores, printed = article["scores" + name], article["softmax" + name]
    a = reference.weights([[1.0]], np.array(scores)[:, None], scale=1.0)
    np.testing.assert_array_equal(np.round(a[0], 2), printed)


def test_worked_example_scores_and_the_cell_that_its_article_has_wrong(golden):
    article = golden["worked_example"]
    q, k = np.array(article["Q"]), np.array(article["K_transposed"]).T
    np.testing.assert_allclose(q @ k.T, article["scores_right"], rtol=0, atol=1e-12)
    assert abs((q @ k.T)[1, 0] - 1.78) > 0.9  # as printed; 0.2 * 1.1 + 1.4 * 0.4 is 0.78
    out, lse = reference.forward(q, k, article["V"], scale=1.0)
    e = np.exp(article["scores_right"])
    np.testing.assert_allclose(out, e @ article["V"] / e.sum(-1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(lse, np.log(e.sum(-1)), rtol=1e-12)


@pytest.mark.parametrize("length", [512, 2048])
def test_a_map_has_as_many_cells_as_the_article_counts(golden, length):
    x = np.ones((length, 1))
    assert reference.weights(x, x).size == golden["score_cells"][str(length)]
