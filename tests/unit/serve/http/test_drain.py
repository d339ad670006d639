"""The end of a server: what runs is finished, and then cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from openai import APIError, OpenAI

from shardwise.serve.http.options import ServerOptions
from tests.unit.serve.http.serving import MODEL, serving

# Serves until SIGTERM, prints its port first and a word at the end.
PROGRAM = """
from shardwise.serve.http.options import ServerOptions
from shardwise.serve.http.run import serve
from tests.unit.serve.http.serving import Replies, texts
from tests.unit.serve.http.fake_engine import FakeEngine
engine = FakeEngine(Replies(), 300)
engine.step_seconds = 0.25
started = lambda host, port: print(port, flush=True)
serve(engine, texts(), ServerOptions(port=0), started=started)
engine.close()
print("ended", flush=True)
"""


def test_what_runs_is_finished_and_nothing_else_begins() -> None:
    options = ServerOptions(port=0, drain_seconds=20)
    with serving(options) as served, httpx.Client(base_url=served.url, timeout=20) as client:
        served.engine.step_seconds = 0.1
        body = {"prompt": "x", "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            served.server.end()
            while client.get("/health").status_code == 200:
                time.sleep(0.005)
            refused = client.post("/v1/completions", json={"prompt": "x"})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            assert "retry-after" in refused.headers
            text = response.read()
        assert b" world" in text
        assert text.endswith(b"[DONE]\n\n")


def test_what_takes_too_long_is_cancelled() -> None:
    options = ServerOptions(port=0, drain_seconds=0.2)
    with (
        serving(options) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0, timeout=20) as client,
    ):
        served.engine.step_seconds = 0.01
        served.replies.endless = True
        stream = client.completions.create(model=MODEL, prompt="x", max_tokens=4000, stream=True)
        next(stream)
        served.server.end()
        began = time.monotonic()
        with pytest.raises(APIError, match="shutting down"):
            for _ in stream:
                pass
        assert time.monotonic() - began < 5
        assert served.engine.cancelled == 1


def test_sigterm_ends_the_program_well(root: Path) -> None:
    path = os.pathsep.join([str(root / "src"), str(root)])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=root,
    ) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        body = {"prompt": "x", "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as response:
            process.send_signal(signal.SIGTERM)
            assert b" world" in response.read()
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "ended\n"), errors
