"""Prompts for decode servers: the first token and the KV cache of a prompt, as bytes."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Annotated, Any

import jax
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.types import Send

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.serve.http.body import decode_body, read_body
from shardwise.serve.http.errors import bad_request, failed, unavailable
from shardwise.serve.http.generate import check_model, unless_gone
from shardwise.serve.http.requests import GenerationRequest, Logprobs, TokenId
from shardwise.serve.http.sampling import check_tokens, sampling_of
from shardwise.serve.http.sessions import Sessions
from shardwise.serve.phases import FirstTokenMask, PrefillEngine, WaitingPrompts
from shardwise.serve.prefill_message import answer_of, pieces
from shardwise.serve.request import CANCELLED, Generation, Token

MOST_WAITING = 8  # prompts that are computed and not sent yet, before no more are computed
SEND_SECONDS = 60  # for a piece of an answer to go; then the client is taken for dead
HEADERS = [(b"content-type", b"application/octet-stream")]


class PrefillRequest(GenerationRequest, kw_only=True):
    """A prompt to compute.

    Args:
        allowed: tokens that a grammar allows, as in `TokenMask`; None for all.
    """

    prompt: Annotated[list[TokenId], Meta(min_length=1)]
    logprobs: Logprobs | None = None
    allowed: bytes | None = None


class Prefilling:
    """Handler of prompts for decode servers.

    Args:
        engine: that computes them.
        model: name of its model.
        sessions: of the server.
        max_body: the longest body in bytes.
    """

    def __init__(
        self, engine: PrefillEngine, model: str, sessions: Sessions, max_body: int
    ) -> None:
        self._engine = engine
        self._model = model
        self._sessions = sessions
        self._max_body = max_body
        self._waiting = WaitingPrompts([engine], MOST_WAITING)

    async def __call__(self, request: Request, send: Send, key: str) -> None:
        """Answer a request.

        Raises:
            ApiError: it cannot be served; nothing was sent.
            ClientDisconnect: the client went away, or does not read; its prompt is cancelled.
        """
        with self._sessions.preparing():
            body = await read_body(request, self._max_body)
            generation = self._generation(decode_body(body, PrefillRequest))
            await unless_gone(request.receive, self._answer(generation, send))

    def _generation(self, asked: PrefillRequest) -> Generation:
        """What the engine is asked for.

        Raises:
            ApiError: 400 if the engine cannot serve it.
        """
        check_model(asked.model, self._model)
        vocab = self._engine.vocab
        check_tokens(asked.prompt, vocab, "prompt")
        mask = None
        if asked.allowed is not None:
            bits = asked.allowed + bytes(-len(asked.allowed) % 4)
            mask = FirstTokenMask(lambda: bits)
        return Generation(
            id=f"prompt-{uuid.uuid4().hex}",
            prompt=tuple(asked.prompt),
            max_tokens=1,
            sampling=sampling_of(asked, asked.logprobs, vocab),
            mask=mask,
            client=asked.user or "",
        )

    async def _answer(self, generation: Generation, send: Send) -> None:
        """Compute a prompt, and send its first token and its KV cache."""
        loop = asyncio.get_running_loop()
        prompt: asyncio.Future[tuple[Token, Any]] = loop.create_future()

        def arrive(first: Token, blocks: Any) -> None:
            if not prompt.cancelled():
                self._waiting.add()
                prompt.set_result((first, blocks))

        def deliver(first: Token, blocks: Any) -> None:  # on the engine's thread
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has gone
                loop.call_soon_threadsafe(arrive, first, blocks)

        try:
            self._engine.prefill(generation, deliver)
            first, blocks = await prompt
            if first.finish == CANCELLED:
                raise unavailable("the server is shutting down.", code="draining")
            if first.id < 0:
                raise failed("the engine could not go on; the server's log says why.")
            parts = await asyncio.to_thread(self._parts, generation, first, blocks)
            await _send(parts, send)
        except BadInput as error:
            raise bad_request(str(error), code="context_length_exceeded") from None
        finally:
            self._engine.cancel(generation.id)  # no error if it has ended
            if prompt.done() and not prompt.cancelled():
                self._waiting.take()
            prompt.cancel()

    def _parts(self, generation: Generation, first: Token, blocks: Any) -> list[memoryview]:
        """The parts of an answer; of the blocks, only those that the prompt fills."""
        n = int(ceil_div(len(generation.prompt), self._engine.block_tokens))
        return answer_of(first, [x[:n] for x in jax.device_get(jax.tree.leaves(blocks))])


async def _send(parts: list[memoryview], send: Send) -> None:
    length = sum(map(len, parts))
    headers = [*HEADERS, (b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        for piece in pieces(parts):
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except TimeoutError:
        raise ClientDisconnect from None
