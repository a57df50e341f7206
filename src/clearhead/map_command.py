"""The steps of `clearhead map`: check the files asked for, read, choose, write, show.

Whatever can be refused is refused before the model runs, and the files are written all or none.
"""

import difflib
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any

from ._writing import replacing
from .source import find_source
from .viewer import ranking
from .viewer.labels import visible
from .viewer.outputs import check_output
from .viewer.ranking import Heads, Units

if TYPE_CHECKING:
    from rich.text import Text

    from .models.run import AttentionRun

LINKS_SHOWN = 12
LINKS_WRITTEN = 1000
_TO_STDOUT = ("json", "csv")
_BINARY = ("png", "npz", "save")
_OF_TWO_TEXTS = ("html", "save")


def check_files(files: Mapping[str, str], given: str) -> None:
    """Refuse outputs that cannot be written, that are the input, or that are each other.

    files   option name to path; - is standard output, for json or csv
    Raises  ValueError: the option, the path and what stands in the way.
    """
    seen: dict[str, str] = {}
    for option, path in files.items():
        if path == "-":
            if option not in _TO_STDOUT:
                raise ValueError(f"{option}: - is for json and csv; it must be the name of a file")
        else:
            check_output(option, path)
            if option == "save" and os.path.exists(path) and not os.path.isfile(path):
                raise ValueError(f"save: {path!r} is a device; it must be the name of a file")
        where = path if path == "-" else os.path.realpath(path)
        if where in seen:
            raise ValueError(f"{option}: {path!r} is also the file of {seen[where]}")
        if os.path.exists(given) and os.path.realpath(given) == where:
            raise ValueError(f"{option}: {path!r} is the text to read; it must be another file")
        seen[where] = option


def read_run(given: str, *, model: str | None, window: bool, cut: bool) -> "AttentionRun":
    """The run of a text, a file, standard input, or the saved run of that name."""
    import clearhead

    source = find_source(given)
    if source.surprise:
        _say(f"{visible(given)} is the name of a file here, and its text is read")
    if source.run is not None:
        if model is not None or window or cut:
            raise ValueError(f"model, window, cut: {source.run!r} was read already; leave them out")
        run = clearhead.load(source.run)
        if run.proofs:  # a recording: say which computation this is, and whether it is proven
            _say(run.certificate().line)
        return run
    assert source.text is not None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it was cut: run.notes say so too
            run = clearhead.read(
                source.text, model=model, window=window, cut=cut, progress=_window_progress()
            )
    except ValueError as error:
        raise ValueError(in_options(error)) from None
    for note in run.notes:
        _say(f"the text was {note}")
    return run


def choose_heads(run: ranking.Run, layer: int | None, head: int | None) -> list[tuple[int, int]]:
    """All heads, those of one layer, or one head.

    Raises  ValueError: a layer or head that the model does not have, or a head without a layer.
    """
    if head is not None and layer is None:
        raise ValueError(f"head: {head} is not enough; say which layer with --layer")
    for name, at, count in (("layer", layer, run.num_layers), ("head", head, run.num_heads)):
        if at is not None and not 0 <= at < count:
            raise ValueError(f"{name}: {at} is not in this model; it has 0 to {count - 1}")
    return [
        (at_layer, at_head)
        for at_layer, at_head in ranking.all_heads(run)
        if layer in (None, at_layer) and head in (None, at_head)
    ]


def find_words(units: Units, word: str | None) -> list[int] | None:
    """Where a word stands among the units: as written, else in any case, else by its number.

    The number is the one that `word_page` prints and JSON's links have.

    Raises  ValueError: no such word; names those most like it.
    """
    if word is None:
        return None
    written = [at for at, label in enumerate(units.labels) if label == word]
    any_case = [at for at, label in enumerate(units.labels) if label.casefold() == word.casefold()]
    if written or any_case:
        return written or any_case
    if word.isdecimal() and int(word) in units.index:
        return [units.index.index(int(word))]
    near = difflib.get_close_matches(word, list(dict.fromkeys(units.labels)), n=5, cutoff=0.5)
    names = near or list(dict.fromkeys(units.labels))[:8]
    listed = ", ".join(visible(name) for name in names)
    has = "near it are" if near else "it begins" if len(units) > 8 else "it has"
    raise ValueError(f"word: {word!r} is not in the text; {has} {listed}")


