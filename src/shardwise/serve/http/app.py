"""The application: routes, keys, and what a client sees of errors."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from shardwise.serve.http import completions, conversation
from shardwise.serve.http.errors import INVALID, ApiError, failed
from shardwise.serve.http.generate import Generating, Kind
from shardwise.serve.http.metrics import CONTENT_TYPE, Metrics
from shardwise.serve.http.openapi import openapi
from shardwise.serve.http.options import ServerOptions
from shardwise.serve.http.prepare import Service
from shardwise.serve.http.requests import ChatRequest, CompletionRequest
from shardwise.serve.http.responses import Health, ModelCard, ModelList
from shardwise.serve.http.sessions import Sessions
from shardwise.serve.prefill_message import PATH as PREFILL_PATH
from shardwise.serve.request import Engine
from shardwise.serve.text.structure import Grammar
from shardwise.serve.text.texts import Texts

if TYPE_CHECKING:
    from shardwise.serve.phases import PrefillEngine

logger = logging.getLogger("shardwise.serve")

GONE = 499  # status under which requests are counted whose client went away
MODELS = "/v1/models"
# The chat page uses nothing of other servers, and no other page may frame it.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
)

Handler = Callable[[Request, Send, str], Awaitable[None]]


class App:
    """The ASGI application.

    Args:
        engine: that generates.
        texts: of the served model.
        options: of the server.
        grammar: makes masks of structured outputs; None if none can be made.
        version: of this package.
        prefill: the engine, if it computes prompts for other servers.
    """

    def __init__(
        self,
        engine: Engine,
        texts: Texts,
        options: ServerOptions,
        *,
        grammar: Grammar | None = None,
        version: str = "",
        prefill: PrefillEngine | None = None,
    ) -> None:
        self._service = Service(
            texts=texts,
            max_context=engine.max_context,
            vocab=engine.vocab,
            grammar=grammar,
            most_sequences=options.most_waiting,
        )
        self._digests = [_digest(key) for key in options.api_keys]
        self._version = version
        self._created = int(time.time())
        self.metrics = Metrics(engine, texts.model)
        self.sessions = Sessions(engine, options.most_waiting)
        chat = Kind(asked=ChatRequest, wish=conversation.wish_of, answer=conversation.ChatAnswer)
        texts_kind = Kind(
            asked=CompletionRequest, wish=completions.wish_of, answer=completions.CompletionAnswer
        )
        limit = options.max_body
        self._routes: dict[str, dict[str, Handler]] = {
            "/": {"GET": self._page},
            "/health": {"GET": self._health},
            "/metrics": {"GET": self._metrics},
            "/openapi.json": {"GET": self._openapi},
            MODELS: {"GET": self._models},
            "/v1/completions": {
                "POST": Generating(texts_kind, self._service, self.sessions, self.metrics, limit)
            },
            "/v1/chat/completions": {
                "POST": Generating(chat, self._service, self.sessions, self.metrics, limit)
            },
        }
        self._prefill_request: type[msgspec.Struct] | None = None
        if prefill is not None:
            from shardwise.serve.http.prefill import Prefilling, PrefillRequest

            self._prefill_request = PrefillRequest

            handler = Prefilling(prefill, texts.model, self.sessions, limit)
            self._routes[PREFILL_PATH] = {"POST": handler}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; whatever goes wrong, the client gets an error it can read."""
        request = Request(scope, receive)
        status = 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._handle(request, counted)
        except ApiError as error:
            if not status:
                await _json(request, counted, error.document(), error.status, error.headers)
        except (ClientDisconnect, asyncio.CancelledError):  # by the client, or by the server's end
            status = GONE
        except Exception:
            name = uuid.uuid4().hex[:12]
            logger.exception("request %s %s failed, error %s", request.method, scope["path"], name)
            if status:
                raise  # the response is cut off, which the client sees
            unexpected = failed(f"an error of the server; its log has it as {name}.")
            await _json(request, counted, unexpected.document(), unexpected.status)
        finally:
            path = scope["path"] if scope["path"] in self._routes else "other"
            self.metrics.request(path, request.method, status)

    async def _handle(self, request: Request, send: Send) -> None:
        path = request.scope["path"]
        key = self._key(request)
        handlers = self._routes.get(path)
        if path.startswith(f"{MODELS}/"):
            handlers = {"GET": self._model}
        if handlers is None:
            raise ApiError(
                404,
                f"{request.method} {path[:80]} is not served. Served: {', '.join(self._routes)}.",
                code="unknown_url",
            )
        method = request.method
        if method == "HEAD":
            method = "GET"
        if method not in handlers:
            allowed = ", ".join(handlers)
            raise ApiError(
                405,
                f"{path} takes {allowed}, and not {request.method}.",
                code="method_not_allowed",
                headers={"allow": allowed},
            )
        await handlers[method](request, send, key)

    def _key(self, request: Request) -> str:
        """A name of the client's API key; empty if the server asks for none.

        Raises:
            ApiError: 401 if the key is missing or wrong.
        """
        if not self._digests or not request.scope["path"].startswith("/v1/"):
            return ""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        digest = _digest(key.strip())
        known = [hmac.compare_digest(digest, other) for other in self._digests]  # all: equal time
        if scheme.lower() == "bearer" and any(known):
            return digest[:12]
        raise ApiError(
            401,
            "the API key is missing or wrong: send authorization: Bearer KEY.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )

    async def _page(self, request: Request, send: Send, key: str) -> None:
        page = files("shardwise.serve.http").joinpath("chat.html").read_bytes()
        headers = {"content-security-policy": PAGE_POLICY, "x-content-type-options": "nosniff"}
        response = Response(page, headers=headers, media_type="text/html")
        await response(request.scope, request.receive, send)

    async def _health(self, request: Request, send: Send, key: str) -> None:
        self.sessions.check_ready()
        self.sessions.check_reachable()
        await _json(request, send, Health())

    async def _metrics(self, request: Request, send: Send, key: str) -> None:
        response = Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE})
        await response(request.scope, request.receive, send)

    async def _openapi(self, request: Request, send: Send, key: str) -> None:
        await _json(request, send, self._document)

    @cached_property
    def _document(self) -> dict[str, object]:
        return openapi(self._version, keys=bool(self._digests), prefill=self._prefill_request)

    async def _models(self, request: Request, send: Send, key: str) -> None:
        await _json(request, send, ModelList(data=[self._card()]))

    async def _model(self, request: Request, send: Send, key: str) -> None:
        name = request.scope["path"].removeprefix(f"{MODELS}/")
        if name != self._service.texts.model:
            raise ApiError(
                404,
                f'the model "{name[:80]}" is not served; this server has '
                f'"{self._service.texts.model}".',
                kind=INVALID,
                param="model",
                code="model_not_found",
            )
        await _json(request, send, self._card())

    def _card(self) -> ModelCard:
        return ModelCard(
            id=self._service.texts.model,
            created=self._created,
            owned_by="shardwise",
            max_model_len=self._service.max_context,
            vocab_size=self._service.vocab,
        )


async def _json(
    request: Request,
    send: Send,
    value: object,
    status: int = http.HTTPStatus.OK,
    headers: dict[str, str] | None = None,
) -> None:
    response = Response(
        msgspec.json.encode(value), status, headers=headers, media_type="application/json"
    )
    await response(request.scope, request.receive, send)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
