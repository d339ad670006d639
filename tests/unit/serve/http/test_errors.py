"""What clients get for requests that cannot be served."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shardwise.errors import BadFile, BadInput
from shardwise.serve.http.options import ServerOptions, read_api_keys
from shardwise.serve.http.run import serve
from tests.unit.serve.http.serving import Served, serving, texts

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
LONGEST = 5000


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(
        ServerOptions(port=0, max_body=LONGEST, most_waiting=8), max_context=1000
    ) as running:
        yield running


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, which has the shape of OpenAI's."""
    assert response.status_code == status, response.text
    document = response.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    found: dict[str, Any] = document["error"]
    return found


BAD: list[tuple[Any, str | None, str]] = [
    ({}, "prompt", "missing required field prompt"),
    ([], None, "expected object, got array"),
    ({"prompt": 1}, "prompt", "expected string or array, got integer. It is 1."),
    ({"prompt": ""}, "prompt", "length >= 1"),
    ({"prompt": []}, "prompt", "length >= 1"),
    ({"prompt": [1, "a"]}, "prompt", "mixes tokens with prompts"),
    ({"prompt": [[]]}, "prompt", "the prompt is empty"),
    ({"prompt": [99999]}, "prompt", "the model has the tokens 0 to 289, and not 99999"),
    ({"prompt": [-1]}, "prompt[0]", "integer >= 0"),
    ({"prompt": "a", "temperature": 3}, "temperature", "number <= 2.0. It is 3."),
    ({"prompt": "a", "temperature": "1"}, "temperature", "number or null, got string"),
    ({"prompt": "a", "n": 0}, "n", "integer >= 1. It is 0."),
    ({"prompt": "a", "n": 9}, "n", "9 choices each are 9 outputs; this server takes up to 8"),
    ({"prompt": "a", "top_p": 0}, "top_p", "number > 0"),
    (
        {"prompt": "a", "max_tokens": 5000},
        "max_tokens",
        "max_tokens can be up to 999, and is 5000",
    ),
    ({"prompt": [5] * 1000}, "prompt", "context is 1000 tokens, and the prompt has 1000"),
    ({"prompt": "a", "logprobs": 21}, "logprobs", "<= 20"),
    ({"prompt": "a", "stop": ["a"] * 17}, "stop", "<= 16"),
    ({"prompt": "a", "stop": ""}, "stop", "length >= 1"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "regex"),
    ({"prompt": "a", "logit_bias": {"999": 1}}, "logit_bias", "0 to 289, and not 999"),
    ({"prompt": "a", "logit_bias": {"7": 200}}, "logit_bias", '<= 100.0. It is {"7":200}.'),
    ({"prompt": "a", "stop_token_ids": [999]}, "stop_token_ids", "0 to 289, and not 999"),
    ({"prompt": "a", "best_of": 2}, "best_of", "not served. Ask for n choices"),
    ({"prompt": "a", "grammar": "root ::= [0-9]+"}, "grammar", "not served. Use guided_regex"),
    ({"prompt": "a", "bad_words": ["b"]}, "bad_words", "not served. Use logit_bias"),
    ({"prompt": "a", "use_beam_search": True}, "use_beam_search", "not served. Ask for n"),
    ({"prompt": "a", "suffix": "z"}, "suffix", "only continues a prompt"),
    ({"prompt": "a", "min_tokens": 5}, "min_tokens", "ignore_eos"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens 0 needs echo"),
    ({"prompt": "a", "guided_choice": []}, "guided_choice", "length >= 1"),
    ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format.type", "'xml'"),
    ({"prompt": "a", "response_format": {"type": "json_object"}}, "response_format", "llguidance"),
    ({"prompt": "a", "guided_regex": "a+"}, "guided_regex", "llguidance"),
    ({"prompt": "a", "guided_json": "{"}, "guided_json", "the schema is no JSON"),
    (
        {"prompt": "a", "structured_outputs": {"regex": "a+"}},
        "structured_outputs.regex",
        "llguidance",
    ),
]


@pytest.mark.parametrize(("body", "param", "message"), BAD)
def test_bad_bodies(http: httpx.Client, body: Any, param: str | None, message: str) -> None:
    found = error(http.post(COMPLETIONS, json=body), 400)
    assert message in found["message"]
    assert found["param"] == param
    assert found["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b'{"prompt": "\\ud800"}', "no JSON"),
        (b'{"prompt": "\xff"}', "no JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "no JSON"),
        (b'{"prompt": "a", "n": ' + b"9" * 4900 + b"}", "n: "),
        (b'{"x": ' + b"[" * 2400 + b"]" * 2400 + b"}", "nested too deeply"),
    ],
)
def test_what_is_no_json(http: httpx.Client, body: bytes, message: str) -> None:
    response = http.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert message in error(response, 400)["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "length >= 1"),
        ({"messages": [{"content": "a"}]}, "missing required field role"),
        ({"messages": [*HI, {"role": "user"}]}, "messages[1] has no content"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0] has no content"),
        ({"messages": HI, "functions": []}, "Use tools"),
        ({"messages": HI, "tools": [{"type": "function", "function": {"name": "a b"}}]}, "regex"),
        ({"messages": HI, "audio": {}}, "writes text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages[0].content[0].type: invalid value 'image_url'. The model reads texts",
        ),
    ],
)
def test_bad_conversations(http: httpx.Client, body: Any, message: str) -> None:
    assert message in error(http.post(CHAT, json=body), 400)["message"]


