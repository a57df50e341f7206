"""Arrays of other libraries: into NumPy views on the way in, back into their kind on the way out.

    kind      goes in as                                         comes out as
    numpy     itself, a subclass as a view                       numpy.ndarray
    torch     a view of the CPU tensor                           torch.Tensor
    jax       a view of the CPU array                            jax.Array
    dlpack    a view, by `__dlpack__`                            by its namespace's from_dlpack,
                                                                 numpy.ndarray where it has none
    buffer    a view, by the buffer protocol                     memoryview

`any_arrays` does this around a function of NumPy arrays. No library is imported here unless one of
its arrays has been passed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

__all__ = ["any_arrays", "plain_array", "to_numpy"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Types that pass through untouched: NumPy's array, and what has been found to be no array.
_PLAIN: set[type] = {np.ndarray, type(None), float, int, bool, str}
_BUFFERS = (memoryview, bytearray, bytes)


def any_arrays(function: _Function) -> _Function:
    """The function, for arrays of any one kind: its results are of the kind of its arguments.

    An argument or result may be an array, a sequence or named tuple of arrays, or something else.
    """

    inner: Any = function
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    names = inner.__code__.co_varnames

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        # NumPy's arrays pass in 0.2 microseconds, so the loops are written out.
        for x in args:
            if type(x) is not np.ndarray and type(x) not in _PLAIN:
                return _convert_and_call(function, names, args, options)
        if options:
            for x in options.values():
                if type(x) not in _PLAIN:
                    return _convert_and_call(function, names, args, options)
            return function(*args, **options)
        return function(*args)

    return call  # type: ignore[return-value]


def to_numpy(name: str, x: Any) -> Any:
    """x as a NumPy array on the same memory, or x itself if it is no array of any kind."""
    kind = _kind(x)
    return _INTO[kind](name, x) if kind in _INTO else x


def _convert_and_call(
    function: Callable[..., Any],
    names: tuple[str, ...],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    named = list(zip(names, args, strict=False))
    if len(named) < len(args):
        return function(*args, **options)  # too many: Python says so
    found: dict[str, tuple[str, Any]] = {}  # kind: the first argument of it
    for name, x in [*named, *options.items()]:
        for label, item in _items(name, x):
            kind = _kind(item)
            if kind:
                found.setdefault(kind, (label, item))
    if len(found) > 1:
        said = ", ".join(f"{name} is {_type_name(x)}" for name, x in found.values())
        raise TypeError(f"arrays of different kinds: {said}; must all be of one kind")
    if not found:
        return function(*args, **options)
    if "numpy" in found:
        plain = [_map(_without_subclass, name, x) for name, x in named]
        options = {name: _map(_without_subclass, name, x) for name, x in options.items()}
        return function(*plain, **options)
    (kind, (_, example)), *_ = found.items()
    converted = [_map(to_numpy, name, x) for name, x in named]
    result = function(*converted, **{name: _map(to_numpy, name, x) for name, x in options.items()})
    back = _OUT_OF[kind]
    return _map(lambda _, x: back(x, example) if isinstance(x, np.ndarray) else x, "", result)


def plain_array(name: str, given: Any) -> Any:
    """Numbers of any kind, nested lists too, as a NumPy array: for what a mask or rule holds."""
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array, must be a plain one")
    try:
        return np.asarray(to_numpy(name, given))
    except ValueError:
        raise ValueError(f"{name}: has rows of different lengths, must be an array") from None


def _without_subclass(name: str, x: Any) -> Any:
    """np.matrix and its like mean other things by * and by indexing; a masked array is an error."""
    if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        return x.view(np.ndarray)
    return x


def _items(name: str, x: Any) -> list[tuple[str, Any]]:
    if isinstance(x, list | tuple):
        return [(f"{name}[{i}]", item) for i, item in enumerate(x)]
    return [(name, x)]


def _map(convert: Callable[[str, Any], Any], name: str, x: Any) -> Any:
    if not isinstance(x, list | tuple):
        return convert(name, x)
    items = [convert(label, item) for label, item in _items(name, x)]
    return x._make(items) if hasattr(x, "_make") else type(x)(items)


def _kind(x: Any) -> str:
    """One of the kinds above; "" for what is no array."""
    if isinstance(x, np.ndarray):
        return "numpy"
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    if jax is not None and isinstance(x, jax.Array):
        return "jax"
    if hasattr(x, "__dlpack__"):
        return "dlpack"
    if isinstance(x, _BUFFERS) or type(x).__module__ == "array":
        return "buffer"
    if not isinstance(x, list | tuple):
        _PLAIN.add(type(x))
    return ""


def _type_name(x: Any) -> str:
    cls = type(x)
    top = "jax" if _kind(x) == "jax" else cls.__module__.partition(".")[0]
    name = "Array" if top == "jax" else cls.__qualname__
    return name if top == "builtins" else f"{top}.{name}"


# Into NumPy.


def _from_torch(name: str, x: Any) -> Any:
    torch = sys.modules["torch"]
    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name}: a torch.Tensor that requires grad, must be detached here; "
            "clearhead.torch.attention has gradients"
        )
    if x.device.type != "cpu":
        raise TypeError(f"{name}: a torch.Tensor on {x.device}, must be on the CPU")
    if x.layout != torch.strided:
        raise TypeError(f"{name}: a torch.Tensor of layout {x.layout}, must be strided")
    try:
        # torch's own view as NumPy knows no bfloat16
        if x.dtype == torch.bfloat16:
            return x.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return x.detach().resolve_neg().numpy()
    except (RuntimeError, TypeError):
        raise TypeError(
            f"{name}: a torch.Tensor of {x.dtype} without plain memory, must be one of float64, "
            "float32, float16 or bfloat16 with data; under torch.compile and torch.func call "
            "clearhead.torch.attention"
        ) from None


def _from_jax(name: str, x: Any) -> Any:
    if isinstance(x, sys.modules["jax"].core.Tracer):
        raise TypeError(
            f"{name}: a JAX tracer, must be an array with data; "
            "under jit, grad and vmap call clearhead.jax.attention"
        )
    if any(device.platform != "cpu" for device in x.devices()):
        raise TypeError(f"{name}: a jax.Array on {x.devices()}, must be on the CPU")
    return np.asarray(x)


def _from_dlpack(name: str, x: Any) -> Any:
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: {_type_name(x)} that NumPy cannot take by DLPack ({error}), "
            "must be on the CPU and of a dtype of NumPy"
        ) from None


def _from_buffer(name: str, x: Any) -> Any:
    try:
        return np.asarray(memoryview(x))
    except (BufferError, TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: {_type_name(x)} without a plain buffer ({error}), must have one"
        ) from None


_INTO: dict[str, Callable[[str, Any], Any]] = {
    "torch": _from_torch,
    "jax": _from_jax,
    "dlpack": _from_dlpack,
    "buffer": _from_buffer,
}


# Back out. `example` is an argument of the kind.


def _to_torch(x: Any, example: Any) -> Any:
    torch = sys.modules["torch"]
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def _to_jax(x: Any, example: Any) -> Any:
    return sys.modules["jax"].numpy.asarray(x)


def _to_dlpack(x: Any, example: Any) -> Any:
    if not hasattr(example, "__array_namespace__"):
        return x
    return example.__array_namespace__().from_dlpack(x)


def _to_buffer(x: Any, example: Any) -> Any:
    return memoryview(x)


_OUT_OF: dict[str, Callable[[Any, Any], Any]] = {
    "torch": _to_torch,
    "jax": _to_jax,
    "dlpack": _to_dlpack,
    "buffer": _to_buffer,
}
