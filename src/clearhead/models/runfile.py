"""A run as one safetensors file, its tokens as JSON in the header; docs/format.md specifies it."""

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .._writing import replacing
from .recordfile import Described, describe, is_plain, write
from .tokens import Token, Word
from .weights import CheckpointError, Tensors, json_object

if TYPE_CHECKING:
    from .run import AttentionRun, LayerState

_KEY = "clearhead.run"
_PLAIN, _RECORDED = 1, 2  # the versions: what `read` makes, and what a recording adds
_MAX_HEADER_BYTES = 90_000_000  # safetensors allows 100,000,000, the tensors' entries included
_LAYER = ("q", "k", "lse")


def save(run: "AttentionRun", path: str | os.PathLike[str]) -> None:
    """Write a run; a file that is there is replaced at the end, by one that is whole.

    Raises `OSError` if it cannot be written, `ValueError` if its tokens are too many for a header.
    """
    plain = is_plain(run)
    record, more = ({}, {}) if plain else describe(run)
    header = json.dumps(
        {
            "version": _PLAIN if plain else _RECORDED,
            "model": run.model,
            "text": run.text,
            "tokens": [[t.id, t.raw, t.start, t.end, t.word, t.special] for t in run.tokens],
            "words": [[w.start, w.end, w.tokens, w.special] for w in run.words],
            "starts": run.starts,
            "notes": run.notes,
        }
        | ({} if plain else {"record": record}),
        ensure_ascii=False,
        separators=(",", ":"),
    )
    size = len(header.encode())
    if size > _MAX_HEADER_BYTES:
        raise ValueError(
            f"{os.fspath(path)}: text and tokens take {size:,} bytes, "
            f"a header holds {_MAX_HEADER_BYTES:,}"
        )
    tensors = more | {
        f"layers.{i}.{name}": np.ascontiguousarray(array) if plain else array
        for i, layer in enumerate(run.layers)
        for name, array in zip(_LAYER, layer[:3], strict=True)
    }
    with replacing(path, binary=True) as file:
        write(file, tensors, {_KEY: header})


def load(path: str | os.PathLike[str]) -> "AttentionRun":
    """Open a run that `AttentionRun.save` wrote. Its arrays stay in the file, memory-mapped.

    Raises `OSError` if the file cannot be opened, `CheckpointError` if it is not a run, is of a
    later version, or contradicts itself.

    >>> run.save("run.safetensors")
    >>> ch.load("run.safetensors").links("it") == run.links("it")
    True
    """
    from .run import AttentionRun, LayerState, Reading

    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: is {type(path).__name__}, must be str or os.PathLike")
    path = Path(path)
    file = Tensors(path)
    if _KEY not in file.metadata:
        _refuse(path, f"is not a run; its metadata hold no {_KEY}")
    header = json_object(path, file.metadata[_KEY].encode("utf-8", "surrogatepass"))
    version = header.get("version")
    if type(version) is not int or version not in (_PLAIN, _RECORDED):
        _refuse(path, f"is of version {version!r:.40}, this clearhead reads versions 1 and 2")
    text, tokens, words = _reading(path, header)
    starts = _list(path, header, "starts")
    if not _rising(starts, len(tokens)):
        _refuse(path, "starts: must rise from 0 and stay below the number of tokens")
    notes = _list(path, header, "notes")
    if not all(isinstance(note, str) for note in notes):
        _refuse(path, "notes: must be texts")
    model = _text(path, header, "model")
    if version == _PLAIN:
        layers = [LayerState(*arrays) for arrays in _layers(path, file, len(tokens))]
        return AttentionRun(model, text, tokens, words, layers, starts=starts, notes=notes)
    described = Described(header.get("record"), file, partial(_refuse, path))
    given = described.record.get("keys")
    if given is not None and not isinstance(given, dict):
        _refuse(path, "keys: must be an object or null")
    keys = None if given is None else Reading(*_reading(path, given))
    S = len(tokens if keys is None else keys.tokens)
    layers = _recorded_layers(path, file, described, len(tokens), S)
    numbers = described.numbers("layer_numbers", len(layers))
    return AttentionRun(
        model,
        text,
        tokens,
        words,
        layers,
        starts=starts,
        notes=notes,
        keys=keys,
        layer_numbers=numbers,
        head_numbers=described.numbers("head_numbers", layers[0].q.shape[0]),
        proofs=described.proofs(numbers),
    )


def _reading(path: Path, header: dict[str, Any]) -> tuple[str, tuple[Token, ...], tuple[Word, ...]]:
    """A text with its tokens and words, which must fit each other."""
    text = _text(path, header, "text")
    words = [_word(path, i, entry, text) for i, entry in enumerate(_list(path, header, "words"))]
    tokens = [
        _token(path, i, entry, text, words) for i, entry in enumerate(_list(path, header, "tokens"))
    ]
    for i, word in enumerate(words):
        if not word.tokens or any(t >= len(tokens) or tokens[t].word != i for t in word.tokens):
            _refuse(path, f"words[{i}]: its tokens are not tokens of that word")
        if word.special:
            words[i] = Word(tokens[word.tokens[0]].raw, word.start, word.end, word.tokens, True)
    return text, tuple(tokens), tuple(words)


