"""Every example in a docstring runs and prints what it says.

An example may use what a reader has at hand: `np`, `ch`, float32 arrays q (1, 8, 128, 64), k and v
of the same shape, and `run`, what the default model read in the sentence of the README.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clearhead as ch
from clearhead.models.store import list_models

SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
EXTRAS = {"torch", "jax", "transformers", "dask", "anywidget", "traitlets"}


def docstrings() -> list[doctest.DocTest]:
    found = []
    for info in pkgutil.walk_packages(ch.__path__, "clearhead."):
        try:
            module = importlib.import_module(info.name)
        except ImportError as error:
            if error.name in EXTRAS:
                continue  # an adapter whose extra is not installed
            raise
        found += doctest.DocTestFinder(exclude_empty=True).find(module, info.name)
    return [test for test in found if test.examples]


DOCSTRINGS = docstrings()


@pytest.fixture(scope="module")
def at_hand() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 8, 128, 64), dtype=np.float32)
    names: dict[str, Any] = {"np": np, "ch": ch, "rng": rng, "q": q, "k": k, "v": v}
    if any(model.folder is not None for model in list_models()):
        names["run"] = ch.read("The animal crossed the road because it was tired.")
    return names


@pytest.mark.parametrize("docstring", DOCSTRINGS, ids=lambda d: d.name)
def test_every_example_in_the_docstring_runs(
    docstring: doctest.DocTest,
    at_hand: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    needs_run = any("run" in e.source or "ch.read" in e.source for e in docstring.examples)
    if needs_run and "run" not in at_hand:
        pytest.skip("the default model has not been fetched: clearhead models fetch")
    test = doctest.DocTest(
        docstring.examples, at_hand | docstring.globs, docstring.name, docstring.filename,
        docstring.lineno, docstring.docstring,
    )  # fmt: skip
    said: list[str] = []
    with np.printoptions():
        result = doctest.DocTestRunner(optionflags=SHOWN).run(test, out=said.append)
    assert result.failed == 0, "".join(said)


def test_most_public_names_show_an_example() -> None:
    assert len(DOCSTRINGS) > 20
