"""Attention you can see through, at the speed of the machine.

    import numpy as np, clearhead as ch

    out = ch.attention(q, k, v, mask=ch.causal())        # exact, linear memory
    run = ch.read("The animal crossed the road because it was tired.")
    run.links("it")                                      # what each head let `it` read

Every public name is listed in `__all__` and loaded on first use, so that importing clearhead costs
little more than importing NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _native as _native  # before any fork: a child then knows that it is one

if TYPE_CHECKING:
    from .biases import Bias, alibi, relative_bias
    from .cache import KeyValueCache
    from .layers import MultiHeadAttention
    from .linear import LinearGradients, linear_attention, linear_attention_grad
    from .maps import AttentionMap, attention_map
    from .masks import (
        Mask,
        allowed,
        blocks,
        causal,
        dilated,
        documents,
        first_keys,
        lengths,
        prefix,
        window,
    )
    from .models.given import from_weights
    from .models.read import read
    from .models.run import AttentionRun, Link
    from .models.runfile import load
    from .models.tokens import Token, Word
    from .models.weights import CheckpointError
    from .observation import Observation
    from .ops import (
        AttentionWithLse,
        Gradients,
        attention,
        attention_grad,
        attention_with_lse,
        available_isas,
        isa,
        merge,
        num_threads,
        set_num_threads,
    )
    from .regression import Match, SoftLookup, kernel_regression
    from .single_head import SingleHeadAttention
    from .worked import why
    from .worked.check import check, check_file
    from .worked.check.report import CheckReport
    from .worked.cost import Cost, CostRow, cost
    from .worked.learn import Lesson, learn
    from .worked.trace import Trace, trace
    from .worked.vectors import Vectors, read_vectors

# Where each public name lives. A name is imported when it is first asked for (PEP 562).
_HOME = {
    "AttentionMap": "maps",
    "AttentionRun": "models.run",
    "AttentionWithLse": "ops",
    "Bias": "biases",
    "CheckReport": "worked.check.report",
    "CheckpointError": "models.weights",
    "Cost": "worked.cost",
    "CostRow": "worked.cost",
    "Gradients": "ops",
    "KeyValueCache": "cache",
    "Lesson": "worked.learn",
    "Link": "models.run",
    "LinearGradients": "linear",
    "Mask": "masks",
    "Match": "regression",
    "MultiHeadAttention": "layers",
    "Observation": "observation",
    "SingleHeadAttention": "single_head",
    "SoftLookup": "regression",
    "Token": "models.tokens",
    "Trace": "worked.trace",
    "Vectors": "worked.vectors",
    "Word": "models.tokens",
    "alibi": "biases",
    "allowed": "masks",
    "attention": "ops",
    "attention_grad": "ops",
    "attention_map": "maps",
    "attention_with_lse": "ops",
    "available_isas": "ops",
    "blocks": "masks",
    "causal": "masks",
    "cost": "worked.cost",
    "check": "worked.check",
    "check_file": "worked.check",
    "dilated": "masks",
    "documents": "masks",
    "first_keys": "masks",
    "from_weights": "models.given",
    "isa": "ops",
    "kernel_regression": "regression",
    "learn": "worked.learn",
    "lengths": "masks",
    "linear_attention": "linear",
    "linear_attention_grad": "linear",
    "load": "models.runfile",
    "merge": "ops",
    "num_threads": "ops",
    "prefix": "masks",
    "read": "models.read",
    "read_vectors": "worked.vectors",
    "relative_bias": "biases",
    "set_num_threads": "ops",
    "trace": "worked.trace",
    "why": "worked",
    "window": "masks",
}

__version__ = "0.1.0"
__all__ = [
    "AttentionMap",
    "AttentionRun",
    "AttentionWithLse",
    "Bias",
    "CheckReport",
    "CheckpointError",
    "Cost",
    "CostRow",
    "Gradients",
    "KeyValueCache",
    "Lesson",
    "LinearGradients",
    "Link",
    "Mask",
    "Match",
    "MultiHeadAttention",
    "Observation",
    "SingleHeadAttention",
    "SoftLookup",
    "Token",
    "Trace",
    "Vectors",
    "Word",
    "__version__",
    "alibi",
    "allowed",
    "attention",
    "attention_grad",
    "attention_map",
    "attention_with_lse",
    "available_isas",
    "blocks",
    "causal",
    "check",
    "check_file",
    "cost",
    "dilated",
    "documents",
    "first_keys",
    "from_weights",
    "isa",
    "kernel_regression",
    "learn",
    "lengths",
    "linear_attention",
    "linear_attention_grad",
    "load",
    "merge",
    "num_threads",
    "prefix",
    "read",
    "read_vectors",
    "relative_bias",
    "set_num_threads",
    "trace",
    "why",
    "window",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
