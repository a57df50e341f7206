"""The numbers of one cell of a head, from query and key to weight: only what the run holds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..biases import Bias
from ..maps import AttentionMap
from ..masks import Mask

_TOP = 10


def steps(amap: AttentionMap, v: NDArray[Any] | None, row: int, column: int) -> dict[str, Any]:
    """The steps of cell (row, column) of one head (1, T, S), whose values are v (S, E), if known.

    score = q . k, scaled = scale * score, capped = softcap * tanh(scaled / softcap),
    logit = capped + bias, weight = e^(logit - lse), or 0 where the mask hides it; values are
    v[column], weight * v[column], and the row's output, the sum of all that it weighs.
    """
    q, k = amap.q[0, row].astype(np.float64), amap.k[0, column].astype(np.float64)
    products = q * k
    score = float(products.sum())
    scaled = score * amap.scale
    capped = amap.softcap * float(np.tanh(scaled / amap.softcap)) if amap.softcap else scaled
    bias = _bias(amap, row, column)
    hidden = not _seen(amap, row, column) or bias == -np.inf
    weights = amap[0, row].astype(np.float64)
    strongest = np.argsort(-weights, kind="stable")[:_TOP]
    lse = float(amap.lse[0, row])
    sink = None if amap.sink is None else float(np.broadcast_to(amap.sink, (1,))[0])
    return {
        "q": q.tolist(),
        "k": k.tolist(),
        "products": products.tolist(),
        "score": score,
        "scale": float(amap.scale),
        "scaled": scaled,
        "softcap": amap.softcap,
        "capped": capped,
        "bias": None if amap.bias is None else _number(bias),
        "masked": bool(hidden),
        "mask": None if amap.mask is None else _rule(amap.mask),
        "logit": None if hidden else _number(capped + bias),
        "lse": _number(lse),
        "sink": sink,
        "sink_weight": None if sink is None else _number(float(np.exp(sink - lse))),
        "weight": _number(float(weights[column])),
        "rank": None if hidden else 1 + int((weights > weights[column]).sum()),
        "seen": None if np.isnan(weights).any() else int((weights > 0).sum()),
        "row": [[int(s), _number(float(weights[s]))] for s in strongest],
        "rest": _number(float(weights.sum() - weights[strongest].sum())),
        "values": None if v is None else _values(weights, v, column),
        "values_why": "a saved or recorded run holds queries and keys" if v is None else None,
    }


def _values(weights: NDArray[np.float64], v: NDArray[Any], column: int) -> list[list[float | None]]:
    seen = np.flatnonzero(weights)  # what is hidden gives nothing, whatever it is
    output = weights[seen] @ v[seen].astype(np.float64)
    own = v[column].astype(np.float64)
    weighted = weights[column] * own if weights[column] != 0 else np.zeros_like(own)
    return [[_number(float(x)) for x in part] for part in (own, weighted, output)]


def _bias(amap: AttentionMap, row: int, column: int) -> float:
    bias = amap.bias
    if bias is None:
        return 0.0
    if isinstance(bias, Bias):
        distance = np.array([[row + amap.shape[-1] - amap.shape[-2] - column]])
        return float(bias.at(distance).reshape(-1)[0])
    return float(np.broadcast_to(bias, amap.shape)[0, row, column])


def _seen(amap: AttentionMap, row: int, column: int) -> bool:
    mask = amap.mask
    if mask is None:
        return True
    if isinstance(mask, Mask):
        at = np.array([[row]]), np.array([[column]])
        return bool(mask.seen(*at, *amap.shape[-2:]).reshape(-1)[0])
    return bool(np.broadcast_to(mask, amap.shape)[0, row, column])


def _rule(mask: Any) -> str:
    text = "an array of booleans" if isinstance(mask, np.ndarray) else repr(mask)
    return text if len(text) <= 200 else text[:197] + "..."


def _number(x: float) -> float | None:
    """A number that JSON has: NaN and infinities are null."""
    return x if np.isfinite(x) else None
