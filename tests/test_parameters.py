"""State dicts and safetensors files: the same layer on both sides, in both directions."""

import os

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import clearhead as ch

torch = pytest.importorskip("torch", reason="state dicts go to and from torch here")
safetensors_torch = pytest.importorskip("safetensors.torch")

LAYERS = {
    "plain": {},
    "no bias": {"bias": False},
    "own sizes": {"kdim": 5, "vdim": 7},
    "more keys": {"add_bias_kv": True, "add_zero_attn": True, "vdim": 7},
}


def torch_layer(**options):
    return torch.nn.MultiheadAttention(12, 3, **options, batch_first=True)


def assert_same_answer(layer, oracle, rng):
    sizes = (5, 12), (7, layer.kdim), (7, layer.vdim)
    arrays = [rng.normal(size=size).astype(np.float32) for size in sizes]
    want, _ = oracle(*(torch.from_numpy(x) for x in arrays))
    np.testing.assert_allclose(layer(*arrays), want.detach(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS.keys())
def test_from_torch_and_back_by_state_dict(options, rng):
    oracle = torch_layer(**options)
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.normal_(std=0.2)
    zero = options.get("add_zero_attn", False)
    layer = ch.MultiHeadAttention.from_state_dict(oracle.state_dict(), 3, add_zero_attn=zero)
    assert_same_answer(layer, oracle, rng)
    fresh = torch_layer(**options)
    fresh.load_state_dict({name: torch.from_numpy(x) for name, x in layer.state_dict().items()})
    for name, x in oracle.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], x, rtol=0, atol=0)


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS.keys())
def test_from_torch_and_back_by_file(options, tmp_path, rng):
    oracle = torch_layer(**options)
    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    safetensors_torch.save_file(oracle.state_dict(), theirs, {"add_zero_attn": "True"})
    layer = ch.MultiHeadAttention.load(theirs, num_heads=3)
    layer.add_zero_attn = options.get("add_zero_attn", False)
    assert_same_answer(layer, oracle, rng)
    layer.save(ours)
    fresh = torch_layer(**options)
    fresh.load_state_dict(safetensors_torch.load_file(ours))
    assert_same_answer(layer, fresh, rng)


def test_a_file_of_ours_says_the_rest_itself(tmp_path):
    path = tmp_path / "layer.safetensors"
    options = {"num_kv_heads": 2, "d_head": 5, "kdim": 7, "add_bias_kv": True}
    layer = ch.MultiHeadAttention(12, 4, **options, add_zero_attn=True, dtype="float64", seed=1)
    layer.save(path)
    again = ch.MultiHeadAttention.load(path)
    assert repr(again) == repr(layer)
    assert (again.kdim, again.add_zero_attn, again.dtype) == (7, True, np.float64)
    for name, x in layer.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], x)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_parameters_are_widened(dtype, tmp_path):
    path = tmp_path / "half.safetensors"
    layer = ch.MultiHeadAttention(12, 3, seed=1)
    half = {name: x.astype(dtype) for name, x in layer.parameters.items()}
    save_file(half, path)
    wide = ch.MultiHeadAttention.load(path, num_heads=3)
    assert wide.dtype == np.float32
    for name, x in half.items():
        np.testing.assert_array_equal(wide.parameters[name], x.astype(np.float32))


def test_loading_changes_all_or_nothing():
    layer = ch.MultiHeadAttention(12, 3, seed=1)
    before = {name: x.copy() for name, x in layer.parameters.items()}
    state = {name: np.zeros_like(x) for name, x in before.items()}
    for change, kind, words in [
        ({"out_proj.bias": np.zeros(5)}, ValueError, r"state: out_proj.bias is \(5,\), must be"),
        ({"more": np.zeros(5)}, ValueError, r"state: lacks \[\] and has \['more'\] besides"),
        ({"out_proj.bias": [0.0] * 12}, TypeError, "state: out_proj.bias is list"),
        ({"out_proj.bias": np.zeros(12, int)}, TypeError, "state: out_proj.bias is int64"),
    ]:
        with pytest.raises(kind, match=words):
            layer.load_state_dict({**state, **change})
        for name, x in before.items():
            np.testing.assert_array_equal(layer.parameters[name], x)
    state.pop("out_proj.bias")
    with pytest.raises(ValueError, match=r"state: lacks \['out_proj.bias'\]"):
        layer.load_state_dict(state)


def test_a_loaded_layer_does_not_share_memory_with_the_state():
    layer = ch.MultiHeadAttention(12, 3, seed=1)
    state = {name: np.zeros_like(x) for name, x in layer.parameters.items()}
    layer.load_state_dict(state)
    layer.parameters["out_proj.bias"][...] = 1
    assert (state["out_proj.bias"] == 0).all()


def test_a_file_that_cannot_be_a_layer_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"no safetensors at all")
    with pytest.raises(ValueError, match=r"path: .* is no whole safetensors file"):
        ch.MultiHeadAttention.load(path)
    with pytest.raises(FileNotFoundError):
        ch.MultiHeadAttention.load(tmp_path / "absent")
    layer = ch.MultiHeadAttention(12, 3)
    save_file(layer.parameters, path)
    with pytest.raises(ValueError, match=r"num_heads: .* does not say how many, must be given"):
        ch.MultiHeadAttention.load(path)
    with pytest.raises(ValueError, match="num_heads: 5 does not divide 12"):
        ch.MultiHeadAttention.load(path, num_heads=5)
    save_file({"weight": np.zeros((2, 2))}, path)
    with pytest.raises(ValueError, match="state: q_proj_weight is missing or no matrix"):
        ch.MultiHeadAttention.load(path, num_heads=1)


def test_saving_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "layer.safetensors"
    ch.MultiHeadAttention(12, 3, seed=1).save(path)
    before = load_file(path)

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        ch.MultiHeadAttention(12, 3, seed=2).save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["layer.safetensors"]
    for name, x in load_file(path).items():
        np.testing.assert_array_equal(x, before[name])
