"""What attention costs: cells, bytes and operations, counted before anything is run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..maps import attention_map
from ..masks import Mask

_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_LSE_BYTES = 8  # of a map made by attention_map


@dataclass(frozen=True)
class CostRow:
    """One kind of attention at one length, over all heads and layers.

    cells         scores that are computed; linear attention computes none
    matrix_bytes  the T x T matrices, hidden cells and all, as frameworks return them; None: there
                  is no such matrix
    map_bytes     the same as an `AttentionMap`: q, k and lse, from which any cell follows; for
                  linear attention its state, (D, D + 1) a head
    operations    multiplications and additions of q k^T and p v; for linear attention, of its state
    """

    length: int
    kind: str
    cells: int
    matrix_bytes: int | None
    map_bytes: int
    operations: int


@dataclass(frozen=True)
class Cost:
    """Rows by length, then kind; `print(cost)` is a table of at most 80 columns."""

    heads: int
    layers: int
    head_size: int
    dtype: str
    rows: tuple[CostRow, ...]

    def to_json(self) -> str:
        """The same as JSON: bytes and operations as plain numbers."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        heading = ["T", "attention", "cells", "matrix", "map here", "operations"]
        lines = [heading]
        for row in self.rows:
            matrix = "none" if row.matrix_bytes is None else _bytes(row.matrix_bytes)
            numbers = [_count(row.cells), matrix, _bytes(row.map_bytes), _si(row.operations)]
            lines.append([f"{row.length:,}", row.kind[:22], *numbers])
        widths = [max(len(line[i]) for line in lines) for i in range(len(heading))]
        first = (
            f"{_plural(self.heads, 'head')} of size {self.head_size}, "
            f"{_plural(self.layers, 'layer')}, {self.dtype}"
        )
        aligned = [
            "  ".join(
                text.ljust(n) if i == 1 else text.rjust(n)
                for i, (text, n) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([first, *aligned])


def cost(
    lengths: int | Sequence[int],
    *,
    heads: int = 1,
    layers: int = 1,
    head_size: int = 64,
    dtype: str = "float32",
    window: int | None = None,
    documents: int | None = None,
    mask: Mask | None = None,
) -> Cost:
    """What self-attention over T tokens costs: dense, causal, linear, and what else is asked for.

    lengths    T, or several
    heads, layers, head_size, dtype   of the model; head_size is D = E
    window     besides: causal, each query seeing this many keys at most
    documents  besides: this many documents of (nearly) equal length packed into T
    mask       besides: any Mask, its cells counted by a pass over it

    Operations count a multiply-add as two and leave the exponentials out. For linear attention they
    are those of the causal recurrence, 4 D (D + 1) a token and head.
    Raises  TypeError, ValueError: the argument, what it is, what it must be.
    Source  dense: Vaswani et al. 2017, table 1; linear: Katharopoulos et al. 2020.

    >>> print(ch.cost([512, 8192], window=256))
    1 head of size 64, 1 layer, float32
        T  attention        cells   matrix  map here  operations
      512  dense          262,144    1 MiB   260 KiB      67.1 M
      512  causal         131,328    1 MiB   260 KiB      33.6 M
      512  window 256      98,432    1 MiB   260 KiB      25.2 M
      512  linear               0     none  16.2 KiB      8.52 M
    8,192  dense       67,108,864  256 MiB  4.06 MiB      17.2 G
    8,192  causal      33,558,528  256 MiB  4.06 MiB      8.59 G
    8,192  window 256   2,064,512  256 MiB  4.06 MiB       529 M
    8,192  linear               0     none  16.2 KiB       136 M
    """
    sizes = [lengths] if isinstance(lengths, int | np.integer) else list(lengths)
    for T in sizes:
        _whole("lengths", T)
    for name, n in (("heads", heads), ("layers", layers), ("head_size", head_size)):
        _whole(name, n)
    if dtype not in _ITEM_BYTES:
        raise ValueError(f"dtype: is {dtype!r}, must be one of {', '.join(_ITEM_BYTES)}")
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask: is {type(mask).__name__}, must be a Mask")
    copies, item = heads * layers, _ITEM_BYTES[dtype]
    rows = []
    for T in sizes:
        cells = {"dense": T * T, "causal": T * (T + 1) // 2}
        if window is not None:
            w = min(_whole("window", window), T)
            cells[f"window {window}"] = w * T - w * (w - 1) // 2
        if documents is not None:
            n = min(_whole("documents", documents), T)
            longer = T % n  # so many are one token longer than T // n
            cells[f"packed in {documents}"] = (n - longer) * (T // n) ** 2 + longer * (
                T // n + 1
            ) ** 2
        if mask is not None:
            cells[repr(mask)] = _seen(mask, T)
        held = T * (2 * head_size * item + _LSE_BYTES) * copies
        for kind, n in cells.items():
            work = 4 * n * head_size * copies
            rows.append(CostRow(T, kind, n * copies, T * T * item * copies, held, work))
        state = head_size * (head_size + 1)
        rows.append(CostRow(T, "linear", 0, None, state * 4 * copies, 4 * T * state * copies))
    return Cost(heads, layers, head_size, dtype, tuple(rows))


def _seen(mask: Mask, T: int) -> int:
    """How many cells a mask allows: where all scores are 0, e^lse is the number of keys seen."""
    zeros = np.zeros((T, 1), np.float32)
    return int(np.rint(np.exp(attention_map(zeros, zeros, mask=mask).lse)).sum())


def _whole(name: str, x: Any) -> int:
    if isinstance(x, bool) or not isinstance(x, int | np.integer):
        raise TypeError(f"{name}: is {x!r}, must be a whole number")
    if not 1 <= x < 2**40:
        raise ValueError(f"{name}: is {x}, must be at least 1 and below 2**40")
    return int(x)


def _plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _count(n: int) -> str:
    return f"{n:,}" if n < 10**12 else _si(n)


def _bytes(n: int) -> str:
    return _scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB"])


def _si(n: int) -> str:
    return _scaled(n, 1000, ["", "k", "M", "G", "T", "P", "E", "Z"])


def _scaled(n: int, step: int, units: list[str]) -> str:
    value, power = float(n), 0
    while value >= step and power < len(units) - 1:
        value /= step
        power += 1
    digits = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{digits} {units[power]}".rstrip()
