"""BERT, RoBERTa and DistilBERT in NumPy: one text in, the queries and keys of each layer out.

Per layer (Devlin et al. 2018; Vaswani et al. 2017, figure 1, left), with C = H * D channels:

    q, k, v = x Wq + bq, x Wk + bk, x Wv + bv          (T, C), seen as (H, T, D)
    x = norm(x + attention(q, k, v) Wo + bo)           (T, C)
    x = norm(x + gelu(x W1 + b1) W2 + b2)              (T, C), through (T, F)

The three families differ in the names of their tensors and in where positions start, nothing else.
"""

from collections.abc import Callable, Iterator
from math import pi, sqrt
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from ..ops import attention_with_lse
from .weights import Checkpoint, CheckpointError, read_json

_Floats = NDArray[np.float32]
_FEWEST_TOKENS = 8  # room for special tokens and words between them
_ROWS = 64  # of the feed-forward at a time: its temporaries stay in cache

_BERT = {  # ours: theirs
    "layer": "encoder.layer",
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "out": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
    "channels": "hidden_size",
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
    "wide": "intermediate_size",
    "act": "hidden_act",
}
_DISTILBERT = {
    "layer": "transformer.layer",
    "q": "attention.q_lin",
    "k": "attention.k_lin",
    "v": "attention.v_lin",
    "out": "attention.out_lin",
    "norm1": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "norm2": "output_layer_norm",
    "channels": "dim",
    "heads": "n_heads",
    "layers": "n_layers",
    "wide": "hidden_dim",
    "act": "activation",
}
_NAMES = {"bert": _BERT, "roberta": _BERT, "distilbert": _DISTILBERT}


class Layer(NamedTuple):
    """What one layer did: out came `hidden` (T, C); within were q, k, v (H, T, D), lse (H, T)."""

    hidden: _Floats
    q: _Floats
    k: _Floats
    lse: NDArray[np.float64]
    v: _Floats


