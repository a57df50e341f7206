"""What a trace starts from, checked: q, k, v; or X and its projections; or one head of a model."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Heads:
    """q (H, T, D), k (G, S, D), v (G, S, E), and the names of the tokens."""

    q: Array
    k: Array
    v: Array
    queries: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Projections:
    """X (T, C) and what it is multiplied by; `heads` share the columns of W_Q, W_K and W_V."""

    X: Array
    W: dict[str, Array]  # Q, K, V: (C, heads * D)
    b: dict[str, Array]  # Q, K, V where given: (heads * D,)
    heads: int


def matrix(name: str, value: Any, axes: tuple[int, ...] = (2,)) -> Array:
    """`value` as a float64 array of one of so many axes, finite and not empty."""
    array = even(name, value)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name}: holds {array.dtype.name}, must hold numbers")
    if array.ndim not in axes:
        wanted = " or ".join({1: "one axis", 2: "two axes", 3: "three axes"}[n] for n in axes)
        raise ValueError(f"{name}: has shape {array.shape}, must have {wanted}")
    array = array.astype(np.float64)
    if 0 in array.shape:
        raise ValueError(f"{name}: has shape {array.shape}, must not be empty")
    if not np.isfinite(array).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name}: is {array[at]} at {list(at)}, must be finite")
    return array


def even(name: str, value: Any) -> NDArray[Any]:
    """`value` as an array, if its rows are equally long."""
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: has rows of different lengths, must be a matrix") from None


def heads_of(q: Any, k: Any, v: Any, tokens: Any) -> Heads:
    """Check q, k and v; two axes mean one head."""
    for name, value in (("q", q), ("k", k), ("v", v)):
        if value is None:
            raise ValueError(f"{name}: is missing; give q, k and v, or X with W_Q, W_K and W_V")
    arrays = [matrix(name, value, (2, 3)) for name, value in (("q", q), ("k", k), ("v", v))]
    q, k, v = (array if array.ndim == 3 else array[None] for array in arrays)
    shapes = f"q {arrays[0].shape}, k {arrays[1].shape}, v {arrays[2].shape}"
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"k: D is {k.shape[2]}, must be q's, {q.shape[2]}; {shapes}")
    if k.shape[:2] != v.shape[:2]:
        raise ValueError(f"v: does not have as many heads and keys as k; {shapes}")
    if q.shape[0] % k.shape[0]:
        raise ValueError(
            f"k: {q.shape[0]} query heads are not a multiple of {k.shape[0]}; {shapes}"
        )
    queries = (
        names(tokens, q.shape[1], "q") if q.shape[1] == k.shape[1] else names(None, q.shape[1], "q")
    )
    keys = names(tokens, k.shape[1], "k")
    return Heads(q, k, v, queries, keys)


def names(tokens: Any, count: int, letter: str) -> tuple[str, ...]:
    """The tokens as labels, or q1, q2, ...; control characters are written out."""
    if tokens is None:
        return tuple(f"{letter}{i + 1}" for i in range(count))
    labels = tuple(str(token) for token in tokens)
    if len(labels) != count:
        raise ValueError(
            f"tokens: are {len(labels)}, must be {count}, one for each row of {letter}"
        )
    return tuple("".join(c if c.isprintable() else "␣" for c in label) or "␣" for label in labels)


def projections_of(X: Any, W: dict[str, Any], b: dict[str, Any], heads: int | None) -> Projections:
    """Check X and its projections."""
    x = matrix("X", X)
    count = 1 if heads is None else heads
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise TypeError(f"heads: is {type(count).__name__}, must be int")
    if count < 1:
        raise ValueError(f"heads: is {count}, must be at least 1")
    found: dict[str, Array] = {}
    for letter in "QKV":
        if W[letter] is None:
            raise ValueError(f"W_{letter}: is missing; X needs W_Q, W_K and W_V")
        w = found[letter] = matrix(f"W_{letter}", W[letter])
        if w.shape[0] != x.shape[1]:
            raise ValueError(
                f"W_{letter}: has {w.shape[0]} rows, must have one for each column of X {x.shape}"
            )
        if w.shape[1] % count:
            raise ValueError(f"W_{letter}: {w.shape[1]} columns do not divide among {count} heads")
    if found["Q"].shape != found["K"].shape:
        raise ValueError(f"W_K: has shape {found['K'].shape}, must have W_Q's {found['Q'].shape}")
    biases = {
        letter: vector(f"b_{letter}", value, found[letter].shape[1])
        for letter, value in b.items()
        if value is not None
    }
    return Projections(x, found, biases, int(count))


def vector(name: str, value: Any, length: int) -> Array:
    array = matrix(name, value, (1,))
    if array.shape != (length,):
        raise ValueError(f"{name}: has {array.size} numbers, must have {length}")
    return array


def number(name: str, value: Any, positive: bool = False) -> float:
    """A finite number; `positive` refuses 0 and below."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name}: is {type(value).__name__}, must be a number")
    if not np.isfinite(value) or (positive and value <= 0):
        raise ValueError(f"{name}: is {value}, must be {'positive and ' if positive else ''}finite")
    return float(value)


def visible(mask: Any, H: int, T: int, S: int) -> NDArray[np.bool_] | None:
    """A mask, by rule or by array, as booleans (H, T, S); None: all may attend."""
    if mask is None:
        return None
    array = mask.to_array(T, S) if hasattr(mask, "to_array") else even("mask", mask)
    if array.dtype != np.bool_:
        raise TypeError(
            f"mask: holds {array.dtype.name}, must be bool (True: may attend) or a Mask"
        )
    return spread("mask", array, (H, T, S))


def spread(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name}: has shape {array.shape}, must broadcast to {shape}") from None


def sinks(value: Any, heads: int) -> Array | None:
    """A sink for each head."""
    if value is None:
        return None
    array = even("sink", value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"sink: holds {array.dtype.name}, must hold numbers")
    if not np.isfinite(array).all():
        raise ValueError("sink: holds NaN or inf, must be finite")
    return spread("sink", array.astype(np.float64), (heads,))


def additive(bias: Any, shape: tuple[int, int, int]) -> Array | None:
    """A bias as numbers (H, T, S); -inf hides."""
    if bias is None:
        return None
    array = bias.to_array(shape[1], shape[2]) if hasattr(bias, "to_array") else even("bias", bias)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"bias: holds {array.dtype.name}, must hold numbers")
    if np.isnan(array).any() or np.isposinf(array).any():
        raise ValueError("bias: holds NaN or inf, must be finite or -inf")
    return spread("bias", array.astype(np.float64), shape)
