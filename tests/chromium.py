"""A real browser for tests, spoken to over its debugging pipe: no driver, nothing to install."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Page:
    """One tab of a headless Chromium, spoken to over its debugging pipe."""

    def __init__(self, browser: "Chromium", session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, params, self._session)

    def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Load a file and wait until its script is done; anything but that file is a failure."""
        self.visit(path.as_uri(), width=width, dark=dark)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def visit(
        self,
        url: str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        motion: bool = False,
        touch: bool = False,
    ) -> None:
        """Load an address as somebody with this screen and these wishes sees it."""
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "no-preference" if motion else "reduce",
        }
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": name, "value": value} for name, value in features.items()],
        )
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch, maxTouchPoints=5)
        for address in ("about:blank", url):  # the same page with another # would not load anew
            self._browser.forget("Page.loadEventFired", self._session)
            self.call("Page.navigate", url=address)
            self._browser.wait_for("Page.loadEventFired", self._session)

    def js(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, for 20 seconds at most."""
        self.js(
            f"""new Promise((done, failed) => {{
              const late = Date.now() + 20000;
              const look = () => ({condition}) ? done()
                : Date.now() > late ? failed(new Error(document.body.innerText))
                : setTimeout(look, 20);
              look();
            }})"""
        )

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def point(self, selector: str) -> tuple[float, float]:
        """Move the mouse to the middle of an element."""
        box = self.js(
            f"""(() => {{
              const element = document.querySelector({selector!r});
              element.scrollIntoView({{ block: "center" }});
              const box = element.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        self.move(*box)
        return box[0], box[1]

    def click(self, selector: str) -> None:
        x, y = self.point(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, *, shift: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=8 * shift)

    def tap(self, x: float, y: float) -> None:
        """A click of the mouse."""
        self.drag([(x, y)])

    def drag(self, path: list[tuple[float, float]], *, shift: bool = False) -> None:
        """Press the mouse at the first point, move it along the others, let go at the last."""
        held = {"button": "left", "modifiers": 8 * shift, "clickCount": 1}
        self.call(
            "Input.dispatchMouseEvent", type="mousePressed", x=path[0][0], y=path[0][1], **held
        )
        for x, y in path[1:]:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, **held, buttons=1)
        x, y = path[-1]
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, **held)

    def wheel(self, x: float, y: float, down: float) -> None:
        """Turn the wheel by so many pixels."""
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=down)

    def touch(self, paths: list[list[tuple[float, float]]]) -> None:
        """Put a finger on each path's first point and move all of them along, then lift them."""
        for step, kind in enumerate(["touchStart"] + ["touchMove"] * (len(paths[0]) - 1)):
            points = [{"x": path[step][0], "y": path[step][1]} for path in paths]
            self.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


class Chromium:
    """A browser process; messages are JSON ended by a zero byte, on its descriptors 3 and 4."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
            "--disable-background-networking --disable-component-update --disable-sync "
            f"--remote-debugging-pipe --user-data-dir={profile}"
        ).split()

        become = "import os, sys; os.dup2(int(sys.argv[1]), 13); os.dup2(int(sys.argv[2]), 4); "
        become += "os.dup2(13, 3); os.execv(sys.argv[3], sys.argv[3:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", become, str(to_browser), str(from_browser), program, *flags],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._count = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, params: dict[str, Any], session: str | None = None) -> Any:
        message = {"id": next(self._count), "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method: str, session: str) -> None:
        """Read on until an event has come."""
        while not any(
            event["method"] == method and event.get("sessionId") == session for event in self.events
        ):
            self.events.append(self._receive())

    def forget(self, method: str, session: str) -> None:
        """Drop the events of a kind that have come."""
        self.events = [
            event
            for event in self.events
            if event["method"] != method or event.get("sessionId") != session
        ]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 16)
            assert part, "the browser has gone"
            self._rest += part
        whole, self._rest = self._rest.split(b"\0", 1)
        return json.loads(whole)

    def page(self) -> Page:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        return page

    def close(self) -> None:
        self.call("Browser.close", {})
        self._process.wait(20)
        os.close(self._out)
        os.close(self._in)
