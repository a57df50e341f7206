"""The page of `clearhead view` in a notebook cell: JupyterLab, Notebook, VS Code, Colab.

    run.view()

The cell shows the same app; its questions come to the kernel as messages and are answered by the
same scene, so a run of any length opens at once. Needs `pip install clearhead[widget]`.

Messages:  {id, run, question, arguments} -> {id, json} and a buffer for each array, or {id, error};
           {id, question: "runs"} -> {id, json: {runs}};  {cancel: id}
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

try:
    import anywidget
    import traitlets
except ImportError:
    raise ImportError(
        "clearhead.widget needs anywidget: pip install 'clearhead[widget]'", name="anywidget"
    ) from None

import numpy as np

from .viewer.bundle import bundle
from .viewer.desk import Busy, Desk
from .viewer.scene import Answer, Scene
from .viewer.server import SLOW

__all__ = ["AttentionWidget"]

_RUN = "1"


@cache
def _script() -> str:
    """The app as one module, as anywidget loads it."""
    return bundle("widget") + "export default { render: $widget.render };\n"


@cache
def _style() -> str:
    return files("clearhead.viewer").joinpath("static", "app.css").read_text("utf-8")


@cache
def _desk() -> Desk:
    """One for all widgets of a kernel: its threads compute, the kernel stays free."""
    return Desk()


class AttentionWidget(anywidget.AnyWidget):
    """The app over one run.

    run    an `AttentionRun`

    >>> widget = AttentionWidget(run)      # the last line of a cell shows it
    """

    style = traitlets.Unicode().tag(sync=True)

    def __init__(self, run: Any) -> None:
        self._scene = Scene(run)
        self._asked: dict[str, asyncio.Task[None]] = {}
        super().__init__(_esm=_script(), style=_style())
        self.on_msg(self._hear)

    def __repr__(self) -> str:
        return f"AttentionWidget({self._scene.run!r})"

    def _hear(self, _: Any, content: Any, buffers: Any) -> None:
        """A message of the page. Where a loop runs, as in every kernel, it is answered later."""
        if not isinstance(content, Mapping):
            return
        gone = self._asked.pop(str(content.get("cancel")), None)
        if gone is not None:
            gone.cancel()
        name = content.get("id")
        if not isinstance(name, str):
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._deliver(name, lambda: self._answer(content, lambda: False))
            return
        self._asked[name] = loop.create_task(self._later(name, content))

    async def _later(self, name: str, content: Mapping[str, Any]) -> None:
        slow = content.get("question") in SLOW
        try:
            answer = await _desk().do(lambda gone: self._outcome(content, gone), slow=slow)
            self._deliver(name, answer)
        except Busy:
            self.send({"id": name, "error": "too many requests wait; ask again"})
        finally:
            self._asked.pop(name, None)

    def _outcome(
        self, content: Mapping[str, Any], gone: Callable[[], bool]
    ) -> Callable[[], Answer]:
        """The answer, or the error that it is, to be met where it is sent."""
        try:
            answer = self._answer(content, gone)
        except Exception as error:
            return _raising(error)
        return lambda: answer

    def _answer(self, content: Mapping[str, Any], gone: Callable[[], bool]) -> Answer:
        question, arguments = content.get("question"), content.get("arguments", {})
        if question == "runs":
            run = self._scene.run
            line = {"id": _RUN, "title": self._scene.title, "model": run.model}
            return Answer({"runs": [line | {"tokens": len(run.tokens)}]})
        if question == "read":
            raise ValueError("text: a widget shows its run, read others with clearhead.read")
        if content.get("run") != _RUN:
            raise ValueError("run: is not here, a widget shows one")
        return self._scene.answer(question, arguments, gone)  # type: ignore[arg-type]

    def _deliver(self, name: str, answer: Callable[[], Answer]) -> None:
        """An answer or a sentence; a fault of ours keeps its traceback, in the notebook's log."""
        try:
            made = answer()
        except (ValueError, TypeError) as error:
            self.send({"id": name, "error": " ".join(str(error).split())})
            return
        except Exception:
            self.send({"id": name, "error": "the kernel met a fault, its log says which"})
            raise
        arrays = [np.ascontiguousarray(x, "<f4").tobytes() for x in made.arrays]
        self.send({"id": name, "json": made.json}, arrays)


def _raising(error: Exception) -> Callable[[], Answer]:
    def again() -> Answer:
        raise error

    return again
