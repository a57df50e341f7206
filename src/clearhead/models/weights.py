"""Safetensors: one file, or a checkpoint folder of several, as memory-mapped NumPy arrays.

Reading is done here, and not by the `safetensors` package, for three reasons: its NumPy front
end copies every tensor, has no bfloat16, and does not name the tensor that is wrong. The format:

    8 bytes    N, the size of the header, little-endian
    N bytes    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
                      "__metadata__": {"any": "text"}}
    the rest   the tensors, little-endian, row-major; offsets count from here

A file is refused, with one sentence that names file and tensor, unless every byte of it is
accounted for: a header that tells two stories (a key twice, tensors that overlap, bytes that
nobody owns) is how two readers come to see two different models.
"""

import json
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

_MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_FLOATS = ("F64", "F32", "F16", "BF16")
_Entry = tuple[str, tuple[int, ...], int, int]  # dtype, shape, begin, end
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class CheckpointError(ValueError):
    """A checkpoint, tokenizer or run file that cannot be used: which file, which part, and why."""


class Tensors(Mapping[str, NDArray[Any]]):
    """The tensors of one safetensors file, by name: read-only views into the memory-mapped file.

    path      the file
    metadata  the header's `__metadata__`, text to text

    Raises `CheckpointError` if the file is malformed in any way, `OSError` if it cannot be opened.

    >>> import numpy as np, safetensors.numpy
    >>> safetensors.numpy.save_file({"a": np.zeros((2, 3), np.float32)}, "a.safetensors")
    >>> Tensors("a.safetensors")["a"].shape
    (2, 3)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                _refuse(self.path, f"holds {size} bytes; a safetensors file has at least 8")
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        length = int.from_bytes(self._bytes[:8], "little")
        if length > _MAX_HEADER_BYTES or length > size - 8:
            limit = min(_MAX_HEADER_BYTES, size - 8)
            _refuse(self.path, f"its header claims {length} bytes, but can have at most {limit}")
        header = json_object(self.path, self._bytes[8 : 8 + length])
        self.metadata = _metadata(self.path, header.pop("__metadata__", {}))
        self._start = 8 + length
        self._entries = {name: _entry(self.path, name, e) for name, e in header.items()}
        _check_layout(self.path, self._entries, size - self._start)

    def __getitem__(self, name: str) -> NDArray[Any]:
        dtype, shape, begin, _ = self._entries[name]
        try:
            return np.ndarray(shape, _DTYPES[dtype], self._bytes, self._start + begin)
        except ValueError:  # a size of 0 beside one that no array can have
            _refuse(self.path, f"{_shown(name)}: {_shown(shape)} is no shape an array can have")

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def dtype(self, name: str) -> str:
        """The dtype of one tensor as the file spells it: `F32`, `BF16`, ..."""
        return self._entries[name][0]


class Checkpoint:
    """The weights of a model folder: `model.safetensors`, or the shards that its index names.

    folder  holds `model.safetensors` or `model.safetensors.index.json`
    prefix  taken off the front of tensor names where it is there (`bert.`)

    Raises `CheckpointError` for a folder without safetensors (pickled weights are never opened) and
    for files that are malformed, disagree with the index, or hold one tensor twice.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        single = self.folder / "model.safetensors"
        index = self.folder / "model.safetensors.index.json"
        if single.is_file():
            file = Tensors(single)
            self._home = {name: file for name in file}
        elif index.is_file():
            self._home = _shards(index)
        else:
            _refuse_folder(self.folder)

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """One tensor as float32: the file's own memory where it is float32, else converted.

        shape  what the model's configuration calls for

        Raises `CheckpointError` if the tensor is missing, of another shape, or not of floats.
        """
        if name not in self._home:
            _refuse(self.folder, f"{_shown(name)}: is missing; the model needs {shape}")
        file = self._home[name]
        array = file[name]
        if file.dtype(name) not in _FLOATS:
            floats = ", ".join(_FLOATS)
            _refuse(file.path, f"{_shown(name)}: is {file.dtype(name)}, must be one of {floats}")
        if array.shape != shape:
            _refuse(file.path, f"{_shown(name)}: is {array.shape}, the configuration says {shape}")
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # Bert.read reports inf and NaN, by layer
            return np.require(array, np.float32, "A")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `CheckpointError` if there is none, or not exactly one."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        _refuse(path.parent, f"holds no {path.name}")
    return json_object(path, data)


