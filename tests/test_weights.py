"""Safetensors and checkpoint folders: what is read, and every way in which a file is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from clearhead.models.weights import Checkpoint, CheckpointError, Tensors, read_json

RNG = np.random.default_rng(7)


def file_bytes(header: Any, data: bytes = b"") -> bytes:
    """A file with this header, which is JSON already if it is bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SOUND = file_bytes(
    {
        "a": entry(0, 24, [2, 3]),
        "b": entry(24, 34, [5], "F16"),
        "__metadata__": {"made": "by hand"},
    },
    np.arange(6, dtype="<f4").tobytes() + np.arange(5, dtype="<f2").tobytes(),
)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_each_float_dtype_is_read_as_float32(tmp_path: Path, dtype: str) -> None:
    array = RNG.standard_normal((3, 5)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    name = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
    data = file_bytes({"w": entry(0, array.nbytes, [3, 5], name)}, array.tobytes())
    (tmp_path / "model.safetensors").write_bytes(data)
    tensor = Checkpoint(tmp_path).tensor("w", (3, 5))
    assert tensor.dtype == np.float32
    np.testing.assert_array_equal(tensor, array.astype(np.float32))


def test_float32_stays_in_the_mapped_file_and_cannot_be_written(tmp_path: Path) -> None:
    save_file({"w": np.ones((3, 5), np.float32)}, tmp_path / "model.safetensors")
    tensor = Checkpoint(tmp_path).tensor("w", (3, 5))
    assert not tensor.flags.owndata and not tensor.flags.writeable


def test_tensors_off_their_alignment_are_read_all_the_same(tmp_path: Path) -> None:
    flag, array = np.array([True]), RNG.standard_normal((3, 5)).astype("<f4")
    data = file_bytes(
        {"flag": entry(0, 1, [1], "BOOL"), "w": entry(1, 61, [3, 5])},
        flag.tobytes() + array.tobytes(),
    )
    (tmp_path / "model.safetensors").write_bytes(data)
    tensor = Checkpoint(tmp_path).tensor("w", (3, 5))
    assert tensor.flags.aligned
    np.testing.assert_array_equal(tensor, array)


def test_what_safetensors_writes_is_read_back(tmp_path: Path) -> None:
    arrays = {
        "empty": np.zeros((0, 7), np.float32),
        "ids": np.arange(11, dtype=np.int64),
        "scalar": np.array(2.5, np.float32),
        "b": RNG.standard_normal((2, 3, 5)).astype(np.float16),
    }
    save_file(arrays, tmp_path / "x.safetensors", {"made": "here"})
    read = Tensors(tmp_path / "x.safetensors")
    assert set(read) == set(arrays) and read.metadata == {"made": "here"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype


HUGE = 2**62
MALFORMED = {
    "empty": (b"", "holds 0 bytes"),
    "shorter than its length": (b"\x01\0\0", "holds 3 bytes"),
    "header of 2^60 bytes": ((1 << 60).to_bytes(8, "little") + b"{}", "claims 1152921504606846976"),
    "header one byte too long": ((3).to_bytes(8, "little") + b"{}", "claims 3 bytes"),
    "header above the limit": (
        (100_000_001).to_bytes(8, "little") + b"{}",
        "claims 100000001 bytes",
    ),
    "no JSON": (file_bytes(b"not json"), "header is not JSON"),
    "no UTF-8": (file_bytes(b'{"\xff": 1}'), "header is not JSON"),
    "UTF-16": (file_bytes('{"a": 1}'.encode("utf-16")), "header is not JSON"),
    "nested without end": (file_bytes(b"[" * 100_000), "header is not JSON"),
    "a number without end": (file_bytes(b'{"a": ' + b"9" * 5000 + b"}"), "header is not JSON"),
    "NaN": (file_bytes(b'{"a": NaN}'), "NaN is not JSON"),
    "a list": (file_bytes([1, 2]), "JSON object"),
    "a name twice": (
        file_bytes(
            b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},'
            b' "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}',
            b"xy",
        ),
        "a: is there 2 times",
    ),
    "metadata that is not text": (file_bytes({"__metadata__": {"a": 1}}), "__metadata__"),
    "entry that is no object": (file_bytes({"w": 5}), "w: must have dtype"),
    "entry without shape": (file_bytes({"w": {"dtype": "F32"}}), "w: must have dtype"),
    "entry with more": (
        file_bytes({"w": entry(0, 4, [1]) | {"code": "x"}}, bytes(4)),
        "w: must have dtype",
    ),
    "dtype unknown": (file_bytes({"w": entry(0, 4, [1], "F99")}, bytes(4)), "w: its dtype is F99"),
    "dtype a list": (
        file_bytes({"w": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        "w: its dtype is []",
    ),
    "shape negative": (file_bytes({"w": entry(0, 4, [-1])}, bytes(4)), "w: its shape"),
    "shape true": (file_bytes({"w": entry(0, 4, [True])}, bytes(4)), "w: its shape"),
    "shape of fractions": (
        file_bytes({"w": entry(0, 4, [1.0])}, bytes(4)),  # type: ignore[list-item]
        "w: its shape",
    ),
    "shape larger than its bytes": (
        file_bytes({"w": entry(0, 4, [2])}, bytes(4)),
        "w: bytes [0, 4) do not hold (2,) F32",
    ),
    "shape whose product overflows": (
        file_bytes({"w": entry(0, 0, [2**32, 2**32])}),
        "w: bytes [0, 0) do not hold",
    ),
    "offsets reversed": (file_bytes({"w": entry(4, 0, [1])}, bytes(4)), "w: its data_offsets"),
    "offsets of three": (
        file_bytes({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, bytes(4)),
        "w: its data_offsets",
    ),
    "offsets out of range": (
        file_bytes({"w": entry(0, 8, [2])}, bytes(4)),
        "w: bytes [0, 8) lie beyond the file's 4 data bytes",
    ),
    "offsets of 2^62": (
        file_bytes({"w": entry(HUGE, HUGE + 4, [1])}, bytes(4)),
        "w: bytes [4611686018427387904",
    ),
    "tensors that overlap": (
        file_bytes({"v": entry(0, 8, [2]), "w": entry(4, 12, [2])}, bytes(12)),
        "w: overlaps v",
    ),
    "tensors on the same bytes": (
        file_bytes({"v": entry(0, 8, [2]), "w": entry(0, 8, [2])}, bytes(8)),
        "w: overlaps v",
    ),
    "a hole": (
        file_bytes({"v": entry(0, 4, [1]), "w": entry(8, 12, [1])}, bytes(12)),
        "w: bytes [4, 8) before it belong to no tensor",
    ),
    "bytes left over": (
        file_bytes({"v": entry(0, 4, [1])}, bytes(9)),
        "its last 5 bytes belong to no tensor",
    ),
    "truncated": (SOUND[:-1], "b: bytes [24, 34) lie beyond the file's 33 data bytes"),
    "name of control characters": (
        file_bytes({"\x1b[31m\n": entry(0, 8, [2])}, bytes(4)),
        "'\\x1b[31m\\n': bytes",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_in_one_sentence_that_names_it(
    tmp_path: Path, case: str
) -> None:
    data, says = MALFORMED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as refused:
        Tensors(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ") and says in message
    assert "\n" not in message and message.isprintable()
    assert refused.value.__cause__ is None


def test_a_shape_that_no_array_can_have_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes({"w": entry(0, 0, [0, HUGE, HUGE])}))
    with pytest.raises(CheckpointError, match=r"w: .* is no shape an array can have"):
        Tensors(path)["w"]


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_but_nothing_else(
    tmp_path: Path, data: st.DataObject
) -> None:
    damaged = bytearray(SOUND)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    path = tmp_path / "model.safetensors"
    path.write_bytes(damaged)
    try:
        for name, array in Tensors(path).items():
            assert isinstance(name, str) and array.nbytes <= len(damaged)
    except CheckpointError as error:
        assert str(path) in str(error)


def test_a_missing_tensor_a_wrong_shape_and_integers_are_named(tmp_path: Path) -> None:
    arrays = {"w": np.zeros((3, 5), np.float32), "ids": np.zeros(2, np.int64)}
    save_file(arrays, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"x: is missing; the model needs \(3, 5\)"):
        checkpoint.tensor("x", (3, 5))
    with pytest.raises(CheckpointError, match=r"w: is \(3, 5\), the configuration says \(5, 3\)"):
        checkpoint.tensor("w", (5, 3))
    with pytest.raises(CheckpointError, match="ids: is I64, must be one of F64, F32, F16, BF16"):
        checkpoint.tensor("ids", (2,))


def shards(folder: Path, weight_map: Any, **files: dict[str, np.ndarray]) -> None:
    for name, arrays in files.items():
        save_file(arrays, folder / f"{name}.safetensors")
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)


ONE, TWO = np.ones(3, np.float32), np.full(5, 2, np.float32)


def test_a_sharded_checkpoint_is_one_checkpoint(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "s1.safetensors", "b": "s2.safetensors"}, s1={"a": ONE}, s2={"b": TWO})
    checkpoint = Checkpoint(tmp_path)
    assert sorted(checkpoint) == ["a", "b"]
    np.testing.assert_array_equal(checkpoint.tensor("a", (3,)), ONE)
    np.testing.assert_array_equal(checkpoint.tensor("b", (5,)), TWO)


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        ({"a": "../s1.safetensors"}, "'?../s1.safetensors'? is not a file name"),
        ({"a": "/etc/passwd"}, "/etc/passwd is not a file name"),
        ({"a": ".."}, "is not a file name"),
        ({"a": ""}, "is not a file name"),
        ({"a": 5}, "5 is not a file name"),
        ({"a": "gone.safetensors"}, "names gone.safetensors, which is not in the folder"),
        ({"a": "s2.safetensors"}, "a: is missing, though the index promises it"),
        ({"a": "s1.safetensors", "c": "s2.safetensors"}, "c: is in s2.safetensors as well"),
        ({}, "weight_map: must map"),
        ([], "weight_map: must map"),
        (None, "weight_map: must map"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, weight_map: Any, says: str) -> None:
    shards(tmp_path, weight_map, s1={"a": ONE, "c": ONE}, s2={"b": TWO, "c": ONE})
    with pytest.raises(CheckpointError, match=says):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
def test_pickled_weights_are_explained_and_never_opened(tmp_path: Path, name: str) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match=f"only pickled weights .{name}.*run code"):
        Checkpoint(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_folder_without_weights_and_no_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor"):
        Checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is not a folder"):
        Checkpoint(tmp_path / "gone")


@pytest.mark.parametrize("text", ["", "[]", '"x"', "{", '{"a": 1, "a": 2}', '{"a": Infinity}'])
def test_a_json_file_that_is_no_one_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        read_json(path)


def test_a_json_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        read_json(tmp_path / "config.json")
