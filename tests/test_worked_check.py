"""The checker of worked examples: articles of every notation with planted errors of every kind."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import clearhead as ch
from clearhead.cli import main
from clearhead.worked.check.formula import Node
from clearhead.worked.check.numbers import Matrix, read_number
from clearhead.worked.check.values import Intervals, Points, evaluate

Q = np.array([[1.0, 0.5], [0.2, 1.4], [0.7, 0.1]])
K = np.array([[1.1, 0.4], [0.3, 1.2], [0.6, 0.9]])
V = np.array([[2.0, 1.0, 0.3], [0.5, 3.0, 0.4], [1.5, 0.2, 2.2]])


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rows(a, digits=2):
    return "\n".join(" ".join(f"{x:.{digits}f}" for x in row) for row in a)


def table(a, digits=2):
    head = "|" + " |" * a.shape[1] + "\n|" + "---|" * a.shape[1] + "\n"
    return head + "\n".join("| " + " | ".join(f"{x:.{digits}f}" for x in r) + " |" for r in a)


def latex(a, digits=2):
    body = r" \\ ".join(" & ".join(f"{x:.{digits}f}" for x in row) for row in a)
    return rf"\begin{{bmatrix}} {body} \end{{bmatrix}}"


def numpy_text(a, digits=8):
    return np.array2string(a, precision=digits)


def fenced(caption, a, digits=2):
    return f"```\n# {caption}\n{rows(a, digits)}\n```\n\n"


def article(scores, *, scaled=None, weights=None, out=None):
    """An article over Q, K, V; what is not given follows from what is, as printed."""
    scaled = scores / 2**0.5 if scaled is None else scaled
    weights = softmax(np.round(scaled, 2)) if weights is None else weights
    out = np.round(weights, 2) @ V if out is None else out
    return (
        f"# By hand\n\n```\n# Q (3 tokens x 2 dims)\n{rows(Q, 1)}\n\nx\n\n"
        f"# K^T (2 dims x 3 tokens)\n{rows(K.T, 1)}\n\n=\n\n# Scores\n{rows(scores)}\n```\n\n"
        "Dividing by the square root of 2:\n\n"
        + fenced("Scaled scores (scores / √2)", scaled)
        + fenced("Attention weights", weights)
        + fenced("V (3 x 3)", V, 1)
        + fenced("Output = weights x V", out)
    )


def cells(report, kind):
    return [(f.where, f.row, f.column) for f in report.findings if f.kind == kind]


def test_a_right_article_has_no_findings_and_all_its_claims_are_understood():
    report = ch.check(article(Q @ K.T))
    assert report.findings == () and report.malformed == () and report.unread == ()
    formulas = {claim.name: claim.formula for claim in report.claims}
    assert formulas == {
        "Scores": "Q x K^T",
        "Scaled scores": "Scores / sqrt(2)",
        "Attention weights": "softmax(Scaled scores)",
        "Output": "Attention weights x V",
    }
    assert sum(claim.cells for claim in report.claims) == 9 * 4
    assert [name for _, name in report.given] == ["Q", "K^T", "V"]


def test_a_misprinted_score_is_found_and_every_cell_that_inherits_it_is_told_apart():
    scores = Q @ K.T
    scores[1, 0] = 1.78
    report = ch.check(article(scores))
    (wrong,) = [f for f in report.findings if f.kind == "wrong"]
    assert (wrong.where, wrong.row, wrong.column) == ("Scores", 2, 1)
    assert (wrong.printed, wrong.should_be) == ("1.78", "0.78")
    assert wrong.because == "0.2 x 1.1 + 1.4 x 0.4 = 0.78"
    inherited = [f for f in report.findings if f.kind == "inherited"]
    assert {(f.where, f.row) for f in inherited} == {
        ("Scaled scores", 2), ("Attention weights", 2), ("Output", 2),
    }  # fmt: skip
    assert all(f.from_lines == (wrong.line,) for f in inherited)
    right = softmax(Q @ K.T / 2**0.5)
    should = [f.should_be for f in inherited if f.where == "Attention weights"]
    assert should == [f"{x:.2f}" for x in right[1]]


def test_a_cell_computed_from_the_right_value_after_a_misprint_is_right():
    misprinted = Q @ K.T
    misprinted[1, 0] = 1.78
    report = ch.check(article(misprinted, scaled=Q @ K.T / 2**0.5))
    assert cells(report, "wrong") == [("Scores", 2, 1)]
    assert cells(report, "inherited") == []


def test_an_error_below_a_misprint_is_wrong_by_itself():
    scores = Q @ K.T
    scores[1, 0] = 1.78
    scaled = scores / 2**0.5
    scaled[1, 0] = 3.33  # neither 1.78 / sqrt(2) nor 0.78 / sqrt(2)
    report = ch.check(article(scores, scaled=scaled))
    assert ("Scaled scores", 2, 1) in cells(report, "wrong")


@pytest.mark.parametrize("digits", [2, 3, 4])
@pytest.mark.parametrize("which", ["scores", "scaled", "weights", "out"])
def test_one_wrong_cell_in_any_step_at_any_precision_is_found(which, digits):
    steps = {"scores": np.round(Q @ K.T, 2)}
    steps["scaled"] = steps["scores"] / 2**0.5
    steps["weights"] = softmax(np.round(steps["scaled"], 2))
    steps["out"] = np.round(steps["weights"], 2) @ V
    steps[which] = steps[which].copy()
    steps[which][2, 1] += 0.4
    report = ch.check(article(**{k: v for k, v in steps.items() if k in ("scores", which)}))
    assert [(r, c) for _, r, c in cells(report, "wrong")] == [(3, 2)]


def test_numbers_computed_at_full_precision_and_printed_short_are_right():
    rng = np.random.default_rng(5)
    q, k, v = rng.standard_normal((3, 7, 5))
    scaled = q @ k.T / 5**0.5
    for digits in (2, 3, 5):
        text = "".join(
            fenced(name, a, digits)
            for name, a in (
                ("Q", q), ("K", k), ("V", v), ("scores = Q K^T", q @ k.T),
                ("scaled = scores / sqrt(5)", scaled),
                ("weights = softmax(scaled)", softmax(scaled)),
                ("output = weights V", softmax(scaled) @ v),
            )
        )  # fmt: skip
        report = ch.check(text)
        assert report.findings == (), digits
        assert len(report.claims) == 4


NOTATIONS = {
    "rows": lambda name, a: fenced(name, a),
    "table": lambda name, a: f"{name}:\n\n{table(a)}\n\n",
    "latex": lambda name, a: f"$${name} = {latex(a)}$$\n\n",
    "numpy": lambda name, a: f"{name}:\n{numpy_text(np.round(a, 2))}\n\n",
    "list": lambda name, a: f"{name} = {np.round(a, 2).tolist()}\n\n",
}


@pytest.mark.parametrize("write", NOTATIONS.values(), ids=NOTATIONS)
def test_every_notation_is_read_and_its_wrong_cell_found(write):
    scores = Q @ K.T
    scores[1, 2] += 0.3
    report = ch.check(write("Q", Q) + write("K", K) + write("S", scores))
    assert [f.kind for f in report.findings] == ["wrong"]
    assert (report.findings[0].row, report.findings[0].column) == (2, 3)
    assert float(report.findings[0].should_be) == pytest.approx((Q @ K.T)[1, 2], abs=0.005)


def test_matrices_side_by_side_with_signs_between_them():
    report = ch.check(
        "```\n"
        "Q              K^T              scores\n"
        "1.0 0.5   x   1.1 0.3    =    1.30 0.90\n"
        "0.2 1.4       0.4 1.2         1.78 1.74\n"
        "```\n"
    )
    assert cells(report, "wrong") == [("scores", 2, 1)]


def test_a_formula_in_latex_with_matrices_next_to_each_other_is_a_product():
    report = ch.check(
        f"$$\nQK^\\top = {latex(Q, 1)}\n{latex(K.T, 1)} =\n{latex(Q @ K.T + 0.01)}\n$$\n"
    )
    assert len(report.findings) == 9
    assert report.claims[-1].name == "QK^T" and report.claims[-1].stated


def test_highlights_are_numbers():
    text = article(Q @ K.T).replace("1.30", "[1.30]", 1)
    assert ch.check(text).findings == ()
    wrong = article(Q @ K.T).replace("1.30", "**1.31**", 1)
    assert cells(ch.check(wrong), "wrong") == [("Scores", 1, 1)]


def test_a_causal_mask_is_recognised_and_zeroing_after_the_softmax_is_not_taken_for_it():
    scores = np.round(Q @ K.T, 2)
    hidden = np.where(np.tri(3, dtype=bool), scores, -np.inf)
    start = fenced("Q", Q, 1) + fenced("K", K, 1) + fenced("scores", scores)
    masked = start + fenced("masked scores", hidden)
    right = ch.check(masked + fenced("weights", softmax(hidden)))
    assert [c.formula for c in right.claims][1:] == ["causal(scores)", "softmax(masked scores)"]
    assert right.findings == ()
    zeroed = ch.check(masked + fenced("weights", np.tril(softmax(scores))))
    assert zeroed.exit_code == 1
    assert {f.where for f in zeroed.findings} == {"weights"}


def test_a_scaling_that_is_stated_but_left_out_is_named():
    scores = np.round(Q @ K.T, 2)
    text = fenced("scores", scores) + fenced("weights = softmax(scores / sqrt(2))", softmax(scores))
    report = ch.check(text)
    assert report.exit_code == 1
    assert "fit `softmax(scores)`" in report.hints[0].sentence


def test_a_row_of_weights_that_cannot_sum_to_one_is_reported():
    report = ch.check(fenced("Attention weights", np.array([[0.50, 0.50], [0.50, 0.60]])))
    (finding,) = report.findings
    assert (finding.kind, finding.row, finding.printed) == ("row", 2, "1.10")


def test_weights_whose_rounded_digits_sum_to_099_are_right():
    assert ch.check(fenced("Attention weights", np.array([[1 / 3, 1 / 3, 1 / 3]] * 2))).ok


@pytest.mark.parametrize(
    "line",
    [
        "1.0(1.1) + 0.5(0.4) = 1.30",
        "q1 · k1 = 1.0 × 1.1 + 0.5 × 0.4 = 1.10 + 0.20 = 1.30.",
        "- so 1.0 x 1.1 + 0.5 x 0.4 = 1.30, as above",
        r"$1.0 \times 1.1 + 0.5 \cdot 0.4 = 1.30$",
        r"$\frac{1.30}{\sqrt{2}} \approx 0.92$",
        "e^0.92 / (e^0.92 + e^0.64) = 0.57",
        "exp(0.92) = 2.51 and √2 ≈ 1.41",
        "softmax([1.0, 2.0, 3.0]) = [0.09, 0.24, 0.67]",
        "32,768 × 32,768 = 1,073,741,824 cells",
        "0.33 + 0.33 + 0.33 = 1.0",  # thirds, rounded
        "(0.5)(2.0) = 1.00 for row 2 (0.5)(2.0) = 1.00",
    ],
)
def test_right_equations_are_read_and_pass(line):
    report = ch.check(line)
    assert report.equations >= 1
    assert report.findings == ()


@pytest.mark.parametrize(
    ("line", "printed", "should_be"),
    [
        ("1.0(1.1) + 0.5(0.4) = 1.35", "1.35", "1.30"),
        ("0.2(1.1) + 1.4(0.4) = 1.78", "1.78", "0.78"),
        ("q · k = 0.2 × 1.1 + 1.4 × 0.4 = 0.22 + 0.56 = 0.88 or so", "0.88", "0.78"),
        (r"$\frac{1.30}{\sqrt{2}} = 0.29$", "0.29", "0.92"),
        ("e^0.92 = 3.51", "3.51", "2.51"),
        ("softmax([1.0, 2.0, 3.0]) = [0.09, 0.44, 0.67]", "0.44", "0.24"),
        ("0.5 × -0.4 = 0.2", "0.2", "-0.2"),
        ("8 x 64 = 521", "521", "512"),
    ],
)
def test_wrong_equations_are_found(line, printed, should_be):
    (finding,) = ch.check(line).findings
    assert (finding.printed, finding.should_be) == (printed, should_be)


@pytest.mark.parametrize(
    "line",
    [
        "d / 2 * 3 = 4", "f(2) + 3 = 9", "x = 3 if y == 4", "version 1.2.3 = 4.5", "n^2 = 10",
        "row 2: see 3", "a = 1.0", "2d + 1 = 4", "lr = 3e-4", "k = [1, 2]", "P(A) = 0.5",
    ],
)  # fmt: skip
def test_algebra_and_prose_are_left_alone(line):
    assert ch.check(line).findings == ()


def test_fix_writes_a_copy_that_is_right_and_leaves_the_article_alone(tmp_path, capsys):
    scores = Q @ K.T
    scores[1, 0] = 1.78
    file = tmp_path / "article.md"
    text = article(scores) + "\nFor 0.2(1.1) + 1.4(0.4) = 1.78 see above.\n"
    file.write_text(text, encoding="utf-8")
    line = text.split("\n").index("1.78 1.74 1.38") + 1
    assert main(["check", str(file), "--fix"]) == 1
    out, err = capsys.readouterr()
    assert f"{file}:{line}: Scores, row 2, column 1: printed 1.78, should be 0.78" in out
    copy = tmp_path / "article.fixed.md"
    assert str(copy) in err
    assert file.read_text(encoding="utf-8") == text
    assert ch.check(copy.read_text(encoding="utf-8")).ok
    assert "1.78" not in copy.read_text(encoding="utf-8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["article.fixed.md", "article.md"]


def test_a_corrected_line_keeps_its_columns_and_its_highlight():
    text = "```\nQ     x  1.0  0.5\n```"
    report = ch.check("```\n# A\n1.0 2.0\n3.0 4.0\n```\n```\n# A\n1.0   2.0\n3.0 -[14.0]\n```")
    assert report.ok or report.findings  # the second A is compared with the first
    text = fenced("Q", Q, 1) + fenced("K", K, 1) + fenced("S", Q @ K.T).replace("1.30", "[11.30]")
    fixed = ch.check(text).corrected(text)
    assert "[1.30]" in fixed
    assert len(fixed.split("\n")) == len(text.split("\n"))


def test_a_matrix_shown_again_must_be_the_same():
    again = Q.copy()
    again[2, 1] = 0.4
    report = ch.check(fenced("Q", Q, 1) + "Once more.\n\n" + fenced("Q", again, 1))
    (finding,) = report.findings
    assert (finding.row, finding.column, finding.should_be) == (3, 2, "0.1")


def test_json_has_lines_cells_and_the_exit_code(tmp_path, capsys):
    file = tmp_path / "a.md"
    file.write_text("Then 2.0(1.5) = 3.10.\n")
    assert main(["check", str(file), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert (finding["line"], finding["printed"], finding["should_be"]) == (1, "3.10", "3.00")
    first, last = finding["characters"]
    assert "Then 2.0(1.5) = 3.10."[first - 1 : last] == "3.10"
    assert report["exit_code"] == 1


def test_exit_codes(tmp_path, capsys):
    file = tmp_path / "a.md"
    for text, code in [("2.0(1.5) = 3.00", 0), ("2.0(1.5) = 4.00", 1), ("no numbers", 2)]:
        file.write_text(text)
        assert main(["check", str(file)]) == code
    assert "no matrices and no equations in 1 line" in capsys.readouterr().out


MALFORMED = {
    "ragged rows": ("a\n\n```\n1.0 0.5\n0.2\n```\n", 5, "row 2 has 1 number, row 1 has 2"),
    "NaN": ("Q = [[1.0, 2.0],\n     [nan, 3.0]]\n", 2, "NaN"),
    "ragged array": ("\nR = [[1, 2], [3]]\n", 2, "row 2 has 1 number"),
    "open LaTeX": ("\n\n$$ \\begin{bmatrix} 1 & 2 \\\\ 3 $$\n", 3, "never closed"),
    "ragged LaTeX": ("$\\begin{bmatrix} 1 & 2 \\\\ 3 \\end{bmatrix}$\n", 1, "row 2 has 1 number"),
    "words": ('S = [[1, 2],\n [3, "a"]]\n', 2, "must hold numbers only"),
    "open array": ("[[1.0, 2.0], [3.0, 4.0]\n\nnext\n", 1, "never closed"),
    "no fit": ("```\n1 2\n3 4\n\nx\n\n1 2 3\n\n=\n\n1 2\n3 4\n```\n", 2, "do not combine"),
    "size": ("```\n# Q (3 x 2)\n1.0 2.0\n3.5 4.0\n```\n", 3, "its caption says 3 x 2"),
    "too wide": ("```\n" + "1.0 " * 600 + "\n```\n", 2, "a row of 600 numbers"),
}


@pytest.mark.parametrize(("text", "line", "sentence"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_matrix_is_one_sentence_with_its_line(text, line, sentence):
    report = ch.check(text)
    (problem,) = report.malformed
    assert problem.line == line
    assert sentence in problem.sentence and "\n" not in problem.sentence
    assert report.exit_code == 2


def test_what_cannot_be_interpreted_is_said_and_nothing_is_guessed():
    rng = np.random.default_rng(2)
    report = ch.check(
        fenced("Q", Q, 1) + fenced("K", K, 1) + fenced("scores", rng.uniform(0, 3, (3, 3)))
    )
    assert report.findings == ()
    assert "could not interpret scores" in report.unread[0].sentence


def test_random_matrices_are_hardly_ever_taken_for_formulas_of_each_other():
    rng = np.random.default_rng(3)
    taken = 0
    for _ in range(20):
        matrices = np.round(rng.uniform(0, 2, (3, 3, 3)), 1)
        text = "".join(fenced(name, a, 1) for name, a in zip("ABC", matrices, strict=True))
        taken += len(ch.check(text).claims)
    assert taken == 0


@pytest.mark.parametrize(
    ("data", "sentence"),
    [(b"a\nb\xff\n", "line 2 is not UTF-8"), (b"\n\n\x00", "line 3 holds a zero byte")],
)
def test_binary_files_are_refused_with_the_line(tmp_path, capsys, data, sentence):
    file = tmp_path / "a.md"
    file.write_bytes(data)
    assert main(["check", str(file)]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


def test_a_missing_file_a_folder_and_an_overlong_file_are_one_sentence(tmp_path, capsys):
    (tmp_path / "big.md").write_bytes(b"")
    os.truncate(tmp_path / "big.md", 65 << 20)  # sparse
    for name, sentence in (("no.md", "No such file"), (".", "directory"), ("big.md", "65 MiB")):
        assert main(["check", str(tmp_path / name)]) == 2
        err = capsys.readouterr().err
        assert sentence in err and err.count("\n") == 1


def test_check_wants_text():
    with pytest.raises(TypeError, match=r"^text: bytes, must be str"):
        ch.check(b"1 = 1")


HOSTILE = {
    "open brackets": "[[" * 20_000,
    "open brackets with numbers": "[[1, " * 20_000,
    "open environments": "\\begin{bmatrix} 1 & 2 \n" * 5_000,
    "parentheses": "(" * 19_000 + " = 1\n" + "1+(" * 6_000 + "1 = 2\n",
    "equals signs": "=" * 19_000 + "\n" + "1=" * 9_000 + "\n" + "1 2 = " * 3_000,
    "minus signs": "-" * 19_000 + "1 = 3\n",
    "pipes": "|" * 19_000 + "\n|---|---|\n" + "| 1 | 2 |\n" * 1_000,
    "fences": "```\n" * 20_000,
    "rows": "```\n" + "1.0 2.0 3.0\n" * 50_000 + "```\n",
    "one line": "1.0 " * 500_000,
    "digits": "1" * 19_000 + " = 2\n" + "1,1" * 6_000 + " = 3\n",
    "styles": "\\mathbf{" * 20_000,
    "spaces": " " * 19_000 + "\n```" + " " * 10_000 + "\nx" + " " * 10_000 + "=\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_takes_linear_time_and_never_raises(text):
    began = time.process_time()
    report = ch.check(text)
    assert time.process_time() - began < 5
    assert report.exit_code in (0, 1, 2)


def test_random_text_in_the_alphabet_of_matrices_never_raises():
    rng = np.random.default_rng(11)
    alphabet = np.array(list("0123456789.[]()|=x×-+ \n`#&\\{}$,einfa√^T"))
    for _ in range(40):
        str(ch.check("".join(rng.choice(alphabet, 3_000))))


def test_an_interval_holds_every_value_of_its_operands():
    rng = np.random.default_rng(7)
    a = Matrix([[read_number(f"{x:.1f}", 1, 0) for x in row] for row in Q], 1)
    b = Matrix([[read_number(f"{x:.1f}", 1, 0) for x in row] for row in K], 1)
    product = Node("*", (Node("matrix", matrix=a), Node("T", (Node("matrix", matrix=b),))))
    formula = Node("softmax", (product,))

    def ends(node):
        values, half = node.matrix.values, node.matrix.operand_halves
        return np.stack([values - half, values + half])

    low, high = evaluate(formula, Intervals(), ends)
    widest = np.zeros_like(low)
    for _ in range(300):
        drawn = {id(m): m.values + m.operand_halves * rng.choice([-1, 1], m.shape) for m in (a, b)}
        value = evaluate(formula, Points(), lambda node, d=drawn: d[id(node.matrix)])
        assert (value >= low - 1e-12).all() and (value <= high + 1e-12).all()
        widest = np.maximum(widest, np.abs(value - softmax(Q @ K.T)))
    assert (widest > 0.2 * (high - low)).all()  # not so wide that it says nothing


def test_a_caption_is_the_last_sentence_before_a_block():
    scores = np.round(Q @ K.T, 2)
    text = (
        fenced("scores", scores)
        + f"As above. Scaled (scores / √2):\n\n```\n{rows(scores / 2**0.5)}\n```\n"
    )
    report = ch.check(text)
    assert [(c.name, c.formula) for c in report.claims] == [("Scaled", "scores / sqrt(2)")]
    assert report.findings == ()


GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden" / "articles.json"


@pytest.mark.skipif(
    not GOLDEN.is_file(),
    reason="the articles' numbers (shared/golden/articles.json) are not beside this checkout",
)
def test_the_articles_own_example_and_its_known_misprint():
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    example = {k: np.array(v) for k, v in golden["worked_example"].items() if k != "note"}
    for misprint in (False, True):
        scores = example["scores_right"].copy()
        if misprint:
            scores[1, 0] = 1.78
        report = ch.check(
            f"```\n# Q (4 tokens x 2 dims)\n{rows(example['Q'], 1)}\nx\n# K^T (2 dims x 4 tokens)\n"
            f"{rows(example['K_transposed'], 1)}\n=\n# Scores\n{rows(scores)}\n```\n"
        )
        assert [c.right for c in report.claims] == [16 - misprint]
        assert cells(report, "wrong") == ([("Scores", 2, 1)] if misprint else [])
        assert [f.should_be for f in report.findings] == (["0.78"] if misprint else [])
    single = golden["single_head_numpy"]
    text = "".join(f"{name}:\n{numpy_text(np.array(single[name]))}\n\n" for name in "QKV")
    text += f"Attention weights:\n{numpy_text(np.array(single['A']))}\n\n"
    text += f"Output:\n{numpy_text(np.array(single['Y']))}\n"
    report = ch.check(text)
    assert report.findings == ()
    assert [c.formula for c in report.claims] == [
        "softmax(Q x K^T / sqrt(3))", "Attention weights x V",
    ]  # fmt: skip
    saturation = golden["saturation"]
    for scale in ("", "_times_8"):
        left, right = saturation[f"scores{scale}"], saturation[f"softmax{scale}"]
        assert ch.check(f"softmax({left}) = {right}").ok


def test_the_example_finds_its_own_misprint(capsys):
    source = Path(__file__).parents[1] / "examples" / "check_article.py"
    names = {"__name__": "example"}
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), names)
    assert names["main"](["--tokens", "5", "--size", "3"]) == 0
    out = capsys.readouterr().out
    assert "scores, row 2, column 1: printed" in out
    assert "corrected.md: 90 cells" in out and "checked: 0 wrong, 0 inherited" in out


@pytest.mark.parametrize("seed", range(6))
def test_right_articles_of_any_size_and_precision_pass_and_a_gross_misprint_never_does(seed):
    rng = np.random.default_rng(seed)
    tokens, size = rng.integers(2, 6), rng.integers(2, 5)
    digits = rng.integers(2, 5, 4).tolist()
    by_hand = bool(rng.integers(2))  # each step from the printed digits of the one before
    q, k, v = rng.normal(size=(3, tokens, size)).round(int(rng.integers(1, 3)))

    def kept(a, step):
        return np.round(a, digits[step]) if by_hand else a

    steps = [kept(q @ k.T, 0)]
    steps.append(kept(steps[0] / size**0.5, 1))
    steps.append(kept(softmax(steps[1]), 2))
    steps.append(kept(steps[2] @ v, 3))
    captions = ["Scores", "Scaled scores", "Attention weights", "Output"]

    def text(steps):
        parts = [fenced("Q", q, 2), fenced("K", k, 2), fenced("V", v, 2)]
        parts += [fenced(c, a, d) for c, a, d in zip(captions, steps, digits, strict=True)]
        return "".join(parts)

    report = ch.check(text(steps))
    assert report.findings == () and len(report.claims) == 4
    which = int(rng.integers(4))
    row, column = int(rng.integers(tokens)), int(rng.integers(steps[which].shape[1]))
    steps[which] = steps[which].copy()
    steps[which][row, column] += 1.0
    report = ch.check(text(steps))
    assert (captions[which], row + 1, column + 1) in cells(report, "wrong")


REPEATED = """
```
# Q (2 x 2)
1.0 0.5
0.2 1.4
```

