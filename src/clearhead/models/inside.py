"""What one layer of a model starts from: its input, and the weights of its attention.

A saved run keeps queries, keys and lse. Who wants to follow a layer from its input on, values and
output projection included, needs these too, for one short text.
"""

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bert import Bert
from .store import name_of, resolve
from .tokens import Token, check_text, encode, open_tokenizer, spelled

_Floats = NDArray[np.float32]
_CHARS_PER_TOKEN = 1 << 10  # more than any text needs: beyond it, nothing is tokenized


class Inside(NamedTuple):
    """The input of a layer, X (T, C), and of its q, k, v and out weight (C, C) and bias (C,).

    A weight stands as in X W + b: input channels are rows. Heads share the columns of those of q,
    k and v, and the rows of that of out.
    """

    model: str
    tokens: list[Token]
    X: _Floats
    weights: dict[str, tuple[_Floats, _Floats]]
    num_heads: int


def inside(text: str, model: str | os.PathLike[str] | None, layer: int) -> Inside:
    """What enters a layer of a model when it reads a text.

    Raises  as `read`, and ValueError for a layer that the model does not have.
    """
    check_text(text)
    folder = resolve(model)
    bert = Bert(folder)
    if not 0 <= layer < bert.num_layers:
        raise ValueError(f"layer: is {layer}, the model has {bert.num_layers}, counted from 0")
    opening = text[: bert.max_tokens * _CHARS_PER_TOKEN]
    encoding = encode(open_tokenizer(folder), opening)
    if len(encoding.ids) > bert.max_tokens:
        count = f"{'more than ' * (opening != text)}{len(encoding.ids):,}"
        raise ValueError(
            f"text: is {count} tokens, the model takes {bert.max_tokens:,}; give a part of it"
        )
    tokens, _ = spelled(encoding, opening)
    X = bert.embedded(encoding.ids)
    for _, done in zip(range(layer), bert.layers(encoding.ids), strict=False):
        X = done.hidden
    return Inside(name_of(model), tokens, X, bert.attention_weights(layer), bert.num_heads)
