"""Every argument error of the attention functions, raised before anything is computed.

    check_attention(q, k, v, mask, bias, scale, softcap, sink) -> Problem
    check_gradient(dout, q, k, v, out, lse, mask, bias, scale, softcap, sink) -> Problem
    check_merge(outs, lses)

A `Problem` holds the sizes of a valid call. Past this line nothing can fail: the kernel trusts it.
One sentence says the argument, what it is, what it must be, and then the shapes. TypeError is for
kinds and dtypes, ValueError for shapes and values.

A mask that is not an array is a `Mask`: it has `lower` and `allowed_count`. A bias may be a rule
too (`alibi`): it has `lower` and `heads`. They answer for themselves; nothing here imports them.

A valid call without options costs under 2 microseconds: what is rare is tested last.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import ml_dtypes
import numpy as np

# What may go in, and the dtype of its lse: that of the arithmetic.
LSE_DTYPE: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float64): np.dtype(np.float64),
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(np.float16): np.dtype(np.float32),
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.float32),
}
_SUPPORTED = "float64, float32, float16 or bfloat16"

# Offsets into any operand are counted in bytes, in int64.
_MOST_ELEMENTS = 2**59
# Leading axes that the core walks, and columns whose scratch can still be counted (problem.hpp).
_MOST_LEAD = 16
_MOST_COLUMNS = 2**40
# Beyond it float32 arithmetic on the scores has no room left.
_LARGEST_FACTOR = 1e30


class Problem(NamedTuple):
    """The sizes of a valid call. `lead` is what the leading axes of q, k and v broadcast to.

    `flat`: q, k, v came as (T, D), (S, D), (S, E), one head without its axis; then H = G = 1, and
    the results have no head axis either.
    """

    lead: tuple[int, ...]
    H: int
    G: int
    T: int
    S: int
    D: int
    E: int
    scale: float
    flat: bool

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (self.T, self.E) if self.flat else (*self.lead, self.H, self.T, self.E)

    @property
    def score_shape(self) -> tuple[int, ...]:
        return (self.T, self.S) if self.flat else (*self.lead, self.H, self.T, self.S)


def check_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
) -> Problem:
    """The sizes of this call, or the error that says what is wrong with it."""
    _check_arrays(q=q, k=k, v=v)
    shape_q, shape_k, shape_v = q.shape, k.shape, v.shape
    if len(shape_q) < 3 or len(shape_k) < 3 or len(shape_v) < 3:
        if not len(shape_q) == len(shape_k) == len(shape_v) == 2:
            _reject_ranks(q=q, k=k, v=v)
        flat, H, G, groups_v = True, 1, 1, 1
    else:
        flat, H, G, groups_v = False, shape_q[-3], shape_k[-3], shape_v[-3]
    T, D = shape_q[-2:]
    S, E = shape_k[-2], shape_v[-1]

    fits = D == shape_k[-1] and S == shape_v[-2] and G == groups_v
    counts = 0 < D <= _MOST_COLUMNS and 0 < E <= _MOST_COLUMNS
    if not (fits and counts and (H % G if G else H) == 0):
        _reject_sizes(q, k, v)
    lead = shape_q[:-3]
    if not lead == shape_k[:-3] == shape_v[:-3]:
        lead = _broadcast_lead(q, k, v)
    if len(lead) > _MOST_LEAD:
        raise ValueError(
            f"q, k, v: {len(lead)} axes before the heads, must be at most {_MOST_LEAD}; "
            + _shapes(q=q, k=k, v=v)
        )
    cells = H * T * max(D, E)
    for n in lead:
        cells *= n
    if cells > _MOST_ELEMENTS:
        raise ValueError(
            f"q, v: the result would have {cells} elements, must have at most 2**59; "
            + _shapes(q=q, k=k, v=v)
        )
    scale = D**-0.5 if scale is None else _number("scale", scale)
    problem = Problem(lead, H, G, T, S, D, E, scale, flat)
    if mask is not None or bias is not None or softcap is not None or sink is not None:
        _check_options(problem, (q, k, v), mask, bias, softcap, sink)
    return problem


def check_gradient(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
) -> Problem:
    """The sizes of a gradient call, or the error that says what is wrong with it."""
    problem = check_attention(q, k, v, mask, bias, scale, softcap, sink)
    for name, x, shape, dtype, letters in (
        ("dout", dout, problem.out_shape, q.dtype, "(..., H, T, E)"),
        ("out", out, problem.out_shape, q.dtype, "(..., H, T, E)"),
        ("lse", lse, problem.out_shape[:-1], LSE_DTYPE[q.dtype], "(..., H, T)"),
    ):
        _check_kind(name, x)
        _check_dtype(name, x, dtype, "q")
        if x.shape != shape:
            letters = letters.replace("..., H, ", "") if problem.flat else letters
            raise ValueError(
                f"{name}: shape is {x.shape}, must be {letters} = {shape}; {_shapes(q=q, k=k, v=v)}"
            )
    return problem


def check_merge(outs: Any, lses: Any) -> None:
    """Raises unless these are the results of attention over one or more shards of the keys."""
    for name, x in (("outs", outs), ("lses", lses)):
        if not isinstance(x, Sequence) and not (isinstance(x, np.ndarray) and x.ndim):
            raise TypeError(f"{name}: {_kind(x)}, must be a sequence of arrays")
    if len(outs) != len(lses) or len(outs) == 0:
        count = f"{len(outs)} and {len(lses)} arrays"
        raise ValueError(f"outs, lses: {count}, must be as many of both, and one at least")
    first = outs[0]
    for i, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        _check_kind(f"outs[{i}]", out)
        _check_kind(f"lses[{i}]", lse)
        if out.dtype not in LSE_DTYPE:
            _reject_dtype(f"outs[{i}]", out)
        _check_dtype(f"outs[{i}]", out, first.dtype, "outs[0]")
        _check_dtype(f"lses[{i}]", lse, LSE_DTYPE[first.dtype], "outs[0]")
        if out.ndim < 2:
            raise ValueError(
                f"outs[{i}]: shape is {out.shape}, must have two axes at least, (..., T, E)"
            )
        if out.shape != first.shape:
            raise ValueError(
                f"outs[{i}]: shape is {out.shape}, must be {first.shape} as that of outs[0]"
            )
        if lse.shape != out.shape[:-1]:
            raise ValueError(
                f"lses[{i}]: shape is {lse.shape}, must be (..., T) = {out.shape[:-1]}; "
                f"outs[{i}] {out.shape}"
            )


# Kinds and dtypes.


def _check_arrays(**arrays: Any) -> None:
    """All arrays, of one supported dtype."""
    dtype = None
    for name, x in arrays.items():
        if type(x) is not np.ndarray:
            _check_kind(name, x)
        if dtype is None:
            dtype = x.dtype
            if dtype not in LSE_DTYPE:
                _reject_dtype(name, x)
        elif x.dtype is not dtype:
            if x.dtype not in LSE_DTYPE:
                _reject_dtype(name, x)
            _check_dtype(name, x, dtype, "q")


def _check_kind(name: str, x: Any) -> None:
    """An array, and not one whose own mask we would silently ignore."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: a masked array, must be a plain one; pass mask=, True = may attend"
        )
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name}: {_kind(x)}, must be an array")


