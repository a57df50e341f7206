"""The native core, built from native/bind.cpp. tests/test_surface.py holds this file against it."""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

# (kind, a, b, array, other): MaskKind in native/mask.hpp.
MaskStep = tuple[str, int, int, Array | None, Array | None]

# (kind, array, reach): BiasKind in native/problem.hpp.
BiasRule = tuple[str, Array, int]

# (first row, row end, first key, key end) of what is looked at; None: all.
Part = tuple[int, int, int, int]

def forward(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array | None,
    mask: Sequence[MaskStep] | None,
    bias: BiasRule | None,
    sink: Array | None,
    scale: float,
    softcap: float,
) -> None: ...
def backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    dbias: Array | None,
    dsink: Array | None,
    mask: Sequence[MaskStep] | None,
    bias: BiasRule | None,
    sink: Array | None,
    scale: float,
    softcap: float,
) -> None: ...
def row_lse(
    q: Array,
    k: Array,
    lse: Array,
    mask: Sequence[MaskStep] | None,
    bias: BiasRule | None,
    sink: Array | None,
    scale: float,
    softcap: float,
    part: Part | None,
) -> None: ...
def observe(
    q: Array,
    k: Array,
    lse: Array,
    mask: Sequence[MaskStep] | None,
    bias: BiasRule | None,
    scale: float,
    softcap: float,
    target: Array,
    grids: Sequence[tuple[Array, Array, Array, Array | None, bool]],
    weights: Array | None,
    column_sum: Array | None,
    entropy: Array | None,
    largest: Array | None,
    top: tuple[Array, Array] | None,
    distance: Array | None,
    progress: Callable[[int, int], object] | None,
    part: Part | None,
) -> None: ...
def mask_runs(mask: Sequence[MaskStep], S: int, t0: int, rows: int) -> list[tuple[int, int]]: ...
def multiply_adds(n: int) -> int: ...
def weights(n: int) -> int: ...
def dot_products(n: int) -> int: ...
def read_all(data: Array) -> int: ...
def result_memory(bytes: int) -> Array: ...
def kept_bytes() -> int: ...
def isa() -> str: ...
def available_isas() -> list[str]: ...
def choose_isa(name: str) -> None: ...
def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
