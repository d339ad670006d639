"""Clients that go away, and clients that read slowly."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest

from shardwise.serve.http import body, run
from shardwise.serve.http.options import ServerOptions
from tests.unit.serve.http.serving import Served, serving

COMPLETIONS = "/v1/completions"


def request(asked: object) -> bytes:
    """The bytes of a request."""
    content = json.dumps(asked).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def connect(served: Served, asked: object, cut: int = 0) -> socket.socket:
    """A connection on which a request was sent, but for its last bytes."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    content = request(asked)
    connection.sendall(content[: len(content) - cut])
    return connection


def wait_until(condition: object, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if callable(condition) and condition():
            return True
        time.sleep(0.005)
    return False


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_cancels(served: Served, stream: bool) -> None:
    served.replies.endless = True
    served.engine.step_seconds = 0.01
    cancelled = served.engine.cancelled
    asked = {"prompt": "x", "n": 3, "max_tokens": 4000, "stream": stream}
    with connect(served, asked) as connection:
        if stream:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert wait_until(lambda: served.engine.running == 3)
        began = time.monotonic()
    assert served.engine.idle()
    assert time.monotonic() - began < 1.0
    assert served.engine.cancelled == cancelled + 3


def test_a_client_that_goes_away_before_its_body_is_complete(served: Served) -> None:
    seen = len(served.engine.seen)
    with connect(served, {"prompt": "x"}) as connection:
        connection.sendall(request({"prompt": "y" * 10_000})[:-5])
    with httpx.Client(base_url=served.url) as client:
        assert client.get("/health").status_code == 200
    assert wait_until(lambda: len(served.engine.seen) <= seen + 1)


def test_a_client_that_reads_nothing_holds_up_nobody(served: Served, http: httpx.Client) -> None:
    served.replies.endless = True
    logprobs = {"max_tokens": 3000, "logprobs": 20, "stream": True}  # more than sockets buffer
    seen = len(served.engine.seen)
    with connect(served, {"prompt": "x", **logprobs}) as connection:
        assert wait_until(lambda: len(served.engine.seen) > seen)
        began = time.monotonic()
        answer = http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 20})
        assert answer.status_code == 200
        assert time.monotonic() - began < 5.0
        # The engine finishes for it all the same, and what it wrote waits.
        assert served.engine.idle(20)
        time.sleep(0.2)
        received = b""
        while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            received += connection.recv(1_000_000)
        assert received.count(b"data: ") == 3000 + 1


def test_requests_share_a_connection(served: Served, http: httpx.Client) -> None:
    for _ in range(3):
        assert http.post(COMPLETIONS, json={"prompt": "x"}).status_code == 200
    with http.stream("POST", COMPLETIONS, json={"prompt": "x", "stream": True}) as response:
        assert response.read().endswith(b"[DONE]\n\n")


def test_a_client_that_reads_nothing_does_not_keep_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "GOODBYE_SECONDS", 0.2)
    asked = {"prompt": "x", "n": 3, "max_tokens": 4000, "logprobs": 20, "stream": True}
    with serving(ServerOptions(port=0, drain_seconds=0.2)) as served:
        served.replies.endless = True
        with connect(served, asked):
            assert wait_until(lambda: served.engine.generated >= 12_000, 20)
            time.sleep(0.2)
            assert served.server.app.sessions.busy  # the answer waits for the reader
            served.server.end()
            served.thread.join(10)
            assert not served.thread.is_alive()
    assert "Traceback" not in caplog.text


def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.1)
    with connect(served, {"prompt": "x"}, cut=5) as connection:
        answer = b""
        while received := connection.recv(10_000):
            answer += received
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_too_slow" in answer
