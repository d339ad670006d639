"""A prefill server and a decode server, each a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.serve.model_files.tiny import write_folder

pytestmark = pytest.mark.oracle

SIZES = ("--context", "96", "--sequences", "2", "--chunk", "16", "--json")
BODY = {
    "prompt": "The quick brown fox jumps over the lazy dog. 12345 words",
    "max_tokens": 16,
    "temperature": 0,
    "ignore_eos": True,
    "logprobs": 1,
}


@contextmanager
def server(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of a model and its address, killed at the end."""
    command = [sys.executable, "-m", "shardwise", "serve", str(folder), *SIZES, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            text = ""
            while not text.endswith("}\n"):
                line = process.stdout.readline()
                assert line, "the server has ended"
                text += line
            yield process, json.loads(text)["url"]
        finally:
            process.kill()


def complete(url: str) -> httpx.Response:
    return httpx.post(f"{url}/completions", json=BODY, timeout=60)


def logprobs(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["logprobs"]["token_logprobs"]


def becomes(status: int, url: httpx.URL) -> bool:
    """Whether the answer has this status within ten seconds."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        if httpx.get(url).status_code == status:
            return True
        time.sleep(0.2)
    return False


def test_a_prefill_server_is_killed_and_returns(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny")
    with server(folder, "--port", "0", "--prefill") as (process, url):
        port = httpx.URL(url).port
        address = f"http://127.0.0.1:{port}"
        with server(folder, "--port", "0", "--prefill-from", address) as (_, decode_url):
            apart = logprobs(complete(decode_url))
            assert apart == pytest.approx(logprobs(complete(url)), abs=1e-4)
            process.kill()
            process.wait(20)
            refused = complete(decode_url)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "prefill_unreachable"
            assert becomes(503, httpx.URL(decode_url).join("/health"))
            with server(folder, "--port", str(port), "--prefill"):
                assert logprobs(complete(decode_url)) == pytest.approx(apart, abs=1e-4)
                assert becomes(200, httpx.URL(decode_url).join("/health"))