class Bert:
    """An encoder, its weights taken from a checkpoint folder.

    num_layers, num_heads  its sizes; head_size is D
    max_tokens             the longest input it has positions for

    Raises `CheckpointError` for a configuration that is not one of these encoders, or weights that
    do not fit it.
    """

    def __init__(self, folder: Path) -> None:
        checkpoint = Checkpoint(folder)
        path = folder / "config.json"
        config = read_json(path)
        family = config.get("model_type")
        if not isinstance(family, str) or family not in _NAMES:
            known = ", ".join(_NAMES)
            _refuse(path, f"model_type: is {family!r:.80}, must be one of {known}")
        _check_plain(path, config)
        names = _NAMES[family]
        self.num_layers = _size(path, config, names["layers"])
        self.num_heads = _size(path, config, names["heads"])
        self._channels = channels = _size(path, config, names["channels"])
        if channels % self.num_heads:
            heads = names["heads"]
            _refuse(path, f"{heads}: {self.num_heads} heads do not divide {channels} channels")
        self.head_size = channels // self.num_heads
        self._epsilon = _epsilon(path, config)
        self._activate = _activation(path, config.get(names["act"], "gelu"))
        prefix = f"{family}." if f"{family}.embeddings.word_embeddings.weight" in checkpoint else ""
        positions = _size(path, config, "max_position_embeddings")
        # RoBERTa numbers positions from the one after its padding token's id.
        self._first = 1 + _size(path, config, "pad_token_id", 1) if family == "roberta" else 0
        self.max_tokens = positions - self._first
        if self.max_tokens < _FEWEST_TOKENS:
            fewest = _FEWEST_TOKENS + self._first
            _refuse(path, f"max_position_embeddings: is {positions}, must be at least {fewest}")
        self.vocab_size = _size(path, config, "vocab_size")

        def table(name: str, rows: int) -> _Floats:
            return checkpoint.tensor(f"{prefix}embeddings.{name}.weight", (rows, channels))

        self._words = table("word_embeddings", self.vocab_size)
        self._positions = table("position_embeddings", positions)
        # Two-segment input is not offered: every token is of segment 0.
        self._segment: _Floats | None = None
        if family != "distilbert":
            rows = _size(path, config, "type_vocab_size", 2)
            self._segment = table("token_type_embeddings", rows)[0]
        self._norm = _norm_weights(checkpoint, f"{prefix}embeddings.LayerNorm", channels)
        wide = _size(path, config, names["wide"])
        self._blocks = [
            _block(checkpoint, f"{prefix}{names['layer']}.{i}.", names, channels, wide)
            for i in range(self.num_layers)
        ]

    def embedded(self, ids: list[int]) -> _Floats:
        """The input of the first layer, (T, C), for token ids (T,)."""
        positions = self._positions[self._first : self._first + len(ids)]
        x: _Floats = self._words[ids] + positions
        if self._segment is not None:
            x += self._segment
        return _normalised(x, *self._norm, self._epsilon)

    def attention_weights(self, layer: int) -> dict[str, tuple[_Floats, _Floats]]:
        """Of a layer's q, k, v and out the weight (in, out), as in x W + b, and the bias (out,)."""
        block = self._blocks[layer]
        return {name: (block[name][0].T, block[name][1]) for name in ("q", "k", "v", "out")}

    def layers(self, ids: list[int]) -> Iterator[Layer]:
        """Run the encoder on one text's token ids (T,), yielding each layer as it is done.

        Raises `ValueError` for no tokens or more than `max_tokens`, `CheckpointError` for an id
        beyond the vocabulary and for weights that give NaN or inf.
        """
        if not 0 < len(ids) <= self.max_tokens:
            raise ValueError(f"ids: are {len(ids)}, the model takes 1 to {self.max_tokens}")
        if max(ids) >= self.vocab_size:
            raise CheckpointError(
                f"tokenizer.json: gives id {max(ids)}, the model has {self.vocab_size} embeddings"
            )
        x = self.embedded(ids)
        with np.errstate(all="ignore"):  # weights may be anything; the check below speaks
            for i, block in enumerate(self._blocks):
                layer = self._layer(x, block)
                if not np.isfinite(layer.hidden).all():
                    raise CheckpointError(f"layer {i}: its weights give NaN or infinite numbers")
                yield layer
                x = layer.hidden

    def _layer(self, x: _Floats, block: dict[str, tuple[_Floats, _Floats]]) -> Layer:
        q, k, v = (self._heads(_linear(x, *block[name])) for name in "qkv")  # each (H, T, D)
        out, _ = attention_with_lse(q, k, v)
        # exp(score - lse) is as good as lse, and float32 rounds 80, which scores reach, to 4e-6.
        wide_q, wide_k = q.astype(np.float64), k.astype(np.float64)
        _, lse = attention_with_lse(wide_q, wide_k, np.zeros((*k.shape[:-1], 1)))
        y = _linear(out.transpose(1, 0, 2).reshape(x.shape), *block["out"])  # (H, T, D) -> (T, C)
        y += x
        y = _normalised(y, *block["norm1"], self._epsilon)
        z = np.empty_like(y)
        for at in range(0, len(y), _ROWS):
            rows = slice(at, at + _ROWS)
            z[rows] = _linear(self._activate(_linear(y[rows], *block["up"])), *block["down"])
        z += y
        return Layer(_normalised(z, *block["norm2"], self._epsilon), q, k, lse, v)

    def _heads(self, x: _Floats) -> _Floats:
        """(T, C) -> (H, T, D), without a copy."""
        heads: _Floats = x.reshape(len(x), self.num_heads, self.head_size)
        return heads.transpose(1, 0, 2)


def _linear(x: _Floats, weight: _Floats, bias: _Floats) -> _Floats:
    """x (T, in), weight (out, in) as checkpoints keep it, bias (out,) -> (T, out)."""
    y: _Floats = x @ weight.T
    y += bias
    return y


