"""Requests of `bench/soak.py` that cannot be served: bodies, sizes, and bytes that are no HTTP."""

from __future__ import annotations

import json
from typing import Any

from soak_client import HOST, message

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LARGEST_BODY = 10_000_000  # bytes that the server takes
HI = [{"role": "user", "content": "hi"}]


def _completion(**fields: Any) -> bytes:
    return message(COMPLETIONS, json.dumps({"prompt": "a", **fields}).encode())


def _chat(**fields: Any) -> bytes:
    return message(CHAT, json.dumps({"messages": HI, **fields}).encode())


def _raw(body: bytes) -> bytes:
    return message(COMPLETIONS, body)


# Name -> bytes; each is answered with 4xx and a message.
REFUSED: dict[str, bytes] = {
    "empty": _raw(b""),
    "cut JSON": _raw(b'{"prompt": "a"'),
    "two documents": _raw(b'{"prompt": "a"}{}'),
    "trailing comma": _raw(b'{"prompt": "a",}'),
    "invalid UTF-8": _raw(b'{"prompt": "\xff\xfe"}'),
    "overlong UTF-8": _raw(b'{"prompt": "\xc0\xaf"}'),
    "lone surrogate": _raw(b'{"prompt": "\\ud800"}'),
    "UTF-16": _raw('{"prompt": "a"}'.encode("utf-16")),
    "zero byte": _raw(b'{"prompt": "a\x00"}'),
    "NaN": _raw(b'{"prompt": "a", "temperature": NaN}'),
    "infinity": _raw(b'{"prompt": "a", "temperature": 1e999}'),
    "huge integer": _raw(b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}"),
    "deep lists": _raw(b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep objects": _raw(b'{"x": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"),
    "deep schema": _completion(response_format={"type": "json_schema"}),
    "list for an object": _raw(b"[]"),
    "text for an object": _raw(b'"a"'),
    "number for a prompt": _raw(b'{"prompt": 1}'),
    "null prompt": _raw(b'{"prompt": null}'),
    "empty prompt": _completion(prompt=""),
    "empty list": _completion(prompt=[]),
    "unknown token": _completion(prompt=[10**6]),
    "negative token": _completion(prompt=[-1]),
    "token 2**70": _completion(prompt=[2**70]),
    "mixed prompts": _completion(prompt=["a", 1]),
    "too long": _completion(prompt=[5] * 5000),
    "too long an output": _completion(max_tokens=10**9),
    "no output": _completion(max_tokens=0),
    "negative output": _completion(max_tokens=-1),
    "temperature": _completion(temperature=-1),
    "temperature as text": _completion(temperature="hot"),
    "top_p": _completion(top_p=2),
    "top_k": _completion(top_k=-2),
    "n": _completion(n=10_000),
    "seed 2**70": _completion(seed=2**70),
    "1,000 stop strings": _completion(stop=["x"] * 1000),
    "empty stop string": _completion(stop=""),
    "logit_bias of no token": _completion(logit_bias={"a": 1}),
    "logit_bias out of range": _completion(logit_bias={"5": 1000}),
    "logit_bias of an unknown token": _completion(logit_bias={"99999": 1}),
    "logprobs": _completion(logprobs=1000),
    "best_of": _completion(best_of=3),
    "suffix": _completion(suffix="end"),
    "other model": _completion(model="gpt-4"),
    "regex": _completion(guided_regex="(((["),
    "looking back": _completion(guided_regex=r"(a)\1(?<=b)"),
    "schema": _completion(guided_json={"type": "nothing"}),
    "schema of nothing": _completion(guided_json={"enum": []}),
    "two structures": _completion(guided_regex="a", guided_json={}),
    "no messages": _chat(messages=[]),
    "no role": _chat(messages=[{"content": "a"}]),
    "message as text": _chat(messages="hi"),
    "tool_choice": _chat(tool_choice="sometimes"),
    "tool_choice without tools": _chat(tool_choice="required"),
    "tool": _chat(tools=[{"type": "function", "function": {"name": "a b"}}]),
    "image": _chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
    "text/plain": message(COMPLETIONS, b"{}", kind="text/plain"),
    "unknown path": message("/v1/../../etc/passwd", b"", method="GET"),
    "wrong method": message(COMPLETIONS, b"", method="PUT"),
    "declared too large": message(COMPLETIONS, b"{", length=str(LARGEST_BODY + 1)),
}
TOO_LARGE = _raw(b'{"prompt": "' + b"a" * LARGEST_BODY + b'"}')

# Name -> bytes that are no HTTP request: 4xx, or the connection is closed.
BROKEN: dict[str, bytes] = {
    "garbage": b"\x00\x01\x02\xff\xfe garbage\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "length of letters": message(COMPLETIONS, b"{}", length="two"),
    "negative length": message(COMPLETIONS, b"{}", length="-2"),
    "two lengths": message(COMPLETIONS, b"{}", length="2\r\ncontent-length: 3"),
    "header of 1 MB": f"GET /health HTTP/1.1\r\nhost: {HOST}\r\nx: {'a' * 10**6}\r\n\r\n".encode(),
    "no end of header": b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
    "chunk of letters": (
        f"POST {COMPLETIONS} HTTP/1.1\r\nhost: {HOST}\r\ntransfer-encoding: chunked\r\n"
        "content-type: application/json\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
    ).encode(),
    "cut header": b"POST /v1/completions HTTP/1.1\r\ncontent-le",
    "cut body": message(COMPLETIONS, b'{"prompt": "a"}', length="500"),
    "nothing": b"",
}
