"""How much the parts of a text read each other: system prompt, documents, question, answer."""

import io
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..maps import AttentionMap
from .mass import mass, product

if TYPE_CHECKING:
    from .run import AttentionRun

Floats = NDArray[np.float64]

Segments = Mapping[str, tuple[int, int] | str] | str

REST = "(rest)"


class SegmentReading:
    """How much each segment read each other; rows read, columns are read.

    names    the segments, and "(rest)" for what is in none of them, special tokens too
    weights  (L, H, N, N): of one head, the mean over the queries of a segment of what they gave to
             all keys of another. A row sums to 1 (less with a sink), or to 0 if it has no queries
    uniform  (L, N, N): the same if every query gave all keys that it sees the same
    counts   (N,) how many tokens each segment has

    >>> reading = run.group_by({"event": "The animal crossed the road", "reason": "it was tired"})
    >>> reading.names
    ['event', 'reason', '(rest)']
    >>> reading.overall()[1].sum().round(4)  # what the reason read, in all
    np.float64(1.0)
    """

    def __init__(
        self, names: list[str], weights: Floats, uniform: Floats, counts: NDArray[np.int64]
    ) -> None:
        self.names, self.weights, self.uniform, self.counts = names, weights, uniform, counts

    def layer(self, layer: int) -> Floats:
        """(N, N), the mean over the heads of a layer."""
        return np.asarray(self.weights[layer].mean(0))

    def overall(self) -> Floats:
        """(N, N), the mean over all heads and layers."""
        return np.asarray(self.weights.mean((0, 1)))

    def to_json(self) -> str:
        """Names, counts, and of all heads and layers `overall` and `uniform`, as JSON."""
        return json.dumps(
            {
                "segments": self.names,
                "tokens": self.counts.tolist(),
                "overall": self.overall().tolist(),
                "uniform": self.uniform.mean(0).tolist(),
                "heads": self.weights.tolist(),
            },
            ensure_ascii=False,
        )

    def to_text(self, width: int = 80) -> str:
        """A table of `overall`: what each segment read, beside its uniform share."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for name in ("reads", "tokens", "what", "share", "uniform", "times"):
            side: Any = "left" if name in ("reads", "what") else "right"
            room = (width - 36) // 2 if side == "left" else None  # numbers are never cut
            table.add_column(name, justify=side, overflow="ellipsis", no_wrap=True, max_width=room)
        overall, uniform = self.overall(), self.uniform.mean(0)
        for i, name in enumerate(self.names):
            if not overall[i].any():
                continue
            for nth, j in enumerate(np.argsort(-overall[i], kind="stable")):
                if uniform[i, j] == 0:
                    continue
                ratio = f"{overall[i, j] / uniform[i, j]:.2f}"
                shares = f"{100 * overall[i, j]:.1f}%", f"{100 * uniform[i, j]:.1f}%"
                head = (name, str(self.counts[i])) if nth == 0 else ("", "")
                table.add_row(*head, self.names[j], *shares, ratio, end_section=False)
        text = io.StringIO()
        Console(file=text, width=width, color_system=None).print(table)
        return f"{text.getvalue().rstrip()}\nmean over all heads and layers"

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"SegmentReading({', '.join(self.names)})"


def split(text: str, marker: str) -> dict[str, tuple[int, int]]:
    """A text in segments that each begin with `marker`, named by their first line.

    What comes before the first marker is "(start)"; a name that is there already gets a number.
    Raises `ValueError` if the text does not hold the marker.

    >>> split("Intro ## One\\nx ## Two\\ny", "## ")
    {'(start)': (0, 6), 'One': (6, 15), 'Two': (15, 23)}
    """
    if not isinstance(marker, str):
        raise TypeError(
            f"segments: {type(marker).__name__}, must be a marker or a mapping of names"
        )
    if not marker:
        raise ValueError("segments: the marker is empty, must be what each segment begins with")
    starts: list[int] = []
    at = text.find(marker)
    while at >= 0:
        starts.append(at)
        at = text.find(marker, at + len(marker))
    if not starts:
        raise ValueError(f"segments: the text does not hold the marker {marker!r}")
    segments: dict[str, tuple[int, int]] = {}
    if text[: starts[0]].strip():
        segments["(start)"] = (0, starts[0])
    for begin, end in zip(starts, [*starts[1:], len(text)], strict=True):
        line = text[begin + len(marker) : end].strip().split("\n")[0].strip()
        name = line[:40] or marker.strip() or "segment"
        count = 2
        while name in segments:
            name = f"{line[:40]} ({count})"
            count += 1
        segments[name] = (begin, end)
    return segments


def read_segments(run: "AttentionRun", segments: Segments) -> SegmentReading:
    """`AttentionRun.group_by`. Linear memory: T x N numbers a head.

    Raises `ValueError` for segments that overlap, are not in the text, or hold no token.
    """
    keys = run.keys
    if isinstance(segments, Mapping):
        spans = {name: _span(keys.text, name, where) for name, where in segments.items()}
    else:
        spans = split(keys.text, segments)
    for name in spans:
        if not isinstance(name, str):
            raise TypeError(f"segments: a name is {name!r}, must be text")
        if name == REST:
            raise ValueError(f"segments: {REST!r} is what all else is called, must be another name")
    if not spans:
        raise ValueError("segments: there are none, must be at least one")
    _check_overlap(spans)
    names = [*spans, REST]
    of_key = _numbers(keys.tokens, spans)
    same = keys.text == run.text and keys.tokens[len(keys.tokens) - len(run.tokens) :] == run.tokens
    of_row = (
        of_key[len(of_key) - len(run.tokens) :] if same else np.full(len(run.tokens), len(spans))
    )
    for number, name in enumerate(spans):
        if not (of_key == number).any():
            raise ValueError(f"segments: {name!r} {spans[name]} holds no token")
    member = (of_key[:, None] == np.arange(len(names))).astype(np.float32)  # (S, N)
    weights, uniform = [], []
    for layer in range(run.num_layers):
        amap = run.map(layer)
        _, sighted = mass(amap)  # (H, T)
        weights.append(_by_row(product(amap, member)[0], of_row, sighted, len(names)))
        even = _even(amap)
        read = product(even, member)[0]
        uniform.append(_by_row(read, of_row, ~np.isneginf(even.lse), len(names)).mean(0))
    counts = np.bincount(of_key, minlength=len(names))
    return SegmentReading(names, np.array(weights), np.array(uniform), counts)


def _even(amap: AttentionMap) -> AttentionMap:
    """The map of the same mask in which every query gives all keys that it sees the same."""
    from ..maps import attention_map

    H = amap.shape[0]
    one: Any = amap.mask
    heads = H if isinstance(getattr(one, "array", one), np.ndarray) else 1
    q = np.zeros((heads, amap.shape[1], 1), np.float32)
    return attention_map(q, np.zeros((1, amap.shape[2], 1), np.float32), mask=amap.mask)


def _by_row(
    read: NDArray[Any], of_row: NDArray[np.int64], sighted: NDArray[np.bool_], count: int
) -> Floats:
    """(H, T, N) averaged over the queries of each segment that see anything: (H, N, N)."""
    out = np.zeros((len(read), count, count))
    for number in range(count):
        mine = sighted & (of_row == number)
        total = np.where(mine[..., None], read, 0).sum(1, dtype=np.float64)
        out[:, number] = total / np.maximum(mine.sum(1), 1)[:, None]
    return out


def _numbers(tokens: Any, spans: dict[str, tuple[int, int]]) -> NDArray[np.int64]:
    """The segment of each token: the one that its first character is in, else the rest."""
    of_token = np.full(len(tokens), len(spans))
    for number, (begin, end) in enumerate(spans.values()):
        for i, token in enumerate(tokens):
            if not token.special and begin <= token.start < max(end, begin + 1):
                of_token[i] = number
    return of_token


def _span(text: str, name: str, where: Any) -> tuple[int, int]:
    if isinstance(where, str):
        count = text.count(where) if where else 0
        if count != 1:
            raise ValueError(
                f"segments: {name!r}: its passage is in the text {count} times, must be there once"
            )
        at = text.index(where)
        return at, at + len(where)
    match where:
        case (int() | np.integer() as begin, int() | np.integer() as end) if (
            0 <= begin < end <= len(text)
        ):
            return int(begin), int(end)
    raise ValueError(
        f"segments: {name!r} is {where!r}, must be (start, end) within the text of {len(text):,} "
        "characters, or a passage of it"
    )


def _check_overlap(spans: dict[str, tuple[int, int]]) -> None:
    ordered = sorted(spans.items(), key=lambda item: item[1])
    for (one, (_, end)), (other, (begin, _)) in pairwise(ordered):
        if begin < end:
            raise ValueError(f"segments: {one!r} and {other!r} overlap, must not")
