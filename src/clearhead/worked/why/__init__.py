"""Why attention is built as it is: experiments with numbers.

    print(ch.why.scale())         why divide by the square root of d
    print(ch.why.saturation())    what happens without it
    print(ch.why.mask())          why mask before the softmax
    print(ch.why.heads())         why several heads cost what one costs
    print(ch.why.tiling())        why no T x S matrix is needed

Each returns Evidence: `print` shows a table of 80 columns, `e["column"]` is an array, `e.plot()` a
figure. The same seed gives the same numbers; times and memory are measured and vary.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import figures
from .evidence import Column, Evidence
from .memory import direct, peak_extra_bytes

Array = NDArray[np.float64]

SIZES = (1, 4, 16, 64, 256, 1024)


def scale(sizes: Sequence[int] = SIZES, samples: int = 10_000, seed: int = 0) -> Evidence:
    """The variance of q · k, of q and k with independent standard normal entries, against d.

    q · k is a sum of d products of variance 1, so its variance is d; divided by sqrt(d) it is 1.
    Source: Vaswani et al. 2017, section 3.2.1, footnote 4.

    >>> e = scale(sizes=(4, 64))
    >>> e["variance of q · k"].round()
    array([ 4., 65.])
    """
    _positive("sizes", sizes)
    _positive("samples", [samples])
    rng = np.random.default_rng(seed)
    raw = np.array([_dot_products(rng, size, samples).var() for size in sizes])
    size = np.array(sizes, dtype=np.float64)
    scaled = raw / size
    answer = (
        f"From d = {sizes[0]} to d = {sizes[-1]} the variance of q · k grows from "
        f"{raw[0]:.3g} to {raw[-1]:.3g}: it is d. "
        f"Divided by √d it stays between {scaled.min():.2f} and {scaled.max():.2f}."
    )
    return Evidence(
        "Why divide by √d? The variance of q · k is d",
        answer,
        (
            Column("d", size, ".0f"),
            Column("variance of q · k", raw, ".2f"),
            Column("variance of q · k / √d", scaled, ".3f"),
        ),
        figures.scale,
    )


def saturation(
    sizes: Sequence[int] = SIZES, keys: int = 16, samples: int = 1000, seed: int = 0
) -> Evidence:
    """Entropy and gradient of the softmax over `keys` random keys, with and without 1 / sqrt(d).

    Entropy is in nats, log(keys) at most. The gradient is the Frobenius norm of the softmax's
    Jacobian diag(p) - p p^T, averaged over queries: where it is 0, nothing is learned.
    """
    _positive("sizes", sizes)
    _positive("keys, samples", [keys, samples])
    rng = np.random.default_rng(seed)
    found = []
    for size in sizes:
        scores = _dot_products(rng, size, samples * keys).reshape(samples, keys)
        raw, scaled = softmax(scores), softmax(scores * size**-0.5)
        found.append([_entropy(raw), _entropy(scaled), _jacobian_norm(raw), _jacobian_norm(scaled)])
    table = np.array(found)
    answer = (
        f"Without scaling, entropy falls from {table[0, 0]:.2f} nats at d = {sizes[0]} to "
        f"{table[-1, 0]:.2f} at d = {sizes[-1]}, and the gradient from {table[0, 2]:.3f} to "
        f"{table[-1, 2]:.3f}: one key takes all and nothing is learned. "
        f"With 1 / √d they are {table[-1, 1]:.2f} nats and {table[-1, 3]:.3f} at d = {sizes[-1]}."
    )
    return Evidence(
        "What happens without 1 / √d? The softmax saturates",
        answer,
        (
            Column("d", np.array(sizes, dtype=np.float64), ".0f"),
            Column("entropy of q · k", table[:, 0]),
            Column("entropy of q · k / √d", table[:, 1]),
            Column("gradient of q · k", table[:, 2]),
            Column("gradient of q · k / √d", table[:, 3]),
        ),
        figures.saturation,
    )


def softmax(scores: ArrayLike) -> Array:
    """exp(s) / sum(exp(s)) along the last axis, in float64, without overflow.

    >>> softmax([1, 2, 3]).round(2), softmax([8, 16, 24]).round(2)
    (array([0.09, 0.24, 0.67]), array([0., 0., 1.]))
    """
    s = np.asarray(scores, dtype=np.float64)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def mask(
    hidden: Sequence[float] = (0, 5, 10, 20, 50, 100, 200), keys: int = 8, seed: int = 0
) -> Evidence:
    """One key must not be seen. Hide it by a zero after the softmax, or by a mask before it?

    The hidden key's score takes the values `hidden`; the others are standard normal. Errors are
    of the weights of the other keys, against a softmax that never had the hidden key; float32.
    """
    _positive("keys", [keys - 1])
    if not np.isfinite(np.asarray(hidden, dtype=np.float64)).all():
        raise ValueError(f"hidden: {list(hidden)}, must be finite scores")
    rng = np.random.default_rng(seed)
    seen = rng.standard_normal(keys - 1)
    truth = softmax(seen)
    found = []
    for score in hidden:
        row = np.append(seen, score).astype(np.float32)
        zeroed = _softmax32(row)[:-1]  # the zero itself adds nothing to any sum below
        with np.errstate(invalid="ignore"):
            again = zeroed / zeroed.sum()  # 0 / 0 once the hidden key has taken everything
        row[-1] = -np.inf
        before = _softmax32(row)[:-1]
        errors = [float(np.abs(p - truth).max()) for p in (zeroed, again, before)]
        found.append([float(score), float(zeroed.sum()), *errors])
    table = np.array(found)
    worst = table[-1]
    again_says = "NaN" if np.isnan(worst[3]) else f"{worst[3]:.1e}"
    answer = (
        f"A zero after the softmax leaves rows that sum to {table[0, 1]:.2f} and, once the hidden "
        f"score is {worst[0]:.0f}, to {worst[1]:.2g}: the hidden key still takes its share. "
        f"Dividing by the sum again cures that until nothing is left to divide ({again_says} at "
        f"{worst[0]:.0f}). A mask before the softmax is off by {table[:, 4].max():.0e} at most."
    )
    return Evidence(
        "Why mask before the softmax, and not zero after it?",
        answer,
        (
            Column("hidden score", table[:, 0], ".0f"),
            Column("sum of weights, zeroed after", table[:, 1], ".3g"),
            Column("error, zeroed after", table[:, 2], ".1e"),
            Column("error, zeroed and renormalised", table[:, 3], ".1e"),
            Column("error, masked before", table[:, 4], ".1e"),
        ),
        figures.mask,
    )


def heads(
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    length: int = 512,
    size: int = 512,
    repeats: int = 7,
    seed: int = 0,
) -> Evidence:
    """The cost of self-attention over `length` tokens of `size` numbers, by the number of heads.

    Counted: multiply-adds of the four projections (4 T D^2) and of scores and mixture (2 T^2 D),
    and the exponentials (H T^2), the one thing that grows. Measured: the best of `repeats`
    interleaved runs of projections and attention, float32.
    """
    _positive("counts", counts)
    _positive("length, size, repeats", [length, size, repeats])
    if odd := [h for h in counts if size % h]:
        raise ValueError(f"counts: {odd[0]} heads do not divide size {size}")
    from ...ops import attention

    rng = np.random.default_rng(seed)
    x = rng.standard_normal((length, size), dtype=np.float32)
    w = rng.standard_normal((4, size, size), dtype=np.float32) * np.float32(size**-0.5)

    def run(h: int) -> None:
        q, k, v = (np.reshape(x @ m, (length, h, size // h)).swapaxes(0, 1) for m in w[:3])
        np.reshape(attention(q, k, v).swapaxes(0, 1), (length, size)) @ w[3]

    best = np.full(len(counts), np.inf)
    for _ in range(repeats + 1):  # the first round warms up threads and caches, as do they all
        for i, h in enumerate(counts):
            start = perf_counter()
            run(h)
            best[i] = min(best[i], perf_counter() - start)
    number = np.array(counts, dtype=np.float64)
    products = np.full(len(counts), 4.0 * length * size**2 + 2.0 * length**2 * size)
    exponentials = number * length**2
    answer = (
        f"Every count of heads does the same {products[0]:.3g} multiply-adds, because H heads of "
        f"size D / H are D wide together. Exponentials grow with H, to "
        f"{exponentials[-1] / products[-1]:.1%} of the multiply-adds. "
        f"Measured: {counts[-1]} heads take {best[-1] / best[0]:.2f} × the time of {counts[0]}."
    )
    return Evidence(
        f"What do several heads cost? {length} tokens of {size} numbers",
        answer,
        (
            Column("heads", number, ".0f"),
            Column("multiply-adds, millions", products / 1e6, ".1f"),
            Column("exponentials, millions", exponentials / 1e6, ".2f"),
            Column("milliseconds", best * 1e3, ".2f"),
            Column("times the first", best / best[0], ".2f"),
        ),
        figures.heads,
    )


def tiling(
    lengths: Sequence[int] = (512, 1024, 2048, 4096), size: int = 64, seed: int = 0
) -> Evidence:
    """clearhead.attention against the formula with its T x T matrix: error and memory, float32.

    Errors are the largest against the same formula in float64. Memory is the growth of the peak
    resident memory during the call, in a process of its own; Linux.
    """
    _positive("lengths", lengths)
    _positive("size", [size])
    from ...ops import attention

    rng = np.random.default_rng(seed)
    found = []
    for length in lengths:
        q, k, v = (rng.standard_normal((length, size), dtype=np.float32) for _ in range(3))
        truth = _direct64(q, k, v)
        errors = [float(np.abs(run(q, k, v) - truth).max()) for run in (attention, direct)]
        peaks = [peak_extra_bytes(kind, length, size) / 2**20 for kind in ("tiled", "direct")]
        found.append([float(length), *errors, *peaks])
    table = np.array(found)
    answer = (
        f"At {lengths[-1]} tokens the tiled attention is off by {table[-1, 1]:.1e} and the direct "
        f"formula by {table[-1, 2]:.1e}: both exact to rounding. The direct one took "
        f"{table[-1, 4]:.0f} MiB beyond its inputs, the tiled one {table[-1, 3]:.1f}."
    )
    return Evidence(
        "Is the T × T matrix needed? Exact attention in tiles",
        answer,
        (
            Column("tokens", table[:, 0], ".0f"),
            Column("error, tiled", table[:, 1], ".1e"),
            Column("error, direct", table[:, 2], ".1e"),
            Column("MiB, tiled", table[:, 3], ".1f"),
            Column("MiB, direct", table[:, 4], ".1f"),
        ),
        figures.tiling,
    )


EXPERIMENTS: dict[str, Callable[[], Evidence]] = {
    "scale": scale,
    "saturation": saturation,
    "mask": mask,
    "heads": heads,
    "tiling": tiling,
}


def run(
    name: str | None = None, folder: str | os.PathLike[str] | None = None
) -> Iterator[tuple[Evidence, list[Path]]]:
    """One experiment by name, or all, one after the other, with the figures written to `folder`."""
    if name is not None and name not in EXPERIMENTS:
        raise ValueError(f"name: {name!r}, must be one of {', '.join(EXPERIMENTS)}")
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    for which in EXPERIMENTS if name is None else [name]:
        found = EXPERIMENTS[which]()
        kinds = () if folder is None else ("png", "svg")
        yield found, [found.save(Path(folder or ".") / f"why-{which}.{kind}") for kind in kinds]


def _positive(name: str, values: Sequence[int]) -> None:
    if not all(isinstance(v, int | np.integer) for v in values):
        raise TypeError(f"{name}: {list(values)}, must be whole numbers")
    if not len(values) or min(values) < 1:
        raise ValueError(f"{name}: {list(values)}, must be at least 1")


def _dot_products(rng: np.random.Generator, size: int, samples: int) -> Array:
    """(samples,) of q · k, in blocks that keep 2 * 2^20 random numbers at a time."""
    rows = max(1, 2**20 // size)
    blocks = [
        np.einsum("sd,sd->s", rng.standard_normal((n, size)), rng.standard_normal((n, size)))
        for n in [rows] * (samples // rows) + [samples % rows]
    ]
    return np.concatenate(blocks)


def _entropy(p: Array) -> float:
    """Mean of -sum p log p over rows; 0 log 0 = 0."""
    return float(-np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1).mean())


def _jacobian_norm(p: Array) -> float:
    """Mean over rows of the Frobenius norm of diag(p) - p p^T, expanded so that it is O(S)."""
    two, three = np.sum(p**2, axis=-1), np.sum(p**3, axis=-1)
    return float(np.sqrt(np.maximum(two - 2 * three + two**2, 0)).mean())


def _softmax32(row: NDArray[np.float32]) -> NDArray[np.float32]:
    p = np.exp(row - row.max())
    return np.asarray(p / p.sum())


def _direct64(q: NDArray[np.float32], k: NDArray[np.float32], v: NDArray[np.float32]) -> Array:
    """The formula in float64, 256 queries at a time."""
    blocks = [
        softmax(q[i : i + 256].astype(np.float64) @ k.T.astype(np.float64) * q.shape[1] ** -0.5)
        @ v.astype(np.float64)
        for i in range(0, len(q), 256)
    ]
    return np.concatenate(blocks)
