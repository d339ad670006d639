"""Bodies of all kinds: none makes the server fail, and none leaves a generation behind."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.serve.http.serving import MODEL, Served

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
TEXT = st.text(max_size=12)
SMALL = st.integers(-2, 40)
TOKENS = st.lists(st.integers(-1, 320), max_size=6)
FORMATS = st.sampled_from(["text", "json_object", "json_schema"]).map(lambda kind: {"type": kind})

# Values that are likely, and values that are anything, of the fields of both kinds.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just(MODEL) | TEXT,
    "n": st.integers(0, 4),
    "max_tokens": SMALL,
    "stop": TEXT | st.lists(TEXT, max_size=3),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "temperature": st.floats(-1, 3),
    "top_p": st.floats(-1, 2),
    "top_k": SMALL,
    "min_p": st.floats(-1, 2),
    "seed": st.integers(),
    "logit_bias": st.dictionaries(st.integers(-1, 320).map(str), st.floats(-101, 101), max_size=3),
    "presence_penalty": st.floats(-3, 3),
    "repetition_penalty": st.floats(-1, 3),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "response_format": FORMATS,
    "user": TEXT,
}
COMPLETION = {
    "prompt": TEXT | st.lists(TEXT, max_size=3) | TOKENS | st.lists(TOKENS, max_size=3),
    "echo": st.booleans(),
    "logprobs": SMALL,
}
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool"])},
    optional={"content": TEXT | st.none() | JSON, "tool_calls": JSON},
)
CHAT = {
    "messages": st.lists(MESSAGE, max_size=3),
    "logprobs": st.booleans(),
    "top_logprobs": SMALL,
    "tools": JSON,
    "tool_choice": st.sampled_from(["none", "auto", "required"]) | JSON,
}


def bodies(required: str, fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Bodies most of which are nearly right."""
    known = {**FIELDS, **fields}
    main = known.pop(required)
    optional = {name: st.one_of(values, values, values, JSON) for name, values in known.items()}
    return st.fixed_dictionaries({required: main}, optional=optional)


def no_mistake(response: httpx.Response) -> None:
    if response.status_code == 200:
        assert response.content
        return
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", bodies("prompt", COMPLETION)),
        ("/v1/chat/completions", bodies("messages", CHAT)),
    ],
)
def test_no_body_makes_the_server_fail(
    http: httpx.Client, served: Served, path: str, body: st.SearchStrategy[Any]
) -> None:
    @settings(max_examples=60)
    @given(body)
    def check(value: Any) -> None:
        content = json.dumps(value).encode()
        no_mistake(http.post(path, content=content, headers={"content-type": "application/json"}))

    check()
    assert served.engine.idle()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_bytes_make_the_server_fail(http: httpx.Client, path: str) -> None:
    @given(st.binary(max_size=40) | JSON.map(json.dumps).map(str.encode))
    def check(content: bytes) -> None:
        no_mistake(http.post(path, content=content, headers={"content-type": "application/json"}))

    check()
