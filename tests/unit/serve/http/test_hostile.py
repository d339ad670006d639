"""Clients that want to take more than their share: of memory, of connections, of patience."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack, suppress

import httpx
import pytest

from shardwise.serve.http import connection
from tests.unit.serve.http.serving import Served

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def connect(served: Served) -> socket.socket:
    host, _, port = served.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def open_connections(served: Served) -> int:
    return len(served.server.server_state.connections)


def test_invented_methods_are_counted_as_one(http: httpx.Client) -> None:
    for i in range(20):
        assert http.request(f"INVENTED{i}", "/health").status_code == 405
    lines = re.findall(r'http_requests_total\{handler="/health",method="(\w+)"', metrics(http))
    assert "other" in lines
    assert not [method for method in lines if method.startswith("INVENTED")]


def metrics(http: httpx.Client) -> str:
    return http.get("/metrics").text


@pytest.mark.parametrize(
    ("first", "head"), [(b"", b""), (b"", b"GET /health HTTP/1.1\r\n"), (HEALTH, b"GET ")]
)
def test_a_head_that_does_not_come(
    served: Served, monkeypatch: pytest.MonkeyPatch, first: bytes, head: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    with connect(served) as slow:
        if first:
            slow.sendall(first)
            while not slow.recv(10_000).endswith(b"}"):
                pass
        slow.sendall(head)
        assert slow.recv(10_000) == b""


def test_a_head_that_comes_slowly(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    with connect(served) as slow:
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < 5:
                slow.sendall(b"G")
                time.sleep(0.02)
        assert time.monotonic() - began < 5


def test_an_answer_may_take_longer_than_a_head(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.1)
    served.engine.step_seconds = 0.1
    body = {"prompt": "x", "max_tokens": 3}
    with httpx.Client(base_url=served.url) as client:
        for _ in range(2):
            assert client.post("/v1/completions", json=body).status_code == 200
            time.sleep(0.2)  # idle between two requests: the time for that is another


def test_idle_connections_hold_up_nobody(served: Served, http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200
    before = open_connections(served)
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(served))
        assert http.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        assert open_connections(served) == before + 200
    deadline = time.monotonic() + 5
    while open_connections(served) > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_head_of_a_megabyte(served: Served, http: httpx.Client) -> None:
    with connect(served) as long:
        long.sendall(HEALTH.replace(b"host", b"x: " + b"a" * 1_000_000 + b"\r\nhost")[:200_000])
        assert long.recv(1000).startswith(b"HTTP/1.1 400")
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"])
def test_paths_lead_to_no_files(served: Served, path: str) -> None:
    with connect(served) as client:
        client.sendall(HEALTH.replace(b"/health", path.encode()))
        answer = client.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"root:" not in answer


def test_pages_of_other_sites_get_no_leave(http: httpx.Client) -> None:
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    response = http.options("/v1/completions", headers=headers)
    assert response.status_code == 405
    assert not [name for name in response.headers if name.startswith("access-control")]
