"""The command `clearhead trace`: a JSON file, the built-in example or a text; where to write it."""

import json
import os
from pathlib import Path
from typing import Any

from ..._writing import replacing
from . import Trace, trace

LARGEST_BYTES = 16 << 20
_ARRAYS = frozenset(
    ["q", "k", "v", "X", "W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "bias", "sink",
     "W_1", "W_2", "v_a", "tokens", "mask"]
)  # fmt: skip
_OTHERS = frozenset(["heads", "scale", "softcap", "score", "causal", "digits"])

DEMO: dict[str, Any] = {
    "tokens": ["the", "duck", "swims"],
    "X": [[0.1, 0.9, 0.2], [1.2, 0.4, 0.8], [0.7, 0.1, 1.5]],
    "W_Q": [[0.6, -0.3], [0.1, 0.8], [1.0, 0.4]],
    "W_K": [[0.9, 0.2], [-0.4, 0.5], [0.7, -0.6]],
    "W_V": [[1.0, 0.3], [0.2, -0.7], [0.5, 1.1]],
    "causal": True,
}


def from_file(path: str | os.PathLike[str], digits: int = 2) -> Trace:
    """A trace of what a JSON object holds: the arguments of `trace` by name, and `causal`.

    Raises  ValueError that names the file, and the line where it is not JSON; OSError.
    """
    file = Path(path)
    size = file.stat().st_size
    if size > LARGEST_BYTES:
        raise ValueError(f"{file}: {size / 2**20:.0f} MiB; a trace is read from up to 16 MiB")
    try:
        found = json.loads(file.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is not UTF-8 text, must be a JSON object") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"{file}: is nested too deeply, must be a JSON object") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: holds no JSON object, must hold one with q, k, v or X, W_Q, ...")
    try:
        return from_fields(found, digits)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None


def from_fields(fields: dict[str, Any], digits: int = 2) -> Trace:
    """A trace of the arguments of `trace` by name."""
    from ...masks import causal

    given = dict(fields)
    unknown = sorted(set(given) - _ARRAYS - _OTHERS)
    if unknown:
        known = ", ".join(sorted(_ARRAYS | _OTHERS))
        raise ValueError(f"{unknown[0][:40]}: is no argument of trace, which has {known}")
    hidden = given.pop("causal", False)
    if not isinstance(hidden, bool):
        raise TypeError(f"causal: is {type(hidden).__name__}, must be true or false")
    if hidden and "mask" in given:
        raise ValueError("causal, mask: are both given; give one")
    if hidden:
        given["mask"] = causal()
    if "tokens" in given and not isinstance(given["tokens"], list):
        raise TypeError(f"tokens: is {type(given['tokens']).__name__}, must be a list")
    return trace(**{"digits": digits, **given})


def chosen(
    file: Path | None,
    demo: bool,
    text: str | None,
    *,
    model: str | None,
    layer: int,
    head: int,
    digits: int,
) -> Trace:
    """The trace that the command line asks for: of exactly one of a file, the example, a text."""
    if (file is not None) + demo + (text is not None) != 1:
        raise ValueError("trace: takes one of FILE.json, --demo and --text")
    if text is not None:
        return trace(text=text, model=model, layer=layer, head=head, digits=digits)
    return from_fields(DEMO, digits) if file is None else from_file(file, digits)


def write(made: Trace, markdown: Path | None, latex: Path | None, html: Path | None) -> list[Path]:
    """Write the trace in the forms that are asked for, each file whole or not at all."""
    written = []
    for path, content in (
        (markdown, made.to_markdown),
        (latex, lambda: made.to_latex(standalone=True)),
        (html, made.to_html),
    ):
        if path is not None:
            page = content()
            with replacing(path) as out:
                out.write(page)
            written.append(path)
    return written
