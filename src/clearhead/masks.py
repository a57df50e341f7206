"""Which keys a query may attend to: small masks, joined by `&`, `|` and `~`.

    causal()                                        every earlier position and its own
    causal() & (window(left=1023) | first_keys(4))  a sliding window with attention sinks
    documents(ids) & causal()                       packed sequences

A mask is a rule, not an array: it costs no T x S memory, and attention spends time only on what it
allows. Query t stands at position t + S - T among the keys, so that the last query stands at the
last key: decoding with a cache is right without further words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import plain_array
from .rules import (
    Allowed,
    Band,
    Blocks,
    Dilated,
    Documents,
    FirstKeys,
    Ints,
    Lengths,
    Mask,
    Prefix,
    whole,
)

__all__ = [
    "Mask",
    "allowed",
    "blocks",
    "causal",
    "dilated",
    "documents",
    "first_keys",
    "lengths",
    "prefix",
    "window",
]


def causal(offset: int | None = None) -> Mask:
    """Query t sees keys s <= t + offset; by default offset = S - T: the last query sees all keys.

    causal(), T = 2, S = 5     causal(), T = 5, S = 2     causal(offset=0), T = 2, S = 5

        1 1 1 1 .                  . .                        1 . . . .
        1 1 1 1 1                  . .                        1 1 . . .
                                   . .
                                   1 .
                                   1 1

    The default is the alignment of FlashAttention, MLX and ONNX; offset=0 is PyTorch's `is_causal`.

    >>> causal().to_array(2, 5).astype(int)
    array([[1, 1, 1, 1, 0],
           [1, 1, 1, 1, 1]])
    >>> causal(offset=0).to_array(2, 5).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0]])
    """
    if offset is None:
        return Band("causal()", None, 0, None)
    offset = whole("offset", offset, None)
    return Band(f"causal(offset={offset})", None, 0, offset)


def window(left: int | None = None, right: int | None = None) -> Mask:
    """Keys at most `left` before and `right` behind the query's own position, both included.

    left, right    whole numbers of at least 0; None: no limit on that side

    >>> window(left=1, right=0).to_array(3, 3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    low = None if left is None else -whole("left", left, 0)
    high = None if right is None else whole("right", right, 0)
    return Band(f"window(left={left}, right={right})", low, high, None)


def first_keys(n: int) -> Mask:
    """The first n keys, for every query: attention sinks, global tokens.

    >>> first_keys(1).to_array(2, 3).astype(int)
    array([[1, 0, 0],
           [1, 0, 0]])
    """
    return FirstKeys(whole("n", n, 0))


def prefix(n: int) -> Mask:
    """The first n positions see each other; `causal() | prefix(n)` is a prefix language model.

    >>> (causal() | prefix(2)).to_array(3, 3).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    return Prefix(whole("n", n, 0))


def lengths(n_per_batch: ArrayLike) -> Mask:
    """Keys s < n: padding at the end. `n_per_batch` is a whole number or one for each batch, (...).

    >>> lengths([1, 3]).to_array(1, 3).astype(int)[:, 0]
    array([[[1, 0, 0]],
    <BLANKLINE>
           [[1, 1, 1]]])
    """
    n = _ids("n_per_batch", n_per_batch)
    if n.size and n.min() < 0:
        raise ValueError(f"n_per_batch: has {n.min()}, must be at least 0")
    return Lengths(n)


def documents(query_ids: ArrayLike, key_ids: ArrayLike | None = None) -> Mask:
    """A query sees the keys of its own document: packed sequences.

    query_ids   integers (T,) or (..., T)
    key_ids     integers (S,) or (..., S); without it the query ids serve for the keys, and where
                T < S the queries are the last T of them

    Ids that are sorted cost what the documents cost, the sum of T_i * S_i.

    >>> documents([0, 0, 7]).to_array(3, 3).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]])
    """
    queries = _ids("query_ids", query_ids)
    keys = None if key_ids is None else _ids("key_ids", key_ids)
    for name, ids in (("query_ids", queries), ("key_ids", keys)):
        if ids is not None and ids.ndim == 0:
            raise ValueError(f"{name}: is a single number, must be an array (..., n) of ids")
    return Documents(queries, keys)


def dilated(step: int) -> Mask:
    """Keys whose distance from the query's position is a multiple of `step`, on both sides.

    >>> dilated(2).to_array(3, 3).astype(int)
    array([[1, 0, 1],
           [0, 1, 0],
           [1, 0, 1]])
    """
    return Dilated(whole("step", step, 1))


def blocks(pattern: ArrayLike, block: int) -> Mask:
    """Query t sees key s where pattern[t // block, s // block] is True: block-sparse attention.

    pattern    booleans (ceil(T / block), ceil(S / block))
    block      rows and keys of a block, at least 1

    >>> blocks([[True, False], [True, True]], block=2).to_array(3, 3).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    array = plain_array("pattern", pattern)
    if array.dtype != np.bool_ or array.ndim != 2:
        raise _wrong("pattern", array, "booleans (ceil(T / block), ceil(S / block))")
    return Blocks(array.copy(), whole("block", block, 1))


def allowed(array: ArrayLike) -> Mask:
    """An explicit mask: booleans broadcastable to (..., H, T, S), True = may attend. Not copied.

    >>> allowed([[True, False]]) & causal()
    allowed((1, 2) array) & causal()
    """
    given = plain_array("array", array)
    if given.dtype != np.bool_:
        raise _wrong("array", given, "booleans (True = may attend)")
    return Allowed(given if given.ndim >= 2 else np.atleast_2d(given))


def _wrong(name: str, array: NDArray[Any], want: str) -> Exception:
    kind = TypeError if array.dtype != np.bool_ else ValueError
    return kind(f"{name}: is {array.dtype} {array.shape}, must be {want}")


def _ids(name: str, value: ArrayLike) -> Ints:
    array = plain_array(name, value)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{name}: is {array.dtype}, must be integers")
    if array.dtype.kind == "u" and array.size and array.max() >= 2**63:
        raise ValueError(f"{name}: has {array.max()}, must be below 2**63")
    return np.array(array, dtype=np.int64)
