"""Where a page opens: on the strongest link of a text that is short enough to look for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .scene import Scene

MOST_WEIGHTS = 1 << 25  # of all heads: of longer texts nothing is looked for
_CELLS = 1 << 20
_NEIGHBOURS = 2  # words so near are no discovery


def opening_of(
    scene: "Scene",
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    unit: str | None = None,
    word: int | None = None,
) -> dict[str, Any]:
    """The state that a page of this run begins with, as `state.js` has it.

    heads  those that are looked at, the largest weight of any; None: all, of a long text the first
    unit   None: words where there are some
    word   the word of the run that is chosen; None: the one with the strongest link
    """
    run = scene.run
    every = [(la, h) for la in range(run.num_layers) for h in range(run.num_heads)]
    long = len(every) * len(run.tokens) * len(run.keys.tokens) > MOST_WEIGHTS
    unit = unit or ("words" if "words" in scene.units else "tokens")
    if heads is None:
        heads = every[:1] if long else every
    state: dict[str, Any] = {"heads": [list(one) for one in heads], "join": "max", "unit": unit}
    chosen = None if word is None else word if unit == "words" else run.words[word].tokens[0]
    rows = run.words if unit == "words" else run.tokens
    columns = run.keys.words if unit == "words" else run.keys.tokens
    if long or len(rows) * len(columns) > _CELLS:
        return state if chosen is None else state | {"words": [chosen]}
    asked = {"heads": heads, "join": "max", "unit": unit}
    part = {"rows": [0, len(rows)], "columns": [0, len(columns)]}
    weights = np.nan_to_num(scene.answer("window", asked | part).arrays[0])
    fit = _lettered(rows)[:, None] & _lettered(columns)
    if scene.square:
        apart = np.subtract.outer(np.arange(len(rows)), np.arange(len(columns)))
        fit &= np.abs(apart) > _NEIGHBOURS
    if chosen is not None:
        fit &= (np.arange(len(rows)) == chosen)[:, None]
    if not fit.any():
        ordinary = [at for at, one in enumerate(rows) if not one.special]
        return state | {"words": [(*ordinary, 0)[0] if chosen is None else chosen]}
    row, column = np.unravel_index(np.argmax(np.where(fit, weights, -1)), weights.shape)
    return state | {"words": [int(row)], "row": int(row), "column": int(column)}


def strongest_head(scene: "Scene") -> tuple[int, int] | None:
    """The layer and head with the link that a page opens on; None where nothing is looked for."""
    state = opening_of(scene)
    if "row" not in state:
        return None
    place = {"unit": state["unit"], "row": state["row"], "column": state["column"]}
    weights = np.nan_to_num(scene.answer("across", place).arrays[0])
    layer, head = np.unravel_index(np.argmax(weights), weights.shape)
    return int(layer), int(head)


def _lettered(units: Sequence[Any]) -> NDArray[np.bool_]:
    """Which units have a letter and are no special token."""
    return np.array([not one.special and any(map(str.isalpha, one.text)) for one in units], bool)
