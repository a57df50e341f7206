"""Arguments of a page's questions, checked: one sentence for what is wrong, before any work."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from .units import UNITS

_MOST_COLUMNS = 4096  # left out by hand


class Leave(NamedTuple):
    """Which columns a picture does without."""

    special: bool = False
    sinks: bool = False
    columns: tuple[int, ...] = ()


class Chosen(NamedTuple):
    """What a picture is of."""

    heads: tuple[tuple[int, int], ...]
    join: str
    unit: str
    leave: Leave


def whole(name: str, value: Any, below: int, least: int = 0) -> int:
    """A whole number from `least` to `below` - 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: is {_shown(value)}, must be a whole number")
    if not least <= value < below:
        raise ValueError(f"{name}: is {value}, must be from {least} to {below - 1}")
    return value


def choice(name: str, value: Any, options: tuple[str, ...]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name}: is {_shown(value)}, must be one of {', '.join(options)}")
    return value


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: is {_shown(value)}, must be true or false")
    return value


def pair(name: str, value: Any, count: int) -> tuple[int, int]:
    """A range [begin, end) within `count`."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise TypeError(f"{name}: is {_shown(value)}, must be [begin, end]")
    begin = whole(name, value[0], count + 1)
    return begin, whole(name, value[1], count + 1, begin)


def place(name: str, value: Any) -> tuple[float, float] | None:
    """Two numbers, or nothing."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise TypeError(f"{name}: is {_shown(value)}, must be [row, column]")
    for x in value:
        if isinstance(x, bool) or not isinstance(x, int | float) or not abs(x) < 2**53:
            raise TypeError(f"{name}: is {_shown(value)}, must be two numbers")
    return float(value[0]), float(value[1])


def chosen(arguments: Mapping[str, Any], layers: int, heads: int, units: tuple[str, ...]) -> Chosen:
    """The picture that the arguments name."""
    unit = choice("unit", arguments.get("unit", "tokens"), UNITS)
    if unit not in units:
        raise ValueError(f"unit: is {unit!r}, must be one that this run has: {', '.join(units)}")
    return Chosen(
        _heads(arguments.get("heads"), layers, heads),
        choice("join", arguments.get("join", "mean"), ("mean", "max")),
        unit,
        _leave(arguments.get("leave")),
    )


def _heads(value: Any, layers: int, heads: int) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list | tuple) or not value:
        raise TypeError(f"heads: is {_shown(value)}, must be [[layer, head], ...]")
    if len(value) > layers * heads:
        raise ValueError(
            f"heads: are {len(value)}, must be at most the {layers * heads} of the run"
        )
    found = []
    for one in value:
        if not isinstance(one, list | tuple) or len(one) != 2:
            raise TypeError(f"heads: one is {_shown(one)}, must be [layer, head]")
        found.append((whole("layer", one[0], layers), whole("head", one[1], heads)))
    return tuple(dict.fromkeys(found))


def _leave(value: Any) -> Leave:
    if value is None:
        return Leave()
    if not isinstance(value, Mapping):
        raise TypeError(f"leave: is {_shown(value)}, must be {{special, sinks, columns}}")
    columns = value.get("columns") or []
    if not isinstance(columns, list | tuple) or len(columns) > _MOST_COLUMNS:
        raise ValueError(f"leave: columns must be a list of at most {_MOST_COLUMNS} numbers")
    return Leave(
        flag("leave: special", value.get("special", False)),
        flag("leave: sinks", value.get("sinks", False)),
        tuple(sorted({whole("leave: a column", one, 2**31) for one in columns})),
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
