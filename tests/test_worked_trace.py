"""Attention worked by hand: the reference's numbers, arithmetic that adds up, pages that work."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import clearhead as ch
import tiny_bert
from chromium import Chromium
from clearhead import reference
from clearhead.cli import main
from clearhead.models.bert import Bert

Q = [[1.0, 0.5], [0.2, 1.4], [0.7, 0.1]]
K = [[1.1, 0.4], [0.3, 1.2], [0.6, 0.9]]
V = [[2.0, 1.0], [0.5, 3.0], [1.5, 0.2]]


def projected(rng, T=5, C=7, H=3, D=2, E=2):
    """X and its projections, with distinct sizes."""
    names = {"W_Q": (C, H * D), "W_K": (C, H * D), "W_V": (C, H * E), "W_O": (H * E, C)}
    arrays = {name: rng.standard_normal(shape) for name, shape in names.items()}
    biases = {"b_Q": H * D, "b_K": H * D, "b_V": H * E, "b_O": C}
    arrays |= {name: rng.standard_normal(size) for name, size in biases.items()}
    return {"X": rng.standard_normal((T, C)), **arrays, "heads": H}


OPTIONS = {
    "plain": {},
    "causal": {"mask": ch.causal()},
    "array mask with an empty row": {"mask": np.array([[1] * 5, [0] * 5, [1, 0] * 2 + [1]], bool)},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": np.linspace(-2, 2, 15).reshape(3, 5)},
    "hiding bias": {"bias": np.where(np.eye(3, 5) > 0, -np.inf, 0.5)},
    "sink": {"sink": [0.5, -1.0, 0.1, 2.0]},
    "all": {
        "mask": ch.causal(),
        "softcap": 2.0,
        "bias": np.ones((3, 5)),
        "sink": 1.0,
        "scale": 0.7,
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_weights_and_output_are_the_references_and_the_steps_lead_there(rng, options):
    q = rng.standard_normal((4, 3, 7))
    k, v = rng.standard_normal((2, 5, 7)), rng.standard_normal((2, 5, 11))
    trace = ch.trace(q, k, v, **options)
    arrays = dict(options)
    if isinstance(arrays.get("mask"), ch.Mask):
        arrays["mask"] = arrays["mask"].to_array(3, 5)
    out, _ = reference.forward(q, k, v, **arrays)
    np.testing.assert_array_equal(trace.out, out)
    np.testing.assert_array_equal(trace["weights"].numbers, reference.weights(q, k, **arrays))
    e, sums = trace["exponentials"].array, trace["sums"].array
    quotient = np.divide(e, sums, out=np.zeros_like(e), where=sums > 0)
    np.testing.assert_allclose(quotient, trace["weights"].array, rtol=1e-13, atol=1e-300)
    shown = trace["weights"].array @ np.repeat(v, 2, axis=0)
    np.testing.assert_allclose(shown, out, rtol=1e-12, atol=1e-14)


def test_several_heads_and_their_output_projection_are_torchs(rng):
    torch = pytest.importorskip("torch", reason="the peer of this test is PyTorch's own layer")
    torch.manual_seed(3)
    layer = torch.nn.MultiheadAttention(6, 3, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(layer.in_proj_bias)
    torch.nn.init.normal_(layer.out_proj.bias)
    x = rng.standard_normal((5, 6))
    w = [part.T for part in layer.in_proj_weight.detach().numpy().reshape(3, 6, 6)]
    b = layer.in_proj_bias.detach().numpy().reshape(3, 6)
    trace = ch.trace(
        X=x, W_Q=w[0], W_K=w[1], W_V=w[2], b_Q=b[0], b_K=b[1], b_V=b[2], heads=3,
        W_O=layer.out_proj.weight.detach().numpy().T, b_O=layer.out_proj.bias.detach().numpy(),
    )  # fmt: skip
    batch = torch.from_numpy(x)[None]
    with torch.no_grad():
        y, weights = layer(batch, batch, batch, average_attn_weights=False)
    np.testing.assert_allclose(trace.out, y[0].numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(trace["weights"].numbers, weights[0].numpy(), rtol=0, atol=1e-12)


def test_the_steps_of_everything_come_in_order_each_with_a_reason(rng):
    trace = ch.trace(
        **projected(rng), mask=ch.causal(), softcap=5.0, bias=np.zeros((5, 5)), sink=0.0
    )
    assert [step.name for step in trace] == [
        "X", "W_Q", "b_Q", "queries", "W_K", "b_K", "keys", "W_V", "b_V", "values",
        "queries by head", "keys by head", "values by head", "scores", "scaled", "capped", "bias",
        "biased", "masked", "maximum", "exponentials", "sums", "weights", "weighted sum",
        "concatenation", "W_O", "b_O", "output",
    ]  # fmt: skip
    assert all(step.why and step.formula for step in trace)
    assert trace["scores"].shape == (3, 5, 5) and trace["output"].shape == (5, 7)


def test_a_cell_of_the_scores_is_written_out():
    assert ch.trace(Q, K, V).cell("scores", 0, 0) == "q1 . k1 = 1.0 x 1.1 + 0.5 x 0.4 = 1.30"


def arithmetic(text):
    """The value of the arithmetic of one cell, by the grammar of Python."""
    text = re.sub(r"sink (-?[\d.]+)", r"\1", text).replace(" x ", " * ").replace("^", "**")
    names = {"sqrt": np.sqrt, "tanh": np.tanh, "e": np.e, "max": max, "inf": np.inf}
    return eval(text, {"__builtins__": {}}, names)


def test_every_cell_of_every_step_is_written_out_and_its_arithmetic_is_right(rng):
    given = {name: np.round(a, 1) for name, a in projected(rng).items() if name != "heads"}
    trace = ch.trace(
        **given, heads=3, mask=ch.causal(), softcap=5.0, bias=np.round(rng.normal(size=(5, 5)), 1),
        sink=0.5, digits=9,
    )  # fmt: skip
    checked = set()
    for step in trace:
        for head, i, j in np.ndindex(step.array.shape):
            line = trace.cell(step.name, i, j, head=head)
            assert "\n" not in line
            if step.kind in ("given", "mask", "split", "join"):
                continue
            text = line.removesuffix("  (from the unrounded numbers)").split(" = ")[1]
            value = step.array[head, i, j]
            assert arithmetic(text) == pytest.approx(value, abs=1e-6), line
            checked.add(step.kind)
    assert checked == {
        "product", "root", "cap", "sum", "maximum", "exp", "total", "quotient",
    }  # fmt: skip


def test_a_cell_says_when_its_rounded_numbers_give_another_result():
    lines = [
        ch.trace(Q, K, V, digits=digits).cell("weighted sum", i, j)
        for digits in (1, 2)
        for i in range(3)
        for j in range(2)
    ]
    noted = [line.endswith("(from the unrounded numbers)") for line in lines]
    assert any(noted) and not all(noted)
    for line, note in zip(lines, noted, strict=True):
        _, text, *_, result = line.removesuffix("  (from the unrounded numbers)").split(" = ")
        digits = len(result.partition(".")[2])
        assert (f"{arithmetic(text):.{digits}f}" != result) == note


def test_a_long_sum_says_how_many_terms_are_left_out(rng):
    line = ch.trace(*rng.standard_normal((3, 2, 50))).cell("scores", 0, 1)
    assert "(45 more)" in line and len(line) < 200


@pytest.mark.parametrize("options", [{}, {"mask": ch.causal(), "softcap": 3.0, "sink": 0.1}])
def test_what_made_a_cell_is_what_changes_it(rng, options):
    """A score changes when its query's row or its key's row does, and else it stays."""
    q, k, v = rng.standard_normal((3, 4, 2, 3))
    q, k, v = q[:, 0], k[:, 0], v[:, 0]
    before = ch.trace(q, k, v, **options)
    made = before.made_of("scores", 2, 1)
    assert made == [("queries", 0, [2], None), ("keys", 0, [1], None)]
    for name, array in (("queries", q), ("keys", k)):
        for row in range(4):
            changed = {"queries": q.copy(), "keys": k.copy()}
            changed[name] = array.copy()
            changed[name][row] += 1
            after = ch.trace(changed["queries"], changed["keys"], v, **options)
            same = after["scores"].array[0, 2, 1] == before["scores"].array[0, 2, 1]
            assert same == ((name, 0, [row], None) not in made)


def test_a_head_reads_its_own_group_and_its_own_columns(rng):
    q, k = rng.standard_normal((4, 3, 2)), rng.standard_normal((2, 5, 2))
    trace = ch.trace(q, k, k)
    assert trace.made_of("scores", 0, 1, head=3)[1] == ("keys", 1, [1], None)
    trace = ch.trace(**projected(rng))
    assert trace.made_of("queries by head", 4, 1, head=2) == [("queries", 0, [4], [5])]
    assert trace.made_of("concatenation", 1, 3) == [("weighted sum", 1, [1], [1])]


def test_additive_scores_are_bahdanaus(rng):
    q, k, v = rng.standard_normal((2, 3)), rng.standard_normal((5, 3)), rng.standard_normal((5, 7))
    W_1, W_2, v_a = rng.standard_normal((4, 3)), rng.standard_normal((4, 3)), rng.standard_normal(4)
    trace = ch.trace(
        q, k, v, score="additive", W_1=W_1, W_2=W_2, v_a=v_a, mask=ch.causal(), softcap=4.0
    )
    scores = np.array([[v_a @ np.tanh(W_1 @ a + W_2 @ b) for b in k] for a in q])
    np.testing.assert_allclose(trace["scores"].numbers, scores, rtol=1e-13)
    seen = np.where(np.tri(2, 5, 3) > 0, 4 * np.tanh(scores / 4), -np.inf)
    weights = np.exp(seen) / np.exp(seen).sum(1, keepdims=True)
    np.testing.assert_allclose(trace["weights"].numbers, weights, rtol=1e-13)
    np.testing.assert_allclose(trace.out, weights @ v, rtol=1e-12)
    text = trace.cell("scores", 1, 2).split(" = ")[1]
    assert arithmetic(text) == pytest.approx(scores[1, 2], abs=0.1)
    assert "scaled" not in [step.name for step in trace]


def test_printed_at_most_eighty_columns_wide_whatever_the_numbers(rng):
    traces = [
        ch.trace(**projected(rng), digits=3),
        ch.trace(*(rng.standard_normal((3, 40, 70)) * 1e9), tokens=["a" * 50] * 40),
        ch.trace(Q, K, V, digits=12, tokens=["Schifffahrt", "東京", "x"]),
    ]
    for trace in traces:
        assert max(map(len, str(trace).split("\n"))) <= 80


def test_above_twelve_rows_or_columns_it_says_what_it_leaves_out(rng):
    twelve = ch.trace(*rng.standard_normal((3, 12, 5)))
    assert "left out" not in twelve.to_markdown()
    more = ch.trace(*rng.standard_normal((3, 20, 5)))
    for text in (str(more), more.to_markdown(), more.to_latex(), more.to_html()):
        assert "9 of 20 rows" in text
        assert "of 20 columns left out" in text
    assert more.to_markdown().count("q11") == 0 and more.to_markdown().count("q20") > 0


def test_the_highlight_is_in_brackets_with_what_made_it():
    text = str(ch.trace(Q, K, V, highlight=("scores", 1, 0)))
    assert re.findall(r"\[[-\d.]+\]", text) == ["[0.2]", "[1.4]", "[1.1]", "[0.4]", "[0.78]"]
    assert str(ch.trace(Q, K, V)).count("[") == 0


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_the_checker_finds_every_claim_of_a_traces_markdown_right(rng, digits):
    given = {name: np.round(a, 1) for name, a in projected(rng).items() if name != "heads"}
    trace = ch.trace(
        **given, heads=3, mask=ch.window(1, 2), digits=digits, highlight=("scores", 1, 2)
    )
    report = ch.check(trace.to_markdown())
    assert report.findings == () and report.malformed == ()
    names = {claim.name.partition(",")[0] for claim in report.claims}
    assert names >= {
        "queries", "keys", "values", "scores", "scaled", "masked", "maximum", "exponentials",
        "sums", "weights", "weighted sum", "output",
    }  # fmt: skip
    before, after = trace.to_markdown().split("## output")
    first = f"{trace['output'].numbers[0, 0]:.{digits}f}"
    broken = f"{before}## output{after.replace(first, '77.7', 1)}"
    assert [f.where for f in ch.check(broken).findings] == ["output"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_with_amsmath_alone(rng, tmp_path):
    tokens = ["50%", "a_b", "{x}", "\\end", "été", "東京", "#$&~^", "[CLS]", '"', "`'", "-", "<|>"]
    arrays = rng.standard_normal((3, 12, 5)) * np.array([1, 1, 1e8])[:, None, None]
    traces = [
        ch.trace(*arrays, tokens=tokens, mask=ch.causal(), highlight=("scores", 1, 0)),
        ch.trace(*rng.standard_normal((3, 2, 14, 3))),
    ]
    for number, trace in enumerate(traces):
        (tmp_path / f"t{number}.tex").write_text(trace.to_latex(standalone=True), "utf-8")
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"t{number}.tex"],
            cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:]
    assert "\\documentclass" not in traces[0].to_latex()


def test_the_page_takes_nothing_from_elsewhere_and_escapes_its_labels(rng):
    page = ch.trace(Q, K, V, tokens=["<script>x", '"onload=', "&"]).to_html()
    assert "<script>x" not in page and "&lt;script&gt;x" in page
    assert not re.search(r"(?:https?:)?//[a-z]|url\(|@import|src=|\bon\w+=\"", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src &#x27;none&#x27;" in policy and "unsafe" not in policy


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium is installed")
def test_in_a_browser_what_made_a_cell_lights_up(tmp_path):
    file = tmp_path / "trace.html"
    file.write_text(ch.trace(Q, K, V, mask=ch.causal()).to_html(), "utf-8")
    browser = Chromium(shutil.which("chromium"), tmp_path / "profile")
    try:
        page = browser.page()
        page.open(file)
        lit = "[...document.querySelectorAll('.made')].map(c => c.dataset.at).join(' ')"
        told = "document.getElementById('arithmetic').textContent"
        page.point("td[data-at='3.0.1.0']")
        page.wait(f"({lit}).length > 0")
        assert page.js(lit) == "0.0.1.0 0.0.1.1 1.0.0.0 1.0.0.1"
        assert page.js(told) == "q2 . k1 = 0.2 x 1.1 + 1.4 x 0.4 = 0.78"
        page.js("document.querySelector(\"td[data-at='3.0.1.0']\").focus()")
        page.press("ArrowRight")
        page.wait(f"({lit}).includes('1.0.1.0')")
        assert page.js(lit) == "0.0.1.0 0.0.1.1 1.0.1.0 1.0.1.1"
        page.press("ArrowDown")
        page.wait(f"({lit}).includes('0.0.2.0')")
        assert page.js(lit) == "0.0.2.0 0.0.2.1 1.0.1.0 1.0.1.1"
        bad = [
            e
            for e in browser.events
            if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]
        assert bad == []
    finally:
        browser.close()


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_head_of_a_model_is_traced_from_its_layers_input_to_its_share_of_the_output(
    tmp_path, family
):
    folder = tiny_bert.write(tmp_path / family, family)
    text = "the animal road, the road"
    bert, run = Bert(folder), ch.read(text, folder)
    ids = [token.id for token in run.tokens]
    layers = list(bert.layers(ids))
    for layer in range(tiny_bert.LAYERS):
        X = bert.embedded(ids) if layer == 0 else layers[layer - 1].hidden
        shares = 0.0
        for head in range(tiny_bert.HEADS):
            trace = ch.trace(text=text, model=folder, layer=layer, head=head)
            assert [step.name for step in trace] == [
                "X", "W_Q", "b_Q", "queries", "W_K", "b_K", "keys", "W_V", "b_V", "values",
                "scores", "scaled", "maximum", "exponentials", "sums", "weights", "weighted sum",
                "W_O", "output",
            ]  # fmt: skip
            for name, own in (
                ("X", X),
                ("queries", run.layers[layer].q[head]),
                ("keys", run.layers[layer].k[head]),
                ("weights", run.map(layer)[head]),
            ):
                np.testing.assert_allclose(trace[name].numbers, own, rtol=0, atol=2e-5)
            assert trace["scores"].rows[:3] == ("[CLS]", "the", "animal")
            shares = shares + trace.out
        whole = ch.trace(text=text, model=folder, layer=layer, head=None)
        np.testing.assert_allclose(shares + whole["b_O"].numbers, whole.out, rtol=0, atol=1e-12)
        assert whole["weights"].shape == (tiny_bert.HEADS, len(ids), len(ids))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_all_heads_of_a_models_layer_add_what_transformers_says_they_add(tmp_path, family):
    torch = pytest.importorskip("torch", reason="the peer of this test is PyTorch")
    transformers = pytest.importorskip("transformers", reason="the peer of this test")
    folder = tiny_bert.write(tmp_path / family, family)
    theirs = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    of_layer = theirs.transformer.layer if family == "distilbert" else theirs.encoder.layer
    dense = (
        of_layer[1].attention.out_lin
        if family == "distilbert"
        else of_layer[1].attention.output.dense
    )
    seen = []
    dense.register_forward_hook(lambda _, given, out: seen.append((given[0][0], out[0])))
    ours = ch.trace(text="the animal, road", model=folder, layer=1, head=None)
    ids = [token.id for token in ch.read("the animal, road", folder).tokens]
    with torch.no_grad():
        theirs(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))
    ((context, out),) = seen
    np.testing.assert_allclose(ours["concatenation"].numbers, context.numpy(), rtol=0, atol=2e-5)
    np.testing.assert_allclose(ours.out, out.numpy(), rtol=0, atol=2e-5)


def test_a_trace_of_a_model_is_printed_and_checks_out(tmp_path, capsys):
    folder = str(tiny_bert.write(tmp_path / "tiny"))
    command = ["trace", "--text", "the animal road", "--model", folder, "--layer", "1"]
    assert main([*command, "--head", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny, layer 1, head 2, 5 tokens") and "What layer 0 made" in out
    assert max(map(len, out.split("\n"))) <= 80
    assert "of 15 columns left out" in out
    file = tmp_path / "t.md"
    assert main([*command, "--markdown", str(file)]) == 0
    assert ch.check(file.read_text("utf-8")).findings == ()
    capsys.readouterr()
    for wrong, sentence in {
        ("--head", "3"): "head: is 3, the model has 3, counted from 0",
        ("--layer", "2"): "layer: is 2, the model has 2, counted from 0",
        ("--layer", "-1"): "layer: is -1, the model has 2, counted from 0",
        ("--text", "a " * 99): "text: is 101 tokens, the model takes 61; give a part of it",
        ("--text", "a " * 99_999): "text: is more than ",
        ("--text", " "): "text: ",
    }.items():
        assert main([*command, *wrong]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"clearhead: {sentence}") and err.count("\n") == 1


WRONG = {
    "nothing": ({}, "trace: is given nothing"),
    "two starts": ({"q": Q, "k": K, "v": V, "X": Q}, "trace: is given q and X"),
    "no v": ({"q": Q, "k": K}, "v: is missing"),
    "ragged": ({"q": [[1, 2], [3]], "k": K, "v": V}, "q: has rows of different lengths"),
    "NaN": ({"q": Q, "k": [[1, float("nan")]] * 3, "v": V}, r"k: is nan at \[0, 1\]"),
    "words": ({"q": [["a", "b"]], "k": K, "v": V}, "q: holds str"),
    "one axis": ({"q": [1.0], "k": K, "v": V}, "q: has shape"),
    "empty": ({"q": np.zeros((0, 2)), "k": K, "v": V}, "q: has shape"),
    "D": ({"q": [[1.0]], "k": K, "v": V}, "k: D is 2, must be q's, 1"),
    "S": ({"q": Q, "k": K, "v": V[:2]}, "v: does not have as many"),
    "heads": ({"q": [Q] * 3, "k": [K] * 2, "v": [V] * 2}, "k: 3 query heads are not"),
    "mask": ({"q": Q, "k": K, "v": V, "mask": np.ones((2, 2), bool)}, "mask: has shape"),
    "mask kind": ({"q": Q, "k": K, "v": V, "mask": np.ones((3, 3))}, "mask: holds float64"),
    "bias": ({"q": Q, "k": K, "v": V, "bias": [[float("inf")]]}, "bias: holds NaN or inf"),
    "softcap": ({"q": Q, "k": K, "v": V, "softcap": 0.0}, "softcap: is 0.0, must be positive"),
    "scale": ({"q": Q, "k": K, "v": V, "scale": "big"}, "scale: is str, must be a number"),
    "sink": ({"q": Q, "k": K, "v": V, "sink": [1.0, 2.0]}, "sink: has shape"),
    "score": ({"q": Q, "k": K, "v": V, "score": "cosine"}, "score: is 'cosine'"),
    "network": ({"q": Q, "k": K, "v": V, "score": "additive"}, "W_1: is missing"),
    "W": ({"X": Q, "W_Q": K, "W_K": K, "W_V": K}, "W_Q: has 3 rows, must have one for each column"),
    "no W": ({"X": Q}, "W_Q: is missing"),
    "W_O": ({"q": Q, "k": K, "v": V, "W_O": K}, "W_O: has 3 rows, must have"),
    "tokens": ({"q": Q, "k": K, "v": V, "tokens": ["a"]}, "tokens: are 1, must be 3"),
    "digits": ({"q": Q, "k": K, "v": V, "digits": 0}, "digits: is 0, must be"),
    "highlight": ({"q": Q, "k": K, "v": V, "highlight": ("scores", 9, 0)}, "row: is 9, scores"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_one_sentence(arguments, sentence):
    with pytest.raises((ValueError, TypeError), match=f"^{sentence}") as caught:
        ch.trace(**arguments)
    assert "\n" not in str(caught.value)


def test_a_step_that_is_not_there_is_one_sentence():
    trace = ch.trace(Q, K, V)
    with pytest.raises(ValueError, match=r"^step: 'score' is not in this trace, whose steps are"):
        trace.cell("score", 0, 0)
    with pytest.raises(ValueError, match=r"^column: is 3, scores has 3, counted from 0"):
        trace.cell("scores", 0, 3)


def test_the_command_prints_and_writes_every_form(tmp_path, capsys):
    assert main(["trace", "--demo"]) == 0
    assert "weighted sum = weights x values" in capsys.readouterr().out
    files = [str(tmp_path / name) for name in ("t.md", "t.tex", "t.html")]
    options = zip(("--markdown", "--latex", "--html"), files, strict=True)
    assert main(["trace", "--demo", *(part for pair in options for part in pair)]) == 0
    out, err = capsys.readouterr()
    assert out == "" and err.split() == files
    assert main(["check", files[0]]) == 0
    assert main(["trace", "--demo", "--cell", "scores", "0", "0", "--digits", "1"]) == 0
    assert capsys.readouterr().out.split("\n")[-2].startswith("q1 . k1 = ")


def test_the_command_reads_json(tmp_path, capsys):
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"q": Q, "k": K, "v": V, "causal": True, "tokens": list("abc")}))
    assert main(["trace", str(file), "--cell", "weights", "0", "0"]) == 0
    assert capsys.readouterr().out == "weights[0, 0] = 1.00 / 1.00 = 1.00\n"


BAD_JSON = {
    "not JSON": ('{"q": [[1,\n 2}', "line 2: not JSON"),
    "a list": ("[1, 2]", "holds no JSON object"),
    "unknown": ('{"Q": [[1]]}', "Q: is no argument of trace"),
    "ragged": ('{"q": [[1, 2], [3]], "k": [[1]], "v": [[1]]}', "q: has rows of different lengths"),
    "words": ('{"q": "no", "k": [[1]], "v": [[1]]}', "q: holds str"),
    "NaN": ('{"q": [[NaN]], "k": [[1]], "v": [[1]]}', "q: is nan at [0, 0]"),
    "nested": ("[" * 100_000, ""),
    "not UTF-8": (b"\xff\xfe", "is not UTF-8"),
}


@pytest.mark.parametrize(("content", "sentence"), BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_is_one_sentence_with_the_file(tmp_path, capsys, content, sentence):
    file = tmp_path / "a.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["trace", str(file)]) == 2
    err = capsys.readouterr().err
    assert sentence in err and str(file) in err and err.count("\n") == 1


def test_the_command_wants_one_source(capsys):
    for arguments in ([], ["--demo", "--text", "a"]):
        assert main(["trace", *arguments]) == 2
        assert "takes one of FILE.json, --demo and --text" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, capsys):
    assert main(["trace", "--demo", "--html", str(tmp_path / "no" / "t.html")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