def json_object(path: Path, data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, part of the file `path`: UTF-8, no key twice, no NaN.

    Raises `CheckpointError` if it is anything else.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = Counter(key for key, _ in pairs)
        for key, count in keys.most_common(1):
            if count > 1:
                _refuse(path, f"{_shown(key)}: is there {count} times")
        return dict(pairs)

    def constant(text: str) -> NoReturn:
        _refuse(path, f"{text} is not JSON")

    try:
        value = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=constant)
    except CheckpointError:
        raise
    except (ValueError, RecursionError):  # not UTF-8, not JSON, nested or digits without end
        _refuse(path, "is not JSON" if path.suffix == ".json" else "its header is not JSON")
    if not isinstance(value, dict):
        _refuse(path, f"must hold a JSON object, not {type(value).__name__}")
    return value


def _shards(index: Path) -> dict[str, Tensors]:
    """Where each tensor of a sharded checkpoint is."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        _refuse(index, "weight_map: must map tensor names to file names")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", "..", "."):
            _refuse(index, f"{_shown(name)}: {_shown(shard)} is not a file name in the same folder")
    files: dict[str, Tensors] = {}
    for shard in sorted(set(weight_map.values())):
        if not (index.parent / shard).is_file():
            _refuse(index, f"names {_shown(shard)}, which is not in the folder")
        files[shard] = Tensors(index.parent / shard)
    for shard, file in files.items():
        for name in file:
            if weight_map.get(name, shard) != shard:
                _refuse(file.path, f"{_shown(name)}: is in {_shown(weight_map[name])} as well")
    for name, shard in weight_map.items():
        if name not in files[shard]:
            _refuse(files[shard].path, f"{_shown(name)}: is missing, though the index promises it")
    return {name: files[shard] for name, shard in weight_map.items()}


def _refuse_folder(folder: Path) -> NoReturn:
    """Say why a folder without safetensors is no checkpoint."""
    if not folder.is_dir():
        _refuse(folder, "is not a folder")
    pickled = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickled:
        _refuse(
            folder,
            f"holds only pickled weights ({pickled[0]}), which can run code when opened and are "
            "never read; save the model as safetensors",
        )
    _refuse(folder, "holds neither model.safetensors nor model.safetensors.index.json")


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        _refuse(path, "__metadata__: must map text to text")
    return value


def _entry(path: Path, name: str, entry: Any) -> _Entry:
    """One header entry, checked by itself."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _refuse(path, f"{_shown(name)}: must have dtype, shape and data_offsets, nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        known = ", ".join(_DTYPES)
        _refuse(path, f"{_shown(name)}: its dtype is {_shown(dtype)}, must be one of {known}")
    if not _sizes(shape):
        _refuse(path, f"{_shown(name)}: its shape is not a list of sizes")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"{_shown(name)}: its data_offsets are not [begin, end] with begin <= end")
    begin, end = offsets
    if prod(shape) * _DTYPES[dtype].itemsize != end - begin:
        what = f"bytes [{_shown(begin)}, {_shown(end)}) do not hold {_shown(tuple(shape))} {dtype}"
        _refuse(path, f"{_shown(name)}: {what}")
    return dtype, tuple(shape), begin, end


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _check_layout(path: Path, entries: Mapping[str, _Entry], size: int) -> None:
    """Every data byte belongs to exactly one tensor."""
    at, before = 0, ""
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if end > size:
            what = f"bytes [{_shown(begin)}, {_shown(end)}) lie beyond the file's {size} data bytes"
            _refuse(path, f"{_shown(name)}: {what}")
        if begin < at:
            _refuse(path, f"{_shown(name)}: overlaps {_shown(before)}")
        if begin > at:
            _refuse(path, f"{_shown(name)}: bytes [{at}, {begin}) before it belong to no tensor")
        at, before = end, name
    if at != size:
        _refuse(path, f"its last {size - at} bytes belong to no tensor")


def _shown(value: Any) -> str:
    """A name from the file as it may stand in a message: short, and without control characters."""
    text = value if isinstance(value, str) and value.isprintable() and value else ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _refuse(path: Path, what: str) -> NoReturn:
    raise CheckpointError(f"{path}: {what}")
