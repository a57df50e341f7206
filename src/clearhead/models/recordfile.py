"""What a recorded run has beside queries, keys and lse: version 2 of the run file.

`describe` makes of it JSON and tensors, `Described` reads them back; docs/format.md specifies both.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, NoReturn

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .. import masks
from ..biases import Bias, alibi, relative_bias
from ..rules import Allowed, Band, Documents, FirstKeys, Inverted, Joined, Mask
from .certificate import Proof

if TYPE_CHECKING:
    from .run import AttentionRun, LayerState

Array = NDArray[Any]
Tensors = dict[str, Array]

_NAMES = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.int64): "I64",
    np.dtype(np.bool_): "BOOL",
}
_DEEPEST = 32  # connectives within connectives: more is no mask that anybody wrote


def is_plain(run: "AttentionRun") -> bool:
    """Whether version 1 of the file says all that there is to say of a run."""
    return (
        run.keys.tokens == run.tokens
        and not run.proofs
        and list(run.layer_numbers) == list(range(run.num_layers))
        and list(run.head_numbers) == list(range(run.num_heads))
        and all(
            all(one is None for one in layer._replace(v=None)[3:])
            and layer.q.dtype == layer.k.dtype == np.float32
            and layer.lse.dtype == np.float64
            and layer.k.shape == layer.q.shape
            for layer in run.layers
        )
    )


def describe(run: "AttentionRun") -> tuple[dict[str, Any], Tensors]:
    """(JSON, tensors) of everything but text, tokens, words, queries, keys and lse."""
    tensors: Tensors = {}
    rules: dict[str, list[Any]] = {"masks": [], "biases": []}
    known: dict[int, int] = {}

    def index(kind: str, rule: Any, words: Callable[[Any, str, Tensors], Any]) -> int | None:
        if rule is None:
            return None
        if id(rule) not in known:
            known[id(rule)] = len(rules[kind])
            rules[kind].append(words(rule, f"{kind}.{len(rules[kind])}", tensors))
        return known[id(rule)]

    layers = []
    for i, layer in enumerate(run.layers):
        if layer.sink is not None:
            tensors[f"layers.{i}.sink"] = np.asarray(layer.sink)
        mask = masks.allowed(layer.mask) if isinstance(layer.mask, np.ndarray) else layer.mask
        layers.append(
            {
                "scale": layer.scale,
                "softcap": layer.softcap,
                "mask": index("masks", mask, _mask_words),
                "bias": index("biases", layer.bias, _bias_words),
            }
        )
    keys = None
    if run.keys.tokens != run.tokens:
        keys = {
            "text": run.keys.text,
            "tokens": [[t.id, t.raw, t.start, t.end, t.word, t.special] for t in run.keys.tokens],
            "words": [[w.start, w.end, w.tokens, w.special] for w in run.keys.words],
        }
    proofs = [[p.backend, p.rows, p.blank_rows, p.out_difference, p.tolerance] for p in run.proofs]
    record = {"keys": keys, "layer_numbers": run.layer_numbers, "head_numbers": run.head_numbers}
    return record | {"proofs": proofs, "layers": layers} | rules, tensors


def _mask_words(mask: Mask, name: str, tensors: Tensors) -> list[Any]:
    """A mask as JSON; its arrays go to `tensors`."""

    def stored(array: Array) -> str:
        key = f"{name}.{sum(other.startswith(name + '.') for other in tensors)}"
        tensors[key] = array
        return key

    match mask:
        case Joined():
            return [
                mask.sign,
                _mask_words(mask.a, name, tensors),
                _mask_words(mask.b, name, tensors),
            ]
        case Inverted():
            return ["~", _mask_words(mask.a, name, tensors)]
        case Band() if mask.words.startswith("causal"):
            return ["causal", mask.offset]
        case Band():
            return ["window", None if mask.low is None else -mask.low, mask.high]
        case FirstKeys():
            return ["first_keys", mask.n]
        case Documents():
            keys = None if mask.keys is None else stored(mask.keys)
            return ["documents", stored(mask.queries), keys]
        case Allowed():
            return ["allowed", stored(mask.array)]
    raise ValueError(f"mask: {mask!r} cannot be written to a run file; use allowed(array)")


def _bias_words(bias: Any, name: str, tensors: Tensors) -> list[Any]:
    if not isinstance(bias, Bias):
        tensors[name] = np.asarray(bias)
        return ["array", name]
    slopes = getattr(bias, "slopes", None)
    if slopes is not None:
        tensors[name] = np.asarray(slopes)
        return ["alibi", name]
    tensors[name] = np.asarray(bias.values)  # type: ignore[attr-defined]
    return ["distance", name, bias.first]  # type: ignore[attr-defined]


class Described:
    """What `describe` wrote, checked part by part.

    record   the JSON
    file     the tensors
    refuse   raises the error that names the file
    """

    def __init__(
        self, record: Any, file: Mapping[str, Array], refuse: Callable[[str], NoReturn]
    ) -> None:
        if not isinstance(record, dict):
            refuse("record: must be an object")
        self.record, self.file, self.refuse = record, file, refuse
        self.used: set[str] = set()
        self._masks: dict[int, Mask] = {}
        self._biases: dict[int, Any] = {}

    def numbers(self, name: str, count: int) -> list[int]:
        """`layer_numbers` or `head_numbers`."""
        found = self.record.get(name)
        if (
            not isinstance(found, list)
            or len(found) != count
            or any(type(n) is not int or n < 0 for n in found)
        ):
            self.refuse(f"{name}: must be {count} whole numbers")
        return found

    def proofs(self, numbers: list[int]) -> list[Proof]:
        """The proofs, one for each layer or none."""
        found = self.record.get("proofs")
        if not isinstance(found, list) or len(found) not in (0, len(numbers)):
            self.refuse("proofs: must be one for each layer")
        proofs = []
        for number, entry in zip(numbers, found, strict=bool(found)):
            match entry:
                case [str(backend), int(rows), int(blank), off, float(limit)] if off is None or (
                    isinstance(off, float)
                ):
                    proofs.append(Proof(number, backend, "", rows, blank, 0.0, 0.0, off, limit))
                case _:
                    self.refuse("proofs: must be [backend, rows, blank rows, difference, limit]")
        return proofs

    def layer(self, index: int, q: Array, k: Array, lse: Array) -> "LayerState":
        """One layer with its rules."""
        from ..maps import AttentionMap
        from .run import LayerState

        layers = self.record.get("layers")
        entry = layers[index] if isinstance(layers, list) and index < len(layers) else None
        if not isinstance(entry, dict):
            self.refuse(f"layers: must hold one object for each layer, lacks {index}")
        scale, softcap = (self._number(f"layers[{index}].{n}", entry.get(n)) for n in _NUMBERS)
        sink = self.file.get(f"layers.{index}.sink")
        if sink is not None:
            self.used.add(f"layers.{index}.sink")
            if sink.shape != q.shape[:1] or sink.dtype.kind not in "fV":
                self.refuse(f"layers.{index}.sink: is {sink.shape}, must be ({q.shape[0]},)")
        mask = self._rule(entry, "mask", self._masks, self._mask)
        bias = self._rule(entry, "bias", self._biases, self._bias)
        try:
            AttentionMap(q, k, lse, mask=mask, bias=bias, scale=scale, softcap=softcap)
        except (ValueError, TypeError) as error:
            self.refuse(f"layers[{index}]: {error}")
        return LayerState(q, k, lse, mask, bias, scale, softcap, sink)

    def _number(self, name: str, value: Any) -> float | None:
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 < abs(value) < 1e30:
            self.refuse(f"{name}: is {value!r:.40}, must be a number")
        return float(value)

    def _rule(
        self, entry: dict[str, Any], kind: str, known: dict[int, Any], made: Callable[[Any], Any]
    ) -> Any:
        """The rule that a layer's `mask` or `bias` points to."""
        at, plural = entry.get(kind), {"mask": "masks", "bias": "biases"}[kind]
        if at is None:
            return None
        rules = self.record.get(plural)
        if not isinstance(rules, list) or type(at) is not int or not 0 <= at < len(rules):
            self.refuse(f"{kind}: {at!r:.40} is none of {plural}")
        if at not in known:
            known[at] = made(rules[at])
        return known[at]

    def _array(self, name: Any, kinds: str) -> Array:
        array = self.file.get(name) if isinstance(name, str) else None
        if array is None or array.dtype.kind not in kinds:
            self.refuse(f"record: {name!r:.60} is no tensor of the kind it must be")
        self.used.add(name)
        return array

    def _mask(self, words: Any, depth: int = 0) -> Mask:
        try:
            match words:
                case [("&" | "|") as sign, one, other] if depth < _DEEPEST:
                    a, b = self._mask(one, depth + 1), self._mask(other, depth + 1)
                    return a & b if sign == "&" else a | b
                case ["~", one] if depth < _DEEPEST:
                    return ~self._mask(one, depth + 1)
                case ["causal", offset]:
                    return masks.causal(offset)
                case ["window", left, right]:
                    return masks.window(left, right)
                case ["first_keys", n]:
                    return masks.first_keys(n)
                case ["documents", queries, keys]:
                    other = None if keys is None else self._array(keys, "i")
                    return masks.documents(self._array(queries, "i"), other)
                case ["allowed", name]:
                    return masks.allowed(self._array(name, "b"))
        except (TypeError, ValueError) as error:
            if "record: " in str(error):
                raise
            self.refuse(f"masks: {error}")
        self.refuse(f"masks: {words!r:.60} is no mask")

    def _bias(self, words: Any) -> Any:
        try:
            match words:
                case ["array", name]:
                    return self._array(name, "fV")
                case ["alibi", name]:
                    return alibi(self._array(name, "f"))
                case ["distance", name, int(first)]:
                    return relative_bias(self._array(name, "f"), first)
        except (TypeError, ValueError) as error:
            if "record: " in str(error):
                raise
            self.refuse(f"biases: {error}")
        self.refuse(f"biases: {words!r:.60} is no bias")


_NUMBERS = ("scale", "softcap")


def write(file: IO[bytes], tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Write safetensors piece by piece: no more than one head of one tensor is in memory."""
    # Widest dtypes first, so that every tensor begins at a multiple of its item's size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, array in ordered:
        end = at + array.nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": array.shape,
            "data_offsets": [at, end],
        }
        at = end
    said = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    said += b" " * (-len(said) % 8)
    file.write(len(said).to_bytes(8, "little") + said)
    for _, array in ordered:
        for piece in _pieces(array):
            file.write(np.ascontiguousarray(piece).tobytes())


def _pieces(array: Array) -> Iterator[Array]:
    """An array along its first axis, if it has several."""
    if array.ndim > 1:
        yield from array
    else:
        yield array