def _normalised(x: _Floats, weight: _Floats, bias: _Floats, epsilon: np.float32) -> _Floats:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the channels, in place."""
    x -= x.mean(axis=-1, keepdims=True)
    variance = np.einsum("tc,tc->t", x, x)[:, None] / np.float32(x.shape[-1])
    x /= np.sqrt(variance + epsilon)
    x *= weight
    x += bias
    return x


def _gelu(x: _Floats) -> _Floats:
    """x * Phi(x), Phi the normal distribution function; absolute error below 1e-7 * |x|.

    With tail(a) = 1 - Phi(a) this is max(x, 0) - |x| * tail(|x|): nothing cancels. The tail is
    erfc(a / sqrt 2) / 2 by formula 7.1.26 of Abramowitz and Stegun (1964), |error| <= 1.5e-7 / 2.
    """
    size = np.abs(x)
    t = 1 / (1 + np.float32(0.3275911 / sqrt(2)) * size)
    tail = np.full_like(x, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail *= t
        tail += np.float32(coefficient)
    tail *= t
    tail *= size * np.float32(0.5)
    tail *= np.exp(size * size * np.float32(-0.5))
    return _relu(x) - tail


def _gelu_tanh(x: _Floats) -> _Floats:
    """The tanh form of GELU (Hendrycks and Gimpel 2016): `gelu_new`, `gelu_pytorch_tanh`."""
    y: _Floats = np.tanh(np.float32(sqrt(2 / pi)) * (x + np.float32(0.044715) * x * x * x))
    y += 1
    y *= x * np.float32(0.5)
    return y


def _relu(x: _Floats) -> _Floats:
    return cast(_Floats, np.maximum(x, 0))


_ACTIVATIONS: dict[str, Callable[[_Floats], _Floats]] = {
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": _relu,
}


def _activation(path: Path, name: Any) -> Callable[[_Floats], _Floats]:
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        _refuse(path, f"the activation is {name!r:.80}, must be one of {known}")
    return _ACTIVATIONS[name]


def _block(
    checkpoint: Checkpoint, at: str, names: dict[str, str], channels: int, wide: int
) -> dict[str, tuple[_Floats, _Floats]]:
    """The weights and biases of one layer, by our names."""
    shapes = {name: (channels, channels) for name in ("q", "k", "v", "out")}
    shapes |= {"up": (wide, channels), "down": (channels, wide)}
    block = {
        name: (
            checkpoint.tensor(f"{at}{names[name]}.weight", shape),
            checkpoint.tensor(f"{at}{names[name]}.bias", shape[:1]),
        )
        for name, shape in shapes.items()
    }
    for name in ("norm1", "norm2"):
        block[name] = _norm_weights(checkpoint, at + names[name], channels)
    return block


def _norm_weights(checkpoint: Checkpoint, name: str, channels: int) -> tuple[_Floats, _Floats]:
    """Weight and bias of a layer norm; the first BERT checkpoints call them gamma and beta."""
    weight, bias = ("gamma", "beta") if f"{name}.gamma" in checkpoint else ("weight", "bias")
    return (
        checkpoint.tensor(f"{name}.{weight}", (channels,)),
        checkpoint.tensor(f"{name}.{bias}", (channels,)),
    )


def _check_plain(path: Path, config: dict[str, Any]) -> None:
    """Refuse what changes the computation and is not built here."""
    if config.get("position_embedding_type", "absolute") != "absolute":
        what = config["position_embedding_type"]
        _refuse(path, f"position_embedding_type: is {what!r:.80}, must be 'absolute'")
    for name in ("is_decoder", "add_cross_attention"):
        if config.get(name, False) is not False:
            _refuse(path, f"{name}: is {config[name]!r:.80}, must be false: only encoders are read")


def _size(path: Path, config: dict[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name, default)
    if type(value) is not int or value < (0 if name == "pad_token_id" else 1):
        _refuse(path, f"{name}: is {value!r:.80}, must be a positive integer")
    return value


def _epsilon(path: Path, config: dict[str, Any]) -> np.float32:
    value = config.get("layer_norm_eps", 1e-12)
    if type(value) not in (int, float) or not 0 <= value < 1:
        _refuse(path, f"layer_norm_eps: is {value!r:.80}, must be a number from 0 to 1")
    return np.float32(value)


def _refuse(path: Path, what: str) -> NoReturn:
    raise CheckpointError(f"{path}: {what}")
