"""The page's server: who is let in, what is refused, and that it stops, forgets and never clogs."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import clearhead as ch
import made_runs
import tiny_bert
from clearhead.viewer import server
from clearhead.viewer.desk import Busy, Desk

TOKEN = "t" * 32
HERE = "http://127.0.0.1:8000"
TILE = {"heads": [[0, 0]], "pool": "max", "level": 0, "row": 0, "column": 0}


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def read(text: str, model: str | None, cancelled: Callable[[], bool]) -> Any:
    if not text.strip():
        raise ValueError("text: is empty; it must hold at least one word")
    if text == "fault":
        raise KeyError("/secret/place/model.safetensors")
    return made_runs.run(11)


@pytest.fixture
def client(desk: Desk) -> TestClient:
    runs = server.Runs()
    runs.add(made_runs.run(31))
    app = server.application(runs, desk, TOKEN, read)
    return TestClient(app, base_url=HERE, raise_server_exceptions=False)


def answer(raw: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    n = int.from_bytes(raw[:4], "little")
    said, at, arrays = json.loads(raw[4 : 4 + n]), 4 + n + -n % 4, []
    for shape in said["arrays"]:
        size = int(np.prod(shape))
        arrays.append(np.frombuffer(raw, "<f4", size, at).reshape(shape))
        at += 4 * size
    assert at == len(raw)
    return said, arrays


def test_the_page_and_its_files_are_served_with_their_kinds(client: TestClient) -> None:
    page = client.get(f"/{TOKEN}/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    named = re.findall(r'(?:src|href)="static/([^"]+)"', page.text)
    assert named
    for name in named:
        file = client.get(f"/{TOKEN}/static/{name}")
        kind = "text/javascript" if name.endswith(".js") else "text/css"
        assert file.status_code == 200 and file.headers["content-type"].startswith(kind)


def test_a_question_is_answered_in_bytes(client: TestClient) -> None:
    said, (values,) = answer(client.post(f"/{TOKEN}/ask/1/tile", json=TILE).content)
    assert said["done"] and values.shape == (31, 31)
    np.testing.assert_allclose(values, made_runs.run(31).map(0)[0], rtol=1e-6)
    about, _ = answer(client.post(f"/{TOKEN}/ask/1/about", json={}).content)
    assert about["can"] == {"read": True, "steps": True, "rollout": True}


def test_a_text_is_read_and_listed(client: TestClient) -> None:
    assert client.post(f"/{TOKEN}/read", json={"text": "hello"}).json() == {"run": "2"}
    listed = client.get(f"/{TOKEN}/runs").json()
    assert [(one["id"], one["tokens"]) for one in listed] == [("1", 31), ("2", 11)]


REFUSED: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "without the token": ("GET", "/", {}, 404),
    "with a wrong token": ("GET", f"/{TOKEN[:-1]}x/", {}, 404),
    "with a token of other letters": ("GET", "/%C3%A9/", {}, 404),
    "of a foreign host": ("GET", f"/{TOKEN}/", {"headers": {"host": "evil.example"}}, 403),
    "of a host that begins alike": (
        "GET",
        f"/{TOKEN}/",
        {"headers": {"host": "127.0.0.1.evil.example:80"}},
        403,
    ),
    "of no host": ("GET", f"/{TOKEN}/", {"headers": {"host": ""}}, 403),
    "of a foreign page": (
        "POST",
        f"/{TOKEN}/ask/1/about",
        {"headers": {"origin": "https://evil.example"}, "json": {}},
        403,
    ),
    "of an opaque page": (
        "POST",
        f"/{TOKEN}/ask/1/about",
        {"headers": {"origin": "null"}, "json": {}},
        403,
    ),
    "up and out": ("GET", f"/{TOKEN}/static/..%2Fserver.py", {}, 404),
    "up and out, written out": ("GET", f"/{TOKEN}/static/../server.py", {}, 404),
    "for an absolute path": ("GET", f"/{TOKEN}/static/%2Fetc%2Fpasswd", {}, 404),
    "for a file that is not of the page": ("GET", f"/{TOKEN}/static/page.html", {}, 404),
    "by the wrong method": ("GET", f"/{TOKEN}/ask/1/about", {}, 405),
    "of no kind": ("POST", f"/{TOKEN}/ask/1/about", {"content": b"{}"}, 415),
    "as a form": ("POST", f"/{TOKEN}/read", {"data": {"text": "x"}}, 415),
    "of a run that is not here": ("POST", f"/{TOKEN}/ask/9/about", {"json": {}}, 404),
    "of what is no question": ("POST", f"/{TOKEN}/ask/1/what", {"json": {}}, 400),
    "of a list": ("POST", f"/{TOKEN}/ask/1/about", {"json": []}, 400),
    "of a text that is a number": ("POST", f"/{TOKEN}/read", {"json": {"text": 1}}, 400),
    "of an empty text": ("POST", f"/{TOKEN}/read", {"json": {"text": " "}}, 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_is_refused(client: TestClient, name: str) -> None:
    method, path, more, status = REFUSED[name]
    got = client.request(method, path, **more)
    assert got.status_code == status
    assert list(got.json()) == ["error"]
    sentence = got.json()["error"]
    assert len(sentence) < 200 and "\n" not in sentence and not re.search(r"(^|\W)/", sentence)
    check_headers(got)


def check_headers(got: Any) -> None:
    csp = got.headers["content-security-policy"]
    assert "default-src 'none'" in csp and "script-src 'self'" in csp and "unsafe" not in csp
    assert "frame-ancestors 'none'" in csp and "base-uri 'none'" in csp
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["referrer-policy"] == "no-referrer"
    assert got.headers["cache-control"] == "no-store"
    assert got.headers["cross-origin-resource-policy"] == "same-origin"


def test_every_answer_has_the_headers_that_keep_the_page_to_itself(client: TestClient) -> None:
    check_headers(client.get(f"/{TOKEN}/"))
    check_headers(client.post(f"/{TOKEN}/ask/1/tile", json=TILE))
    check_headers(client.get(f"/{TOKEN}/runs"))


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"])
def test_this_machine_may_be_called_by_each_of_its_names(client: TestClient, host: str) -> None:
    assert client.get(f"/{TOKEN}/", headers={"host": host}).status_code == 200


def test_bodies_that_are_too_large_or_too_deep_are_refused(client: TestClient) -> None:
    path, kind = f"/{TOKEN}/ask/1/about", {"content-type": "application/json"}
    big = client.post(path, content=b'{"a": "' + bytes(server.MOST_BODY_BYTES), headers=kind)
    assert (big.status_code, big.json()) == (413, {"error": "request: is over 1 MiB, must be less"})
    deep = client.post(path, content=b'{"a":' + b"[" * 10**5, headers=kind)
    assert (deep.status_code, deep.json()["error"]) == (400, "request: must be JSON")


def test_a_fault_of_ours_is_told_to_the_terminal_and_not_to_the_page(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    got = client.post(f"/{TOKEN}/read", json={"text": "fault"})
    assert got.status_code == 500
    assert got.json()["error"] == "the server met a fault of its own; its terminal says which"
    assert "/secret/place" in capsys.readouterr().err
    assert client.get(f"/{TOKEN}/runs").status_code == 200


def test_the_run_not_asked_for_longest_is_forgotten(client: TestClient) -> None:
    for _ in range(server.MOST_RUNS - 1):
        client.post(f"/{TOKEN}/read", json={"text": "one more"})
    assert client.post(f"/{TOKEN}/ask/1/tile", json=TILE).status_code == 200
    client.post(f"/{TOKEN}/read", json={"text": "and one that is too many"})
    listed = [one["id"] for one in client.get(f"/{TOKEN}/runs").json()]
    assert len(listed) == server.MOST_RUNS and "1" in listed and "2" not in listed
    gone = client.post(f"/{TOKEN}/ask/2/tile", json=TILE)
    assert gone.status_code == 404 and "read its text again" in gone.json()["error"]


def test_tiles_of_a_run_that_is_forgotten_go_with_it() -> None:
    runs = server.Runs()
    first = runs.add(made_runs.run(11))
    runs[first].answer("tile", TILE)
    assert runs._shelf.held > 0
    for _ in range(server.MOST_RUNS):
        runs.add(made_runs.run(11))
    assert runs._shelf.held == 0


def test_the_newest_request_is_done_first_and_the_oldest_of_too_many_is_given_up() -> None:
    desk = Desk(waiting=3)
    order: list[int] = []
    gate = threading.Event()

    async def go() -> list[Any]:
        started = threading.Event()
        first = asyncio.ensure_future(desk.do(lambda _: started.set() or gate.wait(20)))
        while not started.is_set():
            await asyncio.sleep(0.001)
        rest = [
            asyncio.ensure_future(desk.do(lambda _, n=n: order.append(n)))  # type: ignore[misc]
            for n in range(5)
        ]
        await asyncio.sleep(0.01)
        gate.set()
        return [await first, *await asyncio.gather(*rest, return_exceptions=True)]

    results = asyncio.run(go())
    desk.close()
    assert [type(one) for one in results[1:3]] == [Busy, Busy]
    assert order == [4, 3, 2]


def test_work_that_nobody_waits_for_is_not_begun_and_is_told_when_it_was() -> None:
    desk = Desk()
    begun: list[str] = []
    told = threading.Event()
    started = threading.Event()

    def long(cancelled: Callable[[], bool]) -> None:
        started.set()
        until = time.monotonic() + 20
        while not cancelled() and time.monotonic() < until:
            time.sleep(0.001)
        if cancelled():
            told.set()

    async def go() -> None:
        first = asyncio.ensure_future(desk.do(long))
        second = asyncio.ensure_future(desk.do(lambda _: begun.append("second")))
        while not started.is_set():
            await asyncio.sleep(0.001)
        second.cancel(), first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)

    asyncio.run(go())
    assert told.wait(20) and desk.waiting == 0
    desk.close()
    assert begun in ([], ["second"])  # LIFO: the second may have run before the first began


def test_slow_work_does_not_keep_quick_work_waiting(desk: Desk) -> None:
    gate = threading.Event()

    async def go() -> str:
        slow = asyncio.ensure_future(desk.do(lambda _: gate.wait(20), slow=True))
        quick = await desk.do(lambda _: "quick")
        gate.set()
        await slow
        return str(quick)

    assert asyncio.run(go()) == "quick"


def test_a_port_in_use_is_one_sentence() -> None:
    taken = server.bind(0)
    port = taken.getsockname()[1]
    with pytest.raises(ValueError, match=f"^port: {port} is in use, must be a free one"):
        server.bind(port)
    taken.close()
    with pytest.raises(ValueError, match="port: is 70000, must be from 0 to 65535"):
        server.bind(70000)


# A server in its own process.


class Serving:
    def __init__(self, arguments: list[str], folder: Path) -> None:
        environment = {
            k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clearhead", "view", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=folder,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/\n", line)
        assert found, (line, self.process.stderr and self.process.poll())
        self.port, self.token = int(found[1]), found[2]

    def ask(self, question: str, arguments: Any, run: str = "1") -> tuple[int, bytes]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        kind = {"content-type": "application/json"}
        line.request("POST", f"/{self.token}/ask/{run}/{question}", json.dumps(arguments), kind)
        got = line.getresponse()
        body = got.read()
        line.close()
        return got.status, body

    def send(self, question: str, arguments: Any) -> socket.socket:
        """A request whose answer nobody has read yet."""
        body = json.dumps(arguments).encode()
        line = socket.create_connection(("127.0.0.1", self.port))
        head = (
            f"POST /{self.token}/ask/1/{question} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        line.sendall(head.encode() + body)
        return line

    def memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def stop(self, by: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.send_signal(by)
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """65,536 tokens that each read the thousand before them, in two heads."""
    path = tmp_path_factory.mktemp("runs") / "long.safetensors"
    mask = ch.causal() & ch.window(left=1023)
    made_runs.run(65536, layers=1, heads=2, masks=(mask,)).save(path)
    return path


@pytest.fixture
def serving(long_run: Path, tmp_path: Path) -> Iterator[Serving]:
    made = Serving([str(long_run), "--no-browser"], tmp_path)
    yield made
    made.stop(signal.SIGKILL)


def test_a_long_map_is_seen_whole_and_close_in_bounded_memory(serving: Serving) -> None:
    before = serving.memory()
    for pool in ("max", "mean"):
        done = False
        while not done:
            status, raw = serving.ask("tile", TILE | {"level": 8, "pool": pool})
            assert status == 200
            said, (values,) = answer(raw)
            done = said["done"]
        assert values.shape == (256, 256)
        assert np.isnan(values[3, 9]) and values[9, 9] > 0 and np.isnan(values[200, 3])
    for n in range(40):
        status, _ = serving.ask("tile", TILE | {"row": n, "column": n, "heads": [[0, n % 2]]})
        assert status == 200
    assert serving.memory() - before < 400 * 2**20  # one head's matrix is 16 GiB


def test_a_burst_of_requests_that_nobody_waits_for_does_not_clog_the_server(
    serving: Serving,
) -> None:
    serving.ask("tile", TILE)
    lines = [
        serving.send("tile", TILE | {"level": 5, "row": n % 8, "column": n // 8, "heads": [[0, 1]]})
        for n in range(64)
    ]
    for line in lines:
        line.close()
    start = time.monotonic()
    status, raw = serving.ask("tile", TILE | {"row": 9, "column": 9})
    assert status == 200 and answer(raw)[0]["done"]
    assert time.monotonic() - start < 5  # 64 tiles would be more
    assert serving.process.poll() is None


def test_ctrl_c_stops_at_once_while_requests_are_under_way(serving: Serving) -> None:
    lines = [serving.send(what, {}) for what in ("heads", "about")]
    lines.append(serving.send("tile", TILE | {"level": 8}))
    time.sleep(0.2)
    start = time.monotonic()
    code, said = serving.stop(signal.SIGINT)
    assert code == 0 and "Traceback" not in said
    assert said.splitlines()[-1] == "clearhead: stopped"
    assert time.monotonic() - start < 10
    for line in lines:
        line.close()


def test_a_port_in_use_ends_the_command_with_one_sentence(serving: Serving, long_run: Path) -> None:
    command = [sys.executable, "-m", "clearhead", "view", str(long_run), "--no-browser"]
    other = subprocess.run(
        [*command, "--port", str(serving.port)], capture_output=True, text=True, timeout=60
    )
    assert other.returncode == 2 and other.stdout == ""
    assert other.stderr.startswith(f"clearhead: port: {serving.port} is in use")
    assert len(other.stderr.splitlines()) == 1


def test_a_text_typed_into_the_page_is_read_by_the_model_of_the_command(tmp_path: Path) -> None:
    folder = tiny_bert.write(tmp_path / "tiny")
    serving = Serving(["--model", str(folder), "--no-browser"], tmp_path)
    try:
        line = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=30)
        kind = {"content-type": "application/json"}

        def post(body: Any) -> tuple[int, Any]:
            line.request("POST", f"/{serving.token}/read", json.dumps(body), kind)
            got = line.getresponse()
            return got.status, json.loads(got.read())

        line.request("GET", f"/{serving.token}/runs")
        assert json.loads(line.getresponse().read()) == []
        assert post({"text": "the <script>alert(1)</script> animal"}) == (200, {"run": "1"})
        about = answer(serving.ask("about", {})[1])[0]
        assert about["text"] == "the <script>alert(1)</script> animal"
        assert post({"text": "the road", "model": "tiny"}) == (200, {"run": "2"})
        status, said = post({"text": "the road", "model": "/etc/passwd"})
        assert (
            status == 400
            and said["error"] == "model: this page reads with tiny, must be that or none"
        )
        assert post({"text": ""})[0] == 400
        line.close()
    finally:
        assert serving.stop()[0] == 0


def test_a_text_too_long_to_keep_is_refused_in_words_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clearhead.models.read import Reader
    from clearhead.view_command import _Model

    model = _Model(str(tiny_bert.write(tmp_path / "tiny")))
    monkeypatch.setitem(Reader.read.__kwdefaults__, "max_bytes", 9)
    with pytest.raises(ValueError, match=r"the most is 0\.0 GB; read a part of it") as refused:
        model.read("the road", None, lambda: False)
    assert "max_bytes" not in str(refused.value)
