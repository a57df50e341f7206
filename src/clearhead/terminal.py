"""A run, shown in a terminal: the strongest links, one word across heads, one head as a heat map.

Every page is a `rich.text.Text` whose lines are no wider than `COLUMNS` cells: the same in a
terminal, in a pipe and in a test. Colour adds to it and carries nothing by itself.
"""

import shlex
from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from .viewer.labels import visible
from .viewer.ranking import Float, Heads, Ranking, Run, Units, pooled, profile, rank

COLUMNS = 80
_WORDS_SHOWN = 100

_ACCENT = "#3b82f6"
_FAINT = "bright_black"
# Low to high, each step lighter than the last, so that it survives colour blindness.
_RAMP = ("#473192", "#843296", "#c2457b", "#e9714d", "#f6ab3f", "#f7e25c")
_RAMP_FROM = (0.05, 0.10, 0.20, 0.35, 0.50, 0.70)
_SHADES = " ·░▒▓█"
_SHADE_FROM = (0.02, 0.05, 0.15, 0.35, 0.65)


def overview(run: Run, units: Units, heads: Heads, *, include_self: bool, top: int) -> Text:
    """The strongest links over `heads`, what each unit reads most, and what was left out."""
    ranking = rank(run, units, heads, include_self=include_self)
    page = _heading(run)
    page.append("\n" + f"{'Strongest links':<61}", "bold").append("weight  layer.head\n", _FAINT)
    page.append_text(_links(ranking, top))
    page.append("\nWhat each word reads most", "bold")
    page.append(" (weight, layer.head)\n", _FAINT)
    page.append_text(_each_word(ranking))
    page.append("\n").append_text(_notes(run, units, ranking.left_out, heads, include_self))
    return page.append_text(_next_steps(ranking))


def word_page(run: Run, units: Units, at: int, heads: Heads, *, include_self: bool) -> Text:
    """What one unit reads, over `heads`, and who reads it: each other unit with its best heads."""
    of = profile(run, units, at, heads)
    label = visible(units.labels[at])
    page = _heading(run)
    for title, rows, others in (
        (f"What {label} reads", of.reads, of.others_read),
        (f"Who reads {label}", of.read_by, of.others_read_it),
    ):
        page.append("\n" + _fit(f"{title} (number {units.index[at]})", 30), "bold")
        page.append("weight  head   others  also\n", _FAINT)
        leave_out = None if include_self else at
        page.append_text(_targets(units, rows, others, heads, leave_out))
    page.append("\nothers: what the other words read of the same word in that head, on average.\n")
    return page.append_text(_notes(run, units, of.left_out, heads, include_self))


def heat_map(run: Run, layer: int, head: int, labels: Sequence[str]) -> Text:
    """One head: a row for each query token, a column for each key token, weights in per cent.

    Keys that do not fit side by side as numbers become shades; when those do not fit either,
    neighbouring tokens share a cell that shows the largest weight among them.
    """
    names = [visible(label) for label in labels]
    numbered = len(str(len(names) - 1))
    gutter = numbered + 1 + min(max(map(cell_len, names)), 14) + 1
    page = _heading(run)
    page.append(f"\nLayer {layer} head {head}", "bold")
    if gutter + 4 * len(names) <= COLUMNS:
        weights = run.map(layer)[head, :, :]
        return page.append_text(_numbers(weights, names, gutter))
    picture, side = pooled(run, layer, head, COLUMNS - gutter)
    return page.append_text(_shades(picture, side, names, gutter))


# -- pieces of the pages -------------------------------------------------------------------------


def _heading(run: Run) -> Text:
    page = Text(no_wrap=True)
    page.append(_fit(visible(" ".join(run.text.split())), COLUMNS).rstrip() + "\n", "bold")
    count = sum(not word.special for word in run.words)
    size = (
        f"{run.model}: {run.num_layers} layers × {run.num_heads} heads, "
        f"{len(run.tokens)} tokens, {count} word{'' if count == 1 else 's'}"
    )
    return page.append(_fit(size, COLUMNS).rstrip() + "\n", _FAINT)