def write_two_texts(
    run: "AttentionRun",
    files: Mapping[str, str],
    *,
    layer: int | None,
    head: int | None,
    ranked: Mapping[str, object],
) -> None:
    """Write the page, or the run, of one text that reads another, as in cross-attention.

    Raises  ValueError: links, or a picture of them, are asked for: those are within a text.
    """
    asked = [name for name, value in ranked.items() if value not in (None, False)]
    others = [*asked, *(option for option in files if option not in _OF_TWO_TEXTS)]
    if others or not files:
        what = f"{len(run.tokens)} tokens read {len(run.keys.tokens)} others"
        beside = f", without --{others[0].replace('_', '-')}" if others else ""
        raise ValueError(f"run: {what}; --html FILE or `clearhead view` shows them{beside}")
    from .viewer import html

    with ExitStack() as stack:
        for option, path in files.items():
            out = stack.enter_context(replacing(path, binary=option in _BINARY))
            if option == "html":
                out.write(html.render(run, layer=layer, head=head))
            else:
                run.save(out.name)
    _say_written(files)


def write_files(
    run: "AttentionRun",
    files: Mapping[str, str],
    units: Units,
    heads: Heads,
    *,
    only: Sequence[int] | None,
    special: bool,
    include_self: bool,
    raw_tokens: bool,
    top: int | None,
) -> None:
    """Write every file asked for, or none of them, and name them on stderr."""
    from .viewer import data, html, plot

    found: list[data.Link] = []
    if "json" in files or "csv" in files:
        most = LINKS_WRITTEN if top is None else top
        found = data.links(run, units, heads, only=only, include_self=include_self, top=most)
    layer = heads[0][0] if len({layer for layer, _ in heads}) == 1 else None
    head = heads[0][1] if len(heads) == 1 else None
    with ExitStack() as stack:
        for option, path in files.items():
            out: IO[Any] = sys.stdout
            if path != "-":
                out = stack.enter_context(replacing(path, binary=option in _BINARY))
            if option == "json":
                data.write_json(run, found, out, between_tokens=raw_tokens)
            elif option == "csv":
                data.write_csv(units, found, out)
            elif option == "html":
                out.write(
                    html.render(
                        run,
                        word=_word_of(run, units, only),
                        layer=layer,
                        head=head,
                        special=special,
                        include_self=include_self,
                        raw=raw_tokens,
                    )
                )
            elif option == "png":
                plot.draw_png(run, out, layer, head, raw=raw_tokens)
            elif option == "npz":
                data.write_npz(run, out)
            elif option == "save":
                run.save(out.name)
    _say_written(files)


def in_options(error: ValueError) -> str:
    """What `read` refuses, in the words of who has options and no arguments."""
    said = str(error).replace("window=True", "--window").replace("cut=True", "--cut")
    return said.replace("max_bytes is", "the most is")


def _say_written(files: Mapping[str, str]) -> None:
    for path in files.values():
        if path != "-" and os.path.isfile(path):
            _say(f"wrote {visible(path)}, {os.path.getsize(path):,} bytes")


def page(
    run: "AttentionRun",
    units: Units,
    heads: Heads,
    *,
    only: Sequence[int] | None,
    include_self: bool,
    raw_tokens: bool,
    top: int | None,
) -> "Text":
    """What to show in the terminal: one word, or one head, or the strongest links of all."""
    from rich.text import Text

    from . import terminal

    if only is not None:
        pages = [
            terminal.word_page(run, units, at, heads, include_self=include_self) for at in only
        ]
        return Text("\n").join(pages)
    if len(heads) == 1:
        labels = [token.raw if raw_tokens else token.text for token in run.tokens]
        return terminal.heat_map(run, *heads[0], labels)
    shown = LINKS_SHOWN if top is None else top
    return terminal.overview(run, units, heads, include_self=include_self, top=shown)


def _word_of(run: "AttentionRun", units: Units, only: Sequence[int] | None) -> int | None:
    """The first of the units asked for, as a word of the run."""
    return run.tokens[units.tokens[only[0]][0]].word if only else None


def _window_progress() -> Callable[[int, int], None] | None:
    """A line on stderr that counts the windows read, where stderr is a terminal."""
    if not sys.stderr.isatty():
        return None

    def count(done: int, windows: int) -> None:
        if windows > 1:
            end = "\n" if done == windows else ""
            print(f"\rclearhead: read {done} of {windows} windows", end=end, file=sys.stderr)

    return count


def _say(line: str) -> None:
    print(f"clearhead: {line}", file=sys.stderr)
