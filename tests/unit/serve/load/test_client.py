"""A request and its answer: what is sent, what is counted, and errors that end nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shardwise.errors import BadInput
from shardwise.serve.load.client import Answer, Client, EventStream, Server
from shardwise.serve.load.reply import Reply
from tests.unit.serve.load.fake_server import FakeServer, serving


def send(server: FakeServer, output: int = 3, **options: object) -> Reply:
    async def reply() -> Reply:
        settings: dict[str, object] = {"url": server.url, "model": "fake", **options}
        async with Client(Server(**settings)) as client:  # type: ignore[arg-type]
            return await client.send("a b c d" if settings.get("chat") else [7, 8, 9], output)

    return asyncio.run(reply())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_put_together_from_pieces_of_any_size(size: int) -> None:
    stream = b'data: {"a": 1}\n\n: comment\n\nevent: x\r\ndata:{"b": 2}\r\n\r\ndata: [DONE]\n\n'
    events = EventStream()
    data = []
    for start in range(0, len(stream), size):
        data += events.feed(stream[start : start + size])
    assert data == [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]


def test_a_completion() -> None:
    with serving(FakeServer(token_s=0.02)) as server:
        reply = send(server)
    body = server.log[0]
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([7, 8, 9], 3, True)
    assert (body["stream"], body["model"]) == (True, "fake")
    assert (reply.error, reply.prompt_tokens, reply.output_tokens) == ("", 3, 3)
    assert len(reply.token_s) == 3
    assert reply.send_s < reply.token_s[0]
    assert reply.end_s == reply.token_s[-1]
    # Two gaps of 20 ms; a server that is late with one token is not early with the next two.
    assert reply.end_s - reply.send_s >= 0.04


def test_the_role_of_a_chat_is_no_token() -> None:
    with serving(FakeServer()) as server:
        reply = send(server, chat=True)
    assert server.log[0]["messages"] == [{"role": "user", "content": "a b c d"}]
    assert server.log[0]["path"] == "/v1/chat/completions"
    assert (len(reply.token_s), reply.output_tokens, reply.prompt_tokens) == (3, 3, 4)


@pytest.mark.parametrize(
    ("event", "tokens"),
    [
        ('{"choices": [{"text": "a"}]}', 1),
        ('{"choices": [{"text": ""}]}', 1),  # a part of a character
        ('{"choices": [{"text": "", "finish_reason": "length"}]}', 0),
        ('{"choices": [{"text": "a", "finish_reason": "length"}]}', 1),
        ('{"choices": [{"delta": {"role": "assistant", "content": ""}}]}', 0),
        ('{"choices": [{"delta": {"role": "assistant", "content": "a"}}]}', 1),
        ('{"choices": [{"delta": {"reasoning_content": "a"}}]}', 1),
        ('{"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}', 1),
        ('{"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": null}', 0),
        ('{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}', 0),
        ('{"choices": null}', 0),
        ("[DONE]", 0),
    ],
)
def test_events_with_a_token(event: str, tokens: int) -> None:
    answer = Answer(lambda: 1.0)
    answer.take(event.encode())
    assert len(answer.token_s) == tokens


@pytest.mark.parametrize("event", ["{", "[]", '{"choices": 3}', "\xff"])
def test_what_is_no_event_ends_the_answer(event: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        Answer(lambda: 1.0).take(event.encode())


@pytest.mark.parametrize(
    ("faults", "error", "message", "tokens"),
    [
        ({"fails": {0: 503}}, "HTTP 503", "overloaded", 0),
        ({"breaks_after": 2}, "stream", "the engine died", 2),
        ({"cut_after": 2}, "connection", "", 2),
    ],
)
def test_errors_are_part_of_the_reply(
    faults: dict[str, object], error: str, message: str, tokens: int
) -> None:
    with serving(FakeServer(**faults)) as server:  # type: ignore[arg-type]
        reply = send(server)
    assert (reply.error, len(reply.token_s)) == (error, tokens)
    assert message in reply.message


def test_nobody_listens() -> None:
    reply = send(FakeServer(url="http://127.0.0.1:1"))
    assert reply.error == "connection"


def test_a_key_is_sent_and_not_shown() -> None:
    with serving(FakeServer(key="secret")) as server:
        assert "secret" not in repr(Server(url=server.url, key="secret"))

        async def name(key: str) -> str:
            async with Client(Server(url=server.url, key=key)) as client:
                return await client.first_model()

        assert asyncio.run(name("secret")) == "fake"
        with pytest.raises(BadInput, match=r"401: Incorrect API key\. Put the key into OPENAI_API"):
            asyncio.run(name("wrong"))


def test_a_connection_is_used_again() -> None:
    async def send_some(url: str) -> None:
        async with Client(Server(url=url, model="fake")) as client:
            for _ in range(3):
                await asyncio.gather(*(client.send([1], 2) for _ in range(4)))

    with serving(FakeServer(token_s=0.01)) as server:
        asyncio.run(send_some(server.url))
    assert len(server.log) == 12
    assert len({entry["port"] for entry in server.log}) == 4


def test_a_connection_that_failed_is_opened_again() -> None:
    async def send_some(url: str) -> list[str]:
        async with Client(Server(url=url, model="fake")) as client:
            return [(await client.send([1], n)).error for n in (4, 1, 4, 1)]

    with serving(FakeServer(cut_after=2)) as server:
        assert asyncio.run(send_some(server.url)) == ["connection", "", "connection", ""]