def _check_dtype(name: str, x: Any, dtype: np.dtype[Any], whose: str) -> None:
    if x.dtype != dtype:
        like = "as the lse of" if name.startswith("lse") else "as"
        raise TypeError(
            f"{name}: dtype is {x.dtype}, must be {dtype} {like} {whose}; "
            f'{name}.astype("{dtype}") makes it so'
        )


def _reject_dtype(name: str, x: Any) -> NoReturn:
    cure = "" if x.dtype.kind in "cOSUVMm" else f'; {name}.astype("float32") makes it so'
    raise TypeError(f"{name}: dtype is {x.dtype}, must be {_SUPPORTED}{cure}")


def _kind(x: Any) -> str:
    """What a person would call it: `a list`, `torch.Tensor`."""
    if x is None:
        return "None"
    cls = type(x)
    if cls.__module__ == "builtins":
        return f"{'an' if cls.__name__[0] in 'aeiou' else 'a'} {cls.__name__}"
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


# Shapes.


def _shapes(**arrays: Any) -> str:
    values_are_keys = arrays.get("v") is arrays.get("k")  # a map has no values of its own
    given = {name: x for name, x in arrays.items() if not (name == "v" and values_are_keys)}
    return ", ".join(f"{name} {x.shape}" for name, x in given.items())


def _reject_ranks(**arrays: Any) -> NoReturn:
    """Fewer than two axes, or one head without its axis beside arrays that have it."""
    for name, x in arrays.items():
        if x.ndim < 2:
            letters = {"q": "T, D", "k": "S, D", "v": "S, E"}[name]
            axes = "1 axis" if x.ndim == 1 else "no axis"
            raise ValueError(
                f"{name}: has {axes}, must be ({letters}) or (..., heads, {letters}); "
                + _shapes(**arrays)
            )
    raise ValueError(
        "q, k, v: some have a head axis and some have none, must all have one or all be of rank 2; "
        + _shapes(**arrays)
    )


