"""The widget: messages in, answers out; what `view` gives where there is none."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import clearhead as ch
import made_runs
from clearhead import notebook
from clearhead.widget import AttentionWidget

RUN = made_runs.run(31, masks=(ch.causal(),))
ROW = {"heads": [[1, 2]], "index": 17}


class Page:
    """What the page would hear."""

    def __init__(self, widget: AttentionWidget) -> None:
        self.widget = widget
        self.heard: list[tuple[dict[str, Any], list[bytes]]] = []
        widget.send = lambda content, buffers=None: self.heard.append((content, buffers or []))

    def say(self, **content: Any) -> None:
        self.widget._handle_custom_msg(content, [])


def test_a_question_comes_back_with_its_number_and_its_arrays() -> None:
    page = Page(AttentionWidget(RUN))
    page.say(id="7", run="1", question="row", arguments=ROW)
    ((content, buffers),) = page.heard
    assert content["id"] == "7" and content["json"] == {"removed": 0.0}
    values = np.frombuffer(buffers[0], "<f4")
    np.testing.assert_allclose(values[:18], RUN.map(1)[2, 17, :18], rtol=1e-6)
    assert np.isnan(values[18:]).all()


def test_in_a_loop_answers_come_later_and_a_cancelled_one_never() -> None:
    page = Page(AttentionWidget(RUN))

    async def go() -> None:
        for number in "12":
            page.say(id=number, run="1", question="row", arguments=ROW)
        page.say(cancel="1")
        assert not page.heard
        while page.widget._asked or not page.heard:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)

    asyncio.run(go())
    assert [content["id"] for content, _ in page.heard] == ["2"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another run": ({"run": "2", "question": "about"}, "run: is not here"),
    "no question": ({"run": "1", "question": "what"}, "question: must be one of"),
    "a head too far": (
        {"run": "1", "question": "row", "arguments": {"heads": [[9, 0]], "index": 0}},
        "layer: is 9, must be from 0 to 1",
    ),
    "reading": ({"question": "read", "arguments": {"text": "x"}}, "text: a widget shows its run"),
    "arguments that are none": ({"run": "1", "question": "row", "arguments": 5}, "arguments: must"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_asked_is_one_sentence(name: str) -> None:
    content, sentence = WRONG[name]
    page = Page(AttentionWidget(RUN))
    page.say(id="1", **content)
    ((said, buffers),) = page.heard
    assert said["error"].startswith(sentence) and not buffers


def test_messages_that_are_none_are_let_pass() -> None:
    page = Page(AttentionWidget(RUN))
    for content in (None, [], "x", {}, {"id": 5}, {"cancel": "nobody"}):
        page.widget._handle_custom_msg(content, [])
    assert page.heard == []


def test_the_widget_carries_the_app_and_asks_for_nothing_from_elsewhere() -> None:
    widget = AttentionWidget(RUN)
    script = str(widget._esm)
    assert script.rstrip().endswith("export default { render: $widget.render };")
    assert "import " not in script.replace("import(", "")
    for text in (script, widget.style):
        assert "https://" not in text and "@import" not in text and "url(http" not in text
    page = Page(widget)
    page.say(id="1", question="runs")
    assert page.heard[0][0]["json"]["runs"][0]["tokens"] == 31


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_matches_answers_to_questions(tmp_path: Any) -> None:
    """The module's own `Kernel`, run by node against a model that answers out of order."""
    script = tmp_path / "widget.mjs"
    made = str(AttentionWidget(RUN)._esm).replace(
        "export default { render: $widget.render };", "export const { Kernel } = $widget;"
    )
    script.write_text(made)
    test = tmp_path / "test.mjs"
    test.write_text("""
        import assert from "node:assert";
        import { Kernel } from "./widget.mjs";
        const sent = [];
        let listen;
        const off = () => (listen = null);
        const model = { on: (_, f) => (listen = f), off, send: (m) => sent.push(m) };
        const kernel = new Kernel(model);
        const leaving = new AbortController();
        const one = kernel.ask("1", "row", { index: 3 });
        const two = kernel.ask("1", "row", { index: 4 }, leaving.signal);
        const three = kernel.ask("1", "row", {});
        const odd = new DataView(Float32Array.from([9, 1, 2]).buffer, 4);
        listen({ id: sent[2].id, error: "index: is missing" });
        listen({ id: sent[0].id, json: { removed: 0 } }, [odd]);
        listen({ id: "of another view", json: {} }, []);
        assert.deepEqual([...(await one).arrays[0]], [1, 2]);
        await assert.rejects(three, /index: is missing/);
        leaving.abort();
        await assert.rejects(two, { name: "AbortError" });
        assert.deepEqual(sent[3], { cancel: sent[1].id });
        const last = kernel.runs();
        kernel.end();
        await assert.rejects(last, /closed/);
        assert.equal(listen, null);
    """)
    subprocess.run(["node", str(test)], check=True, timeout=60)


def test_a_map_is_seen_as_a_run_of_one_layer() -> None:
    rng = np.random.default_rng(2)
    q, k = rng.normal(size=(1, 6, 11, 5)), rng.normal(size=(1, 2, 17, 5))
    bias = rng.normal(size=(11, 17))
    amap = ch.attention_map(q, k, mask=ch.causal(), bias=bias, softcap=3.0)
    run = notebook.run_of(amap)
    np.testing.assert_allclose(run.map(0)[...], amap[0])
    assert [token.text for token in run.tokens] == [str(t) for t in range(6, 17)]
    assert [token.text for token in run.keys.tokens] == [str(s) for s in range(17)]
    flat = ch.attention_map(q[0, 0], k[0, 0], mask=np.arange(17) > np.arange(11)[:, None])
    np.testing.assert_allclose(notebook.run_of(flat).map(0)[0], flat[...])
    with pytest.raises(ValueError, match=r"view: the map has a batch, \(3,\), must"):
        notebook.run_of(ch.attention_map(np.zeros((3, 1, 2, 5)), np.zeros((3, 1, 2, 5))))


def test_outside_of_a_notebook_view_says_how_to_open_it() -> None:
    assert "clearhead view run.safetensors" in repr(RUN.view())
    assert "amap.plot()" in repr(RUN.map(0).view())


def test_in_a_notebook_view_is_the_widget_and_without_anywidget_a_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notebook, "_in_notebook", lambda: True)
    assert isinstance(RUN.view(), AttentionWidget)
    assert isinstance(RUN.map(0).view(), AttentionWidget)
    monkeypatch.setitem(sys.modules, "clearhead.widget", None)
    assert type(RUN.view()).__name__ == "Axes"


def test_without_anywidget_the_picture_is_of_the_head_with_the_strongest_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = np.full((2, 3, 7, 7), 1 / 7, np.float32)
    weights[0, 2, 1] = [0, 0, 0, 0, 0, 1, 0]
    run = ch.from_weights(weights, "a b c d e f g".split())
    monkeypatch.setattr(notebook, "_in_notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "clearhead.widget", None)
    drawn = run.view().get_images()[0].get_array()
    np.testing.assert_allclose(np.asarray(drawn), run.map(0)[2], atol=1e-6)


def test_a_notebook_is_where_ipython_has_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        kernel = object()

    class IPython:
        get_ipython = staticmethod(Shell)

    assert not notebook._in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", IPython)
    assert notebook._in_notebook()
