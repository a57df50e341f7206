"""What a run answers: head table, rollout, summaries, certificate. Methods of `AttentionRun`."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..biases import Bias, alibi, relative_bias
from ..maps import AttentionMap
from ..masks import Mask
from .certificate import Certificate, Proof, row_deviation, spread
from .heads import HeadTable, sums
from .rollout import rollout_column, rollout_row

if TYPE_CHECKING:
    from .run import AttentionRun

Floats = NDArray[np.float64]
_GIB = 1 << 30


def head_table(run: "AttentionRun", near: int) -> HeadTable:
    """Every layer's sums as one table."""
    if isinstance(near, bool) or not isinstance(near, int | np.integer):
        raise TypeError(f"near: is {near!r}, must be a whole number of at least 1")
    if near < 1:
        raise ValueError(f"near: is {near}, must be a whole number of at least 1")
    tokens = run.keys.tokens
    ids = np.array([token.id for token in tokens])
    special = np.array([token.special for token in tokens])
    same_text = run.keys.tokens[len(run.keys.tokens) - len(run.tokens) :] == run.tokens
    means = [
        sums(
            run.map(layer),
            ids,
            special,
            starts=_first_seen(run, layer),
            near=int(near),
            one_text=same_text,
        ).means
        for layer in range(run.num_layers)
    ]
    return HeadTable(
        np.array(means),
        layers=run.layer_numbers,
        heads=run.head_numbers,
        window=int(near),
        model=run.model,
    )


def _first_seen(run: "AttentionRun", layer: int) -> list[int]:
    """Where text begins: of each window the first key that is not padding."""
    if len(run.starts) > 1:
        return list(run.starts)
    hidden = padding_of(run.layers[layer].mask, len(run.keys.tokens))
    return [int(np.argmin(hidden))]


def padding_of(mask: Mask | NDArray[np.bool_] | None, S: int) -> NDArray[np.bool_]:
    """(S,) the keys that a mask's `documents` gives to no query: padding."""
    hidden = np.zeros(S, bool)
    inside = [mask]
    while inside:
        one: Any = inside.pop()
        inside += [x for x in (getattr(one, "a", None), getattr(one, "b", None)) if x is not None]
        keys = getattr(one, "keys", None)
        if isinstance(keys, np.ndarray) and keys.shape == (S,):
            hidden |= ~np.isin(keys, one.queries)
    return hidden if not hidden.all() else np.zeros(S, bool)


def applied_as(amap: AttentionMap, sink: Any = None) -> str:
    """What made the scores of a map, in words: its mask as a rule, and what else there was."""
    words = "every key" if amap.mask is None else repr(amap.mask)
    if padding_of(amap.mask, amap.shape[-1]).any():
        rule = re.sub(r"( & )?documents\(.*\)$", "", words)
        words = f"{rule or 'every key'}, padding hidden"
    if amap.bias is not None:
        words += ", bias" + (" by distance" if isinstance(amap.bias, Bias) else "")
    if amap.softcap is not None:
        words += f", softcap {amap.softcap:g}"
    return words + (", sink" if sink is not None else "")


def one_head(amap: AttentionMap, h: int) -> AttentionMap:
    """One head of a map (H, T, S), as a map (1, T, S)."""
    H = amap.shape[0]
    group = h * amap.k.shape[0] // H
    mask, bias = amap.mask, amap.bias
    if isinstance(mask, np.ndarray) and mask.ndim > 2 and mask.shape[0] > 1:
        mask = mask[h : h + 1]
    elif isinstance(mask, Mask):
        mask = _mask_of_head(mask, h)
    return AttentionMap(
        amap.q[h : h + 1],
        amap.k[group : group + 1],
        amap.lse[h : h + 1],
        mask=mask,
        bias=_bias_of_head(bias, h),
        scale=amap.scale,
        softcap=amap.softcap,
        sink=None if amap.sink is None else np.broadcast_to(amap.sink, (H,))[h : h + 1],
    )


def _mask_of_head(mask: Mask, h: int) -> Mask:
    """An explicit mask may have a head axis; the rules have none."""
    from ..masks import allowed

    array = getattr(mask, "array", None)
    if isinstance(array, np.ndarray) and array.ndim > 2 and array.shape[0] > 1:
        return allowed(array[h : h + 1])
    return mask


