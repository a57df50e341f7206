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

if TYPE_CHECKING:
    from .ops import AttentionWithLse, attention, attention_with_lse
    from .worked.learn import Lesson, learn
    from .worked.vectors import Vectors, read_vectors

# Where each public name lives. A name is imported when it is first asked for (PEP 562).
_HOME = {
    "AttentionWithLse": "ops",
    "Lesson": "worked.learn",
    "Vectors": "worked.vectors",
    "attention": "ops",
    "attention_with_lse": "ops",
    "learn": "worked.learn",
    "read_vectors": "worked.vectors",
}

__version__ = "0.1.0"
__all__ = [
    "AttentionWithLse",
    "Lesson",
    "Vectors",
    "__version__",
    "attention",
    "attention_with_lse",
    "learn",
    "read_vectors",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
