"""The page's server: this machine only, for whoever has the token in the address.

    GET  <token>/                      the page
    GET  <token>/static/<name>         its modules and styles, a list read at the start
    GET  <token>/runs                  [{id, title, model, tokens}]
    POST <token>/read                  {text, model?} -> {run}
    POST <token>/ask/<run>/<question>  arguments -> an answer's bytes (scene.py)

Every request must name this machine as its host and hold the token; anything else is refused
without saying what is there. Errors are JSON, {"error": one sentence}, and never hold a path.
"""

import asyncio
import hmac
import json
import secrets
import socket
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .desk import Busy, Desk
from .scene import ROOM_BYTES, Scene
from .shelf import Shelf

Read = Callable[[str, str | None, Callable[[], bool]], Any]

MOST_RUNS = 16
MOST_BODY_BYTES = 1 << 20
MOST_TEXT_BYTES = 8 << 20
MOST_CONNECTIONS = 256
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
SLOW = ("about", "heads", "rollout", "removed")
_GONE = 499  # nobody is there to read it
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Refused(Exception):
    """A request that gets a status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Runs:
    """The runs that a server shows, at most `MOST_RUNS`: the one not asked for longest goes first.

    Their tiles share one shelf.
    """

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._scenes: OrderedDict[str, Scene] = OrderedDict()
        self._shelf = Shelf(room_bytes)
        self._next = 1

    def add(self, run: Any) -> str:
        """Take in a run; its number."""
        name = str(self._next)
        self._next += 1
        self._scenes[name] = Scene(run, shelf=self._shelf)
        while len(self._scenes) > MOST_RUNS:
            _, gone = self._scenes.popitem(last=False)
            gone.forget()
        return name

    def __getitem__(self, name: str) -> Scene:
        if name not in self._scenes:
            raise Refused(404, f"run: {name[:20]!r} is not here any more, read its text again")
        self._scenes.move_to_end(name)
        return self._scenes[name]

    def listed(self) -> list[dict[str, Any]]:
        """What GET runs says, in the order in which they came."""
        return [
            {
                "id": name,
                "title": scene.title,
                "model": scene.run.model,
                "tokens": len(scene.run.tokens),
            }
            for name, scene in sorted(self._scenes.items(), key=lambda item: int(item[0]))
        ]


class App:
    """The routes. `read(text, model, cancelled)` gives a run; None: texts cannot be read here."""

    def __init__(self, runs: Runs, desk: Desk, read: Read | None) -> None:
        self.runs, self.desk, self.read = runs, desk, read
        self._static = static_files()

    async def page(self, request: Request) -> Response:
        return Response(self._static["app.html"][0], media_type="text/html; charset=utf-8")

    async def file(self, request: Request) -> Response:
        body, kind = self._static.get(request.path_params["name"], (b"", ""))
        if not kind or kind.startswith("text/html"):
            raise Refused(404, "there is nothing here")
        return Response(body, headers={"content-type": kind})

    async def listed(self, request: Request) -> Response:
        return JSONResponse(self.runs.listed())

    async def read_text(self, request: Request) -> Response:
        read = self.read
        if read is None:
            raise Refused(
                400, "text: this page shows saved runs only, it has no model to read with"
            )
        asked = await _body(request, MOST_TEXT_BYTES)
        text, model = asked.get("text"), asked.get("model")
        if not isinstance(text, str):
            raise Refused(400, f"text: is {type(text).__name__}, must be text")
        if model is not None and not isinstance(model, str):
            raise Refused(400, f"model: is {type(model).__name__}, must be a name")
        run = await _while_there(
            request, self.desk.do(lambda cancelled: read(text, model, cancelled), slow=True)
        )
        return JSONResponse({"run": self.runs.add(run)})

    async def ask(self, request: Request) -> Response:
        question = request.path_params["question"]
        scene = self.runs[request.path_params["run"]]
        arguments = await _body(request, MOST_BODY_BYTES)

        def work(cancelled: Callable[[], bool]) -> bytes:
            answer = scene.answer(question, arguments, cancelled)
            if question == "about":
                answer.json["can"]["read"] = self.read is not None
            return answer.to_bytes()

        body = await _while_there(request, self.desk.do(work, slow=question in SLOW))
        return Response(body, media_type="application/octet-stream")


class Guard:
    """In front of the routes: host, token, and the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {k.lower(): v.decode("latin-1") for k, v in scope["headers"]}

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send_safely)
            return
        _, _, rest = scope["path"][1:].partition("/")
        inner = dict(scope, path="/" + rest, raw_path=None, root_path="")
        await self._app(inner, receive, send_safely)

    def _refusal(self, scope: Scope, headers: Mapping[bytes, str]) -> Response | None:
        """What is answered instead; None: nothing is wrong."""
        if not _is_here(headers.get(b"host", "")):
            return _error(403, "host: must be this machine")
        origin = headers.get(b"origin")
        if origin is not None and not _is_here(urlsplit(origin).netloc):
            return _error(403, "origin: must be this page")
        token, slash, _ = scope["path"][1:].partition("/")
        if not hmac.compare_digest(token.encode(), self._token):
            return _error(404, "there is nothing here; the address must hold the token")
        if not slash:
            return RedirectResponse(f"/{token}/")
        return None


