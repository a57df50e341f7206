"""The steps of attention, one after another, each with its numbers.

Weights, outputs and lse are those of clearhead.reference. What the reference has no name for, the
numbers on the way there, is plain NumPy here, and a test holds the two together.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import reference
from .given import Array, Heads, Projections

Operands = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a trace.

    name      what it is called: "scores"
    formula   what it does, over the names of earlier steps: "queries x keys^T"
    why       one line on why it is there
    array     its numbers, (heads, rows, columns); one where there are no heads yet, or any more
    rows      a label for each row
    columns   a label for each column
    kind      how a cell is worked out (trace_cell)
    operands  the steps a cell is made of, each with the part that it takes: "row" its own row,
              "row j" the row of its column's number, "column", "cell", "first" (a column of one),
              "only" (a single row), "head", "heads"
    constants numbers that are no step: scale, softcap, the size D, sinks
    """

    name: str
    formula: str
    why: str
    array: Array
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    kind: str = "given"
    operands: Operands = ()
    constants: dict[str, float] = field(default_factory=dict)
    extra: NDArray[np.float64] | None = None  # the sink of each head, or what is visible

    @property
    def numbers(self) -> Array:
        """The numbers: (rows, columns), or (heads, rows, columns) for several heads."""
        return self.array[0] if len(self.array) == 1 else self.array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `numbers`."""
        return self.numbers.shape


@dataclass(frozen=True, slots=True)
class Options:
    """What may change the scores, checked and spread to (H, T, S)."""

    visible: NDArray[np.bool_] | None = None
    bias: Array | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: Array | None = None  # (H,)


def _dims(count: int) -> tuple[str, ...]:
    return tuple(str(i + 1) for i in range(count))


def given(name: str, array: Array, rows: tuple[str, ...], why: str) -> Step:
    """A matrix that the trace starts from."""
    stacked = array if array.ndim == 3 else array[None]
    return Step(name, "given", why, stacked, rows, _dims(stacked.shape[2]))


def projections(p: Projections, tokens: tuple[str, ...]) -> tuple[list[Step], Heads]:
    """Embeddings, weights, and the queries, keys and values of each head."""
    steps = [
        given("X", p.X, tokens, "One embedding per token: a word before it met its neighbours.")
    ]
    made = {}
    words = {
        "Q": ("queries", "What each token looks for."),
        "K": ("keys", "What each token offers to be found by."),
        "V": ("values", "What each token hands over to those that read it."),
    }
    for letter, (name, why) in words.items():
        w = p.W[letter]
        steps.append(
            given(f"W_{letter}", w, _dims(w.shape[0]), f"Learned; it turns X into {name}.")
        )
        formula = f"X x W_{letter}"
        operands: Operands = (("X", "row"), (f"W_{letter}", "column"))
        array = p.X @ w
        if letter in p.b:
            bias = p.b[letter]
            steps.append(given(f"b_{letter}", bias[None], ("b",), f"Learned; added to all {name}."))
            formula, operands = f"{formula} + b_{letter}", (*operands, (f"b_{letter}", "only"))
            array = array + bias
        steps.append(
            Step(name, formula, why, array[None], tokens, _dims(w.shape[1]), "product", operands)
        )
        made[letter] = array
    q, k, v = (_split(made[letter], p.heads) for letter in "QKV")
    if p.heads > 1:
        for name, split in (("queries", q), ("keys", k), ("values", v)):
            steps.append(
                Step(
                    f"{name} by head",
                    f"{name}, {split.shape[2]} columns to each head",
                    f"Each head reads its own columns of the {name} and nothing else.",
                    split,
                    tokens,
                    _dims(split.shape[2]),
                    "split",
                    ((name, "head"),),
                )
            )
    return steps, Heads(q, k, v, tokens, tokens)


def _split(array: Array, heads: int) -> Array:
    """(T, H * D) -> (H, T, D)."""
    return array.reshape(len(array), heads, -1).transpose(1, 0, 2)


def given_heads(h: Heads) -> list[Step]:
    """Queries, keys and values, when they are where the trace starts."""
    return [
        given("queries", h.q, h.queries, "What each token looks for."),
        given("keys", h.k, h.keys, "What each token offers to be found by."),
        given("values", h.v, h.keys, "What each token hands over to its readers."),
    ]


def dot_scores(h: Heads, names: tuple[str, str]) -> list[Step]:
    """One dot product for each query and key."""
    array = h.q @ _for_each_query_head(h.k, len(h.q)).mT
    return [
        Step(
            "scores",
            f"{names[0]} x {names[1]}^T",
            "How alike each query and each key are: one dot product for every pair.",
            array,
            h.queries,
            h.keys,
            "product",
            ((names[0], "row"), (names[1], "row j")),
        )
    ]


def additive_scores(
    h: Heads, W_1: Array, W_2: Array, v_a: Array, names: tuple[str, str]
) -> list[Step]:
    """Scores by a small network of one hidden layer (Bahdanau et al. 2015, section A.1.2)."""
    left, right = h.q @ W_1.T, h.k @ W_2.T
    inner = left[:, :, None] + _for_each_query_head(right, len(h.q))[:, None]
    size = _dims(len(v_a))
    why = "The network's first layer, the part that sees the"
    return [
        given("W_1", W_1, size, "Learned; what the network takes from a query."),
        given("W_2", W_2, size, "Learned; what the network takes from a key."),
        given("v_a", v_a[None], ("v_a",), "Learned; what the network makes of its hidden layer."),
        Step("from queries", f"{names[0]} x W_1^T", f"{why} query.", left, h.queries, size,
             "product", ((names[0], "row"), ("W_1", "row j"))),
        Step("from keys", f"{names[1]} x W_2^T", f"{why} key.", right, h.keys, size,
             "product", ((names[1], "row"), ("W_2", "row j"))),
        Step("scores", "v_a . tanh(from queries + from keys)",
             "How well a key answers a query, by a network instead of a dot product.",
             np.tanh(inner) @ v_a, h.queries, h.keys, "additive",
             (("from queries", "row"), ("from keys", "row j"), ("v_a", "row 1"))),
    ]  # fmt: skip


def _for_each_query_head(array: Array, heads: int) -> Array:
    """(G, S, D) -> (H, S, D): query head h reads group h // (H // G)."""
    return np.repeat(array, heads // len(array), axis=0)


def changed_scores(scores: Step, size: int | None, o: Options) -> list[Step]:
    """Scaling, soft-cap, bias and mask, each if there is one. `size` None: no default scale."""
    steps: list[Step] = []

    def then(
        name: str, formula: str, why: str, array: Array, kind: str, **constants: float
    ) -> None:
        last = steps[-1] if steps else scores
        steps.append(
            Step(name, formula, why, array, scores.rows, scores.columns, kind,
                 ((last.name, "cell"),), constants)
        )  # fmt: skip

    s = scores.array
    if o.scale is None and size is not None:
        s = s / np.sqrt(size)
        then("scaled", f"scores / sqrt({size})",
             "A sum of D products grows like sqrt(D); divided by it, softmax stays in its range.",
             s, "root", size=float(size))  # fmt: skip
    elif o.scale is not None:
        s = s * o.scale
        then("scaled", f"scores x {o.scale:g}", "The scale that was asked for.", s, "scale",
             scale=o.scale)  # fmt: skip
    if o.softcap is not None:
        last = (steps[-1] if steps else scores).name
        s = o.softcap * np.tanh(s / o.softcap)
        then("capped", f"{o.softcap:g} x tanh({last} / {o.softcap:g})",
             "No score can leave the cap, yet small ones hardly change.", s, "cap",
             softcap=o.softcap)  # fmt: skip
    if o.bias is not None:
        last = (steps[-1] if steps else scores).name
        steps.append(Step("bias", "given", "Added to the scores, for example by distance.", o.bias,
                          scores.rows, scores.columns))  # fmt: skip
        s = s + o.bias
        steps.append(
            Step("biased", f"{last} + bias", "What is known of a pair besides its likeness.", s,
                 scores.rows, scores.columns, "sum", ((last, "cell"), ("bias", "cell")))
        )  # fmt: skip
    if o.visible is not None:
        last = (steps[-1] if steps else scores).name
        s = np.where(o.visible, s, -np.inf)
        then("masked", f"{last} where the query may attend, else -inf",
             "e^-inf is 0: a hidden key gets no weight, and the others share all of it.", s,
             "mask")  # fmt: skip
    return steps


def for_reference(
    last: Step, h: Heads, o: Options, size: int | None
) -> tuple[tuple[Array, Array], dict[str, Any]]:
    """The arguments with which the reference computes the same; additive scores go in as a bias."""
    if size is None:
        s = last.array
        zeros = np.zeros((*s.shape[:2], 1)), np.zeros((len(s), s.shape[2], 1))
        return zeros, {"bias": s, "sink": o.sink}
    options = dict(mask=o.visible, bias=o.bias, scale=o.scale, softcap=o.softcap, sink=o.sink)
    return (h.q, h.k), options


def softmax_steps(last: Step, h: Heads, o: Options, size: int | None) -> list[Step]:
    """Row maximum, exponentials, sums and weights; the weights are the reference's."""
    s, sink = last.array, o.sink
    top = s.max(-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink[:, None, None])
    safe = np.where(np.isneginf(top), 0.0, top)  # a row that sees nothing: its exponentials are 0
    e = np.exp(s - safe)
    sums = e.sum(-1, keepdims=True)
    also = ""
    if sink is not None:
        sums = sums + np.exp(sink[:, None, None] - safe)
        also = " + e^(sink - maximum)"
    arguments, options = for_reference(last, h, o, size)
    weights = reference.weights(*arguments, **options)
    name, rows, keys = last.name, last.rows, last.columns
    return [
        Step("maximum", f"max_j({name})" if sink is None else f"max(max_j({name}), sink)",
             "Taken off before e^x, so that nothing overflows; it cancels in the weights.", top,
             rows, ("max",), "maximum", ((name, "row"),), extra=sink),
        Step("exponentials", f"exp({name} - maximum)",
             "All positive, and a step up in score is a factor in weight.", e, rows, keys, "exp",
             ((name, "cell"), ("maximum", "first"))),
        Step("sums", f"sum_j(exponentials){also}", "What each row is divided by, to sum to 1.",
             sums, rows, ("sum",), "total", (("exponentials", "row"),), extra=sink),
        Step("weights", "exponentials / sums", "How much each query reads each key.", weights, rows,
             keys, "quotient", (("exponentials", "cell"), ("sums", "first"))),
    ]  # fmt: skip


def outputs(
    out: Array, h: Heads, values: str, join: bool, W_O: Array | None, b_O: Array | None
) -> list[Step]:
    """Weighted sum, concatenation of the heads, and the output projection, as far as there are."""
    columns = _dims(out.shape[2])
    steps = [
        Step("weighted sum", f"weights x {values}",
             "Each token's new vector: the values, mixed by what it read.", out, h.queries, columns,
             "product", (("weights", "row"), (values, "column")))
    ]  # fmt: skip
    last = steps[0]
    if len(out) > 1 and (join or W_O is not None):
        joined = out.transpose(1, 0, 2).reshape(1, out.shape[1], -1)
        last = Step("concatenation", "the heads' weighted sums, side by side",
                    "What the heads found, kept apart until W_O mixes it.", joined, h.queries,
                    _dims(joined.shape[2]), "join", (("weighted sum", "heads"),))  # fmt: skip
        steps.append(last)
    if W_O is not None:
        steps.append(given("W_O", W_O, _dims(len(W_O)), "Learned; it mixes what the heads found."))
        operands: Operands = ((last.name, "row"), ("W_O", "column"))
        formula, array = f"{last.name} x W_O", last.array @ W_O
        if b_O is not None:
            steps.append(given("b_O", b_O[None], ("b",), "Learned; added to every output."))
            operands, formula, array = (*operands, ("b_O", "only")), formula + " + b_O", array + b_O
        steps.append(Step("output", formula, "Back to the size of X, ready to be added to it.",
                          array, h.queries, _dims(W_O.shape[1]), "product", operands))  # fmt: skip
    return steps