def _links(ranking: Ranking, top: int) -> Text:
    lines = Text()
    labels = ranking.units.labels
    if not len(ranking.weight):
        lines.append(f"{'':20}none: there is nothing else to read\n", _FAINT)
    shown = 0
    for first, last in _same_fact(ranking, top):
        source, target = int(ranking.source[first]), int(ranking.target[first])
        if first == last:
            lines.append(_fit(visible(labels[source]), 17, right=True)).append(" → ", _FAINT)
            lines.append(_fit(visible(labels[target]), 17))
        else:
            lines.append(_fit(f"{last - first + 1} words", 17, right=True)).append(" → ", _FAINT)
            lines.append(_fit(_place(target - source), 17))
        # a shared line states the smallest weight among its links: what holds for all of them
        weight = float(ranking.weight[last])
        least = " " if f"{weight:.2f}" == f"{ranking.weight[first]:.2f}" else "≥"
        lines.append(" ").append_text(_bar(weight, 22)).append(f"  {least}{weight:.2f}", "bold")
        lines.append(f"   {_head(ranking, first)}\n")
        shown = last + 1
    more = len(ranking.weight) - shown + ranking.weaker
    return lines.append(f"{'':20}{more:,} weaker links not shown\n" if more else "", _FAINT)


def _same_fact(ranking: Ranking, top: int) -> list[tuple[int, int]]:
    """The first `top` entries for the list, as (first, last) places in the ranking.

    Three or more that follow each other with one head and one distance are one entry: a head that
    reads the word before would otherwise fill the page with one fact.
    """
    fact = np.stack([ranking.layer, ranking.head, ranking.target - ranking.source])
    changes = np.flatnonzero((fact[:, 1:] != fact[:, :-1]).any(0)) + 1
    entries: list[tuple[int, int]] = []
    first = 0
    for end in [*changes.tolist(), len(ranking.weight)]:
        if end - first > 2:
            entries.append((first, end - 1))
        else:
            entries += [(at, at) for at in range(first, end)]
        first = end
        if len(entries) >= top:
            break
    return entries[:top]


def _place(distance: int) -> str:
    side = "after" if distance > 0 else "before"
    return f"the word {side}" if abs(distance) == 1 else f"{abs(distance)} words {side}"


def _each_word(ranking: Ranking) -> Text:
    lines = Text()
    labels = ranking.units.labels
    order = np.argsort(ranking.source, kind="stable")  # by word, and strongest first within it
    starts = np.searchsorted(ranking.source[order], np.arange(len(labels) + 1))
    for source, label in enumerate(labels[:_WORDS_SHOWN]):
        lines.append(_fit(visible(label), 17, right=True)).append("   ")
        for at in order[starts[source] : min(starts[source] + 3, starts[source + 1])].tolist():
            weight = float(ranking.weight[at])
            lines.append(_fit(visible(labels[ranking.target[at]]), 8))
            lines.append(f" {weight:.2f}", "bold" if weight >= 0.5 else "")
            lines.append(f" {_head(ranking, at):<6}", _FAINT)
        lines.rstrip()
        lines.append("\n")
    more = len(labels) - _WORDS_SHOWN
    if more > 0:
        lines.append(f"{'':20}{more:,} more words: --word shows one, --json and --csv\n", _FAINT)
    return lines


def _targets(units: Units, rows: Float, others: Float, heads: Heads, leave_out: int | None) -> Text:
    """One line a unit, by its largest weight in `rows` (heads, U): its three strongest heads."""
    lines = Text()
    order = np.argsort(-rows.max(0), kind="stable")
    ranked = [int(u) for u in order if u != leave_out]
    for place, unit in enumerate(ranked[:_WORDS_SHOWN], start=1):
        best = np.argsort(-rows[:, unit], kind="stable")[:3]
        weight = float(rows[best[0], unit])
        lines.append(f"{place:>4} ", _FAINT).append(_fit(visible(units.labels[unit]), 14))
        lines.append(" ").append_text(_bar(weight, 9)).append(f"   {weight:.2f}", "bold")
        layer, head = heads[best[0]]
        lines.append(f"  {f'{layer}.{head}':<6}").append(f"  {others[best[0], unit]:.2f}  ", _FAINT)
        also = (f"{rows[b, unit]:.2f} in {heads[b][0]}.{heads[b][1]}" for b in best[1:])
        lines.append(", ".join(also) + "\n", _FAINT)
    more = len(ranked) - _WORDS_SHOWN
    if more > 0:
        lines.append(f"{'':5}{more:,} more words, read less: --json and --csv have them\n", _FAINT)
    return lines