def _recorded_layers(
    path: Path, file: Mapping[str, NDArray[Any]], described: Described, T: int, S: int
) -> "list[LayerState]":
    """The layers of a recording: any float dtype, grouped keys, and rules."""
    layers: list[LayerState] = []
    while f"layers.{len(layers)}.q" in file:
        at = len(layers)
        names = [f"layers.{at}.{name}" for name in _LAYER]
        if not set(names) <= set(file):
            _refuse(path, f"layers.{at}: must have q, k and lse")
        q, k, lse = (file[name] for name in names)
        described.used |= set(names)
        for name, array in zip(names, (q, k, lse), strict=True):
            if array.dtype.kind not in "fV" or 0 in array.shape:
                _refuse(path, f"{name}: is {array.dtype} {array.shape}, must be numbers")
        if q.ndim != 3 or q.shape[1] != T or k.ndim != 3 or k.shape[1] != S or k.dtype != q.dtype:
            shapes = f"q {q.dtype} {q.shape}, k {k.dtype} {k.shape}"
            _refuse(path, f"layers.{at}: {shapes}, must be (H, {T}, D) and (G, {S}, D)")
        layers.append(described.layer(at, q, k, lse))
    if not layers or set(file) != described.used:
        _refuse(path, "its tensors must be those of its layers, masks and biases")
    if len({layer.q.shape[0] for layer in layers}) > 1:
        _refuse(path, "layers: must all have the same number of heads")
    return layers


def _layers(
    path: Path, file: Mapping[str, NDArray[Any]], T: int
) -> list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """q, k and lse of every layer, all layers of one shape."""
    count = len(file) // len(_LAYER)
    expected = [f"layers.{i}.{name}" for i in range(count) for name in _LAYER]
    if not count or set(file) != set(expected):
        _refuse(path, "its tensors must be layers.N.q, layers.N.k and layers.N.lse, N from 0 on")
    shape = file["layers.0.q"].shape
    if len(shape) != 3 or shape[1] != T or 0 in shape:
        _refuse(path, f"layers.0.q: is {shape}, must be (H, {T}, D) for {T} tokens")
    for name in expected:
        array = file[name]
        is_lse = name.endswith(".lse")
        needed, dtype = (shape[:2], "float64") if is_lse else (shape, "float32")
        if array.shape != needed or array.dtype != dtype:
            _refuse(path, f"{name}: is {array.dtype} {array.shape}, must be {dtype} {needed}")
    return [
        (file[f"layers.{i}.q"], file[f"layers.{i}.k"], file[f"layers.{i}.lse"])
        for i in range(count)
    ]


def _word(path: Path, index: int, entry: Any, text: str) -> Word:
    """One word as it stands in the header; a special one gets its text from its token later."""
    match entry:
        case [int(start), int(end), list(tokens), bool(special)] if _is_span(
            start, end, text
        ) and all(type(t) is int and t >= 0 for t in tokens):
            return Word(text[start:end], start, end, tuple(tokens), special)
    _refuse(path, f"words[{index}]: must be [start, end, [token, ...], special] within the text")


def _token(path: Path, index: int, entry: Any, text: str, words: list[Word]) -> Token:
    match entry:
        case [int(id_), str(raw), int(start), int(end), int(word), bool(special)] if (
            _is_span(start, end, text)
            and not isinstance(word, bool)
            and 0 <= word < len(words)
            and words[word].special == special
            and not isinstance(id_, bool)
        ):
            return Token(id_, raw, raw if special else text[start:end], start, end, word, special)
    _refuse(path, f"tokens[{index}]: must be [id, raw, start, end, word, special] within the text")


def _is_span(start: int, end: int, text: str) -> bool:
    return type(start) is int and type(end) is int and 0 <= start <= end <= len(text)


def _rising(starts: list[Any], limit: int) -> bool:
    if not starts or any(type(start) is not int for start in starts):
        return False
    steps = zip(starts, [*starts[1:], limit], strict=True)
    return starts[0] == 0 and all(here < there for here, there in steps)


def _list(path: Path, header: dict[str, Any], name: str) -> list[Any]:
    value = header.get(name)
    if not isinstance(value, list) or (not value and name != "notes"):
        _refuse(path, f"{name}: must be a list with something in it")
    return value


def _text(path: Path, header: dict[str, Any], name: str) -> str:
    value = header.get(name)
    if not isinstance(value, str):
        _refuse(path, f"{name}: must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(path, f"{name}: is not Unicode text")
    return value


def _refuse(path: Path, what: str) -> NoReturn:
    raise CheckpointError(f"{path}: {what}")
