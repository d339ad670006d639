"""One request to a server with the OpenAI API, and the times at which its tokens arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from shardwise.errors import BadInput
from shardwise.serve.load.connections import Connections
from shardwise.serve.load.reply import Reply
from shardwise.serve.load.requests import Prompt

MODELS_TIMEOUT_S = 3.0  # for the list of models, which tells whether a server is there
LONGEST_MESSAGE = 300  # characters of a server's answer that an error repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server with the OpenAI API.

    Args:
        url: address without /v1.
        key: API key; empty for none.
        model: name of the model; empty for the first one that the server lists.
        chat: send prompts as messages of a chat.
    """

    url: str
    key: str = field(default="", repr=False)
    model: str = ""
    chat: bool = False


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None

    @property
    def has_output(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.tool_calls)


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_token(self) -> bool:
        """Whether a token came with it; its text may be empty inside a character of many bytes."""
        if self.text or (self.delta and self.delta.has_output):
            return True
        is_start = self.delta is not None and self.delta.role
        return not self.finish_reason and not is_start


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class _ModelCard(msgspec.Struct):
    id: str
    vocab_size: int | None = None  # of servers that say it


class _ModelList(msgspec.Struct):
    data: list[_ModelCard]


_events = msgspec.json.Decoder(_Event)


class EventStream:
    """The data of server-sent events, from the bytes of a stream in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of the events that this piece completes; an event has one line of data."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip()


class _StreamError(Exception):
    """The server ended the stream with an error, or sent what is no event."""


class Client:
    """Sends requests to a server.

    Args:
        server: the server, with the name of its model.
        clock: returns the seconds since the start of the measurement.

    Attributes:
        vocab: number of tokens of the model that `first_model` found; None if it is not known.
    """

    def __init__(self, server: Server, clock: Callable[[], float] = time.perf_counter) -> None:
        self.server = server
        self.clock = clock
        self.vocab: int | None = None
        headers = {"Content-Type": "application/json"}
        if server.key:
            headers["Authorization"] = f"Bearer {server.key}"
        try:
            self.connections = Connections(server.url, headers)
        except httpx.InvalidURL as error:
            raise BadInput(f'"{server.url}" is not a URL: {error}.') from None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connections.close()

    async def first_model(self) -> str:
        """The name of the first model that the server lists.

        Raises:
            BadInput: there is no server, or it does not list its models.
        """
        address = f"{self.server.url}/v1/models"
        try:
            async with self.connections.request(
                "GET", "/v1/models", read_timeout_s=MODELS_TIMEOUT_S
            ) as response:
                content = await response.aread()
        except httpx.HTTPError as error:
            raise BadInput(
                f"no server answers at {self.server.url}: GET {address} failed "
                f"({_reason(error)}). Is it running there?"
            ) from None
        if response.status_code != httpx.codes.OK:
            said = _message(content)
            raise BadInput(
                f"GET {address} was answered {response.status_code}: {said}. "
                f"{_advice(response.status_code)}"
            )
        try:
            models = msgspec.json.decode(content, type=_ModelList).data
        except msgspec.DecodeError:
            models = []
        if not models:
            raise BadInput(
                f"{address} lists no model. Is it an OpenAI API? Name one: --model NAME."
            )
        self.vocab = models[0].vocab_size
        return models[0].id

    async def send(self, prompt: Prompt, output: int) -> Reply:
        """Send one request and read its answer to the end. Errors are part of the reply."""
        answer = Answer(self.clock)
        error = ""
        message = ""
        body = msgspec.json.encode(self._body(prompt, output))
        send_s = self.clock()
        try:
            async with self.connections.request("POST", self._path, body) as response:
                if response.status_code == httpx.codes.OK:
                    events = EventStream()
                    async for piece in response.aiter_raw():
                        for data in events.feed(piece):
                            answer.take(data)
                else:
                    error = f"HTTP {response.status_code}"
                    message = _message(await response.aread())
        except httpx.TimeoutException as reason:
            error = "timeout"
            message = _reason(reason)
        except httpx.HTTPError as reason:
            error = "connection"
            message = _reason(reason)
        except (_StreamError, msgspec.DecodeError) as reason:
            error = "stream"
            message = str(reason)
        if not error and not answer.token_s:
            error = "no tokens"
            message = "the stream ended before the first token"
        return Reply(
            send_s=send_s,
            token_s=tuple(answer.token_s),
            end_s=answer.end_s or self.clock(),
            prompt_tokens=answer.usage.prompt_tokens,
            output_tokens=answer.usage.completion_tokens or len(answer.token_s),
            cached_tokens=answer.cached_tokens,
            expected_tokens=output,
            error=error,
            message=message,
        )

    @property
    def _path(self) -> str:
        return "/v1/chat/completions" if self.server.chat else "/v1/completions"

    def _body(self, prompt: Prompt, output: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.server.model,
            "max_tokens": output,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.server.chat:
            return {**body, "messages": [{"role": "user", "content": prompt}]}
        return {**body, "prompt": prompt}


class Answer:
    """The part of an answer that has arrived."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.token_s: list[float] = []
        self.end_s = 0.0
        self.usage = _Usage()

    def take(self, data: bytes) -> None:
        """Take the data of an event that has just arrived."""
        if data == b"[DONE]":
            return
        event = _events.decode(data)
        if event.error:
            raise _StreamError(_message(data))
        now_s = self.clock()
        for choice in event.choices or ():
            if choice.has_token:
                self.token_s.append(now_s)
                self.end_s = now_s
            if choice.finish_reason:
                self.end_s = now_s
        if event.usage:
            self.usage = event.usage

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were in the server's prefix cache."""
        details = self.usage.prompt_tokens_details
        return (details and details.cached_tokens) or 0


def _reason(error: Exception) -> str:
    """What an error of the connection says, or its name if it says nothing."""
    return str(error) or type(error).__name__


def _message(content: bytes) -> str:
    """The message in a server's answer with an error; the whole answer if it has no such field."""
    text = content.decode(errors="replace").strip()
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError:
        document = None
    if isinstance(document, dict):
        error = document.get("error", document)
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or text
        text = str(error)
    return text[:LONGEST_MESSAGE].rstrip(".") or "no message"


def _advice(status: int) -> str:
    if status in (401, 403):
        return "Put the key into OPENAI_API_KEY, or into a file: --key-file FILE."
    return "Is it an OpenAI API? If it does not list models, name one: --model NAME."
