"""Connections to a server, each of which has one request at a time.

A pool of httpx searches all its connections at every request, so that a request costs 10 ms of CPU
time when 64 are open; here it costs the same however many there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import httpx

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 600.0  # without a byte, as in OpenAI's own client
KEEPALIVE_S = (
    2.0  # an idle connection is reused for so long; servers close theirs after 5 s or more
)


class Connections:
    """Connections to the server at `url`, opened as they are needed.

    Args:
        headers: of each request.

    Raises:
        httpx.InvalidURL: it is no URL.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url
        self.headers = dict(headers)
        self._ssl = httpx.create_ssl_context(verify=httpx.URL(url).scheme == "https")
        self._idle: list[httpx.AsyncHTTPTransport] = []

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes = b"", read_timeout_s: float = READ_TIMEOUT_S
    ) -> AsyncIterator[httpx.Response]:
        """Send a request on an idle connection, or a new one, and receive the head of its answer.

        Raises:
            httpx.HTTPError: no connection, or it is lost or silent.
        """
        timeout = httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S)
        request = httpx.Request(
            method,
            self.url + path,
            headers=self.headers,
            content=body,
            extensions={"timeout": timeout.as_dict()},
        )
        connection = self._idle.pop() if self._idle else self._new()
        try:
            response = await connection.handle_async_request(request)
            try:
                yield response
            finally:
                await response.aclose()
        finally:
            self._idle.append(connection)

    def _new(self) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(
            max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEPALIVE_S
        )
        return httpx.AsyncHTTPTransport(verify=self._ssl, limits=limits)

    async def close(self) -> None:
        """Close all connections, none of which has a request any more."""
        for connection in self._idle:
            await connection.aclose()
