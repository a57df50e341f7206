"""The parameters of a layer: drawn, checked, and kept in safetensors files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._arrays import to_numpy
from ._writing import replacing

Array = NDArray[Any]
# dy -> (the gradient of each array given, in their order, and {parameter: gradient})
Pullback = Callable[[Array], tuple[Any, ...]]


def write_parameters(
    path: str | os.PathLike[str], parameters: Mapping[str, Array], about: Mapping[str, str]
) -> None:
    """A safetensors file of these arrays and notes: whole or not at all."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(x) for name, x in parameters.items()}
    with replacing(path, binary=True) as file:
        file.write(save(arrays, metadata=dict(about)))


def read_parameters(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the notes of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"path: {path} is no whole safetensors file: {error}") from None


def matching(parameters: Mapping[str, Array], state: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of a state dict, which must have the names and shapes of these parameters."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state: {type(state).__name__}, must be a mapping {{name: array}}")
    missing, extra = parameters.keys() - state.keys(), state.keys() - parameters.keys()
    if missing or extra:
        raise ValueError(
            f"state: lacks {sorted(missing)} and has {sorted(extra)} besides, "
            f"must have exactly {sorted(parameters)}"
        )
    arrays = {name: parameter(name, state[name]) for name in parameters}
    for name, array in arrays.items():
        if array.shape != parameters[name].shape:
            raise ValueError(f"state: {name} is {array.shape}, must be {parameters[name].shape}")
    return arrays


def size(name: str, n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(f"{name}: is {n!r}, must be a whole number")
    if n < 1:
        raise ValueError(f"{name}: is {n}, must be at least 1")
    return int(n)


def float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    found = np.dtype(dtype)
    if found not in (np.float32, np.float64):
        raise TypeError(f"dtype: is {found}, must be float32 or float64")
    return found


def glorot(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    limit = (6 / sum(shape)) ** 0.5
    return rng.uniform(-limit, limit, shape).astype(dtype)


def check_input(
    name: str, x: Any, dtype: np.dtype[Any], size: int, shape: tuple[int, ...] | None = None
) -> None:
    if not isinstance(x, np.ndarray) or isinstance(x, np.matrix | np.ma.MaskedArray):
        raise TypeError(f"{name}: {type(x).__name__}, must be a NumPy array")
    if x.dtype != dtype:
        raise TypeError(f"{name}: dtype is {x.dtype}, must be {dtype} as the layer's")
    if shape is not None and x.shape != shape:
        raise ValueError(f"{name}: shape is {x.shape}, must be {shape} as the result")
    if x.ndim < 2 or x.shape[-1] != size:
        raise ValueError(f"{name}: shape is {x.shape}, must be (..., n, {size})")


def parameter(name: str, x: Any) -> Array:
    array = to_numpy(name, x)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"state: {name} is {type(x).__name__}, must be an array")
    if array.dtype.kind not in "fV":
        raise TypeError(f"state: {name} is {array.dtype}, must be real floats")
    return array


def rows(x: Array) -> Array:
    """(..., n, size) as (all rows, size)."""
    return x.reshape(-1, x.shape[-1])