def _notes(run: Run, units: Units, share: float, heads: Heads, include_self: bool) -> Text:
    """What the numbers are, and what the ranking leaves out, with how much of the whole it is."""
    over = "in one head" if len(heads) == 1 else f"in the strongest of {len(heads)} heads"
    notes = [f"A weight is a share of what the word reads, {over}. Layers and heads count from 0."]
    out = []
    special = sorted({run.tokens[at].raw for at in np.flatnonzero(units.owner < 0).tolist()})
    if special:
        out.append(f"{' '.join(special)}, which take {share:.0%} of the reading (--special)")
    if not include_self:
        out.append("words reading themselves (--self)")
    if out:
        notes.append(f"Left out: {'; '.join(out)}.")
    notes += [f"The text was {note}." for note in run.notes]
    return Text("".join(f"{line}\n" for note in notes for line in _wrapped(note)), _FAINT)


def _next_steps(ranking: Ranking) -> Text:
    """Options that show more, of the strongest link between words that are not neighbours."""
    if not len(ranking.weight):
        return Text()
    labels = ranking.units.labels
    far = (
        at
        for at, (a, b) in enumerate(zip(ranking.source, ranking.target, strict=True))
        if abs(a - b) > 2 and labels[a].isalpha() and labels[b].isalpha()
    )
    at = next(far, 0)
    word = shlex.quote(visible(labels[ranking.source[at]]))
    steps = (
        f"See more: --word {word}  --layer {ranking.layer[at]} --head {ranking.head[at]}"
        "  --html map.html"
    )
    return Text(_fit(steps, COLUMNS).rstrip() + "\n", _FAINT)


def _numbers(weights: Float, names: Sequence[str], gutter: int) -> Text:
    """The map with two digits a cell; the columns carry the rows' numbers and, if wide, names."""
    width = min((COLUMNS - gutter) // len(names), 9)
    page = Text(": what each token (row) reads of each token (column), in %\n\n", _FAINT)
    page.append(" " * gutter + "".join(f"{at:>{width}}" for at in range(len(names))) + "\n", _FAINT)
    if width >= 5:
        short = "".join(" " + _cut(name, width - 1) for name in names)
        page.append(" " * gutter + short + "\n", _FAINT)
    for at, (name, row) in enumerate(zip(names, weights, strict=True)):
        page.append_text(_row_label(at, name, gutter, len(names)))
        for weight in row:
            cell = f"{100 * weight:.0f}" if weight >= 0.005 else "·"
            page.append(f"{cell:>{width - 1}} ", _cell_style(float(weight)))
        page.append("\n")
    return page


def _shades(picture: Float, side: int, names: Sequence[str], gutter: int) -> Text:
    """The map with one shade a cell, each for `side` tokens by `side`."""
    page = Text(": each token (row) reads tokens (columns, in the same order)\n", _FAINT)
    key = "   ".join(f"{s} ≥{f:.0%}" for s, f in zip(_SHADES[1:], _SHADE_FROM, strict=True))
    if side > 1:
        key += f"   a cell: the largest of {side} × {side}"
    page.append(f"{key}\n\n", _FAINT)
    for at, row in enumerate(picture):
        page.append_text(_row_label(at * side, names[at * side], gutter, len(names)))
        for weight in row:
            shade = _SHADES[int(np.searchsorted(_SHADE_FROM, weight, side="right"))]
            page.append(shade, _cell_style(float(weight)))
        page.append("\n")
    return page


def _row_label(at: int, name: str, gutter: int, count: int) -> Text:
    digits = len(str(count - 1))
    return Text(f"{at:>{digits}} ", _FAINT).append(_fit(name, gutter - digits - 2) + " ")


def _head(ranking: Ranking, at: int) -> str:
    return f"{ranking.layer[at]}.{ranking.head[at]}"


def _bar(weight: float, width: int) -> Text:
    """A bar of `width` cells for 1, to half a cell."""
    halves = round(2 * width * weight)
    bar = "━" * (halves // 2) + "╸" * (halves % 2)
    return Text(bar, _ACCENT).append(" " * (width - len(bar)))


def _cell_style(weight: float) -> str:
    """Background by weight, with the letters in whichever of black and white stands out."""
    step = int(np.searchsorted(_RAMP_FROM, weight, side="right"))
    if step == 0:
        return _FAINT
    return f"{'white' if step <= 3 else 'black'} on {_RAMP[step - 1]}"


def _cut(text: str, width: int) -> str:
    """The beginning of the text, at the right of `width` cells."""
    kept = text if cell_len(text) <= width else set_cell_size(text, width).rstrip()
    return " " * (width - cell_len(kept)) + kept


def _wrapped(text: str) -> list[str]:
    """The text in lines of at most `COLUMNS` cells, broken between words."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if cell_len(longer) <= COLUMNS:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _fit(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` cells; a longer one ends in an ellipsis."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1).rstrip() + "…"
    gap = " " * (width - cell_len(text))
    return gap + text if right else text + gap
