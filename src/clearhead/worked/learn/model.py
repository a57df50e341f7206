"""The model that `clearhead learn` trains: one attention layer, its chain rule written out by hand.

    x      = table[ids]                       (B, T, D)      one static vector per token
    q k v  = x W_Q, x W_K, x W_V              (B, H, T, D/H)
    mixed  = attention(q, k, v)               (B, T, D)      the heads side by side
    z      = x + mixed W_O                    (B, T, D)      one head: z = x + mixed
    y      = z + relu(z W_1 + b_1) W_2 + b_2  (B, T, D)      a block; else y = z
    log_p  = log_softmax(y[word] U + c)       (B, C)         C senses, read at the word alone
    loss   = -mean(log_p[sense])

Each line of `backward` differentiates one line above, from the last to the first. Everything is
float64. C here counts senses; the other letters are those of the whole library.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ops import attention_grad, attention_with_lse

Array = NDArray[np.float64]
Parameters = dict[str, Array]


@dataclass(frozen=True)
class Batch:
    """Sentences of unequal length, padded on the right.

    ids       (B, T)   rows of the table; 0 where `real` is False
    real      (B, T)   True where there is a token
    position  (B,)     where the word in question stands
    sense     (B,)     which sense it has there
    """

    ids: NDArray[np.intp]
    real: NDArray[np.bool_]
    position: NDArray[np.intp]
    sense: NDArray[np.intp]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(B, 1, 1, T): every query may read every real key."""
        return self.real[:, None, None, :]


@dataclass(frozen=True)
class Pass:
    """What one forward pass leaves behind; names and shapes as at the top of this file."""

    x: Array
    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array
    mixed: Array
    z: Array
    hidden: Array | None
    y: Array
    word: Array  # (B, D)  y at the word in question: its contextual vector
    log_p: Array

    def loss(self, batch: Batch) -> float:
        return float(-np.mean(self.log_p[np.arange(len(self.log_p)), batch.sense]))


def parameters(
    rng: np.random.Generator, table: Array, senses: int, heads: int, block: bool
) -> Parameters:
    """Random matrices of scale D ** -0.5; `table` as given; biases zero."""
    size = table.shape[1]

    def matrix(rows: int, columns: int) -> Array:
        return np.asarray(rng.standard_normal((rows, columns)) * rows**-0.5)

    p: Parameters = {"table": table.copy()}
    for name in ("W_Q", "W_K", "W_V"):
        p[name] = matrix(size, size)
    if heads > 1 or block:
        p["W_O"] = matrix(size, size)
    if block:
        p["W_1"], p["b_1"] = matrix(size, 4 * size), np.zeros(4 * size)
        p["W_2"], p["b_2"] = matrix(4 * size, size), np.zeros(size)
    p["U"], p["c"] = matrix(size, senses), np.zeros(senses)
    return p


def forward(p: Parameters, batch: Batch, heads: int) -> Pass:
    x = p["table"][batch.ids]
    q, k, v = (_split(x @ p[name], heads) for name in ("W_Q", "W_K", "W_V"))
    out, lse = attention_with_lse(q, k, v, mask=batch.mask)
    mixed = _join(out)
    z = x + (mixed @ p["W_O"] if "W_O" in p else mixed)
    hidden = np.maximum(z @ p["W_1"] + p["b_1"], 0) if "W_1" in p else None
    y = z if hidden is None else z + hidden @ p["W_2"] + p["b_2"]
    word = y[np.arange(len(y)), batch.position]
    logits = word @ p["U"] + p["c"]
    peak = logits.max(axis=1, keepdims=True)
    log_p = logits - peak - np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
    return Pass(x, q, k, v, out, lse, mixed, z, hidden, y, word, log_p)


def backward(p: Parameters, batch: Batch, heads: int, f: Pass) -> Parameters:
    """The gradient of the loss for every parameter, by the chain rule; `f` is the forward pass."""
    g: Parameters = {}
    rows = np.arange(len(f.log_p))
    dlogits = np.exp(f.log_p)
    dlogits[rows, batch.sense] -= 1
    dlogits /= len(rows)  # the loss is a mean
    g["U"], g["c"] = f.word.T @ dlogits, dlogits.sum(axis=0)
    dy = np.zeros_like(f.y)
    dy[rows, batch.position] = dlogits @ p["U"].T  # only the word is read

    dz = dy
    if f.hidden is not None:
        g["W_2"], g["b_2"] = _outer(f.hidden, dy), dy.sum(axis=(0, 1))
        dhidden = (dy @ p["W_2"].T) * (f.hidden > 0)
        g["W_1"], g["b_1"] = _outer(f.z, dhidden), dhidden.sum(axis=(0, 1))
        dz = dy + dhidden @ p["W_1"].T

    dmixed = dz
    if "W_O" in p:
        g["W_O"] = _outer(f.mixed, dz)
        dmixed = dz @ p["W_O"].T
    dout = _split(dmixed, heads)
    da = attention_grad(dout, f.q, f.k, f.v, f.out, f.lse, mask=batch.mask)

    dx = dz.copy()  # z = x + ...
    for name, dhead in (("W_Q", da.q), ("W_K", da.k), ("W_V", da.v)):
        dprojected = _join(dhead)
        g[name] = _outer(f.x, dprojected)
        dx += dprojected @ p[name].T
    g["table"] = np.zeros_like(p["table"])
    np.add.at(g["table"], batch.ids[batch.real], dx[batch.real])  # a token may occur many times
    return g


def _split(x: Array, heads: int) -> Array:
    """(B, T, D) -> (B, H, T, D/H)"""
    batch, length, size = x.shape
    return x.reshape(batch, length, heads, size // heads).transpose(0, 2, 1, 3)


def _join(x: Array) -> Array:
    """(B, H, T, D/H) -> (B, T, D)"""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def _outer(left: Array, right: Array) -> Array:
    """d/dW of left @ W, summed over batch and tokens: (B, T, I), (B, T, J) -> (I, J)"""
    product: Array = np.einsum("bti,btj->ij", left, right)
    return product