def application(runs: Runs, desk: Desk, token: str, read: Read | None) -> Guard:
    """The whole of the server but its socket."""
    app = App(runs, desk, read)
    routes = [
        Route("/", app.page, methods=["GET"]),
        Route("/static/{name}", app.file, methods=["GET"]),
        Route("/runs", app.listed, methods=["GET"]),
        Route("/read", app.read_text, methods=["POST"]),
        Route("/ask/{run}/{question}", app.ask, methods=["POST"]),
    ]
    handlers: Any = {
        Refused: lambda _, error: _error(error.status, str(error)),
        404: lambda *_: _error(404, "there is nothing here"),
        405: lambda *_: _error(405, "method: must be another one"),
        ValueError: lambda _, error: _error(400, _sentence(error)),
        TypeError: _fault_or_sentence,
        Busy: lambda *_: _error(503, "too many requests wait; ask again"),
        Exception: _fault,
    }
    starlette = Starlette(routes=routes, exception_handlers=handlers)
    starlette.router.redirect_slashes = False
    return Guard(starlette, token)


def static_files() -> dict[str, tuple[bytes, str]]:
    """Every file of the page by name: what is not here is not served."""
    found = {}
    for file in files(__package__).joinpath("static").iterdir():
        end = file.name[file.name.rfind(".") :]
        if end in _TYPES:
            found[file.name] = file.read_bytes(), _TYPES[end]
        elif file.name == "app.html":
            found[file.name] = file.read_bytes(), "text/html; charset=utf-8"
    return found


def new_token() -> str:
    """192 bits that nobody guesses, as they stand in an address."""
    return secrets.token_urlsafe(24)


def bind(port: int) -> socket.socket:
    """A listening socket of this machine alone; 0 takes a free port.

    Raises  ValueError: the port is not one, or is in use.
    """
    if not 0 <= port < 1 << 16:
        raise ValueError(f"port: is {port}, must be from 0 to 65535")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        why = "is in use" if error.errno == 98 else "cannot be opened"
        raise ValueError(f"port: {port} {why}, must be a free one; --port 0 takes any") from None
    return listening


def serve(listening: socket.socket, runs: Runs, token: str, read: Read | None) -> bool:
    """Answer until the process is told to stop; whether all work has ended then."""
    import uvicorn

    desk = Desk()
    config = uvicorn.Config(
        application(runs, desk, token, read),
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # it has stopped in order, and hands on what stopped it
        pass
    finally:
        listening.close()
    return desk.close()


async def _while_there(request: Request, work: Any) -> Any:
    """The result of work, which is cancelled when the asker goes."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Refused(_GONE, "nobody waits for this any more")
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, most: int) -> dict[str, Any]:
    """The JSON object of a request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "content-type: must be application/json")
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > most:
            raise Refused(413, f"request: is over {most >> 20} MiB, must be less")
    try:
        found = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        raise Refused(400, "request: must be JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "request: must be a JSON object")
    return found


def _is_here(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "0"
    return name.lower() in _HOSTS and port.isdecimal()


def _error(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status_code=status)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


def _fault_or_sentence(request: Request, error: Exception) -> Response:
    """A TypeError of ours is worded as our errors are, `name: ...`; any other is a fault."""
    text = _sentence(error)
    if ": is " in text or ", must " in text:
        return _error(400, text)
    return _fault(request, error)


def _fault(request: Request, error: Exception) -> Response:
    traceback.print_exception(error, file=sys.stderr)
    return _error(500, "the server met a fault of its own; its terminal says which")
