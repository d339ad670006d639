"""From a request to its answer: read, prepare, ask the engine, and write, whole or as a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Send

from shardwise.serve.http.body import decode_body, read_body
from shardwise.serve.http.errors import ApiError
from shardwise.serve.http.metrics import Metrics
from shardwise.serve.http.output import GrowingText, Piece
from shardwise.serve.http.prepare import Output, Service, Wish, prepare
from shardwise.serve.http.requests import GenerationRequest
from shardwise.serve.http.responses import PromptDetails, Usage
from shardwise.serve.http.sessions import Session, Sessions

R = TypeVar("R", bound=GenerationRequest)
T = TypeVar("T")

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


class Answer(Protocol):
    """Makes JSON of outputs."""

    def chunks(self, index: int, piece: Piece) -> Sequence[msgspec.Struct]:
        """The events of a stream for what is new of an output."""
        ...

    def usage(self, usage: Usage) -> msgspec.Struct:
        """The last event of a stream."""
        ...

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> msgspec.Struct:
        """The answer in one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[R]):
    """A kind of completions.

    Args:
        asked: what its bodies are decoded into.
        wish: what a request wants, for a client.
        answer: makes the maker of a request's answer.
    """

    asked: type[R]
    wish: Callable[[Service, R, str], Wish]
    answer: Callable[[Service, R, Wish], Answer]


class Reader:
    """Reads the outputs of a session as text, and measures them.

    Args:
        session: that is read.
        outputs: what is asked for.
        service: what is served.
        metrics: that take the times.
        began: when the request came.
    """

    def __init__(
        self,
        session: Session,
        outputs: Sequence[Output],
        service: Service,
        metrics: Metrics,
        began: float,
    ) -> None:
        self._session = session
        self._outputs = outputs
        self._metrics = metrics
        self._began = began
        self._texts = [GrowingText(output, service.texts.vocabulary) for output in outputs]
        self._running = set(range(len(outputs)))
        self._firsts: dict[int, float] = {}  # seconds to the first token of each output

    async def read(self) -> list[tuple[int, Piece]]:
        """What is new of the outputs; empty when all have ended.

        Raises:
            ApiError: the engine did not finish an output.
        """
        news: list[tuple[int, Piece]] = []
        while self._running and not news:
            for index, token in await self._session.arrivals():
                if index not in self._running:
                    continue
                self._note_first(index)
                piece = self._texts[index].push(token)
                news.append((index, piece))
                if piece.finish:
                    self._end(index, piece.finish)
        return news

    def usage(self, prompts: Sequence[Sequence[int]]) -> Usage:
        """Tokens of the prompts and of the outputs."""
        choices = len(self._texts) // len(prompts)
        prompt = sum(len(tokens) for tokens in prompts)
        completion = sum(text.tokens for text in self._texts)
        # Further choices find the prompt of the first in the cache, which says nothing.
        cached = sum(text.cached for text in self._texts[::choices])
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptDetails(cached_tokens=cached),
        )

    def _note_first(self, index: int) -> None:
        if index in self._firsts:
            return
        seconds = time.perf_counter() - self._began
        if not self._firsts:
            self._metrics.first_token(seconds)
        self._firsts[index] = seconds

    def _end(self, index: int, finish: str) -> None:
        self._running.discard(index)
        self._session.cancel(index)  # a stop string is unknown to the engine
        seconds = time.perf_counter() - self._began
        self._metrics.output(finish, self._texts[index].tokens, seconds, self._firsts[index])


class Generating(Generic[R]):
    """Handler of one kind of completions.

    Args:
        kind: of completions.
        service: what is served.
        sessions: at the engine.
        metrics: of the server.
        max_body: the longest body in bytes.
    """

    def __init__(
        self,
        kind: Kind[R],
        service: Service,
        sessions: Sessions,
        metrics: Metrics,
        max_body: int,
    ) -> None:
        self._kind = kind
        self._service = service
        self._sessions = sessions
        self._metrics = metrics
        self._max_body = max_body

    async def __call__(self, request: Request, send: Send, key: str) -> None:
        """Answer a request.

        Raises:
            ApiError: it cannot be served; nothing was sent.
            ClientDisconnect: the client went away; its outputs are cancelled.
        """
        began = time.perf_counter()
        with self._sessions.preparing():
            body = await read_body(request, self._max_body)
            asked = decode_body(body, self._kind.asked)
            check_model(asked.model, self._service.texts.model)
            client = _client(request, key, asked.user)
            # Templates, tokenizers and grammars may take long, and other clients are served.
            wish, outputs, answer = await asyncio.to_thread(self._prepare, asked, client)
        session = self._sessions.open([output.generation for output in outputs])
        try:
            reader = Reader(session, outputs, self._service, self._metrics, began)
            if asked.stream:
                work = _stream(asked, wish, reader, answer, send)
            else:
                work = _whole(request, wish, len(outputs), reader, answer, send)
            await unless_gone(request.receive, work)
        finally:
            session.close()

    def _prepare(self, asked: R, client: str) -> tuple[Wish, list[Output], Answer]:
        wish = self._kind.wish(self._service, asked, client)
        outputs = prepare(self._service, asked, wish)
        return wish, outputs, self._kind.answer(self._service, asked, wish)


def check_model(model: str | None, served: str) -> None:
    """Raise a 404 if a request is for another model than the served one."""
    if model is not None and model != served:
        raise ApiError(
            404,
            f'the model "{model[:80]}" is not served; this server has "{served}".',
            param="model",
            code="model_not_found",
        )


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do work for a client until it is done, or the client goes away.

    Raises:
        ClientDisconnect: the client went away; the work is cancelled.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _whole(
    request: Request, wish: Wish, count: int, reader: Reader, answer: Answer, send: Send
) -> None:
    """Write the answer in one, when it is complete."""
    pieces = [Piece() for _ in range(count)]
    while news := await reader.read():
        for index, piece in news:
            pieces[index].add(piece)
    body = msgspec.json.encode(answer.whole(pieces, reader.usage(wish.prompts)))
    await Response(body, media_type="application/json")(request.scope, request.receive, send)


async def _stream(
    asked: GenerationRequest, wish: Wish, reader: Reader, answer: Answer, send: Send
) -> None:
    """Write server-sent events as text comes.

    The response begins with the first token: until then, an error can have a status of its own.
    """
    news = await reader.read()
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    try:
        while news:
            events = bytearray()
            for index, piece in news:
                for chunk in answer.chunks(index, piece):
                    events += _event(chunk)
            if events:
                await send({"type": "http.response.body", "body": bytes(events), "more_body": True})
            news = await reader.read()
        last = b""
        if asked.stream_options is not None and asked.stream_options.include_usage:
            last = _event(answer.usage(reader.usage(wish.prompts)))
    except ApiError as error:  # the status is sent already
        last = _event(error.document())
    await send({"type": "http.response.body", "body": last + b"data: [DONE]\n\n"})


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _client(request: Request, key: str, user: str | None) -> str:
    """Whom a request takes turns for."""
    if key:
        return f"key {key}"
    if user:
        return f"user {user}"
    if request.client:
        return f"host {request.client.host}"
    return ""
