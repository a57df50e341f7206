"""The numbers of a run as files: JSON and CSV for its links, NPZ for every weight.

    JSON  {"model", "text", "tokens": [{"text", "start", "end", "word", "special"}],
           "words": [{"text", "start", "end", "tokens", "special"}], "layers", "heads",
           "between": "words" or "tokens",
           "links": [{"layer", "head", "from", "to", "weight"}]}
    CSV   layer,head,from,to,from_text,to_text,weight
    NPZ   weights (layers, heads, tokens, tokens) float32; tokens (tokens,) text

Links are ranked, strongest first; `from` reads `to`. Both count from 0, in `words` or in `tokens`
as "between" says. Offsets count Unicode code points of `text`.
"""

import csv
import json
from collections.abc import Sequence
from typing import IO, NamedTuple

import numpy as np

from .ranking import Heads, Run, Units, blocks


class Link(NamedTuple):
    """Word (or token) `source` of the run reads `target` with `weight` in one head."""

    layer: int
    head: int
    source: int
    target: int
    weight: float


def links(
    run: Run,
    units: Units,
    heads: Heads,
    *,
    only: Sequence[int] | None = None,
    include_self: bool,
    top: int,
) -> list[Link]:
    """The `top` strongest links of all `heads`, strongest first; ties by layer, head and place.

    only    the units that a link must begin or end at; None: any
    Weights have the shortest digits that give back the float32.
    Holds `top` links and a block of weights, whatever the length and the number of heads.
    """
    best: list[Link] = []
    for block in blocks(run, units, heads):
        weights = block.weights
        if not include_self:
            weights = np.where(block.sources[:, None] == block.targets, 0, weights)
        if only is not None:
            ends = np.isin(block.sources, only)[:, None] | np.isin(block.targets, only)
            weights = np.where(ends, weights, 0)
        flat = weights.ravel()
        if len(best) == top and top:  # only what is as strong as the weakest of these counts
            found = np.flatnonzero(flat >= best[-1].weight)
        else:
            found = np.flatnonzero(flat)
        order = found[np.argsort(-flat[found], kind="stable")[:top]]
        rows, columns = np.divmod(order, weights.shape[1])
        best += [
            Link(
                *heads[block.at],
                units.index[block.sources[row]],
                units.index[block.targets[column]],
                float(str(weights[row, column])),
            )
            for row, column in zip(rows, columns, strict=True)
        ]
        best = sorted(best, key=lambda link: (-link.weight, *link[:4]))[:top]
    return best


def write_json(run: Run, found: Sequence[Link], out: IO[str], *, between_tokens: bool) -> None:
    """Write the run's tokens, words and the given links as one JSON object."""
    page = {
        "model": run.model,
        "text": run.text,
        "tokens": [
            {
                "text": token.text,
                "start": token.start,
                "end": token.end,
                "word": token.word,
                "special": token.special,
            }
            for token in run.tokens
        ],
        "words": [
            {
                "text": word.text,
                "start": word.start,
                "end": word.end,
                "tokens": list(word.tokens),
                "special": word.special,
            }
            for word in run.words
        ],
        "layers": run.num_layers,
        "heads": run.num_heads,
        "between": "tokens" if between_tokens else "words",
        "links": [
            {
                "layer": link.layer,
                "head": link.head,
                "from": link.source,
                "to": link.target,
                "weight": link.weight,
            }
            for link in found
        ],
    }
    json.dump(page, out, ensure_ascii=False, indent=1)
    out.write("\n")


def write_csv(units: Units, found: Sequence[Link], out: IO[str]) -> None:
    """Write the links as a table, one a row, with the texts of both ends."""
    label = dict(zip(units.index, units.labels, strict=True))
    table = csv.writer(out, lineterminator="\n")
    table.writerow(("layer", "head", "from", "to", "from_text", "to_text", "weight"))
    for link in found:
        ends = label[link.source], label[link.target]
        table.writerow((link.layer, link.head, link.source, link.target, *ends, link.weight))


def write_npz(run: Run, out: IO[bytes]) -> None:
    """Write every weight, (layers, heads, tokens, tokens) float32, and the tokens' texts."""
    np.savez_compressed(out, weights=run.weights(), tokens=np.array([t.text for t in run.tokens]))
