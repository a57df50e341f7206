"""`trace`: attention worked by hand, every step with its numbers."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ... import reference
from . import given
from .cell import Place, Writer, places_of
from .given import Array, Heads
from .steps import (
    Options,
    Step,
    additive_scores,
    changed_scores,
    dot_scores,
    for_reference,
    given_heads,
    outputs,
    projections,
    softmax_steps,
)

Highlight = tuple[str, int, int] | tuple[str, int, int, int]


@dataclass(frozen=True, eq=False)
class Trace:
    """Attention worked out: `steps` in order. `print` it; index it by a step's name.

    steps      each a `Step`: name, formula, why, numbers, shape
    title      one line on where it starts
    notes      what a reader must know, such as which columns of a model's weights are shown
    digits     digits after the point wherever the trace is shown
    highlight  (step, row, column) or (step, row, column, head): shown in brackets, with the rows
               and columns that made it; None: nothing

    >>> t = ch.trace([[1.0, 0.5]], [[1.1, 0.4], [0.3, 1.2]], [[2.0], [4.0]])
    >>> t.cell("scores", 0, 0)
    'q1 . k1 = 1.0 x 1.1 + 0.5 x 0.4 = 1.30'
    >>> t["weights"].numbers.round(2)
    array([[0.57, 0.43]])
    """

    steps: tuple[Step, ...]
    title: str
    notes: tuple[str, ...] = ()
    digits: int = 2
    highlight: Highlight | None = None

    def __getitem__(self, name: str) -> Step:
        for step in self.steps:
            if step.name == name:
                return step
        known = ", ".join(step.name for step in self.steps)
        raise KeyError(f"step: {name!r} is not in this trace, whose steps are {known}")

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __repr__(self) -> str:
        return f"Trace({self.title!r}, {len(self.steps)} steps)"

    def __str__(self) -> str:
        from .text import text

        return text(self)

    @property
    def out(self) -> Array:
        """The numbers of the last step."""
        return self.steps[-1].numbers

    def cell(self, step: str, row: int, column: int, *, head: int = 0) -> str:
        """The arithmetic of one cell, on one line; rows, columns and heads count from 0.

        Numbers are shown rounded and used unrounded; the line says so where it matters.
        Raises  ValueError for a step, row, column or head that is not there.
        """
        found = self._step(step, row, column, head)
        return Writer(self._by_name, self.digits).write(found, row, column, head)

    def made_of(self, step: str, row: int, column: int, *, head: int = 0) -> list[Place]:
        """The cells that made one: (step, head, rows, columns), None for all rows or columns."""
        return places_of(self._by_name, self._step(step, row, column, head), row, column, head)

    def to_markdown(self) -> str:
        """The trace as Markdown; `clearhead check` finds all of its claims."""
        from .text import markdown

        return markdown(self)

    def to_latex(self, *, standalone: bool = False) -> str:
        """The trace as LaTeX for `amsmath`; `standalone` adds what makes it a document."""
        from .latex import latex

        return latex(self, standalone)

    def to_html(self) -> str:
        """The trace as one HTML page without anything from elsewhere: point at a cell to see what
        made it."""
        from .html import html

        return html(self)

    @property
    def _by_name(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}

    def _step(self, name: str, row: int, column: int, head: int) -> Step:
        """The step of that name, which has that cell."""
        try:
            step = self[name]
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        for what, at, count in zip(
            ("head", "row", "column"), (head, row, column), step.array.shape, strict=True
        ):
            if not 0 <= at < count:
                raise ValueError(f"{what}: is {at}, {name} has {count}, counted from 0")
        return step


def trace(
    q: Any = None,
    k: Any = None,
    v: Any = None,
    *,
    X: Any = None,
    W_Q: Any = None,
    W_K: Any = None,
    W_V: Any = None,
    W_O: Any = None,
    b_Q: Any = None,
    b_K: Any = None,
    b_V: Any = None,
    b_O: Any = None,
    heads: int | None = None,
    text: str | None = None,
    model: str | os.PathLike[str] | None = None,
    layer: int = 0,
    head: int | None = 0,
    mask: Any = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Any = None,
    score: str = "dot",
    W_1: Any = None,
    W_2: Any = None,
    v_a: Any = None,
    tokens: Any = None,
    digits: int = 2,
    highlight: Highlight | None = None,
) -> Trace:
    """Attention worked by hand: each step with its formula, its numbers and why it is there.

    Starts from one of
    q, k, v          (T, D), (S, D), (S, E); or with a leading axis of heads, H of q, G of k and v
    X, W_Q, W_K, W_V (T, C), (C, heads * D) twice, (C, heads * E); b_Q, b_K, b_V to add
    text             what one `head`, or with None all heads, of a `layer` of `model` (see `read`)
                     did in it, from what entered the layer to what its attention adds

    W_O, b_O  (heads * E, C), (C,)   the output projection
    mask      Mask, or bool that broadcasts to (H, T, S); True: may attend
    bias, scale, softcap, sink       as in `attention`
    score     "dot", or "additive": v_a . tanh(W_1 q + W_2 k), with W_1 (A, D), W_2 (A, D), v_a (A,)
    tokens    names of the rows; digits: after the point; highlight: (step, row, column) in brackets

    Returns a `Trace`, in float64; its weights and weighted sums are `clearhead.reference`'s.
    A query that sees no key gets weights and output 0.
    Raises  ValueError, TypeError: the argument, what it is, what it must be.
    Source  Vaswani et al. 2017, eq. 1; additive scores: Bahdanau, Cho and Bengio 2015.
    """
    _check_start(q=q, X=X, text=text)
    if isinstance(digits, bool) or not isinstance(digits, int) or not 0 < digits <= 12:
        raise ValueError(f"digits: is {digits!r}, must be a whole number from 1 to 12")
    steps: list[Step] = []
    notes: tuple[str, ...] = ()
    whys: dict[str, str] = {}
    if text is not None:
        from .model import of_model

        if W_O is not None or b_O is not None:
            raise ValueError("W_O, b_O: are given with text, whose model has its own")
        p, W_O, b_O, labels, title, notes, whys = of_model(text, model, layer, head)
        steps, h = projections(p, labels)
    elif X is not None:
        p = given.projections_of(
            X, {"Q": W_Q, "K": W_K, "V": W_V}, {"Q": b_Q, "K": b_K, "V": b_V}, heads
        )
        steps, h = projections(p, given.names(tokens, len(p.X), "x"))
        title = f"Attention from X, {_plural(len(p.X), 'token')}, {_plural(p.heads, 'head')}"
    else:
        h = given.heads_of(q, k, v, tokens)
        title = f"Attention from q, k and v, {_plural(len(h.q), 'head')}"
    steps = steps or given_heads(h)
    wide = any(step.name == "queries by head" for step in steps)
    named = [f"{name} by head" if wide else name for name in ("queries", "keys", "values")]
    options = _options(h, mask, bias, scale, softcap, sink)
    size: int | None = h.q.shape[2]
    if score == "additive":
        layers = _network(h, W_1, W_2, v_a)
        made, size = additive_scores(h, *layers, (named[0], named[1])), None
    elif score == "dot":
        made = dot_scores(h, (named[0], named[1]))
    else:
        raise ValueError(f"score: is {score!r}, must be 'dot' or 'additive'")
    steps += made
    steps += changed_scores(made[-1], size, options)
    last = steps[-1]
    steps += softmax_steps(last, h, options, size)
    arguments, keywords = for_reference(last, h, options, size)
    out = reference.forward(*arguments, h.v, **keywords)[0]
    steps += outputs(out, h, named[2], q is None, *_output_projection(out, W_O, b_O))
    steps = [replace(step, why=whys.get(step.name, step.why)) for step in steps]
    made_trace = Trace(tuple(steps), title, notes, digits, highlight)
    if highlight is not None:
        made_trace.made_of(*highlight[:3], head=highlight[3] if len(highlight) > 3 else 0)
    return made_trace


def _check_start(**starts: Any) -> None:
    found = [name for name, value in starts.items() if value is not None]
    if len(found) != 1:
        what = " and ".join(found) if found else "nothing"
        raise ValueError(f"trace: is given {what}, must start from one of q, k, v; X; text")


def _options(h: Heads, mask: Any, bias: Any, scale: Any, softcap: Any, sink: Any) -> Options:
    H, T, S = len(h.q), h.q.shape[1], h.k.shape[1]
    return Options(
        given.visible(mask, H, T, S),
        given.additive(bias, (H, T, S)),
        None if scale is None else given.number("scale", scale),
        None if softcap is None else given.number("softcap", softcap, positive=True),
        given.sinks(sink, H),
    )


def _network(h: Heads, W_1: Any, W_2: Any, v_a: Any) -> tuple[Array, Array, Array]:
    for name, value in (("W_1", W_1), ("W_2", W_2), ("v_a", v_a)):
        if value is None:
            raise ValueError(f"{name}: is missing; additive scores need W_1, W_2 and v_a")
    first, second = given.matrix("W_1", W_1), given.matrix("W_2", W_2)
    for name, array, size in (("W_1", first, h.q.shape[2]), ("W_2", second, h.k.shape[2])):
        if array.shape[1] != size:
            raise ValueError(f"{name}: has {array.shape[1]} columns, must have D = {size}")
    if len(first) != len(second):
        raise ValueError(f"W_2: has {len(second)} rows, must have W_1's {len(first)}")
    return first, second, given.vector("v_a", v_a, len(first))


def _output_projection(out: Array, W_O: Any, b_O: Any) -> tuple[Array | None, Array | None]:
    """W_O and b_O, checked against the heads' outputs (H, T, E)."""
    if W_O is None:
        if b_O is not None:
            raise ValueError("b_O: is given without W_O")
        return None, None
    projection = given.matrix("W_O", W_O)
    width = out.shape[0] * out.shape[2]
    if len(projection) != width:
        raise ValueError(f"W_O: has {len(projection)} rows, must have heads * E = {width}")
    return projection, None if b_O is None else given.vector("b_O", b_O, projection.shape[1])


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
