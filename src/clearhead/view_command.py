"""The steps of `clearhead view`: find the text or run, serve its page, open a browser."""

import os
import re
import sys
import threading
import warnings
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .map_command import in_options, read_run
from .viewer.server import MOST_RUNS, Runs, bind, new_token, serve

if TYPE_CHECKING:
    from .models.read import Reader

_ONE_WORD = re.compile(r"[\w',;:!?-]+[.]*", re.ASCII)  # no name of a file, no text of its own


class _Model:
    """The model that reads what is typed into the page: opened once, when it is first needed."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._reader: Reader | None = None

    def read(self, text: str, model: str | None, cancelled: Callable[[], bool]) -> Any:
        """The run of a text, in windows where it is long.

        Raises `ValueError`, a sentence that may be shown in a page: it holds no path.
        """
        from .models.read import Reader
        from .models.store import DEFAULT

        own = Path(self._name or DEFAULT).name
        if model not in (None, own):
            raise ValueError(f"model: this page reads with {own}, must be that or none")

        def progress(done: int, windows: int) -> None:
            if cancelled():
                raise InterruptedError

        if self._reader is None:
            try:
                self._reader = Reader(self._name)
            except (ValueError, OSError, ImportError) as error:
                print(f"clearhead: {' '.join(str(error).split())}", file=sys.stderr)
                raise ValueError("model: cannot be opened, the terminal says why") from None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                return self._reader.read(text, window=True, progress=progress)
            except ValueError as error:
                raise ValueError(in_options(error)) from None


def view(given: Sequence[str], *, models: Sequence[str], port: int, browser: bool) -> None:
    """Serve the page of texts, files, standard input or saved runs; of none, a text box.

    given   each text is read by each model; of several runs the page opens on the first two,
            side by side
    models  names or folders; none: the default. What is typed into the page the first one reads
    Prints the address, and returns when the process is told to stop.
    """
    asked = _runs_of(given, models)
    runs = Runs()
    listening = bind(port)  # refused before a model reads for a minute
    try:
        for what, name in asked:
            saved = what.endswith(".safetensors")
            runs.add(read_run(what, model=name, window=not saved, cut=False))
    except BaseException:
        listening.close()
        raise
    token = new_token()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/"
    if len(asked) > 1:
        address += "#run=1&view=compare&other=2%3A0.0"
    print(address, flush=True)
    print("clearhead: serves this page to this machine alone until Ctrl-C", file=sys.stderr)
    if browser and _has_display():
        threading.Thread(target=_open, args=(address,), daemon=True).start()
    idle = serve(listening, runs, token, _Model(next(iter(models), None)).read)
    print("clearhead: stopped", file=sys.stderr, flush=True)
    if not idle:
        # A thread is in the middle of the core's work, of seconds perhaps; the interpreter's own
        # end would pull Python away from under it.
        os._exit(0)


def _runs_of(given: Sequence[str], models: Sequence[str]) -> list[tuple[str, str | None]]:
    """What is read by which model, in the order in which it is shown.

    Raises  ValueError: a text without its quotes, standard input twice, more than a page holds.
    """
    names: list[str | None] = [*models] or [None]
    asked = [
        (what, name)
        for what in given
        for name in (names if not what.endswith(".safetensors") else names[:1])
    ]
    if [what for what, _ in asked].count("-") > 1:
        raise ValueError("TEXT: - is asked for twice, must be once: it cannot be read again")
    words = [what for what in given if _ONE_WORD.fullmatch(what) and not os.path.exists(what)]
    if len(given) > 1 and len(words) == len(given):
        raise ValueError(f"TEXT: is {len(given)} words, must be one text: put it in quotes")
    if len(asked) > MOST_RUNS:
        raise ValueError(f"TEXT: are {len(asked)} runs, must be at most {MOST_RUNS}")
    return asked


def _has_display() -> bool:
    """Whether a browser could show anything: a text browser would take the terminal over."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(address: str) -> None:
    try:
        webbrowser.open(address)
    except webbrowser.Error:
        print("clearhead: no browser opened; open the address above", file=sys.stderr)
