"""A window of a map as a picture, with matplotlib (imported only here, when something is drawn)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .observation import Map, bin_labels, largest_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 512  # about as many as a screen shows of one picture


def draw(
    amap: Map, head: int | tuple[int, ...], rows: slice | None, cols: slice | None, ax: Axes | None
) -> Axes:
    """See `AttentionMap.plot`."""
    one = () if amap.ndim == 2 else head if isinstance(head, tuple) else (head,)
    if amap.ndim > 2 and len(one) != amap.ndim - 2:
        raise ValueError(
            f"head: is {head!r}, must be {amap.ndim - 2} indexes, of {amap.shape[:-2]}"
        )
    for i, n in zip(one, amap.shape, strict=False):
        if isinstance(i, bool) or not isinstance(i, int | np.integer):
            raise TypeError(f"head: is {head!r}, must be a whole number, or a tuple of them")
        if not -n <= i < n:
            raise ValueError(f"head: is {head!r}, must be below {amap.shape[:-2]}")
    T, S = _span("rows", rows, amap.shape[-2]), _span("cols", cols, amap.shape[-1])
    if len(T) > _BINS or len(S) > _BINS:
        image = _pooled(amap, one, T, S)
    else:
        image = amap[(*one, slice(T.start, T.stop), slice(S.start, S.stop))]
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.figure(layout="constrained").add_subplot()
    edges = (S.start - 0.5, S.stop - 0.5, T.stop - 0.5, T.start - 0.5)
    shown = ax.imshow(image, extent=edges, aspect="auto", interpolation="nearest", vmin=0)
    ax.figure.colorbar(shown, ax=ax, shrink=0.6, label="weight")
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    return ax


def _pooled(amap: Map, one: tuple[int, ...], T: range, S: range) -> NDArray[Any]:
    """The largest weights of a window in bins: all else is in no bin."""
    labels = []
    for span, n in ((T, amap.shape[-2]), (S, amap.shape[-1])):
        own = np.full(n, -1)
        own[span.start : span.stop] = bin_labels(len(span), min(_BINS, len(span)))
        labels.append(own)
    own_map, own_one = _one_head(amap, one)
    found: NDArray[Any] = largest_in(own_map._call(), labels[0], labels[1])[own_one]
    return found


def _one_head(amap: Map, one: tuple[int, ...]) -> tuple[Map, tuple[int, ...]]:
    """The map of one head alone and the index of the picture in it, so that no other is computed;
    the whole map where its mask or bias is not the same for all heads."""
    if amap.ndim == 2:
        return amap, one
    h = one[-1] % amap.shape[-3]
    g = h * amap.k.shape[-3] // amap.shape[-3]
    q, k = amap.q[..., h : h + 1, :, :], amap.k[..., g : g + 1, :, :]
    try:
        return amap._like(q, k, amap.lse[..., h : h + 1, :]), (*one[:-1], 0)
    except ValueError:
        return amap, one


def _span(name: str, given: slice | None, n: int) -> range:
    if given is None:
        return range(n)
    if not isinstance(given, slice):
        raise TypeError(f"{name}: is {given!r}, must be a slice")
    span = range(n)[given]
    if span.step != 1 or len(span) == 0:
        raise ValueError(f"{name}: is {given}, must be a slice of step 1 within {n}, and not empty")
    return span
