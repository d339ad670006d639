"""The server's life: it listens, serves, and on SIGTERM finishes what runs before it ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from shardwise.errors import BadInput
from shardwise.serve.http.app import App
from shardwise.serve.http.connection import Connection
from shardwise.serve.http.options import ServerOptions
from shardwise.serve.request import Engine
from shardwise.serve.text.structure import Grammar
from shardwise.serve.text.texts import Texts

if TYPE_CHECKING:
    from shardwise.serve.phases import PrefillEngine

logger = logging.getLogger("shardwise.serve")

GOODBYE_SECONDS = 2  # for answers to be written after the last token
TICK_SECONDS = 0.02
KEEP_ALIVE_SECONDS = 75  # longer than proxies keep idle connections, so that they close them

Started = Callable[[str, int], None]


class Server(uvicorn.Server):
    """A server that drains before it ends.

    Args:
        app: the application.
        options: of the server.
        started: called with host and port when requests are taken.
    """

    def __init__(self, app: App, options: ServerOptions, started: Started) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GOODBYE_SECONDS,
        )
        super().__init__(config)
        self.app = app
        self._options = options
        self._on_start = started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to end.

        Raises:
            BadInput: the address cannot be listened on.
        """
        super().run(sockets or [_listen(self._options)])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        self._on_start(host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; connections whose clients do not read are cut."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(TICK_SECONDS)  # for the transports to close

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: the first one drains, the second one ends at once."""
        self.end()

    def end(self) -> None:
        """Drain and end; at once if draining already. May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._draining is not None:
            self.app.sessions.cancel_all()
            self.should_exit = True
        else:
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Finish what runs, within the time for it; what then still runs is cancelled."""
        logger.info("draining: up to %g s for what runs", self._options.drain_seconds)
        self.app.sessions.drain()
        await self._idle(self._options.drain_seconds)
        self.app.sessions.cancel_all()
        await self._idle(GOODBYE_SECONDS)
        self.should_exit = True

    async def _idle(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.app.sessions.busy and loop.time() < deadline:
            await asyncio.sleep(TICK_SECONDS)


def serve(
    engine: Engine,
    texts: Texts,
    options: ServerOptions,
    *,
    grammar: Grammar | None = None,
    started: Started = lambda host, port: None,
    version: str = "",
    prefill: PrefillEngine | None = None,
) -> None:
    """Serve a model over HTTP until SIGTERM or SIGINT; the caller closes the engine.

    Args:
        engine: that generates.
        texts: of the model.
        options: of the server.
        grammar: makes masks of structured outputs; None if none can be made.
        started: called with host and port when requests are taken.
        version: of this package, for the OpenAPI document.
        prefill: the engine, if it computes prompts for other servers.

    Raises:
        BadInput: the address cannot be listened on.
    """
    app = App(engine, texts, options, grammar=grammar, version=version, prefill=prefill)
    Server(app, options, started).run()


def ensure_listens(options: ServerOptions) -> None:
    """Listen for a moment, before minutes of compiling.

    Raises:
        BadInput: the address cannot be listened on.
    """
    _listen(options).close()


def _listen(options: ServerOptions) -> socket.socket:
    family = socket.AF_INET
    if ":" in options.host:
        family = socket.AF_INET6
    try:
        listening = socket.create_server((options.host, options.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        place = f"the server cannot listen on {options.host} port {options.port}"
        why = getattr(error, "strerror", None) or error
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise BadInput(
                f"{place}: another program does. Port 0 takes any that is free."
            ) from None
        raise BadInput(
            f"{place}: {why}. 127.0.0.1 is this machine, 0.0.0.0 every network."
        ) from None
    # For its connections, which inherit it: asyncio does not set it on sockets without a protocol
    # number, and the body of an answer would wait 40 ms for the client to acknowledge its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
