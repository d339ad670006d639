"""Prompts that another server computes; the blocks of their KV cache come over HTTP.

Each request has a connection and a thread of its own, so that the other server's scheduler sees
all that wait. Answers are read one after another, and only while this server has room for them.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from shardwise.errors import BadInput
from shardwise.serve.phases import DeliverPrompt
from shardwise.serve.prefill_message import PATH, read_answer, request_of
from shardwise.serve.request import CANCELLED, FAILED, UNREACHABLE, EngineStats, Generation, Token

logger = logging.getLogger("shardwise.serve")

CONNECT_SECONDS = 3.0
WATCH_SECONDS = 2.0  # between two questions for the other server's health
HEALTH_PATH = "/health"
SILENT_SECONDS = 600.0  # without a byte: the prompt may wait in the other server's queue
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # finds a host that is gone
BUSY = (http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE)
LONGEST_MESSAGE = 300  # bytes of an error that the log repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillServer:
    """A server that computes prompts.

    Args:
        url: its address.
        model: name of its model.
        key: API key; empty for none.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)

    def connection(self) -> http.client.HTTPConnection:
        """A connection to it, which is not open yet.

        Raises:
            BadInput: the URL is none.
        """
        try:
            parts = urlsplit(self.url)
            kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
            if parts.scheme in kinds and parts.hostname and parts.path in ("", "/", "/v1", "/v1/"):
                kind = kinds[parts.scheme]
                return kind(parts.hostname, parts.port, timeout=CONNECT_SECONDS)
        except ValueError:  # of the port
            pass
        raise BadInput(
            f'"{self.url}" is not the address of a server. Write it as http://HOST:PORT.'
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """A request to the other server.

    Args:
        connection: that it has to itself.
    """

    generation: Generation
    deliver: DeliverPrompt
    connection: http.client.HTTPConnection
    cancelled: bool = False


class RefusedError(Exception):
    """The other server answered with an error.

    Args:
        finish: how the request ends.
    """

    def __init__(self, message: str, finish: str) -> None:
        super().__init__(message)
        self.finish = finish


class RemotePrefill:
    """See `serve.phases.Prefiller`.

    Args:
        server: that computes the prompts.

    Raises:
        BadInput: its URL is none.
    """

    def __init__(self, server: PrefillServer) -> None:
        server.connection()
        self._server = server
        self._changed = threading.Condition()  # of what follows
        self._calls: dict[str, Call] = {}
        self._paused = False
        self._reading = False
        self._n_prompt = self._n_cached = self._n_first = 0  # tokens
        self._closed = threading.Event()
        self._reachable = True

    def watch(self) -> None:
        """Ask the other server for its health now and every few seconds; see `stats`."""
        self._check_health()
        threading.Thread(target=self._keep_watching, name="prefill health", daemon=True).start()

    def _keep_watching(self) -> None:
        while not self._closed.wait(WATCH_SECONDS):
            self._check_health()

    def _check_health(self) -> None:
        """Ask for the health of the other server; log when it changes."""
        reason = ""
        with contextlib.closing(self._server.connection()) as connection:
            try:
                connection.request("GET", HEALTH_PATH)
                status = connection.getresponse().status
                if status != http.client.OK:
                    reason = f"HTTP {status}"
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or repr(error)
        if reason and self._reachable:
            logger.warning("no healthy prefill server at %s: %s", self._server.url, reason)
        elif not reason and not self._reachable:
            logger.info("the prefill server at %s is healthy again", self._server.url)
        self._reachable = not reason

    def prefill(self, generation: Generation, deliver: DeliverPrompt) -> None:
        """See `Prefiller`."""
        connection = self._server.connection()
        call = Call(generation=generation, deliver=deliver, connection=connection)
        with self._changed:
            self._calls[generation.id] = call
            self._n_prompt += len(generation.prompt)
        threading.Thread(target=self._run, args=(call,), name="prefill", daemon=True).start()

    def cancel(self, id: str) -> None:
        """See `Prefiller`."""
        with self._changed:
            call = self._calls.get(id)
            if call is None:
                return
            call.cancelled = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            if call.connection.sock is not None:
                call.connection.sock.shutdown(socket.SHUT_RDWR)

    def pause(self, paused: bool) -> None:
        """See `Prefiller`."""
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def stats(self) -> EngineStats:
        """See `Prefiller`; the other server counts its own blocks and passes.

        It is reachable unless the last question of `watch` was not answered.
        """
        return EngineStats(
            waiting=len(self._calls),
            running=0,
            blocks_used=0,
            blocks=0,
            prompt_tokens=self._n_prompt,
            cached_tokens=self._n_cached,
            generated_tokens=self._n_first,
            preemptions=0,
            passes=0,
            finished=0,
            healthy=True,
            reachable=self._reachable,
        )

    def close(self) -> None:
        """See `Prefiller`."""
        self._closed.set()
        for id in list(self._calls):
            self.cancel(id)
        with self._changed:
            self._changed.wait_for(lambda: not self._calls, timeout=2 * CONNECT_SECONDS)

    def _run(self, call: Call) -> None:
        """Make a call, and deliver its result."""
        with contextlib.closing(call.connection), contextlib.ExitStack() as turn:
            blocks = None
            try:
                response = self._ask(call)
                turn.enter_context(self._turn(call))
                first, blocks = read_answer(response.readinto)
            except (
                OSError,
                EOFError,
                ValueError,
                http.client.HTTPException,
                RefusedError,
            ) as error:
                first = Token(-1, finish=self._finish(call, error))
            with self._changed:
                del self._calls[call.generation.id]
                self._n_cached += first.cached
                self._n_first += first.id >= 0
            call.deliver(first, blocks)

    def _ask(self, call: Call) -> http.client.HTTPResponse:
        """Send a call, and receive the head of its answer.

        Raises:
            RefusedError: the answer is an error.
            OSError, HTTPException: there is none.
        """
        body = request_of(call.generation, self._server.model)
        headers = {"content-type": "application/json"}
        if self._server.key:
            headers["authorization"] = f"Bearer {self._server.key}"
        connection = call.connection
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.sock.settimeout(SILENT_SECONDS)
        if call.cancelled:
            raise OSError("cancelled")
        connection.request("POST", PATH, body, headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            finish = UNREACHABLE if response.status in BUSY else FAILED
            said = response.read(LONGEST_MESSAGE).decode(errors="replace")
            raise RefusedError(f"HTTP {response.status}: {said}", finish)
        return response

    @contextlib.contextmanager
    def _turn(self, call: Call) -> Iterator[None]:
        """The time in which a call alone reads its answer.

        Raises:
            OSError: the call is cancelled.
        """
        with self._changed:
            self._changed.wait_for(lambda: call.cancelled or not (self._paused or self._reading))
            if call.cancelled:
                raise OSError("cancelled")
            self._reading = True
        try:
            yield
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def _finish(self, call: Call, error: Exception) -> str:
        """How a request ends whose call has failed."""
        if call.cancelled:
            return CANCELLED
        logger.error("the prefill server at %s: %s", self._server.url, str(error) or repr(error))
        if isinstance(error, RefusedError):
            return error.finish
        return UNREACHABLE