```
# K (2 x 2)
1.1 0.4
0.3 1.2
```

```
# Scores = Q x K^T
1.30 0.90
1.78 1.74
```

Scaled, $\\frac{1.78}{\\sqrt{2}} = 1.26$, and then $e^{1.26} = 3.53$, but 1.30 / sqrt(2) = 0.92.
Of all: 1.26 + 1.23 = 2.49, so softmax([1.26, 1.23]) = [0.507, 0.493].
"""


def test_an_equation_that_uses_a_wrong_number_inherits_it_to_the_end():
    report = ch.check(REPEATED, name="a.md")
    (score,) = [f for f in report.findings if f.kind == "wrong"]
    assert (score.printed, score.should_be, score.line) == ("1.78", "0.78", 17)
    heirs = [f for f in report.findings if f.kind == "inherited"]
    assert [(f.line, f.printed, f.should_be) for f in heirs] == [
        (20, "1.78", "0.78"), (20, "1.26", "0.55"), (20, "1.26", "0.55"), (20, "3.53", "1.73"),
        (21, "1.26", "0.55"), (21, "2.49", "1.78"), (21, "1.26", "0.55"), (21, "0.507", "0.336"),
        (21, "0.493", "0.664"),
    ]  # fmt: skip
    assert {f.because for f in heirs} == {"inherited from Scores, row 2, column 1, line 17"}
    assert ch.check(report.corrected(REPEATED)).findings == ()


def test_a_number_that_is_also_right_somewhere_is_not_taken_for_the_wrong_one():
    also = REPEATED.replace("0.5\n0.2 1.4", "0.5\n0.2 1.4\n```\n\n```\n# V (1 x 2)\n1.78 1.00")
    assert [f.kind for f in ch.check(also).findings] == ["wrong"]
    before = REPEATED.replace("\n```\n# Q", "Elsewhere 1.78 / sqrt(2) = 1.26.\n\n```\n# Q", 1)
    assert 1 not in {f.line for f in ch.check(before).findings}


def test_a_result_that_is_right_for_the_right_number_stays_and_its_operand_is_mended():
    text = REPEATED.split("Scaled,")[0] + "Scaled, 1.78 / sqrt(2) = 0.55, or 1.78 / sqrt(2) = 0.99."
    found = ch.check(text).findings[1:]
    assert [(f.kind, f.printed, f.should_be) for f in found] == [
        ("inherited", "1.78", "0.78"), ("inherited", "1.78", "0.78"), ("wrong", "0.99", "0.55"),
    ]  # fmt: skip


def test_a_repeated_number_keeps_its_sign():
    text = "0.2(1.1) - 1.4(0.4) = -1.34, so (-1.34) / 2 = -0.67 and 2 - 1.34 = 0.66."
    report = ch.check(text)
    assert report.corrected(text) == (
        "0.2(1.1) - 1.4(0.4) = -0.34, so (-0.34) / 2 = -0.17 and 2 - 0.34 = 1.66."
    )
    flipped = "0.5(0.4) - 0.1 = -1.34, so 2 - 1.34 = 0.66."
    assert ch.check(flipped).corrected(flipped) == "0.5(0.4) - 0.1 = 0.10, so 2 - (-0.10) = 2.10."


@pytest.mark.parametrize(
    "caption", [r"Divided by $\sqrt{4} = 2$:", r"Row\1_sum \g<0>_x:", r"a\_b\:"]
)
def test_a_caption_may_hold_backslashes(caption):
    table = "| a | b |\n|---|---|\n| 0.50 | 0.25 |\n| 0.75 | 1.25 |\n"
    report = ch.check(f"Scores:\n\n{table}\n{caption}\n\n{table}\n# {caption} softmax\n\n{table}")
    assert report.findings == () and "$" not in "".join(claim.name for claim in report.claims)


NOT_A_NUMBER = {
    "a NaN": ("# Q\n1.0 nan\n3.0 4.0", 3, "NaN in a matrix; it has no value"),
    "a NaN below, with labels": ("# Q\nthe 1.0 2.0\ncat 3.0 -NaN", 4, "NaN in a matrix"),
    "a word": ("# Q\n1.0 two\n3.0 4.0", 3, "'two' stands where the row beside it has a number"),
    "a letter for a digit": ("# Q\n1.0 2.0\n3.0 4.O\n5.0 6.0", 4, "'4.O' stands where"),
}


@pytest.mark.parametrize(("block", "line", "sentence"), NOT_A_NUMBER.values(), ids=NOT_A_NUMBER)
def test_what_is_no_number_in_a_row_of_numbers_is_said(block, line, sentence):
    report = ch.check(f"Text:\n```\n{block}\n```\n".replace("Text:\n", ""))
    assert [p.line for p in report.malformed] == [line]
    assert report.malformed[0].sentence.startswith(sentence)
    assert report.given == () and report.exit_code == 2


def test_a_stated_product_that_does_not_fit_is_said():
    blocks = ("# Q\n1 2\n3 4", "# K\n1 2 3\n4 5 6\n7 8 9", "# Scores = Q x K\n1 2\n3 4")
    report = ch.check("".join(f"```\n{block}\n```\n" for block in blocks))
    assert [p.line for p in report.malformed] == [14] and report.claims == ()
    assert "matrices of 2 x 2 and 3 x 3 do not combine" in report.malformed[0].sentence


def test_reading_ends_where_nothing_more_is_checked():
    piece = "It is 1.0(1.1) + 0.5(0.4) = 1.30.\n\n```\n# Q\n1.0 2.0\n3.0 4.0\n```\n\n"
    began = time.perf_counter()
    report = ch.check(piece * 5_000)
    once = time.perf_counter() - began
    began = time.perf_counter()
    assert ch.check(piece * 50_000).claims == report.claims
    assert time.perf_counter() - began < 3 * once + 2
