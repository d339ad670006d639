"""The server of the page: it listens on this machine, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable

import uvicorn

from shardwise.errors import BadInput
from shardwise.ui.app import App

HOST = "127.0.0.1"
GOODBYE_SECONDS = 1
COLLECT_AFTER = 50_000  # new objects


class _Server(uvicorn.Server):
    def __init__(self, app: App, started: Callable[[str], None]) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GOODBYE_SECONDS,
        )
        super().__init__(config)
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        self._on_start(f"http://{host}:{port}/")


def serve(app: App, port: int, started: Callable[[str], None]) -> None:
    """Serve the page on the loopback address.

    Args:
        port: 0 for any that is free.
        started: called with the address of the page when it can be opened.

    Raises:
        BadInput: the port is taken.
    """
    try:
        listening = socket.create_server((HOST, port), backlog=128)
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"the page cannot be served on {HOST} port {port}: {error}. --port 0 takes any that "
            "is free."
        ) from None
    # A full collection while a slider moves would take longer than the answer.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _Server(app, started).run([listening])
