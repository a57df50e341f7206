"""What is kept of a model's calls while it runs, and the runs that it makes in the end.

    Grown     rows that arrive in pieces, in memory or in a file
    Layer     q, k, lse, rows of the mask and the bias of one layer, for one text
    Text      the layers of one text, its token ids, and which of them are padding

Nothing here knows the framework: pieces arrive as NumPy arrays.
"""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..masks import Mask
from . import applied, biased
from .applied import Rows
from .biased import Added
from .certificate import Proof
from .heads import Sums

Array = NDArray[Any]


class Grown:
    """An array (heads, n, D) whose n grows: pieces in memory, or in an unnamed file in `folder`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._pieces: list[Array] = []
        self._file: IO[bytes] | None = None
        self._shape: tuple[int, ...] = ()
        self._dtype: np.dtype[Any] = np.dtype(np.float32)
        self.last: Array | None = None  # the newest entry, (heads, D)
        self.count = 0

    def add(self, piece: Array) -> None:
        """Take in (heads, n, D); it is copied."""
        rows = np.ascontiguousarray(np.moveaxis(piece, 0, 1))  # (n, heads, D)
        if np.shares_memory(rows, piece):
            rows = rows.copy()
        self._shape, self._dtype = rows.shape[1:], rows.dtype
        if len(rows):
            self.last = rows[-1].copy()
        self.count += len(rows)
        if self._folder is None:
            self._pieces.append(rows)
            return
        if self._file is None:
            self._file = TemporaryFile(dir=self._folder)
        self._file.write(rows.tobytes())

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def array(self) -> Array:
        """All of it, (heads, n, D)."""
        if self._file is not None:
            self._file.flush()
            rows: Array = np.memmap(self._file, self._dtype, "r", shape=(self.count, *self._shape))
            self.close()  # the mapping stays, and goes with the array
        else:
            rows = np.concatenate(self._pieces)
            self._pieces = [rows]
        return np.moveaxis(rows, 0, 1)


@dataclass(slots=True)
class Layer:
    """One layer of one text."""

    number: int
    backend: str
    scale: float
    softcap: float | None
    sink: Array | None
    q: Grown
    k: Grown
    lse: Grown
    rows: list[Rows] = field(default_factory=list)
    added: list[Added | None] = field(default_factory=list)
    padding: list[NDArray[np.bool_]] = field(default_factory=list)
    out_difference: float = 0.0
    tolerance: float = 0.0
    row_tolerance: float = 0.0
    row_deviation: float | None = None  # measured at once where nothing is kept
    sums: Sums | None = None
    received: Array | None = None  # (H, S)

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """(S,) which keys so far are padding."""
        return np.concatenate(self.padding) if self.padding else np.zeros(0, bool)

    @property
    def num_rows(self) -> int:
        """How many queries there were so far."""
        return sum(len(rows.first) for rows in self.rows)


@dataclass(slots=True)
class Text:
    """One text of one call, in one part of the model."""

    part: str
    call: int
    number: int  # in the batch
    layers: dict[tuple[str, int], Layer] = field(default_factory=dict)
    ids: list[NDArray[np.int64]] = field(default_factory=list)
    key_ids: NDArray[np.int64] | None = None  # cross-attention: what the keys are
    length: int = 0  # tokens so far

    @property
    def all_ids(self) -> NDArray[np.int64]:
        """(S,) the ids of all tokens so far, -1 where they are not known."""
        return np.concatenate(self.ids) if self.ids else np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """A finished layer: what a map is made of, and what is proven of it."""

    q: Array
    k: Array
    lse: Array
    mask: Mask | None
    bias: Any
    scale: float
    softcap: float | None
    sink: Array | None


def finished(layer: Layer, cache: dict[Any, Any]) -> tuple[LayerRecord, str | None]:
    """A layer's arrays and rules, and a note on its mask; `cache` shares rules among layers."""
    q, k = layer.q.array(), layer.k.array()
    lse = layer.lse.array()[..., 0]
    key = tuple(id(rows) for rows in layer.rows), layer.hidden.tobytes(), k.shape[1]
    if key not in cache:
        cache[key] = applied.joined(layer.rows, k.shape[1], layer.hidden)
    mask, note = cache[key]
    bias_key = tuple(id(part) for part in layer.added), "bias", k.shape[1]
    if bias_key not in cache:
        counts = [len(rows.first) for rows in layer.rows]
        cache[bias_key] = biased.joined(layer.added, counts, k.shape[1])
    bias = cache[bias_key]
    return LayerRecord(q, k, lse, mask, bias, layer.scale, layer.softcap, layer.sink), note


def proof(layer: Layer, applied: str, row_deviation: float) -> Proof:
    """What is known of a layer's map."""
    blank = sum(int(rows.blank.sum()) for rows in layer.rows)
    return Proof(
        layer=layer.number,
        backend=layer.backend,
        applied=applied,
        rows=layer.num_rows,
        blank_rows=blank,
        row_deviation=row_deviation,
        row_tolerance=layer.row_tolerance,
        out_difference=layer.out_difference,
        tolerance=layer.tolerance,
    )
