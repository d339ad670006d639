"""A small server with the OpenAI API, whose delays are known and which logs what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class FakeServer:
    """What the server does, and what it saw.

    Args:
        first_s, token_s: seconds before the first token, and before each further one.
        key: API key that it wants; empty for none.
        fails: index of a request -> status with which it is refused.
        breaks_after: tokens after which every stream ends with an error; 0 for never.
        cut_after: tokens after which every connection is dropped; 0 for never.
        slow: index of a request whose first token takes a second more.
        log: the body of each request, with `arrival_s` and the number of tokens sent.
    """

    first_s: float = 0.0
    token_s: float = 0.0
    key: str = ""
    fails: dict[int, int] = field(default_factory=dict)
    breaks_after: int = 0
    cut_after: int = 0
    slow: int = -1
    lists_models: bool = True
    log: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Tokens of the prompt and of the output of each request."""
        return [(n_tokens(entry), entry["max_tokens"]) for entry in self.log]

    async def models(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "Incorrect API key."}}, 401)
        if not self.lists_models:
            return JSONResponse({"detail": "Not Found"}, 404)
        return JSONResponse({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        index = len(self.log)
        entry = {
            "max_tokens": body.get("max_completion_tokens"),
            **body,
            "arrival_s": time.perf_counter(),
            "index": index,
            "path": request.url.path,
            "port": request.client.port if request.client else 0,
        }
        self.log.append(entry)
        if index in self.fails:
            return JSONResponse({"error": {"message": "overloaded"}}, self.fails[index])
        return StreamingResponse(self.stream(entry), media_type="text/event-stream")

    async def stream(self, entry: dict[str, Any]) -> AsyncIterator[bytes]:
        chat = entry["path"].endswith("chat/completions")
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {"id": f"{entry['index']}", "object": kind, "created": 1, "model": "fake"}
        start_s = time.perf_counter() + (1.0 if entry["index"] == self.slow else 0.0)
        output = entry["max_tokens"]
        if chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}}
            yield event({**head, "choices": [role]})
        for index in range(output):
            due_s = start_s + self.first_s + index * self.token_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            if self.breaks_after and index == self.breaks_after:
                yield event({"error": {"message": "the engine died"}})
                return
            if self.cut_after and index == self.cut_after:
                raise ConnectionResetError
            choice: dict[str, Any] = {"index": 0, "text": "a"}
            if chat:
                choice = {"index": 0, "delta": {"content": "a"}}
            if index == output - 1:
                choice["finish_reason"] = "length"
            yield event({**head, "choices": [choice]})
        yield event({**head, "choices": [], "usage": usage(entry)})
        yield b"data: [DONE]\n\n"


def event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def n_tokens(entry: dict[str, Any]) -> int:
    """Tokens of a prompt: its ids, or its words."""
    if "messages" in entry:
        return len(entry["messages"][0]["content"].split())
    prompt = entry["prompt"]
    return len(prompt if isinstance(prompt, list) else prompt.split())


def usage(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": n_tokens(entry),
        "completion_tokens": entry["max_tokens"],
        "total_tokens": n_tokens(entry) + entry["max_tokens"],
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@contextlib.contextmanager
def serving(server: FakeServer) -> Iterator[FakeServer]:
    """Run the server on a free port of this host, in a thread."""
    routes = [
        Route("/v1/models", server.models),
        Route("/v1/completions", server.complete, methods=["POST"]),
        Route("/v1/chat/completions", server.complete, methods=["POST"]),
    ]
    config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off")
    runner = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield server
    finally:
        runner.should_exit = True
        thread.join()
        listener.close()
