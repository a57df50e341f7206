"""Multi-head attention: NumPy parameters, a forward pass, and its gradient by the chain rule.

    y = layer(x)                          self-attention; layer(x, context) reads another sequence
    y, pullback = layer.vjp(x)            dx, grads = pullback(dy)
    layer.weights(x)                      who reads whom, as an AttentionMap (..., H, T, S)

`MultiHeadAttention` names, shapes and orders its parameters as torch.nn.MultiheadAttention does, so
that a state dict or a safetensors file goes from one to the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .cache import KeyValueCache
from .masks import Mask, causal
from .ops import AttentionWithLse, Gradients, attention_grad, attention_with_lse, merge
from .parameters import (
    Pullback,
    check_input,
    float_dtype,
    glorot,
    matching,
    parameter,
    read_parameters,
    rows,
    size,
    write_parameters,
)

if TYPE_CHECKING:
    from .maps import AttentionMap

__all__ = ["MultiHeadAttention"]

Array = NDArray[Any]


class MultiHeadAttention:
    """H heads side by side: y = concat_h(softmax(q_h k_g^T / sqrt(d_head)) v_g) Wo^T + bo.

    d_model        size of x and y
    num_heads      H
    num_kv_heads   G, H unless given; H % G == 0 (grouped-query attention, Ainslie et al. 2023)
    d_head         d_model // H unless given
    kdim, vdim     size of the context's keys and values, d_model unless given
    bias           biases on the four projections
    add_bias_kv    one more key and value, the parameters bias_k and bias_v, that no mask hides
    add_zero_attn  one more key and value, zeros, that no mask hides
    dtype          float32 or float64
    seed           a number or a numpy.random.Generator, for the first parameters

    parameters: {name: array}, the names and shapes of torch.nn.MultiheadAttention: in_proj_weight
    (3 d_model, d_model), or q_proj_weight, k_proj_weight, v_proj_weight where sizes differ;
    in_proj_bias; out_proj.weight, out_proj.bias; bias_k, bias_v (1, 1, G d_head).

    Masks are those of `attention`, True = may attend: torch's are the other way round.
    Source  Vaswani et al. 2017, section 3.2.2.

    >>> import numpy as np, clearhead as ch
    >>> mha = ch.MultiHeadAttention(d_model=6, num_heads=2, seed=0)
    >>> x = np.ones((5, 7, 6), "float32")
    >>> y, pullback = mha.vjp(x, mask=ch.causal())
    >>> dx, grads = pullback(np.ones_like(y))
    >>> y.shape, dx.shape, grads["in_proj_weight"].shape, mha.weights(x).shape
    ((5, 7, 6), (5, 7, 6), (18, 6), (5, 2, 7, 7))
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        d_head: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        *,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        dtype: DTypeLike = "float32",
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.d_model, self.num_heads = size("d_model", d_model), size("num_heads", num_heads)
        self.num_kv_heads = (
            num_heads if num_kv_heads is None else size("num_kv_heads", num_kv_heads)
        )
        if num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads: {num_heads} is not a multiple of num_kv_heads = {num_kv_heads}"
            )
        if d_head is None and d_model % num_heads:
            raise ValueError(
                f"d_model: {d_model} is not a multiple of num_heads = {num_heads}; give d_head"
            )
        self.d_head = d_model // num_heads if d_head is None else size("d_head", d_head)
        self.kdim = d_model if kdim is None else size("kdim", kdim)
        self.vdim = d_model if vdim is None else size("vdim", vdim)
        self.add_zero_attn = bool(add_zero_attn)
        self.dtype = float_dtype(dtype)
        self.parameters = self._draw(np.random.default_rng(seed), bool(bias), bool(add_bias_kv))

    def __repr__(self) -> str:
        return (
            f"MultiHeadAttention(d_model={self.d_model}, num_heads={self.num_heads}, "
            f"num_kv_heads={self.num_kv_heads}, d_head={self.d_head})"
        )

    def __call__(
        self,
        x: Array,
        context: Array | None = None,
        value: Array | None = None,
        *,
        mask: Mask | Array | None = None,
    ) -> Array:
        """x (..., T, d_model) reads context (..., S, kdim), value (..., S, vdim): as x.

        Without a context x reads itself; without a value the context is both.
        """
        q, k, v = self._project(x, context, value)
        return self._out(self._attend(q, k, v, mask)[0].out)

    def weights(
        self,
        x: Array,
        context: Array | None = None,
        value: Array | None = None,
        *,
        mask: Mask | Array | None = None,
    ) -> AttentionMap:
        """Who reads whom: an AttentionMap (..., H, T, S), its cells computed when asked for.

        The keys of add_bias_kv and add_zero_attn have no column: what a row lacks to 1 is theirs.
        """
        from .maps import AttentionMap

        q, k, v = self._project(x, context, value)
        return AttentionMap(q, k, self._attend(q, k, v, mask)[0].lse, mask=mask)

    def average_weights(
        self,
        x: Array,
        context: Array | None = None,
        value: Array | None = None,
        *,
        mask: Mask | Array | None = None,
    ) -> Array:
        """The weights (..., T, S) averaged over heads, as an array: for small T and S."""
        amap = self.weights(x, context, value, mask=mask)
        total: Array = amap[..., 0, :, :]
        for head in range(1, self.num_heads):
            total += amap[..., head, :, :]
        total /= self.num_heads
        return total

    def vjp(
        self,
        x: Array,
        context: Array | None = None,
        value: Array | None = None,
        *,
        mask: Mask | Array | None = None,
    ) -> tuple[Array, Pullback]:
        """The result y, and pullback(dy): the gradients of sum(dy * y).

        pullback(dy) -> (dx, grads), (dx, dcontext, grads) or (dx, dcontext, dvalue, grads): one
        for each array given, then {name: gradient} with the names of `parameters`.
        """
        q, k, v = self._project(x, context, value)
        whole, lses = self._attend(q, k, v, mask)
        y = self._out(whole.out)
        keys = x if context is None else context
        values = keys if value is None else value

        def pullback(dy: Array) -> tuple[Any, ...]:
            check_input("dy", dy, self.dtype, self.d_model, y.shape)
            p = self.parameters
            grads = {name: np.zeros_like(weight) for name, weight in p.items()}
            grads["out_proj.weight"] += rows(dy).T @ rows(_joined(whole.out))
            if "out_proj.bias" in p:
                grads["out_proj.bias"] += rows(dy).sum(0)
            dout = _split(dy @ p["out_proj.weight"], self.num_heads)
            found = self._attend_grad(dout, q, k, v, whole, lses, mask, grads)
            dq, dk, dv = (
                self._project_grad(role, given, _joined(dz), grads)
                for role, given, dz in zip(range(3), (x, keys, values), found[:3], strict=True)
            )
            if context is None:
                return (dq + dk + dv, grads) if value is None else (dq + dk, dv, grads)
            return (dq, dk + dv, grads) if value is None else (dq, dk, dv, grads)

        return y, pullback

    def decode(self, x: Array, cache: KeyValueCache, *, mask: Mask | Array | None = None) -> Array:
        """The next rows x (..., T, d_model) of a sequence whose earlier keys are in the cache.

        Appends their keys and values to the cache. mask, over all S keys so far: causal() unless
        given. Decoding in any steps gives what `layer(x, mask=causal())` gives at once.
        """
        q, k, v = self._project(x, None, None)
        keys, values = cache.append(k, v)
        whole, _ = self._attend(q, keys, values, causal() if mask is None else mask)
        return self._out(whole.out)

    # Parameters: in and out.

    def state_dict(self) -> dict[str, Array]:
        """{name: array}, the arrays themselves; torch.from_numpy makes them torch's."""
        return dict(self.parameters)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies parameters in, from arrays of NumPy or PyTorch; all or, with an error, none."""
        for name, array in matching(self.parameters, state).items():
            self.parameters[name] = array.astype(self.dtype)

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], num_heads: int, *, add_zero_attn: bool = False
    ) -> MultiHeadAttention:
        """A layer of these parameters: everything but H and add_zero_attn shows in their shapes."""
        if not isinstance(state, Mapping):
            raise TypeError(f"state: {type(state).__name__}, must be a mapping {{name: array}}")
        arrays = {name: parameter(name, x) for name, x in state.items()}
        fused = "in_proj_weight" in arrays
        inner = ["in_proj_weight"] if fused else ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
        for name in (*inner, "out_proj.weight"):
            if name not in arrays or arrays[name].ndim != 2:
                raise ValueError(f"state: {name} is missing or no matrix, must be there")
        d_model, width = arrays["out_proj.weight"].shape
        if width % size("num_heads", num_heads):
            raise ValueError(f"num_heads: {num_heads} does not divide {width}, the heads together")
        d_head = width // num_heads
        groups = num_heads if fused else arrays["k_proj_weight"].shape[0] // d_head
        layer = cls(
            d_model,
            num_heads,
            groups,
            d_head,
            None if fused else arrays["k_proj_weight"].shape[1],
            None if fused else arrays["v_proj_weight"].shape[1],
            bias="in_proj_bias" in arrays,
            add_bias_kv="bias_k" in arrays,
            add_zero_attn=add_zero_attn,
            dtype=np.result_type(np.float32, *(x.dtype for x in arrays.values())),
        )
        layer.load_state_dict(arrays)
        return layer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state dict as safetensors, H and add_zero_attn in its notes; or nothing."""
        about = {"num_heads": str(self.num_heads), "add_zero_attn": str(self.add_zero_attn)}
        write_parameters(path, self.parameters, about)

    @classmethod
    def load(cls, path: str | os.PathLike[str], num_heads: int | None = None) -> MultiHeadAttention:
        """A layer from a safetensors file; num_heads where the file (of torch, say) has no note."""
        arrays, about = read_parameters(path)
        noted = about.get("num_heads", "")
        if num_heads is None and not noted.isdecimal():
            raise ValueError(f"num_heads: {path} does not say how many, must be given")
        heads = int(noted) if num_heads is None else num_heads
        return cls.from_state_dict(
            arrays, heads, add_zero_attn=about.get("add_zero_attn") == "True"
        )

    # The steps, and each one's gradient.

    @property
    def _fused(self) -> bool:
        """Whether the three projections are one matrix, as torch has it."""
        same = self.kdim == self.vdim == self.d_model == self.num_heads * self.d_head
        return same and self.num_kv_heads == self.num_heads

    @property
    def _rows_of(self) -> list[slice]:
        """Where q, k and v stand in in_proj_weight and in_proj_bias."""
        ends = np.cumsum([self.num_heads, self.num_kv_heads, self.num_kv_heads]) * self.d_head
        return [slice(a, b) for a, b in zip((0, *ends[:-1]), ends, strict=True)]

    def _draw(self, rng: np.random.Generator, bias: bool, bias_kv: bool) -> dict[str, Array]:
        """Parameters as torch draws them: Glorot's, biases 0; not its bits."""
        heads, groups = (n * self.d_head for n in (self.num_heads, self.num_kv_heads))
        p: dict[str, Array] = {}
        if self._fused:
            p["in_proj_weight"] = glorot(rng, (3 * heads, self.d_model), self.dtype)
        else:
            p["q_proj_weight"] = glorot(rng, (heads, self.d_model), self.dtype)
            p["k_proj_weight"] = glorot(rng, (groups, self.kdim), self.dtype)
            p["v_proj_weight"] = glorot(rng, (groups, self.vdim), self.dtype)
        if bias:
            p["in_proj_bias"] = np.zeros(heads + 2 * groups, self.dtype)
        if bias_kv:
            for name in ("bias_k", "bias_v"):
                p[name] = rng.normal(0, groups**-0.5, (1, 1, groups)).astype(self.dtype)
        limit = heads**-0.5
        p["out_proj.weight"] = rng.uniform(-limit, limit, (self.d_model, heads)).astype(self.dtype)
        if bias:
            p["out_proj.bias"] = np.zeros(self.d_model, self.dtype)
        return p

    def _weight(self, of: dict[str, Array], role: int) -> Array:
        if self._fused:
            return of["in_proj_weight"][self._rows_of[role]]
        return of["qkv"[role] + "_proj_weight"]

    def _project(self, x: Array, context: Array | None, value: Array | None) -> list[Array]:
        """q (..., H, T, d_head), k and v (..., G, S, d_head)."""
        keys = x if context is None else context
        values = keys if value is None else value
        names = (
            "x",
            "x" if context is None else "context",
            "context" if value is None else "value",
        )
        sizes = (self.d_model, self.kdim, self.vdim)
        for name, given, width in zip(names, (x, keys, values), sizes, strict=True):
            check_input(name, given, self.dtype, width)
        projected = []
        for role, given in enumerate((x, keys, values)):
            z = given @ self._weight(self.parameters, role).T
            if "in_proj_bias" in self.parameters:
                z += self.parameters["in_proj_bias"][self._rows_of[role]]
            projected.append(_split(z, self.num_kv_heads if role else self.num_heads))
        return projected

    def _project_grad(self, role: int, given: Array, dz: Array, grads: dict[str, Array]) -> Array:
        """Adds the gradients of one projection's weight and bias; returns that of its input."""
        weight = self._weight(grads, role)
        weight += rows(dz).T @ rows(given)
        if "in_proj_bias" in grads:
            grads["in_proj_bias"][self._rows_of[role]] += rows(dz).sum(0)
        return dz @ self._weight(self.parameters, role)

    def _more_keys(self) -> tuple[Array, Array] | None:
        """bias_k and bias_v as one key and value of each group, (G, 1, d_head)."""
        if "bias_k" not in self.parameters:
            return None
        shape = (self.num_kv_heads, 1, self.d_head)
        return self.parameters["bias_k"].reshape(shape), self.parameters["bias_v"].reshape(shape)

    def _zero_key(self) -> Array | None:
        """A key and value of zeros is a sink with logit 0."""
        return np.zeros(self.num_heads, self.dtype) if self.add_zero_attn else None

    def _attend(
        self, q: Array, k: Array, v: Array, mask: Mask | Array | None
    ) -> tuple[AttentionWithLse, list[Array]]:
        """The result over all keys, and the lse of each share: the context's, the layer's own."""
        parts = [attention_with_lse(q, k, v, mask=mask, sink=self._zero_key())]
        more = self._more_keys()
        if more is not None:
            parts.append(attention_with_lse(q, *more))
        whole = parts[0] if more is None else merge(*zip(*parts, strict=True))
        return whole, [part.lse for part in parts]

    def _attend_grad(
        self,
        dout: Array,
        q: Array,
        k: Array,
        v: Array,
        whole: AttentionWithLse,
        lses: list[Array],
        mask: Mask | Array | None,
        grads: dict[str, Array],
    ) -> Gradients:
        """The gradients of q, k, v; adds those of bias_k and bias_v.

        A share of the keys that has the part w of each row's weight: its gradient is that of
        attention to it alone, for w dout and the out of the whole.
        """
        out, lse = whole
        more = self._more_keys()
        part = dout if more is None else dout * np.exp(lses[0] - lse)[..., None]
        found = attention_grad(part, q, k, v, out, lses[0], mask=mask, sink=self._zero_key())
        if more is not None:
            rest = attention_grad(dout * np.exp(lses[1] - lse)[..., None], q, *more, out, lses[1])
            for name, gradient in zip(("bias_k", "bias_v"), rest[1:3], strict=True):
                grads[name] += gradient.reshape(grads[name].shape)
            found = found._replace(q=found.q + rest.q)
        return found

    def _out(self, out: Array) -> Array:
        y: Array = _joined(out) @ self.parameters["out_proj.weight"].T
        if "out_proj.bias" in self.parameters:
            y += self.parameters["out_proj.bias"]
        return y


# Shapes.


def _split(z: Array, heads: int) -> Array:
    """(..., T, heads * d) as (..., heads, T, d): a view."""
    return z.reshape(*z.shape[:-1], heads, z.shape[-1] // heads).swapaxes(-3, -2)


def _joined(z: Array) -> Array:
    """(..., heads, T, d) as (..., T, heads * d)."""
    z = z.swapaxes(-3, -2)
    return z.reshape(*z.shape[:-2], z.shape[-2] * z.shape[-1])
