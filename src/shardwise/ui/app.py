"""The application of the page: its files, and three questions that it answers as JSON.

It keeps no state but a cache of answers, and reads no path that a request names.
"""

from __future__ import annotations

import asyncio
import http
import logging
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shardwise.errors import BadInput, NoPlan, ShardwiseError, UnknownName
from shardwise.ui.answer import answer
from shardwise.ui.frame import frame
from shardwise.ui.live import read_run
from shardwise.ui.names import offered_names
from shardwise.ui.question import FIRST, LocalNames, Question, read
from shardwise.ui.sliders import curve, sliders

logger = logging.getLogger("shardwise.ui")

MOST_BYTES = 16_384  # of a request
STATIC = "shardwise.ui"
TYPES = {"page.js": "text/javascript", "page.css": "text/css", "index.html": "text/html"}
# The page uses nothing of other servers, and no other page may frame it.
PAGE_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")

# Of a field of a question, as msgspec words it.
_FIELD_ERROR = re.compile(
    r"Expected `(\w+)(?: \| null)?`(.*?)(?:, got `\w+`)? - at `\$\.(?:question\.)?(\w+).*`"
)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(\w+)`.*")
_NO_CHOICE = re.compile(r"Invalid enum value '(.*)' - at `\$\.(?:question\.)?kind`")
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "1 or 0"}

Handler = Callable[[Request], Awaitable[Response]]


class CurveQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The question of one slider's curve: a question with its strategy, and the slider's name."""

    question: Question
    slider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What the command line opened the page with.

    Args:
        question: of the first view.
        frame: its frame, if it is a saved plan's.
        local: models and machines that it named by paths.
        run: the metrics.jsonl of the live tab; None without one.
        hosts: names by which the server may be addressed; empty for any.
    """

    question: Question = FIRST
    frame: dict[str, Any] | None = None
    local: LocalNames = field(default_factory=LocalNames)
    run: Path | None = None
    hosts: tuple[str, ...] = LOOPBACK


class Refused(Exception):
    """A request that is not answered, with its status and why."""

    def __init__(self, status: int, *problems: str) -> None:
        super().__init__(*problems)
        self.status = status
        self.problems = problems


class App:
    """The ASGI application."""

    def __init__(self, opened: Opened | None = None) -> None:
        self._opened = opened or Opened()
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/"): self._file("index.html"),
            ("GET", "/page.js"): self._file("page.js"),
            ("GET", "/page.css"): self._file("page.css"),
            ("GET", "/api/start"): self._start,
            ("GET", "/api/run"): self._run,
            ("POST", "/api/frame"): self._frame,
            ("POST", "/api/curve"): self._curve,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; whatever goes wrong, the page gets problems that it can show."""
        request = Request(scope, receive)
        try:
            response = await self._handle(request)
        except ClientDisconnect:
            return
        except Refused as error:
            response = _problems(error.status, "Refused", error.problems)
        except NoPlan as error:
            response = _problems(422, type(error).__name__, error.problems)
        except ShardwiseError as error:
            response = _problems(400, type(error).__name__, error.problems)
        except Exception:
            logger.exception("request %s %s failed", request.method, scope["path"])
            response = _problems(500, "Bug", ("a bug in shardwise; its terminal shows it.",))
        await response(scope, receive, send)

    async def _handle(self, request: Request) -> Response:
        self._check_host(request)
        path = request.scope["path"]
        method = "GET" if request.method == "HEAD" else request.method
        handler = self._routes.get((method, path))
        if handler:
            return await handler(request)
        allowed = [method for method, served in self._routes if served == path]
        if allowed:
            raise Refused(405, f"{path} takes {', '.join(allowed)}.")
        raise Refused(404, "the page has no such address.")

    def _check_host(self, request: Request) -> None:
        """Refuse a request that another site's page sends by a name of its own (DNS rebinding)."""
        host = request.headers.get("host", "").strip().lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._opened.hosts and name not in self._opened.hosts:
            raise Refused(421, "the server answers for this machine's own names alone.")

    def _file(self, name: str) -> Handler:
        async def serve(request: Request) -> Response:
            content = files(STATIC).joinpath("static", name).read_bytes()
            return Response(content, headers=HEADERS, media_type=TYPES[name])

        return serve

    async def _start(self, request: Request) -> Response:
        """What the page opens with: the first frame, and the names that can be asked for.

        If the command line's question has no answer, there is no frame, but the reason.
        """
        opened = self._opened
        problems: tuple[str, ...] = ()
        first = opened.frame
        if first is None:
            try:
                first = await run_in_threadpool(frame, opened.question, opened.local)
            except ShardwiseError as error:
                problems = error.problems
        return _json(
            {
                "frame": first,
                "problems": problems,
                "question": opened.question,
                "defaults": Question(),
                "names": offered_names(opened.local),
                "run": bool(opened.run),
            }
        )

    async def _frame(self, request: Request) -> Response:
        question = await _body(request, Question)
        return _json(await run_in_threadpool(frame, question, self._opened.local))

    async def _curve(self, request: Request) -> Response:
        question = await _body(request, CurveQuestion)
        gone = threading.Event()
        watch = asyncio.create_task(_disconnected(request, gone))
        try:
            points = await run_in_threadpool(self._points, question, lambda: not gone.is_set())
        finally:
            watch.cancel()
        return _json({"points": points})

    def _points(
        self, question: CurveQuestion, is_wanted: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        local = self._opened.local
        if question.question.strategy is None:
            raise BadInput("a curve needs the strategy that its slider belongs to.")
        inputs = read(question.question, local)
        choices = {s.name: s for s in sliders(question.question, inputs, answer(inputs))}
        if question.slider not in choices:
            raise UnknownName("slider", question.slider, choices)
        return curve(question.question, choices[question.slider], local, is_wanted)

    async def _run(self, request: Request) -> Response:
        """The records of the run of the command line, from a byte of its file on."""
        if self._opened.run is None:
            raise Refused(404, "the page was opened without a run: shardwise ui --run FOLDER.")
        text = request.query_params.get("from", "0")
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise Refused(400, "from is the number of a byte.")
        return _json(await run_in_threadpool(read_run, self._opened.run, int(text)))


async def _disconnected(request: Request, gone: threading.Event) -> None:
    """Set `gone` when the client of a request whose body is read has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def _body(request: Request, kind: type[Any]) -> Any:
    """The JSON of a request as a value of `kind`.

    Raises:
        Refused: it is not JSON, too long, sent by another site, or not such a value.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(415, "a question is sent as content-type application/json.")
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise Refused(413, f"a question has at most {MOST_BYTES:,} bytes.")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Refused(400, _reason(error)) from None


def _reason(error: Exception) -> str:
    """Why JSON is no question: the field and what it must be, if that is it."""
    if unknown := _UNKNOWN_FIELD.fullmatch(str(error)):
        names = ", ".join(Question.__struct_fields__)
        return f"a question has no {unknown[1]}. It has {names}."
    if choice := _NO_CHOICE.fullmatch(str(error)):
        return f'kind is "{choice[1][:40]}"; it must be train or serve.'
    field_error = _FIELD_ERROR.fullmatch(str(error))
    if not field_error:
        return f"not a question: {str(error)[:200] or type(error).__name__}."
    kind, bound, name = field_error.groups()
    return f"{name} must be {_KINDS.get(kind, kind)}{bound}."


def _json(value: object, status: int = http.HTTPStatus.OK) -> Response:
    content = msgspec.json.encode(value)
    return Response(content, status, headers=HEADERS, media_type="application/json")


def _problems(status: int, kind: str, problems: tuple[str, ...]) -> Response:
    return _json({"error": {"type": kind, "problems": problems}}, status)
