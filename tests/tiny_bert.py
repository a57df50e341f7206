"""A checkpoint folder small enough for a test: random weights, and a tokenizer that knows letters.

Sizes are distinct primes: 3 heads of 5 channels, 2 layers, 37 wide, 61 positions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HEADS, HEAD_SIZE, LAYERS, WIDE, POSITIONS = 3, 5, 2, 37, 61
CHANNELS = HEADS * HEAD_SIZE
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
VOCAB = [*SPECIAL, "the", "animal", "road", "##ing", *LETTERS, *(f"##{c}" for c in LETTERS)]
_LAYER = {
    "bert": (
        "encoder.layer",
        ("attention.self.query", "attention.self.key", "attention.self.value"),
        ("attention.output.dense", "intermediate.dense", "output.dense"),
        ("attention.output.LayerNorm", "output.LayerNorm"),
    ),
    "distilbert": (
        "transformer.layer",
        ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        ("attention.out_lin", "ffn.lin1", "ffn.lin2"),
        ("sa_layer_norm", "output_layer_norm"),
    ),
}


def write(
    folder: Path,
    family: str = "bert",
    *,
    dtype: str = "float32",
    prefix: str = "",
    seed: int = 11,
    **config: Any,
) -> Path:
    """A folder with config.json, tokenizer.json and model.safetensors; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration(family) | config))
    tokenizer().save(str(folder / "tokenizer.json"))
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    arrays = {prefix + name: array.astype(kind) for name, array in weights(family, seed).items()}
    save(arrays, folder / "model.safetensors")
    return folder


def save(arrays: dict[str, np.ndarray], path: Path) -> None:
    save_file(arrays, path, {"format": "pt"})


def configuration(family: str) -> dict[str, Any]:
    if family == "distilbert":
        return {
            "model_type": "distilbert",
            "vocab_size": len(VOCAB),
            "dim": CHANNELS,
            "n_heads": HEADS,
            "n_layers": LAYERS,
            "hidden_dim": WIDE,
            "activation": "gelu",
            "max_position_embeddings": POSITIONS,
            "pad_token_id": 0,
        }
    return {
        "model_type": family,
        "vocab_size": len(VOCAB),
        "hidden_size": CHANNELS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": WIDE,
        "hidden_act": "gelu",
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12 if family == "bert" else 1e-5,
        "pad_token_id": 0 if family == "bert" else 1,
    }


def weights(family: str, seed: int = 11) -> dict[str, np.ndarray]:
    """Random weights, large enough that the attention they make is far from uniform."""
    rng = np.random.default_rng(seed)
    layer, qkv, (out, up, down), norms = _LAYER.get(family, _LAYER["bert"])
    arrays = {
        "embeddings.word_embeddings.weight": rng.normal(size=(len(VOCAB), CHANNELS)),
        "embeddings.position_embeddings.weight": rng.normal(size=(POSITIONS, CHANNELS)),
    }
    if family != "distilbert":
        arrays["embeddings.token_type_embeddings.weight"] = rng.normal(size=(2, CHANNELS))

    def norm(name: str) -> None:
        arrays[f"{name}.weight"] = rng.normal(1, 0.2, CHANNELS)
        arrays[f"{name}.bias"] = rng.normal(0, 0.2, CHANNELS)

    norm("embeddings.LayerNorm")
    for i in range(LAYERS):
        sizes = dict.fromkeys((*qkv, out), (CHANNELS, CHANNELS))
        sizes |= {up: (WIDE, CHANNELS), down: (CHANNELS, WIDE)}
        for name, size in sizes.items():
            arrays[f"{layer}.{i}.{name}.weight"] = rng.normal(0, 0.5, size)
            arrays[f"{layer}.{i}.{name}.bias"] = rng.normal(0, 0.5, size[0])
        for name in norms:
            norm(f"{layer}.{i}.{name}")
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}


def tokenizer() -> Tokenizer:
    vocab = {piece: i for i, piece in enumerate(VOCAB)}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(SPECIAL)
    return made