def test_unknown_fields_are_ignored(http: httpx.Client) -> None:
    body = {"prompt": "a", "store": True, "metadata": {"a": "b"}, "colour": "blue"}
    assert http.post(COMPLETIONS, json=body).status_code == 200


@pytest.mark.parametrize(
    ("field", "meant"),
    [("max_token", "max_tokens"), ("maxTokens", "max_tokens"), ("max_new_tokens", "max_tokens")],
)
def test_misspelled_fields_are_refused(http: httpx.Client, field: str, meant: str) -> None:
    problem = error(http.post(COMPLETIONS, json={"prompt": "a", field: 5}), 400)
    assert problem["param"] == field
    assert problem["message"] == f"{field} is not a field. Did you mean {meant}?"


def test_other_models_routes_and_methods(http: httpx.Client) -> None:
    body = {"prompt": "a", "model": "other"}
    assert error(http.post(COMPLETIONS, json=body), 404)["code"] == "model_not_found"
    assert error(http.get("/v1/other"), 404)["code"] == "unknown_url"
    response = http.get(COMPLETIONS)
    assert "takes POST" in error(response, 405)["message"]
    assert response.headers["allow"] == "POST"


def test_a_body_that_is_declared_as_something_else(http: httpx.Client) -> None:
    kind = {"content-type": "text/plain"}
    message = error(http.post(COMPLETIONS, content=b"{}", headers=kind), 415)["message"]
    assert "application/json" in message


def test_long_bodies(served: Served) -> None:
    body = json.dumps({"prompt": "a" * LONGEST}).encode()

    def chunks() -> Iterator[bytes]:
        yield body[:2000]
        yield body[2000:]

    for content in (body, chunks()):
        with httpx.Client(base_url=served.url) as client:
            kind = {"content-type": "application/json"}
            response = client.post(COMPLETIONS, content=content, headers=kind)
            assert "5,000 bytes" in error(response, 413)["message"]


def test_a_full_queue(http: httpx.Client, served: Served) -> None:
    served.engine.step_seconds = 0.2
    waiting = {"prompt": ["a"] * 8, "max_tokens": 1}
    first = threading.Thread(
        target=lambda: httpx.post(f"{served.url}{COMPLETIONS}", json=waiting, timeout=20)
    )
    first.start()
    while served.engine.running < 8:
        time.sleep(0.005)
    response = http.post(COMPLETIONS, json={"prompt": "a"})
    first.join()
    message = error(response, 429)["message"]
    assert "8 outputs wait, and the server queues up to 8" in message
    assert response.headers["retry-after"] == "1"
    assert http.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200


def test_an_unexpected_error_is_logged_with_an_id(
    http: httpx.Client,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def submit(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(served.engine, "submit", submit)
    message = error(http.post(COMPLETIONS, json={"prompt": "a"}), 500)["message"]
    assert "secret" not in message
    name = message.rpartition(" ")[2].rstrip(".")
    assert name in caplog.text
    assert "RuntimeError: secret" in caplog.text


def test_an_engine_that_has_failed(
    http: httpx.Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.engine, "healthy", False)
    for response in (http.get("/health"), http.post(COMPLETIONS, json={"prompt": "a"})):
        assert error(response, 503)["code"] == "unhealthy"
    assert http.get("/metrics").status_code == 200


def test_keys() -> None:
    options = ServerOptions(port=0, api_keys=frozenset({"one", "two"}))
    with serving(options) as served, httpx.Client(base_url=served.url) as client:
        for headers in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}):
            response = client.post(COMPLETIONS, json={"prompt": "a"}, headers=headers)
            assert error(response, 401)["code"] == "invalid_api_key"
        for key in ("one", "two"):
            headers = {"authorization": f"Bearer {key}"}
            response = client.post(
                COMPLETIONS, json={"prompt": "a", "user": "ann"}, headers=headers
            )
            assert response.status_code == 200
        first, second = served.engine.seen
        assert first.client.startswith("key ")
        assert first.client != second.client
        assert "one" not in first.client
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 401


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# of the team\none\n\n two \n")
    found = read_api_keys(path, {"SHARDWISE_API_KEYS": "three, four"})
    assert found == {"one", "two", "three", "four"}
    assert read_api_keys(None, {}) == frozenset()
    path.write_text("# none\n")
    with pytest.raises(BadFile, match="has no API key"):
        read_api_keys(path, {})
    with pytest.raises(BadFile, match="cannot be read"):
        read_api_keys(tmp_path / "other", {})


def test_an_address_that_is_taken(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ServerOptions(port=taken.getsockname()[1])
        with pytest.raises(BadInput, match="Port 0 takes any that is free"):
            serve(served.engine, texts(), options)
