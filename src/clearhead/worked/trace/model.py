"""A trace of what a model's head does in a text, from the input of its layer to what it adds."""

import os
from typing import NamedTuple

import numpy as np

from .given import Array, Projections, names

_ONE_HEAD = "W_Q, W_K and W_V are this head's columns of the layer's, W_O is its rows."
_EXACT = "Worked out in float64 from the model's weights; its own run differs by float32 rounding."


class Start(NamedTuple):
    """X and its projections, the output projection, labels, a title, notes, reasons of its own."""

    projections: Projections
    W_O: Array
    b_O: Array | None
    labels: tuple[str, ...]
    title: str
    notes: tuple[str, ...]
    whys: dict[str, str]


def of_model(
    text: str, model: str | os.PathLike[str] | None, layer: int, head: int | None
) -> Start:
    """One head of a layer of a model, or with None all of them.

    With C = H * D channels, the head has its D columns of W_Q, W_K and W_V and its D rows of W_O:
    concatenation x W_O is the sum over the heads of weighted sum x rows of W_O.
    """
    from ...models.inside import inside

    found = inside(text, model, layer)
    H = found.num_heads
    if head is not None and not 0 <= head < H:
        raise ValueError(f"head: is {head}, the model has {H}, counted from 0")
    size = found.X.shape[1] // H
    mine = slice(None) if head is None else slice(head * size, (head + 1) * size)
    wide = {
        name: (weight.astype(np.float64), bias.astype(np.float64))
        for name, (weight, bias) in found.weights.items()
    }
    W = {name: wide[name.lower()][0][:, mine] for name in "QKV"}
    b = {name: wide[name.lower()][1][mine] for name in "QKV"}
    W_O, b_O = wide["out"]
    labels = names([t.text or t.raw for t in found.tokens], len(found.tokens), "X")
    which = f"all {H} heads" if head is None else f"head {head}"
    return Start(
        Projections(found.X.astype(np.float64), W, b, H if head is None else 1),
        W_O[mine],
        b_O if head is None else None,
        labels,
        f"{found.model}, layer {layer}, {which}, {len(labels)} tokens",
        (_ONE_HEAD, _EXACT) if head is not None else (_EXACT,),
        _whys(layer, one=head is not None),
    )


def _whys(layer: int, one: bool) -> dict[str, str]:
    """What is to be said of a model's layer beside, or instead of, what is said of any."""
    before = (
        "One embedding per token, of what it is and where it stands."
        if layer == 0
        else f"What layer {layer - 1} made of each token: what enters layer {layer}."
    )
    if not one:
        return {"X": before}
    return {
        "X": before,
        "W_O": "Learned; of the layer's W_O the rows that read this head.",
        "output": "What this head adds to X; the other heads and b_O add theirs.",
    }
