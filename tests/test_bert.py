"""The encoder's own pieces, and every configuration and checkpoint that it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import erfc, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
import tiny_bert
from clearhead.models import bert
from clearhead.models.bert import Bert
from clearhead.models.weights import CheckpointError

IDS = list(range(4, 27))


def test_gelu_is_x_phi_of_x() -> None:
    x = np.concatenate([np.linspace(-30, 30, 4001), [0.0, -1e-20, 1e-20]]).astype(np.float32)
    exact = np.array([a * erfc(-a / sqrt(2)) / 2 for a in x.astype(float)])
    error = np.abs(bert._gelu(x) - exact)
    assert (error <= 2e-7 * np.maximum(np.abs(x), 1e-3)).all()


def test_a_text_reads_the_same_alone_whatever_was_read_before(tmp_path: Path) -> None:
    model = Bert(tiny_bert.write(tmp_path))
    first = [layer.hidden.copy() for layer in model.layers(IDS)]
    list(model.layers(IDS[::-1]))
    for layer, before in zip(model.layers(IDS), first, strict=True):
        np.testing.assert_array_equal(layer.hidden, before)


def test_the_layer_norms_of_the_first_checkpoints_are_called_gamma_and_beta(
    tmp_path: Path,
) -> None:
    new = Bert(tiny_bert.write(tmp_path / "new"))
    old_names = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in tiny_bert.weights("bert").items()
    }
    folder = tiny_bert.write(tmp_path / "old")
    tiny_bert.save(old_names, folder / "model.safetensors")
    for a, b in zip(new.layers(IDS), Bert(folder).layers(IDS), strict=True):
        np.testing.assert_array_equal(a.hidden, b.hidden)


CONFIGURATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "another family": (
        {"model_type": "llama"},
        "model_type: is 'llama', must be one of bert, roberta, distilbert",
    ),
    "no family": ({"model_type": None}, "model_type: is None"),
    "a family of lists": ({"model_type": ["bert"]}, r"model_type: is \['bert'\]"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads: is 0, must be a positive"),
    "heads that do not divide": ({"num_attention_heads": 4}, "4 heads do not divide 15 channels"),
    "heads in words": ({"num_attention_heads": "3"}, "num_attention_heads: is '3'"),
    "heads true": ({"num_attention_heads": True}, "num_attention_heads: is True"),
    "a fraction of layers": ({"num_hidden_layers": 2.0}, "num_hidden_layers: is 2.0"),
    "too many layers": ({"num_hidden_layers": 10**9}, r"encoder\.layer\.2\.\S+: is missing"),
    "fewer channels": ({"hidden_size": 12}, r"word_embeddings\.weight: is \(\d+, 15\), the conf"),
    "a larger vocabulary": ({"vocab_size": 10**12}, r"word_embeddings\.weight: is"),
    "no vocabulary": ({"vocab_size": None}, "vocab_size: is None"),
    "a wider middle": ({"intermediate_size": 41}, r"intermediate\.dense\.weight: is \(37, 15\)"),
    "more positions": ({"max_position_embeddings": 64}, r"position_embeddings\.weight: is"),
    "hardly any positions": ({"max_position_embeddings": 2}, "is 2, must be at least 8"),
    "relative positions": (
        {"position_embedding_type": "relative_key"},
        "position_embedding_type: is 'relative_key', must be 'absolute'",
    ),
    "a decoder": ({"is_decoder": True}, "is_decoder: is True, must be false"),
    "an unknown activation": ({"hidden_act": "mish"}, "the activation is 'mish', must be one of"),
    "an activation of lists": ({"hidden_act": []}, r"the activation is \[\]"),
    "a negative epsilon": ({"layer_norm_eps": -1}, "layer_norm_eps: is -1"),
    "an epsilon in words": ({"layer_norm_eps": "x"}, "layer_norm_eps: is 'x'"),
}


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_a_configuration_that_is_not_such_an_encoder_is_refused(tmp_path: Path, case: str) -> None:
    change, says = CONFIGURATIONS[case]
    folder = tiny_bert.write(tmp_path, **change)
    with pytest.raises(CheckpointError, match=says) as refused:
        ch.read("the road", folder)
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_each_missing_tensor_is_named(tmp_path: Path, family: str) -> None:
    folder = tiny_bert.write(tmp_path, family)
    arrays = tiny_bert.weights(family)
    for name in arrays:
        rest = {other: array for other, array in arrays.items() if other != name}
        tiny_bert.save(rest, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=f"{name}: is missing; the model needs"):
            Bert(folder)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_by_layer(tmp_path: Path, bad: float) -> None:
    folder = tiny_bert.write(tmp_path)
    arrays = tiny_bert.weights("bert")
    arrays["encoder.layer.1.output.dense.bias"][3] = bad
    tiny_bert.save(arrays, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="layer 1: its weights give NaN or infinite"):
        ch.read("the road", folder)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_bert.write(tmp_path, vocab_size=7)
    arrays = tiny_bert.weights("bert")
    name = "embeddings.word_embeddings.weight"
    arrays[name] = np.ascontiguousarray(arrays[name][:7])
    tiny_bert.save(arrays, folder / "model.safetensors")
    assert len(ch.read("the road", folder).tokens) == 4
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: gives id \d+, the model has 7"):
        ch.read("the road!", folder)


@pytest.mark.parametrize("count", [0, tiny_bert.POSITIONS + 1])
def test_no_tokens_and_too_many_are_refused(tmp_path: Path, count: int) -> None:
    model = Bert(tiny_bert.write(tmp_path))
    with pytest.raises(ValueError, match=f"ids: are {count}, the model takes 1 to 61"):
        next(model.layers([5] * count))


def test_roberta_has_two_positions_fewer_than_its_table(tmp_path: Path) -> None:
    assert Bert(tiny_bert.write(tmp_path, "roberta")).max_tokens == tiny_bert.POSITIONS - 2


def damage(draw: Callable[[Any], Any], text: str) -> bytes:
    damaged = bytearray(text.encode())
    for _ in range(draw(st.integers(1, 3))):
        damaged[draw(st.integers(0, len(damaged) - 1))] = draw(st.integers(32, 126))
    return bytes(damaged)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_a_damaged_checkpoint_folder_is_read_or_refused_but_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tiny_bert.write(tmp_path_factory.mktemp("damaged"))
    config = json.dumps(tiny_bert.configuration("bert"))
    (folder / "config.json").write_bytes(damage(data.draw, config))
    weights = folder / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    weights.write_bytes(damaged)
    try:
        ch.read("the road, walking", folder).links(top=1)
    except CheckpointError as error:
        assert "\n" not in str(error)