def _reject_sizes(q: Any, k: Any, v: Any) -> NoReturn:
    """The first size that does not fit."""
    shapes = _shapes(q=q, k=k, v=v)
    H, G = (1, 1) if q.ndim == 2 else (q.shape[-3], k.shape[-3])
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"k: D is {k.shape[-1]} but q has D = {q.shape[-1]}; {shapes}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"v: S is {v.shape[-2]} but k has S = {k.shape[-2]}; {shapes}")
    if q.shape[-1] == 0:
        raise ValueError(f"q, k: D is 0, must be at least 1; {shapes}")
    if v.shape[-1] == 0:
        raise ValueError(f"v: E is 0, must be at least 1; {shapes}")
    for name, letter, n in (("q, k", "D", q.shape[-1]), ("v", "E", v.shape[-1])):
        if n > _MOST_COLUMNS:
            raise ValueError(f"{name}: {letter} is {n}, must be at most 2**40; {shapes}")
    if q.ndim > 2 and G != v.shape[-3]:
        raise ValueError(f"v: {v.shape[-3]} value heads but k has {G} key heads; {shapes}")
    raise ValueError(f"k, v: {H} query heads are not a multiple of {G} key heads; {shapes}")


def _broadcast_lead(q: Any, k: Any, v: Any) -> tuple[int, ...]:
    leads = q.shape[:-3], k.shape[:-3], v.shape[:-3]
    try:
        return np.broadcast_shapes(*leads)
    except ValueError:
        raise ValueError(
            "q, k, v: leading axes {}, {} and {} do not broadcast; {}".format(
                *leads, _shapes(q=q, k=k, v=v)
            )
        ) from None


def _check_spread(
    name: str, x: Any, full: tuple[int, ...], letters: str, qkv: tuple[Any, Any, Any]
) -> None:
    """x broadcasts to exactly this shape."""
    shape = x.shape
    pairs = zip(reversed(shape), reversed(full), strict=False)
    if len(shape) > len(full) or any(n != m and n != 1 for n, m in pairs):
        shapes = _shapes(**dict(zip("qkv", qkv, strict=True)))
        raise ValueError(
            f"{name}: shape is {shape}, must broadcast to {letters} = {full}; {shapes}"
        )


# Options.


def _check_options(
    problem: Problem, qkv: tuple[Any, Any, Any], mask: Any, bias: Any, softcap: Any, sink: Any
) -> None:
    dtype = qkv[0].dtype
    letters = "(T, S)" if problem.flat else "(..., H, T, S)"
    if mask is not None and not _is_rule(mask, "allowed_count"):
        if not isinstance(mask, np.ndarray):
            raise TypeError(f"mask: {_kind(mask)}, must be a Mask or a boolean array")
        _check_kind("mask", mask)
        if mask.dtype != np.bool_:
            number = "an additive mask is bias=" if mask.dtype.kind in "fV" else "mask != 0 is one"
            raise TypeError(
                f"mask: dtype is {mask.dtype}, must be bool, True = may attend; {number}"
            )
        _check_spread("mask", mask, problem.score_shape, letters, qkv)
    if bias is not None and not _is_rule(bias, "heads"):
        if not isinstance(bias, np.ndarray):
            rule = "a rule such as alibi(slopes)"
            cure = "; a Mask is mask=" if _is_rule(bias, "allowed_count") else ""
            raise TypeError(f"bias: {_kind(bias)}, must be an array or {rule}{cure}")
        _check_kind("bias", bias)
        if bias.dtype == np.bool_:
            raise TypeError(f"bias: dtype is bool, must be {dtype} as q; a boolean array is mask=")
        _check_dtype("bias", bias, dtype, "q")
        _check_spread("bias", bias, problem.score_shape, letters, qkv)
    if softcap is not None:
        cap = _number("softcap", softcap)
        if not cap >= 1 / _LARGEST_FACTOR:
            raise ValueError(
                f"softcap: {softcap}, must be positive, at least 1e-30; None leaves scores uncapped"
            )
        if abs(problem.scale) > cap * _LARGEST_FACTOR:
            raise ValueError(
                f"softcap: {softcap}, must be at least 1e-30 of scale = {problem.scale}"
            )
    if sink is not None:
        _check_kind("sink", sink)
        _check_dtype("sink", sink, dtype, "q")
        heads = (1,) if problem.flat else (*problem.lead, problem.H)
        _check_spread("sink", sink, heads, "(H,)" if problem.flat else "(..., H)", qkv)


def _is_rule(x: Any, kind: str) -> bool:
    """A rule, not an array: a Mask has `allowed_count`, a Bias has `heads`. (str has `lower`.)"""
    return hasattr(x, "lower") and hasattr(x, kind)


def _number(name: str, x: Any) -> float:
    """A finite real number; bool is not one."""
    if isinstance(x, bool) or not isinstance(x, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: {_kind(x)}, must be a number")
    try:
        value = float(x)
    except OverflowError:  # an int beyond all floats
        value = math.inf
    if not abs(value) <= _LARGEST_FACTOR:
        raise ValueError(f"{name}: {value}, must be a finite number, at most 1e30 in magnitude")
    return value