def _bias_of_head(bias: Any, h: int) -> Any:
    if isinstance(bias, Bias):
        if bias.heads in (None, 1):
            return bias
        values, first = getattr(bias, "values", None), getattr(bias, "first", 0)
        return alibi(bias.slopes[h : h + 1]) if values is None else relative_bias(values[h], first)  # type: ignore[attr-defined]
    return bias[h : h + 1] if bias is not None and bias.ndim > 2 and bias.shape[0] > 1 else bias


def rollout_to(run: "AttentionRun", word: str | int | slice) -> Floats:
    """A row of the rollout: x R, x the mean of the word's positions."""
    maps, x = _rollout(run, word)
    return rollout_row(maps, x)


def rollout_from(run: "AttentionRun", word: str | int | slice) -> Floats:
    """A column of the rollout: R x, x the sum of the word's tokens."""
    maps, x = _rollout(run, word)
    return rollout_column(maps, (x > 0).astype(np.float64))


def _rollout(run: "AttentionRun", word: str | int | slice) -> tuple[list[AttentionMap], Floats]:
    T = len(run.tokens)
    if run.keys.tokens != run.tokens:
        raise ValueError(
            "rollout: queries and keys are not the same tokens, must be the self-attention of a "
            "whole text"
        )
    if list(run.layer_numbers) != list(range(run.layer_numbers[0], run.layer_numbers[-1] + 1)):
        raise ValueError(f"rollout: layers {run.layer_numbers} have gaps, must be all in a row")
    found = range(len(run.words))[word] if isinstance(word, slice) else run.find(word)
    at = sorted({t for w in found for t in run.words[w].tokens})
    if not at:
        raise ValueError(f"word: {word!r} holds none of {len(run.words)} words, must hold one")
    x = np.zeros(T)
    x[at] = 1 / len(at)
    return [run.map(layer) for layer in range(run.num_layers)], x


def summary(
    run: "AttentionRun",
    layers: Sequence[int] | None,
    *,
    largest: bool,
    max_bytes: int = _GIB,
) -> NDArray[np.float32]:
    """The mean or the largest weight over heads and layers, (T, S), head by head."""
    chosen = range(run.num_layers) if layers is None else layers
    if not isinstance(chosen, Sequence | np.ndarray) or not len(chosen):
        raise ValueError(f"layers: is {layers!r}, must be a list of one layer at least, or None")
    shape = len(run.tokens), len(run.keys.tokens)
    if 4 * shape[0] * shape[1] > max_bytes:
        raise ValueError(
            f"summary: {shape} takes {4 * shape[0] * shape[1]:,} bytes, max_bytes is "
            f"{max_bytes:,}; "
            "take run.map(layer).observe(pool=(R, C))"
        )
    out = np.zeros(shape, np.float32)
    for layer in chosen:
        amap = run.map(layer)
        for h in range(run.num_heads):
            if largest:
                np.maximum(out, amap[h], out=out)
            else:
                out += amap[h]
    return out if largest else out / np.float32(max(1, len(chosen) * run.num_heads))


def certificate(run: "AttentionRun") -> Certificate:
    """Row sums measured now, on the maps that are shown; outputs as they were compared."""
    proofs = []
    for layer in range(run.num_layers):
        amap, state = run.map(layer), run.layers[layer]
        off, blank = row_deviation(amap, state.sink)
        known = run.proofs[layer] if run.proofs else None
        proofs.append(
            Proof(
                layer=run.layer_numbers[layer],
                backend="clearhead" if known is None else known.backend,
                applied=applied_as(amap, state.sink),
                rows=amap.shape[-2],
                blank_rows=blank,
                row_deviation=off,
                row_tolerance=spread(amap.q, amap.k, amap.scale),
                out_difference=None if known is None else known.out_difference,
                tolerance=0.0 if known is None else known.tolerance,
            )
        )
    notes = [*run.notes, *_not_numbers(run)]
    return Certificate(proofs, model=run.model, notes=notes)


def _not_numbers(run: "AttentionRun") -> list[str]:
    """Where queries or keys are NaN or infinite: layer, head, rows."""
    notes = []
    for number, layer in zip(run.layer_numbers, run.layers, strict=True):
        for head, lse in zip(run.head_numbers, layer.lse, strict=True):
            rows = np.flatnonzero(np.isnan(lse))
            if len(rows):
                shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
                notes.append(f"layer {number}, head {head}: NaN in {len(rows)} rows: {shown}")
    return notes
