"""Write a worked example of attention, misprint one number, and let the checker find it again.

    python examples/check_article.py
    python examples/check_article.py --tokens 5 --size 3 --seed 4

What is printed: the report on the article, which tells the misprint from the cells that inherit
it, and the report on the corrected copy, which finds nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import clearhead as ch


def article(tokens: int, size: int, seed: int) -> tuple[str, str]:
    """A worked example as Markdown, and the same with a score misprinted and carried on."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.uniform(-1.5, 1.5, (3, tokens, size)).round(1)
    scores = q @ k.T
    wrong = scores.copy()
    wrong[1, 0] += 1.0
    return written(q, k, v, scores), written(q, k, v, wrong)


def written(q: np.ndarray, k: np.ndarray, v: np.ndarray, scores: np.ndarray) -> str:
    scaled = scores / q.shape[1] ** 0.5
    weights = np.exp(scaled) / np.exp(scaled).sum(1, keepdims=True)
    blocks = [
        ("Q", q, 1),
        ("K", k, 1),
        ("scores = Q x K^T", scores, 2),
        (f"scaled = scores / sqrt({q.shape[1]})", scaled, 3),
        ("weights = softmax(scaled)", weights, 3),
        ("V", v, 1),
        ("output = weights x V", weights @ v, 3),
    ]
    return "\n".join(fenced(caption, matrix, digits) for caption, matrix, digits in blocks)


def fenced(caption: str, matrix: np.ndarray, digits: int) -> str:
    rows = [" ".join(f"{x:7.{digits}f}" for x in row) for row in matrix]
    return "\n".join(["```", f"# {caption}", *rows, "```", ""])


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--size", type=int, default=2, help="numbers in a query, key and value")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(args)
    if given.tokens < 2 or given.size < 1:
        parser.error("tokens: must be at least 2; size: at least 1")
    right, misprinted = article(given.tokens, given.size, given.seed)
    report = ch.check(misprinted, name="misprinted.md")
    print(report, end="\n\n")
    fixed = ch.check(report.corrected(misprinted), name="corrected.md")
    print(fixed.summary)
    print(ch.check(right, name="right.md").summary)
    return 0 if fixed.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
