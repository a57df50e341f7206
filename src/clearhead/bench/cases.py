"""What is computed, and its name: MASK/BxHxTxD/DTYPE, as in causal/1x12x2048x64/float32.

H:G is query heads to key/value heads, T:S queries to keys, D:E key size to value size; /grad at the
end means forward and backward. Every process makes the same numbers from the case alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..masks import Mask, allowed, causal, documents, window

Array = NDArray[Any]

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
MASKS = "full, causal, window<W>, packed<N>, array or bias"
_NAME = re.compile(
    r"(?P<mask>full|causal|window[1-9]\d*|packed[1-9]\d*|array|bias)"
    r"/(?P<B>\d+)x(?P<H>\d+)(:(?P<G>\d+))?x(?P<T>\d+)(:(?P<S>\d+))?x(?P<D>\d+)(:(?P<E>\d+))?"
    r"/(?P<dtype>float32|float16|bfloat16)(?P<grad>/grad)?"
)


class Inputs(NamedTuple):
    """q (B, H, T, D), k (B, G, S, D), v (B, G, S, E), dout (B, H, T, E); seen and bias or None."""

    q: Array
    k: Array
    v: Array
    dout: Array | None
    seen: Array | None  # (T, S), where the mask is an array
    bias: Array | None  # (H, T, S)


@dataclass(frozen=True)
class Case:
    """One computation; `mask` is one of MASKS, with its number in it."""

    mask: str
    B: int
    H: int
    G: int
    T: int
    S: int
    D: int
    E: int
    dtype: str
    grad: bool

    @property
    def shape(self) -> str:
        def pair(a: int, b: int) -> str:
            return f"{a}" if a == b else f"{a}:{b}"

        heads, rows, sizes = pair(self.H, self.G), pair(self.T, self.S), pair(self.D, self.E)
        return f"{self.B}x{heads}x{rows}x{sizes}"

    @property
    def name(self) -> str:
        return f"{self.mask}/{self.shape}/{self.dtype}" + ("/grad" if self.grad else "")

    @property
    def plain(self) -> bool:
        """Every query sees every key."""
        return self.mask == "full" or (self.mask == "causal" and self.T == 1)

    @property
    def matrix_bytes(self) -> int:
        """Of the scores, if someone keeps them all."""
        return self.B * self.H * self.T * self.S * 4

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that the mask allows, of one head."""
        if self.mask in ("full", "bias"):
            return self.T * self.S
        if self.mask == "array":
            return int(np.count_nonzero(self._array()))
        pieces = np.split(np.arange(self.T), np.arange(4096, self.T, 4096))
        counts = [np.count_nonzero(self.seen(rows)) for rows in pieces]
        return int(np.sum(counts))

    @property
    def operations(self) -> float:
        """2 D + 2 E for each allowed pair; backward: scores again and four products more."""
        each = 2 * self.D + 2 * self.E + self.grad * (6 * self.D + 4 * self.E)
        return float(self.B * self.H * self.pairs * each)

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values, each read once."""
        item: int = DTYPES[self.dtype].itemsize
        return self.B * self.G * self.S * (self.D + self.E) * item

    def seen(self, rows: Array) -> Array:
        """What the mask says, row by row: (len(rows), S) of bool."""
        at, keys = rows[:, None] + self.S - self.T, np.arange(self.S)
        if self.mask.startswith("packed"):
            ids = self._ids()
            return np.asarray(ids[rows][:, None] == ids)
        if self.mask == "array":
            return self._array()[rows]
        if self.mask in ("full", "bias"):
            return np.ones((len(rows), self.S), bool)
        reach = int(self.mask[6:]) if self.mask.startswith("window") else self.S + self.T
        return np.asarray((keys <= at) & (keys > at - reach))

    def own_mask(self, inputs: Inputs) -> Mask | None:
        """The mask as clearhead writes it."""
        if self.mask == "array":
            assert inputs.seen is not None
            return allowed(inputs.seen)
        if self.mask.startswith("packed"):
            return documents(self._ids())
        if self.mask.startswith("window"):
            return causal() & window(left=int(self.mask[6:]) - 1)
        return None if self.mask in ("full", "bias") else causal()

    def inputs(self) -> Inputs:
        rng = np.random.default_rng(0)

        def normal(*shape: int) -> Array:
            return rng.standard_normal(shape, np.float32).astype(DTYPES[self.dtype], copy=False)

        return Inputs(
            normal(self.B, self.H, self.T, self.D),
            normal(self.B, self.G, self.S, self.D),
            normal(self.B, self.G, self.S, self.E),
            normal(self.B, self.H, self.T, self.E) if self.grad else None,
            self._array() if self.mask == "array" else None,
            normal(self.H, self.T, self.S) if self.mask == "bias" else None,
        )

    def _array(self) -> Array:
        seen = np.random.default_rng(1).random((self.T, self.S), np.float32) < 0.5
        seen[:, 0] = True  # no row sees nothing: peers give NaN there
        return seen

    def _ids(self) -> Array:
        """Which of N documents a position belongs to; their lengths differ."""
        n = int(self.mask[6:])
        cuts = np.sort(np.random.default_rng(2).integers(1, self.S, n - 1))
        return np.asarray(np.searchsorted(cuts, np.arange(self.S), side="right"))


def parse(name: str) -> Case:
    """The case that has this name. Raises ValueError."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"case: is {name!r}, must match a listed name or be MASK/BxHxTxD/DTYPE[/grad], "
            f"MASK {MASKS}, DTYPE {', '.join(DTYPES)}, as in causal/1x12x2048x64/float32"
        )
    part = found.groupdict()
    B, H, T, D = (int(part[x]) for x in "BHTD")
    G, S, E = (int(part[x] or size) for x, size in zip("GSE", (H, T, D), strict=True))
    if not all((B, H, G, T, S, D, E)) or H % G:
        raise ValueError(f"case: {name!r} must have sizes of at least 1, and H a multiple of G")
    if part["mask"].startswith("packed") and T != S:
        raise ValueError(f"case: {name!r} packs documents, so it must have T = S")
    return Case(part["mask"], B, H, G, T, S, D, E, part["dtype"], part["grad"] is not None)


def choose(patterns: list[str], listed: list[str]) -> list[Case]:
    """The listed cases that match a pattern (`*` is anything), and those that a pattern names."""
    if not patterns:
        return [parse(name) for name in listed]
    names: dict[str, None] = {}
    for pattern in patterns:
        matching = [name for name in listed if fnmatchcase(name, pattern)]
        names.update(dict.fromkeys(matching or [parse(pattern).name]))
    return [parse(name) for name in names]
