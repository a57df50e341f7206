"""The proof that what a run shows is what the model computed."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..maps import AttentionMap
from .mass import mass


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of one layer's map.

    layer           the model's number of it
    backend         the function that the model computed its attention with
    applied         the mask as it was applied, and what else made the scores
    rows            queries; blank_rows of them see nothing, as padding does not
    row_deviation   the largest |sum of a row - 1|, the sink's share counted, blank rows aside
    out_difference  the largest |A @ v - out|, out the attention output that the model computed;
                    None where the model's output was not at hand
    row_tolerance, tolerance
                    how much of these is rounding: `spread` in this module
    """

    layer: int
    backend: str
    applied: str
    rows: int
    blank_rows: int
    row_deviation: float
    row_tolerance: float
    out_difference: float | None
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether rows sum to 1 and the output is the model's, to rounding."""
        out = 0.0 if self.out_difference is None else self.out_difference
        return self.row_deviation <= self.row_tolerance and out <= self.tolerance


class Certificate(Sequence[Proof]):
    """The proofs of every layer; `print` shows them as a table of 80 columns."""

    def __init__(self, proofs: Sequence[Proof], *, model: str = "", notes: Sequence[str] = ()):
        self._proofs, self.model, self.notes = tuple(proofs), model, tuple(notes)

    def __getitem__(self, index: Any) -> Any:
        return self._proofs[index]

    def __len__(self) -> int:
        return len(self._proofs)

    def __iter__(self) -> Iterator[Proof]:
        return iter(self._proofs)

    @property
    def holds(self) -> bool:
        """Whether every layer's proof holds."""
        return all(proof.holds for proof in self)

    @property
    def line(self) -> str:
        """All layers in one line: backends, masks, the largest difference, the verdict."""
        backends = ", ".join(dict.fromkeys(proof.backend for proof in self))
        applied = "; ".join(dict.fromkeys(proof.applied for proof in self))
        outs = [p.out_difference for p in self if p.out_difference is not None]
        off = f"; |A@v-out| at most {max(outs):.1e}" if outs else ""
        verdict = "holds" if self.holds else "DIFFERS"
        return f"certificate: {verdict}: {backends}: {applied}{off}"

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each layer, `holds` included."""
        return [asdict(proof) | {"holds": proof.holds} for proof in self]

    def __str__(self) -> str:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for name in ("layer", "backend", "mask as applied", "rows", "|sum-1|", "|A@v-out|", ""):
            side: Any = "left" if name in ("backend", "mask as applied", "") else "right"
            fold: Any = "fold" if name == "mask as applied" else "ellipsis"
            table.add_column(name, justify=side, overflow=fold, no_wrap=fold != "fold")
        for p in self:
            rows = f"{p.rows:,}" + (f" ({p.blank_rows:,} blank)" if p.blank_rows else "")
            out = "-" if p.out_difference is None else f"{p.out_difference:.1e}"
            verdict = "holds" if p.holds else "DIFFERS"
            table.add_row(
                str(p.layer), p.backend, p.applied, rows, f"{p.row_deviation:.0e}", out, verdict
            )
        text = io.StringIO()
        Console(file=text, width=80, color_system=None).print(table)
        known = [p.tolerance for p in self if p.out_difference is not None]
        lines = [text.getvalue().rstrip()]
        if known:
            lines.append(f"rounding explains |A@v-out| up to {max(known):.1e}")
        return "\n".join([*lines, *self.notes])

    def __repr__(self) -> str:
        verdict = "holds" if self.holds else "DIFFERS"
        return f"Certificate({len(self)} layers, {verdict})"


def row_deviation(amap: AttentionMap, sink: NDArray[Any] | None = None) -> tuple[float, int]:
    """The largest |row sum - 1| of a map (H, T, S), and how many rows see nothing in any head.

    sink  (H,): the share that went to it counts
    """
    total, able = mass(amap)
    if sink is not None:
        total = total + np.exp(np.minimum(sink.astype(total.dtype)[:, None] - amap.lse, 0))
    off = np.abs(total - 1)[able]
    return float(off.max(initial=0.0)), int((~able.any(0)).sum())


def spread(q: NDArray[Any], k: NDArray[Any], scale: float) -> float:
    """How far two honest computations of attention in q's dtype may lie apart, per unit of v.

    A score is a sum of D products: two orders of adding differ by at most
    2 * D * u * scale * max|q| * max|k|, u the precision of float32, and by rounding the score to
    the dtype; what differs in a score differs in the weight in
    proportion; an output is a mean of v by the weights, and its own sum and rounding add 8 units
    for each doubling of the keys.
    """
    if not (q.size and k.size):
        return 0.0
    u = float(np.finfo(np.float32).eps)
    own = max(u, float(ml_dtypes.finfo(q.dtype).eps))  # type: ignore[no-untyped-call]
    score = abs(scale) * _longest(q) * _longest(k)
    return float(2 * (q.shape[-1] * u + own) * score + 8 * own * np.log2(k.shape[-2] + 1))


def _longest(x: NDArray[Any]) -> float:
    """The length of the longest vector of (..., n, D), a head at a time."""
    heads = x.reshape(-1, *x.shape[-2:])
    squares = [float(np.einsum("nd,nd->n", h, h).max()) for h in map(_wide, heads)]
    return float(np.sqrt(max(squares)))


def _wide(x: NDArray[Any]) -> NDArray[Any]:
    return x.astype(np.float32) if x.itemsize < 4 else x
