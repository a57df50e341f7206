"""From calls of attention to runs: which call goes on with which text, and what of it is kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from shutil import disk_usage
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..maps import AttentionMap
from ..masks import Mask
from ..ops import attention_with_lse
from .applied import Rows, joined, plain_rows, rows_of
from .biased import Added, added
from .certificate import row_deviation, spread
from .heads import sums
from .recorded import Grown, Layer, Text
from .wanted import Wanted

Array = NDArray[Any]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of attention: q (B, H, T, D), k (B, G, S, D), v (B, G, S, E), out (B, T, H, E).

    mask     bool or additive, broadcastable to (B, H, T, S); *_key tells one array from another
    causal   where there is no mask array: key s is seen by queries t >= s
    held     keeps what the keys are the names of alive
    """

    name: str
    backend: str
    q: Array
    k: Array
    v: Array
    out: Array
    mask: Array | None
    mask_key: int
    causal: bool
    scale: float | None
    softcap: float | None
    sink: Array | None
    bias: Array | None
    bias_key: int
    held: Any


@dataclass(slots=True)
class Frame:
    """One forward of a model, or of a model within it."""

    name: str
    ids: NDArray[np.int64] | None
    shown: Bools | None  # (B, S): False is padding
    past: int | None
    number: int
    times: dict[str, int] = field(default_factory=dict)  # how often each module was called in it
    masks: dict[Any, Any] = field(default_factory=dict)  # what masks and biases turned out to be
    held: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Seen:
    """The mask and bias of one text in one call."""

    rows: Rows
    padding: Bools  # (new keys,)
    rule: Mask | None
    added: Added | None


