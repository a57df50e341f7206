"""What a recording is to keep: the arguments of `clearhead.hf.record`, checked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Wanted(NamedTuple):
    """What to keep: the arguments of `clearhead.hf.record`."""

    layers: Sequence[int] | None
    heads: Sequence[int] | None
    stats_only: bool
    folder: Path | None
    max_bytes: int


def wanted(layers: Any, heads: Any, stats_only: Any, folder: Any, max_bytes: Any) -> Wanted:
    """The arguments as they are used; the folder is made if it is not there.

    Raises  TypeError, ValueError: the argument, what it is, what it must be. OSError: no folder.
    """
    if not isinstance(stats_only, bool):
        raise TypeError(f"stats_only: is {stats_only!r}, must be True or False")
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int | float | np.integer):
        raise TypeError(f"max_bytes: is {max_bytes!r}, must be a number of bytes")
    chosen = [
        None if given is None else _numbers(name, given)
        for name, given in (("layers", layers), ("heads", heads))
    ]
    if folder is None:
        return Wanted(chosen[0], chosen[1], stats_only, None, int(max_bytes))
    if not isinstance(folder, str | Path):
        raise TypeError(f"folder: is {type(folder).__name__}, must be a path")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise ValueError(f"folder: {str(path)!r} is a file, must be a folder")
    path.mkdir(parents=True, exist_ok=True)
    return Wanted(chosen[0], chosen[1], stats_only, path, int(max_bytes))


def _numbers(name: str, given: Any) -> list[int]:
    """A list of whole numbers with one at least."""
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise TypeError(f"{name}: is {given!r}, must be a list of numbers, as {name}=[0, -1]")
    numbers = list(given)
    for one in numbers:
        if isinstance(one, bool | np.bool_) or not isinstance(one, int | np.integer):
            raise TypeError(f"{name}: has {one!r}, must be whole numbers")
    if not numbers:
        raise ValueError(f"{name}: is empty, must name one at least, or be None for all")
    return [int(one) for one in numbers]
