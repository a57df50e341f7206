"""One HTML file that shows a run in any browser, with the network off.

The page holds the text, the tokens and every weight; nothing is fetched, and its
content-security policy allows the two blocks of its own script and style and nothing else.
A weight is stored rounded to `decimals` places, 4 where the page then stays under a megabyte and
else 3, and the page says which.
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

from .. import __version__
from .._writing import replacing
from .labels import visible
from .ranking import Run, proof_line

MOST_WEIGHTS = 2**25  # 512 tokens in 128 heads
SMALL_PAGE_BYTES = 1_000_000
# In the order in which they need each other; together they are one module.
_SCRIPTS = ("weights.js", "colour.js", "text.js", "heads.js", "matrix.js", "page.js")


def write(run: Run, path: str | os.PathLike[str]) -> None:
    """Write the page of `run` to `path`, whole or not at all.

    Raises  ValueError: the run has more weights than a page should hold.
            OSError: the file cannot be written.
    """
    page = render(run)
    with replacing(path) as out:
        out.write(page)


def render(
    run: Run,
    *,
    word: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    special: bool = False,
    include_self: bool = False,
    raw: bool = False,
) -> str:
    """The page of `run` as one string of HTML.

    The rest is how it opens: on which word, on one layer or one head of it instead of all, with
    special tokens and a word's reading of itself listed, with the tokenizer's pieces for tokens.

    Raises  ValueError: the run has more weights than a page should hold.
    """
    count, heads = len(run.tokens), run.num_layers * run.num_heads
    if heads * count**2 > MOST_WEIGHTS:
        raise ValueError(
            f"html: {count} tokens in {heads} heads are {heads * count**2:,} weights; "
            f"one page holds at most {MOST_WEIGHTS:,}"
        )
    opening = {
        "word": word,
        "layer": layer,
        "head": head,
        "special": special,
        "self": include_self,
        "raw": raw,
    }
    page = _page(run, opening, decimals=4)
    return page if len(page.encode()) <= SMALL_PAGE_BYTES else _page(run, opening, decimals=3)


def _page(run: Run, opening: Mapping[str, Any], *, decimals: int) -> str:
    style, script = _static("page.css"), "\n".join(map(_as_part, _SCRIPTS))
    words = sum(not word.special for word in run.words)
    shape = f"{run.num_layers} layers × {run.num_heads} heads"
    size = f"{visible(run.model)}: {shape}, {len(run.tokens)} tokens, {words} words"
    notes = "".join(f". The text was {note}" for note in run.notes)
    proof = proof_line(run)
    notes += f". {proof[0].upper()}{proof[1:]}" if proof else ""
    return _filled(
        _static("page.html"),
        {
            "title": html.escape(visible(" ".join(run.text.split()))[:80]),
            "what": html.escape(size + notes),
            "precision": (
                f"Weights on this page are rounded to {decimals} decimals (off by at most "
                f"{0.5 * 10**-decimals:.{decimals + 1}f}). A word of several tokens: what they "
                "read is averaged, what is read of them is added up. Layers and heads count from 0."
            ),
            "version": __version__,
            "style": style,
            "style_hash": _csp_hash(style),
            "script": script,
            "script_hash": _csp_hash(script),
            # "<" escaped: no token can end the block or open a comment
            "run": json.dumps(
                _data(run, decimals) | {"opening": opening}, ensure_ascii=False
            ).replace("<", "\\u003c"),
        },
    )


def _data(run: Run, decimals: int) -> dict[str, Any]:
    """What `weights.js` calls RunData."""
    return {
        "model": run.model,
        "pieces": _pieces(run),
        "tokens": [[t.text, t.raw, t.word, t.special] for t in run.tokens],
        "words": [[w.text, list(w.tokens), w.special] for w in run.words],
        "layers": run.num_layers,
        "heads": run.num_heads,
        "decimals": decimals,
        "weights": _packed(run, decimals),
    }


def _pieces(run: Run) -> list[tuple[str, int | None]]:
    """The whole text in order: each word with its index, and what stands between words."""
    pieces: list[tuple[str, int | None]] = []
    at = 0
    for index, word in enumerate(run.words):
        start = max(word.start, at)
        if word.special or word.end <= start:
            continue
        if start > at:
            pieces.append((run.text[at:start], None))
        pieces.append((run.text[start : word.end], index))
        at = word.end
    if at < len(run.text):
        pieces.append((run.text[at:], None))
    return pieces


def _packed(run: Run, decimals: int) -> str:
    """All weights (layers, heads, tokens, tokens) as integers: base64 of gzip of byte planes.

    Weights are small, so the high bytes are nearly all 0 and cost nothing when they stand together.
    """
    heads = [
        np.rint(np.asarray(run.map(layer)[head, :, :], np.float64) * 10**decimals).astype("<u2")
        for layer in range(run.num_layers)
        for head in range(run.num_heads)
    ]
    planes = np.stack(heads).reshape(-1).view(np.uint8).reshape(-1, 2).T
    return base64.b64encode(gzip.compress(planes.tobytes(), 9, mtime=0)).decode()


def _static(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text("utf-8")


def _as_part(name: str) -> str:
    """A module as a part of one script: without its imports, its exports plain declarations."""
    code = re.sub(r"^import .*;\n", "", _static(name), flags=re.MULTILINE)
    return re.sub(r"^export ", "", code, flags=re.MULTILINE)


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The template with each [[name]] replaced, once: what is put in is not searched again."""
    return re.sub(r"\[\[(\w+)\]\]", lambda at: values[at[1]], template)