class Capture:
    """Keeps what calls bring, by part of the model, call and text."""

    def __init__(
        self, sites: dict[str, tuple[str, int]], wanted: Wanted, model: str, tokenizer: Any
    ) -> None:
        self.wanted, self.model, self.tokenizer = wanted, model, tokenizer
        self.sites = _chosen(sites, wanted.layers)
        self.texts: dict[str, list[list[Text]]] = {}  # part: calls, of each its texts
        self.taken = False
        self._frames: list[Frame] = []  # that are running
        self._read: list[Frame] = []  # that have run, the newest last
        self._count = 0
        self._bytes = 0
        self._latest: dict[str, int] = {}  # part: the number of the frame that it last saw
        self.num_heads: int | None = None  # of the model, before heads= chooses
        self.special = set(getattr(tokenizer, "all_special_ids", None) or ())

    def wants(self, name: str) -> bool:
        """Whether a module's attention is to be kept."""
        return name in self.sites

    def begin(
        self, name: str, *, ids: NDArray[Any] | None, shown: Bools | None, past: int | None
    ) -> None:
        """A forward begins."""
        self._count += 1
        self._frames.append(Frame(name, ids, shown, past, self._count))

    def end(self) -> None:
        """The newest forward is over."""
        frame = self._frames.pop()
        frame.masks.clear()
        frame.held.clear()
        if frame.ids is not None:
            self._read = [*self._read[-7:], frame]

    def take(self, call: Call) -> None:
        """Keep one call of attention."""
        self.num_heads = call.q.shape[1]
        frame = self._frame(call.name)
        part, number = self.sites[call.name]
        time = frame.times.get(call.name, 0)
        frame.times[call.name] = time + 1
        cross = part.startswith("cross")
        place = self._place(frame, call, cross)
        if self._latest.get(part) != frame.number:
            self._latest[part] = frame.number
            self._check_room(call, part)
            self._open(part, frame, call, place, cross)
        frame.held.append(call.held)
        for text in self.texts[part][-1]:
            layer = text.layers.get((call.name, time))
            if layer is None:
                layer = self._layer(call, number if not time else len(text.layers))
                text.layers[call.name, time] = layer
            self._take_text(frame, call, text, layer, place, cross)
        self.taken = True

    def _frame(self, name: str) -> Frame:
        """The forward that a module belongs to: the innermost that was given token ids."""
        around = [f for f in reversed(self._frames) if not f.name or name.startswith(f.name + ".")]
        if not around:  # a submodule that is no model by itself was called
            self.begin("", ids=None, shown=None, past=None)
            return self._frames.pop()
        return next((f for f in around if f.ids is not None), around[0])

    def _place(self, frame: Frame, call: Call, cross: bool) -> int:
        """The position of the first query in its text."""
        if frame.past is not None:
            return frame.past
        return 0 if cross else max(0, call.k.shape[2] - call.q.shape[2])

    def _open(self, part: str, frame: Frame, call: Call, place: int, cross: bool) -> None:
        """Go on with the texts of the call before, or begin new ones."""
        B, T = call.q.shape[0], call.q.shape[2]
        calls = self.texts.setdefault(part, [])
        going_on = bool(calls) and place > 0 and len(calls[-1]) == B
        if going_on and calls[-1][0].length != place:
            raise ValueError(
                f"record: the cache holds {place} tokens where {calls[-1][0].length} were read "
                "(assisted generation, or a cache that was cut); these cannot be made one map"
            )
        if not going_on:
            calls.append([Text(part, len(calls), b) for b in range(B)])
        for b, text in enumerate(calls[-1]):
            if not going_on and place > 0:  # what the cache held before we listened
                text.ids.append(np.full(place, -1))
            known = frame.ids is not None and frame.ids.shape == (B, T)
            text.ids.append(frame.ids[b] if known and frame.ids is not None else np.full(T, -1))
            text.length = place + T
            if cross and not going_on:
                text.key_ids = self._key_ids(call.name, B, b, call.k.shape[2])

    def _key_ids(self, name: str, B: int, b: int, S: int) -> NDArray[np.int64]:
        """The token ids of what cross-attention reads: the last forward of that length."""
        for frame in (*reversed(self._read), *self._frames):
            if frame.ids is not None and frame.ids.shape[1] == S and B % len(frame.ids) == 0:
                return np.asarray(frame.ids[b * len(frame.ids) // B])
        return np.full(S, -1)

    def _layer(self, call: Call, number: int) -> Layer:
        heads = self._heads(call.q.shape[1])
        sink = None if call.sink is None else call.sink.reshape(-1)[heads]
        folder = None if self.wanted.stats_only else self.wanted.folder
        q, k, lse = (Grown(folder) for _ in range(3))
        scale = call.q.shape[-1] ** -0.5 if call.scale is None else float(call.scale)
        return Layer(number, call.backend, scale, call.softcap, sink, q, k, lse)

    def _heads(self, H: int) -> list[int]:
        """The query heads to keep."""
        if self.wanted.heads is None:
            return list(range(H))
        wrong = [h for h in self.wanted.heads if not -H <= h < H]
        if wrong:
            raise ValueError(f"heads: {wrong[0]} is not one, the model has {H}: 0 to {H - 1}")
        return sorted({h % H for h in self.wanted.heads})

    def _take_text(
        self, frame: Frame, call: Call, text: Text, layer: Layer, place: int, cross: bool
    ) -> None:
        """One text of a call."""
        b = text.number
        heads = self._heads(call.q.shape[1])
        rep = call.q.shape[1] // call.k.shape[1]
        q = call.q[b, heads] if self.wanted.heads is not None else call.q[b]
        groups: Any = slice(None) if self.wanted.heads is None else [h // rep for h in heads]
        end = call.k.shape[2] if cross else min(call.k.shape[2], place + q.shape[1])
        k, v = call.k[b, groups, :end], call.v[b, groups, :end]
        if k.dtype != q.dtype or v.dtype != q.dtype:
            k, v = k.astype(q.dtype), v.astype(q.dtype)
        start = 0 if cross else place + q.shape[1] - end
        self._check_cache(layer, k, place, start, cross)
        seen = self._seen(frame, call, layer, b, heads, end, place, start, cross)
        T, S = q.shape[1], end
        bias: Any = None if seen.added is None else seen.added.rule(T, S, place if not cross else 0)
        if isinstance(bias, np.ndarray):
            bias = bias.astype(q.dtype)
        sink = None if layer.sink is None else layer.sink.astype(q.dtype)
        options: dict[str, Any] = {
            "mask": seen.rule,
            "scale": layer.scale,
            "softcap": layer.softcap,
            "bias": bias,
        }
        out, lse = attention_with_lse(q, k, v, sink=sink, **options)
        self._compare(call, layer, b, heads, out, seen, (q, k, v))
        layer.rows.append(self._shared(frame, seen.rows, start))
        layer.added.append(seen.added)
        layer.padding.append(seen.padding)
        if self.wanted.stats_only:
            amap = AttentionMap(q, k, lse, sink=sink, **options)
            self._observe(amap, text, layer, start, cross)
            layer.k.last = k[:, -1].copy()
            return
        new = k if not layer.k.count else k[:, :0] if cross else k[:, place - start :]
        layer.q.add(q)
        layer.k.add(new)
        layer.lse.add(lse[..., None])

    def _check_cache(self, layer: Layer, k: Array, place: int, start: int, cross: bool) -> None:
        """Whether the keys before this call are those that were kept."""
        if not layer.rows:
            if start > 0:
                raise ValueError(
                    f"record: the first {start} keys are gone from a sliding cache; begin the "
                    "recording with the prompt"
                )
            return
        before = k.shape[1] - 1 if cross else place - 1 - start
        if (
            layer.k.last is not None
            and 0 <= before < k.shape[1]
            and not np.array_equal(k[:, before], layer.k.last)
        ):
            raise ValueError(
                "record: the cache was reordered since the last token, as beam search does; "
                "generate with num_beams=1"
            )

    def _shared(self, frame: Frame, rows: Rows, start: int) -> Rows:
        """Rows moved to positions of the text; the same object for the same rows."""
        key = "moved", id(rows), start
        if key not in frame.masks:
            frame.masks[key] = rows.moved(start)
        moved: Rows = frame.masks[key]
        return moved

    def _seen(
        self,
        frame: Frame,
        call: Call,
        layer: Layer,
        b: int,
        heads: list[int],
        S: int,
        place: int,
        start: int,
        cross: bool,
    ) -> Seen:
        """The mask and bias of text b; found once for all layers that share the arrays."""
        before = tuple(map(id, layer.padding))
        key = call.mask_key, call.bias_key, call.causal, b, S, place, cross, before
        if key in frame.masks:
            known: Seen = frame.masks[key]
            return known
        T = call.q.shape[2]
        seen, extra = _mask_of(call.mask, b, heads, T, S)
        blank, old = np.zeros(T, bool), layer.hidden[start:]
        known_keys = S if cross and layer.padding else min(S, len(old))  # the others are new
        shown = None if cross else frame.shown
        new = np.zeros(S - known_keys, bool)
        if shown is not None and shown.shape[1] == place + T:
            blank, new = ~shown[b, place:], ~shown[b, start:][known_keys:]
        elif seen is not None and (T > 1 or cross):
            new = ~np.asarray(seen.any(axis=tuple(range(seen.ndim - 1))))[known_keys:]
        padding = np.concatenate([old[:known_keys], new])
        if seen is None:
            padding[:] = False  # nothing hides it: then it is read like any other key
            rows = plain_rows(T, S, causal=call.causal, blank=blank)
        else:
            read: Bools = np.asarray(seen[..., ~blank, :].any(axis=tuple(range(seen.ndim - 1))))
            padding &= ~read
            rows = rows_of(seen, padding, blank)
        new = padding[known_keys:]
        rule, _ = joined([rows], S, padding)
        if call.bias is not None:
            one = call.bias[b if len(call.bias) > 1 else 0]
            extra = np.broadcast_to(one, (one.shape[0], T, one.shape[-1]))[..., :S] + (
                0 if extra is None else extra
            )
        if extra is not None and extra.shape[0] > 1:
            extra = extra[heads]
        bias = None if extra is None else added(np.asarray(extra, np.float32), place, start)
        found = frame.masks[key] = Seen(rows, new, rule, bias)
        return found

    def _compare(
        self, call: Call, layer: Layer, b: int, heads: list[int], out: Array, seen: Seen, qkv: Any
    ) -> None:
        """How far the model's own output lies from that of what is kept."""
        sighted = ~seen.rows.blank
        theirs = np.moveaxis(call.out[b], 0, 1)[heads][:, sighted].astype(np.float32)
        off = np.abs(theirs - out[:, sighted].astype(np.float32)).max(initial=0.0)
        layer.out_difference = float(np.maximum(layer.out_difference, off))  # keeps NaN
        q, k, v = qkv
        rounding = spread(q, k, layer.scale)
        layer.row_tolerance = max(layer.row_tolerance, rounding)
        largest = float(np.abs(v.astype(np.float32)).max(initial=0.0))
        layer.tolerance = max(layer.tolerance, rounding * largest)

    def _observe(
        self, amap: AttentionMap, text: Text, layer: Layer, start: int, cross: bool
    ) -> None:
        """Add what `stats_only` keeps of one call."""
        ids = text.key_ids if cross and text.key_ids is not None else text.all_ids[start:]
        special = np.isin(ids, list(self.special)) if self.special else np.zeros(len(ids), bool)
        hidden = layer.hidden
        first = [int(np.argmin(hidden))] if len(hidden) and start == 0 else []
        found = sums(amap, ids, special, starts=first, one_text=not cross)
        layer.sums = found if layer.sums is None else layer.sums + found
        received = amap.observe(received=True).received
        assert received is not None
        H, S = received.shape
        total = np.zeros(
            (H, max(start + S, 0 if layer.received is None else layer.received.shape[1]))
        )
        if layer.received is not None:
            total[:, : layer.received.shape[1]] = layer.received
        total[:, start : start + S] += received
        layer.received = total
        off, _ = row_deviation(amap, layer.sink)
        layer.row_deviation = max(off, layer.row_deviation or 0.0)

    def _check_room(self, call: Call, part: str) -> None:
        """Refuse before it is taken what would not fit."""
        if self.wanted.stats_only:
            return
        B, H, T, D = call.q.shape
        kept = len(self._heads(H))
        groups = kept if self.wanted.heads is not None else call.k.shape[1]
        count = sum(p == part for p, _ in self.sites.values())
        keys = call.k.shape[2] if part not in self.texts or T > 1 else T
        each = kept * T * (D * call.q.itemsize + 4) + groups * keys * D * call.k.itemsize
        needed = B * count * each
        self._bytes += needed
        where, room = "memory", self.wanted.max_bytes
        if self.wanted.folder is not None:
            where, room = "disk", disk_usage(self.wanted.folder).free // 2  # pieces, then the file
            room = min(room, self.wanted.max_bytes) if self.wanted.max_bytes else room
        if self._bytes > room:
            raise ValueError(
                f"record: {B} x {T:,} tokens in {count} layers of {kept} heads would bring the "
                f"recording to {self._bytes / 1e9:,.2f} GB of {where}, the limit is "
                f"{room / 1e9:,.2f} GB; keep fewer layers= or heads=, keep stats_only=True, use "
                "folder= to keep it on disk, or raise max_bytes="
            )

    def close(self) -> None:
        """Let go of files that are not part of a run."""
        for calls in self.texts.values():
            for text in (text for call in calls for text in call):
                for layer in text.layers.values():
                    for grown in (layer.q, layer.k, layer.lse):
                        grown.close()

    def runs(self) -> dict[str, Any]:
        """The finished runs by name."""
        from .recording import runs_of

        return runs_of(self)


def _mask_of(
    mask: Array | None, b: int, heads: list[int], T: int, S: int
) -> tuple[Bools | None, Array | None]:
    """(seen, extra) of one text: (T, S) or (H, T, S) booleans, and what is added to seen scores."""
    if mask is None:
        return None, None
    if mask.ndim != 4:
        raise ValueError(f"record: a mask of shape {mask.shape} is not known, (B, H, T, S) is")
    own = mask[b if mask.shape[0] > 1 else 0][..., :S]
    if own.shape[0] > 1:
        own = own[heads]
    own = np.broadcast_to(own, (own.shape[0], T, own.shape[-1]))
    if own.dtype == bool:
        seen, extra = own, None
    else:
        least = float(ml_dtypes.finfo(own.dtype).min)  # type: ignore[no-untyped-call]
        seen = own > least / 2
        extra = np.where(seen, own, 0)
        extra = extra if extra.any() else None
    return (seen[0] if len(seen) == 1 else seen), extra


def _chosen(
    sites: dict[str, tuple[str, int]], layers: Sequence[int] | None
) -> dict[str, tuple[str, int]]:
    """The sites of the layers that are wanted."""
    if layers is None:
        return sites
    most = {part: 1 + max(n for p, n in sites.values() if p == part) for part, _ in sites.values()}
    deepest = max(most.values())
    for layer in layers:
        if not -deepest <= layer < deepest:
            raise ValueError(f"layers: {layer} is not one, the model has 0 to {deepest - 1}")
    return {
        name: (part, number)
        for name, (part, number) in sites.items()
        if number in layers or number - most[part] in layers
    }
