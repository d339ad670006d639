"""What the server shows besides answers: metrics, its document, and the chat page."""

from __future__ import annotations

import re

import httpx

from shardwise.serve.http.openapi import openapi
from shardwise.serve.http.prefill import PrefillRequest
from tests.unit.serve.http.serving import Served


def metric(http: httpx.Client, name: str) -> float:
    """The value of a metric, given by the beginning of its line."""
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(name)]
    assert len(lines) <= 1, lines
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


def test_metrics_count(http: httpx.Client, served: Served) -> None:
    model = '{model_name="tiny"}'
    names = [
        'shardwise:http_requests_total{handler="/v1/completions",method="POST",status="200"}',
        'shardwise:http_requests_total{handler="/v1/completions",method="POST",status="400"}',
        'shardwise:request_success_total{finished_reason="stop"}',
        f"shardwise:time_to_first_token_seconds_count{model}",
        f"shardwise:time_per_output_token_seconds_count{model}",
        f"shardwise:generation_tokens_total{model}",
    ]
    before = [metric(http, name) for name in names]
    assert http.post("/v1/completions", json={"prompt": "a", "n": 2}).status_code == 200
    assert http.post("/v1/completions", json={"prompt": 1}).status_code == 400
    after = [metric(http, name) for name in names]
    growth = [last - first for first, last in zip(before, after, strict=True)]
    assert growth[:5] == [1, 1, 2, 1, 2]
    assert growth[5] >= 4
    assert metric(http, "shardwise:num_requests_running") == 0
    assert metric(http, "shardwise:kv_cache_blocks{") == 32


def test_a_metric_of_the_engine_is_read_when_asked_for(http: httpx.Client, served: Served) -> None:
    served.engine.step_seconds = 0.2
    with http.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}):
        text = httpx.get(f"{served.url}/metrics").text
        assert 'shardwise:num_requests_running{model_name="tiny"} 1.0' in text


def test_the_chat_page_asks_nobody_else(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.findall(r"https?://|\bsrc=|@import|url\(", page.text)
    assert 'lang="en"' in page.text
    assert "prefers-color-scheme: dark" in page.text


def test_the_document(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    references = set(re.findall(r'"#/components/schemas/(\w+)"', http.get("/openapi.json").text))
    assert references <= set(document["components"]["schemas"])
    assert "security" not in document


def test_heads(http: httpx.Client) -> None:
    assert http.head("/health").status_code == 200
    assert http.head("/health").content == b""


def test_servers_of_prompts_have_their_route_in_the_document() -> None:
    paths = openapi("1", keys=False, prefill=PrefillRequest)["paths"]
    assert "application/octet-stream" in paths["/v1/prefill"]["post"]["responses"]["200"]["content"]
    assert "/v1/prefill" not in openapi("1", keys=False)["paths"]
