"""A bare HTTP client for `bench/soak.py`: what is sent, and when it goes away, is the caller's."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"
PATIENCE_S = 120  # for an answer: the server is never silent for so long
SMALL_BUFFER = 4096  # bytes that the system keeps for a slow reader
STREAM_LIMIT = 1 << 22

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Args:
        status: HTTP status; 0 if the server closed the connection without one.
        body: its body, without the lengths of chunks.
        complete: whether its end came.
    """

    status: int
    body: bytes = b""
    complete: bool = False

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The documents of a stream's events, without the last one, [DONE]."""
        lines = [line for line in self.body.split(b"\n\n") if line]
        return [json.loads(line.removeprefix(b"data: ")) for line in lines if b"[DONE]" not in line]


def message(
    path: str,
    content: bytes,
    *,
    method: str = "POST",
    kind: str = "application/json",
    length: str = "",
) -> bytes:
    """The bytes of a request; `length` replaces the true length of its content."""
    head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: {kind}\r\n"
    head += f"content-length: {length or len(content)}\r\n\r\n"
    return head.encode("latin-1") + content


@asynccontextmanager
async def connected(port: int, buffer: int = 0) -> AsyncIterator[Streams]:
    """A connection, which is closed at the end."""
    sock = socket.socket()
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=buffer or STREAM_LIMIT)
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer; status 0 if the connection ends instead."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, {}
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(first.split()[1]), headers


async def read_answer(reader: asyncio.StreamReader, pause_s: float = 0.0) -> Answer:
    """An answer to its end, with a pause after each part."""
    status, headers = await read_head(reader)
    if not status:
        return Answer(0)
    body = b""
    try:
        if headers.get("connection") == "close" and "content-length" not in headers:
            return Answer(status, await reader.read(), complete=True)
        if headers.get("transfer-encoding") != "chunked":
            body = await reader.readexactly(int(headers["content-length"]))
            return Answer(status, body, complete=True)
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
            if pause_s:
                await asyncio.sleep(pause_s)
        await reader.readuntil(b"\r\n")
        return Answer(status, body, complete=True)
    except (asyncio.IncompleteReadError, ConnectionError):
        return Answer(status, body)


async def exchange(
    port: int, sent: bytes, *, buffer: int = 0, pause_s: float = 0.0, half_close: bool = False
) -> Answer:
    """Send bytes on a new connection, and read the answer.

    Args:
        buffer: bytes that the system may keep of the answer; 0 for its default.
        pause_s: pause after each part of the answer.
        half_close: say that nothing more will be sent.
    """
    async with connected(port, buffer) as (reader, writer):
        try:
            writer.write(sent)
            await writer.drain()
            if half_close:
                writer.write_eof()
        except OSError:  # the server has closed; its answer may be there
            pass
        return await read_answer(reader, pause_s)


async def get(port: int, path: str) -> Answer:
    """The answer to a GET."""
    return await exchange(port, message(path, b"", method="GET"))
