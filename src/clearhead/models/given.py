"""Attention weights that somebody already has, as a run with all its methods."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..masks import Mask, causal
from .run import AttentionRun, LayerState, Reading
from .spelling import numbered

Array = NDArray[Any]

_NOTHING = -1e4  # a score whose weight is 0 in float32
_PATTERN = re.compile(r"blocks\.(\d+)\.attn\.hook_pattern")  # what TransformerLens calls weights


def from_weights(
    weights: Any,
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    model: str = "given",
    sink: bool = False,
) -> AttentionRun:
    """A run made of attention weights: `links`, `heads`, `group_by`, `rollout_to`, `to_html`, ...

    weights     one array (H, T, S) for each layer, as a sequence or one array (L, H, T, S); a batch
                axis of 1 is dropped. So: the `attentions` of a Hugging Face model with
                `output_attentions=True`; those of its `generate`, whose steps are stitched; or a
                TransformerLens cache, of which the entries blocks.N.attn.hook_pattern are taken.
                NumPy arrays, PyTorch tensors, or nested lists
    tokens      T texts, one for each query
    key_tokens  S texts, where the keys are others than the queries; None: they are `tokens`
    model       what to call where they are from
    sink        True: rows may sum to less than 1; the rest is what a sink took

    Returns an `AttentionRun`. Its maps hold log(weights), L * H * T * S float32, so that a weight w
    comes back to a relative 2e-7 * (1 + |log w|). A row of zeros is a query that sees nothing;
    where no query of any layer gave weight to a later key, the mask is taken to be causal.
    Raises  ValueError, TypeError: weights that are negative, not finite, or whose rows sum to
    neither 1 nor 0, to 1e-4 (in 16 bits: 0.05); shapes that do not fit the tokens.

    >>> weights = np.tril(np.ones((2, 4, 3, 3))) / np.arange(1, 4)[:, None]
    >>> ch.from_weights(weights, ["to", "be", "or"]).links("or", top=1)
    [Link(layer=0, head=0, source=2, target=0, weight=0.333...)]
    """
    if not isinstance(model, str):
        raise TypeError(f"model: is {type(model).__name__}, must be text")
    layers = [_layer(name, array) for name, array in _named(weights)]
    mine = _reading("tokens", tokens)
    keys = None if key_tokens is None else _reading("key_tokens", key_tokens)
    T, S = len(mine.tokens), len((mine if keys is None else keys).tokens)
    heads = layers[0][1].shape[0]
    for name, array, tolerance in layers:
        if array.shape != (heads, T, S):
            raise ValueError(f"{name}: shape is {array.shape}, must be (H, T, S) = {(heads, T, S)}")
        _check_rows(name, array, tolerance, sink)
    mask = _causal([array for _, array, _ in layers])
    return AttentionRun(
        model,
        mine.text,
        mine.tokens,
        mine.words,
        [_state(array, mask) for _, array, _ in layers],
        keys=keys,
        notes=["made of given weights; which computation they are of is not known"],
    )


def _state(weights: Array, mask: Mask | None) -> LayerState:
    """Weights as scores: of queries and keys that are 0, all of a score is its bias."""
    H, T, S = weights.shape
    read = weights > 0
    bias = np.full((H, T, S), _NOTHING, np.float32)  # seen, and given nothing
    np.log(weights, out=bias, where=read)
    empty = ~read.any(-1)
    bias[empty] = -np.inf  # sees nothing
    q, k = np.zeros((H, T, 1), np.float32), np.zeros((1, S, 1), np.float32)
    return LayerState(q, k, np.where(empty, -np.inf, 0.0), mask, bias, scale=1.0)


def _causal(layers: Sequence[Array]) -> Mask | None:
    """The causal mask, if no layer gave weight to what comes later; other zeros may be chance."""
    T, S = layers[0].shape[1:]
    if T == 1 or any(np.triu(head, S - T + 1).any() for layer in layers for head in layer):
        return None
    return causal()


def _named(weights: Any) -> list[tuple[str, Any]]:
    """The layers, with what to call each in an error."""
    if isinstance(weights, Mapping):
        found = {int(m[1]): v for k, v in weights.items() if (m := _PATTERN.fullmatch(str(k)))}
        if not found:
            raise ValueError("weights: a mapping without blocks.N.attn.hook_pattern, must have it")
        return [(f"weights[blocks.{n}.attn.hook_pattern]", found[n]) for n in sorted(found)]
    if hasattr(weights, "items"):  # TransformerLens' ActivationCache is a mapping in all but name
        return _named(dict(weights.items()))
    if isinstance(weights, str) or not hasattr(weights, "__len__"):
        raise TypeError(
            f"weights: is {type(weights).__name__}, must be an array (H, T, S) for each layer"
        )
    count = len(weights)
    if not count:
        raise ValueError("weights: hold no layer, must hold one at least")
    first = weights[0]
    if isinstance(first, list | tuple) and first and getattr(first[0], "ndim", 0) == 4:
        return _stitched(weights)
    return [(f"weights[{i}]", weights[i]) for i in range(count)]


def _stitched(steps: Sequence[Sequence[Any]]) -> list[tuple[str, Array]]:
    """The layers of a generation, whose steps are each a tuple of layers (1, H, t, S).

    Rows of a step stand below those of the step before it; keys that came later are 0.
    """
    layers = len(steps[0])
    if any(len(step) != layers for step in steps):
        raise ValueError(f"weights: steps have different numbers of layers, must all have {layers}")
    whole = []
    for n in range(layers):
        parts = [_layer(f"weights[{i}][{n}]", step[n])[1] for i, step in enumerate(steps)]
        S = parts[-1].shape[-1]
        padded = [np.pad(part, ((0, 0), (0, 0), (0, S - part.shape[-1]))) for part in parts]
        whole.append((f"weights[:][{n}]", np.concatenate(padded, axis=1)))
    return whole


def _layer(name: str, value: Any) -> tuple[str, Array, float]:
    """(name, float32 array (H, T, S), how far a row may be from 1)."""
    if value is None:
        raise TypeError(f"{name}: is None, must be an array; attn_implementation='eager' gives one")
    if hasattr(value, "detach"):  # PyTorch, whose bfloat16 NumPy does not know
        value = value.detach().cpu()
        half = value.element_size() == 2
        array = np.asarray(value.float().numpy() if half else value.numpy())
    else:
        try:
            array = np.asarray(value)
        except ValueError:
            raise ValueError(f"{name}: is ragged, must be an array (H, T, S)") from None
        half = array.itemsize == 2
    if array.dtype.kind not in "fVi":
        raise TypeError(f"{name}: dtype is {array.dtype}, must be real numbers")
    if array.ndim == 4 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 3:
        raise ValueError(f"{name}: shape is {array.shape}, must be (H, T, S) of one text")
    return name, array.astype(np.float32, copy=False), 0.05 if half else 1e-4


def _check_rows(name: str, weights: Array, tolerance: float, sink: bool) -> None:
    """Head by head: finite, not negative, sums of 1 or 0."""
    for h, one in enumerate(weights):
        if not np.isfinite(one).all() or (one < 0).any():
            bad = ~np.isfinite(one) | (one < 0)
            t, s = (int(i) for i in np.argwhere(bad)[0])
            what = f"is {one[t, s]} in head {h}, row {t}, key {s}"
            raise ValueError(f"{name}: {what}, must be finite and not negative")
        total = one.sum(-1, dtype=np.float64)
        right = (np.abs(total - 1) <= tolerance) | (total == 0)
        if sink:
            right |= total < 1
        if not right.all():
            t = int(np.argmin(right))
            hint = "" if sink or total[t] > 1 else "; sink=True if the rest went to a sink"
            raise ValueError(
                f"{name}: head {h}, row {t} sums to {total[t]:.4g}, must be 1, or 0{hint}"
            )


def _reading(name: str, tokens: Sequence[str]) -> Reading:
    listed = hasattr(tokens, "__len__") and not isinstance(tokens, str)
    if not listed or not all(isinstance(token, str) for token in tokens):
        raise TypeError(f"{name}: must be a sequence of texts, one for each token")
    if not len(tokens):
        raise ValueError(f"{name}: are none, must be one at least")
    kinds = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    ids = [kinds[token] for token in tokens]
    return Reading(*numbered(list(tokens), [False] * len(ids), ids))
