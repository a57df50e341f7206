"""One HTML file that shows a run in any browser, with the network off.

The page is the app of `clearhead view` with a source that stands in the page itself: the text, the
tokens and every weight. Nothing is fetched, and its content-security policy allows its own script
and nothing else: script and style stand there as gzip, unpacked by a small script, and the policy
has the hashes of both. A weight is stored rounded to `decimals` places, 4
where the page then stays under a megabyte and else 3, and the page says which. What is hidden by
the mask is stored as such.
"""

import base64
import gzip
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from .._writing import replacing
from . import sinks
from .bundle import bundle
from .labels import visible
from .opening import opening_of
from .scene import Scene

MOST_WEIGHTS = 2**25  # 512 tokens in 128 heads
SMALL_PAGE_BYTES = 1_000_000
_HIDDEN = 65535  # stored for a weight that the mask hides; as embedded.js has it
_ROLLOUT_UNIT = 2e-5  # what the rollout is counted in: its largest value, 1, is 50,000
_WINDOW_CELLS = 1 << 20


def write(run: Any, path: str | os.PathLike[str]) -> None:
    """Write the page of an `AttentionRun` to `path`, whole or not at all.

    Raises  ValueError: the run has more weights than a page should hold.
            OSError: the file cannot be written.
    """
    page = render(run)
    with replacing(path) as out:
        out.write(page)


def render(
    run: Any,
    *,
    word: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    special: bool = False,
    include_self: bool = False,
    raw: bool = False,
) -> str:
    """The page of an `AttentionRun` as one string of HTML.

    The rest is how it opens: on which word, on one layer or one head of it instead of all, with
    special tokens and a word's reading of itself listed, with the tokenizer's pieces for tokens.

    Raises  ValueError: the run has more weights than a page should hold.
    """
    T, S = len(run.tokens), len(run.keys.tokens)
    heads = run.num_layers * run.num_heads
    if heads * T * S > MOST_WEIGHTS:
        tokens = str(T) if T == S else f"{T} × {S}"
        raise ValueError(
            f"html: {tokens} tokens in {heads} heads are {heads * T * S:,} weights; "
            f"one page holds at most {MOST_WEIGHTS:,}"
        )
    scene = Scene(run)
    chosen = [
        (at_layer, at_head)
        for at_layer in range(run.num_layers)
        for at_head in range(run.num_heads)
        if layer in (None, at_layer) and head in (None, at_head)
    ]
    about = scene.answer("about", {}).json
    unit = "tokens" if raw else None
    opening = opening_of(scene, heads=chosen, unit=unit, word=word)
    opening["listed"] = {"special": special, "self": include_self}
    if raw:
        for axis in filter(None, (about["rows"], about["columns"])):
            axis["tokens"] = [[piece, piece, *rest] for _, piece, *rest in axis["tokens"]]
    about |= {"opening": opening, "can": about["can"] | {"read": False, "steps": False}}
    weights = _weights(scene, run)
    page = _page(run, scene, about, weights, decimals=4)
    if len(page.encode()) <= SMALL_PAGE_BYTES:
        return page
    return _page(run, scene, about, weights, decimals=3)


def _weights(scene: Scene, run: Any) -> NDArray[np.float32]:
    """Every weight, (L, H, T, S), NaN where hidden."""
    T, S = len(run.tokens), len(run.keys.tokens)
    out = np.empty((run.num_layers, run.num_heads, T, S), np.float32)
    step = max(1, _WINDOW_CELLS // S)
    for layer, head in np.ndindex(*out.shape[:2]):
        picture = {"heads": [(layer, head)], "unit": "tokens"}
        for at in range(0, T, step):
            asked = {"rows": [at, min(T, at + step)], "columns": [0, S]}
            out[layer, head, at : at + step] = scene.answer("window", picture | asked).arrays[0]
    return out


def _rollout(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """The rollout of all layers, (T, T): as in models/rollout.py, which gives one row at a time."""
    whole = np.eye(weights.shape[-1])
    for layer in np.nan_to_num(weights).astype(np.float64):
        mean = layer.mean(0)
        whole = (mean @ whole + whole) / (1 + mean.sum(1, keepdims=True))
    return whole


def _page(
    run: Any,
    scene: Scene,
    about: Mapping[str, Any],
    weights: NDArray[np.float32],
    *,
    decimals: int,
) -> str:
    loader, code = bundle("loader.js"), _dressed(_tight(_static("app.css"))) + bundle("page.js")
    measures = scene.answer("heads", {})
    rollout = _rollout(weights) if about["can"]["rollout"] else None
    data = {
        "about": {**about, "decimals": decimals},
        "decimals": decimals,
        "weights": _packed(weights, rollout, decimals),
        "rollout": None if rollout is None else _ROLLOUT_UNIT,
        "measures": measures.json["measures"],
        "values": [_numbers(values) for values in measures.arrays],
        "sinks": {
            "share": sinks.LEAST_SHARE,
            "times": sinks.TIMES_EVEN,
            "rows": sinks.LEAST_ROWS,
            "rule": sinks.RULE,
        },
    }
    return _filled(
        _static("page.html"),
        {
            "title": html.escape(visible(" ".join(run.text.split()))[:80]),
            "version": __version__,
            "loader": loader,
            "loader_hash": _csp_hash(loader),
            "code": base64.b64encode(gzip.compress(code.encode(), 9, mtime=0)).decode(),
            "code_hash": _csp_hash(code),
            # "<" escaped: no token can end the block or open a comment
            "run": json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
        },
    )


def _packed(weights: NDArray[np.float32], rollout: NDArray[np.float64] | None, places: int) -> str:
    """Weights and rollout as 16-bit integers: base 85 of gzip of byte planes.

    Weights are small, so the high bytes are nearly all 0 and cost nothing when they stand together.
    """
    scaled = np.rint(weights.astype(np.float64) * 10**places)
    parts = [np.where(np.isnan(scaled), _HIDDEN, scaled).astype("<u2").ravel()]
    if rollout is not None:
        parts.append(np.rint(rollout / _ROLLOUT_UNIT).astype("<u2").ravel())
    planes = np.concatenate(parts).view(np.uint8).reshape(-1, 2).T
    packed = gzip.compress(planes.tobytes(), 9, mtime=0)
    return base64.b85encode(packed).decode().replace("<", ".")  # "<" would be six characters


def _numbers(values: NDArray[np.float32]) -> list[float | None]:
    """A measure of all heads in four digits, in their order; None where it has no value."""
    return [None if np.isnan(x) else float(f"{x:.4g}") for x in values.ravel()]


def _static(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text("utf-8")


def _tight(css: str) -> str:
    """A style sheet without the spaces that are for its readers; those of selectors stay."""
    return re.sub(r"\s+([{}])", r"\1", re.sub(r"([{};:,])\s+", r"\1", css))


def _dressed(css: str) -> str:
    """The script that puts a style sheet on: as part of the code it is packed as the code is."""
    return (
        "const dress = new CSSStyleSheet();\n"
        f"dress.replaceSync({json.dumps(css, ensure_ascii=False)});\n"
        "document.adoptedStyleSheets = [dress];\n"
    )


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The template with each [[name]] replaced, once: what is put in is not searched again."""
    return re.sub(r"\[\[(\w+)\]\]", lambda at: values[at[1]], template)
