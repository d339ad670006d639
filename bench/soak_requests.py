"""The requests of `bench/soak.py`: each kind sends one, and holds the answer against what is known.

A kind returns its outcome, or raises `Fault`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from soak_client import SMALL_BUFFER, Answer, connected, exchange, message, read_answer, read_head
from soak_malformed import BROKEN, CHAT, COMPLETIONS, REFUSED, TOO_LARGE
from soak_reference import Known

Body = dict[str, Any]
REPLACEMENT = "\ufffd"
DATE = r"[12][0-9]{3}-[01][0-9]"
COLOURS = ["red", "green", "blue"]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": COLOURS}, "on": {"type": "boolean"}},
    "required": ["colour", "on"],
    "additionalProperties": False,
}


class Fault(Exception):
    """The server has done what it must not do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Special:
    """A request that is no plain greedy one, with the answer that it got alone."""

    path: str
    body: Body
    choices: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and what is known of its model's outputs."""

    port: int
    known: list[Known]
    special: list[Special]


def require(condition: object, *what: object) -> None:
    """Raise a fault unless a condition holds."""
    if not condition:
        raise Fault(" ".join(str(part)[:600] for part in what))


def greedy(known: Known, rng: random.Random) -> tuple[Body, str, str]:
    """(body, text, finish reason) of a request for some tokens of a known output."""
    n = rng.randint(1, len(known.output) + known.ended)
    body = {"prompt": known.prompt, "max_tokens": n, "temperature": 0}
    if n > len(known.output):
        return body, known.text(len(known.output)), "stop"
    return body, known.text(n), "length"


def choices_of(answer: Answer, stream: bool) -> list[tuple[str, str]]:
    """(text, finish reason) of each output of an answer."""
    if not stream:
        found = []
        for choice in answer.document["choices"]:
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            found.append((text, choice["finish_reason"]))
        return found
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    ids = set()
    for event in answer.events():
        require("error" not in event, "an error in a stream:", event)
        ids.add(event["id"])
        for choice in event["choices"]:
            index = choice["index"]
            require(index not in finishes, "an event after the end:", event)
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            texts[index] = texts.get(index, "") + (text or "")
            if choice["finish_reason"]:
                finishes[index] = choice["finish_reason"]
    require(len(ids) == 1 and texts.keys() == finishes.keys(), "a mixed or cut stream:", ids)
    require(answer.body.endswith(b"data: [DONE]\n\n"), "a stream without its end")
    return [(texts[index], finishes[index]) for index in sorted(texts)]


async def ask(
    target: Target, body: Body, expected: list[tuple[str, str]], *, path: str = COMPLETIONS,
    pause_s: float = 0.0,
) -> str:  # fmt: skip
    """Send a body, and hold the outputs against what is expected."""
    sent = message(path, json.dumps(body).encode())
    buffer = SMALL_BUFFER if pause_s else 0
    answer = await exchange(target.port, sent, pause_s=pause_s, buffer=buffer)
    if answer.status == 429:
        return "queue full (429)"
    require(answer.status == 200 and answer.complete, "no answer:", answer, "to", body)
    found = choices_of(answer, bool(body.get("stream")))
    require(found == expected, "other outputs:", found, "not", expected, "to", body)
    return "answered"


async def whole(target: Target, rng: random.Random) -> str:
    body, text, finish = greedy(rng.choice(target.known), rng)
    return await ask(target, body, [(text, finish)])


async def streamed(target: Target, rng: random.Random) -> str:
    body, text, finish = greedy(rng.choice(target.known), rng)
    return await ask(target, {**body, "stream": True}, [(text, finish)])


async def slow_reader(target: Target, rng: random.Random) -> str:
    body, text, finish = greedy(rng.choice(target.known), rng)
    pause_s = rng.uniform(0.001, 0.03)
    return await ask(target, {**body, "stream": True}, [(text, finish)], pause_s=pause_s)


async def several(target: Target, rng: random.Random) -> str:
    """Several choices of several prompts."""
    known = rng.sample(target.known, rng.randint(1, 3))
    n, choices = rng.randint(1, min(len(one.output) for one in known)), rng.randint(1, 3)
    body = {"prompt": [one.prompt for one in known], "max_tokens": n, "n": choices}
    body |= {"temperature": 0, "stream": rng.random() < 0.5}
    expected = [(one.text(n), "length") for one in known for _ in range(choices)]
    return await ask(target, body, expected)


async def scored(target: Target, rng: random.Random) -> str:
    """Tokens with their log-probabilities: names say the bytes of each."""
    known = rng.choice(target.known)
    n = rng.randint(1, len(known.output))
    body = {"prompt": known.prompt, "max_tokens": n, "temperature": 0}
    body["logprobs"] = rng.randint(0, 20)
    answer = await exchange(target.port, message(COMPLETIONS, json.dumps(body).encode()))
    if answer.status == 429:
        return "queue full (429)"
    require(answer.status == 200 and answer.complete, "no answer:", answer)
    names = answer.document["choices"][0]["logprobs"]["tokens"]
    require(len(names) == n, n, "tokens asked for, got", names)
    for name, piece in zip(names, known.pieces, strict=False):
        escaped = "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
        same = name in (escaped, piece.decode(errors="replace")) or not piece  # a special token
        require(same, "other tokens:", names, known.pieces[:n])
    return "answered"


async def stopped(target: Target, rng: random.Random) -> str:
    """A stop string from the middle of the known text."""
    known = rng.choice(target.known)
    text = known.text(len(known.output))
    plain = [found.span() for found in re.finditer(r"[ -~]{1,6}", text)]
    if not plain:
        return await whole(target, rng)
    start, end = rng.choice(plain)
    stop = text[start : rng.randint(start + 1, end)]
    body = {"prompt": known.prompt, "max_tokens": len(known.output), "temperature": 0}
    body |= {"stop": [stop, "never to be seen"], "stream": rng.random() < 0.5}
    return await ask(target, body, [(text[: text.index(stop)], "stop")])


async def special(target: Target, rng: random.Random) -> str:
    """A request with draws, penalties, a grammar or a chat: the answer that it got alone."""
    one = rng.choice(target.special)
    stream = rng.random() < 0.5
    return await ask(target, {**one.body, "stream": stream}, one.choices, path=one.path)


async def gone_before_the_end_of_the_body(target: Target, rng: random.Random) -> str:
    body, _, _ = greedy(rng.choice(target.known), rng)
    sent = message(COMPLETIONS, json.dumps(body).encode())
    async with connected(target.port) as (_, writer):
        writer.write(sent[: rng.randint(1, len(sent) - 1)])
        await asyncio.sleep(rng.choice([0.0, 0.002, 0.05]))
        if rng.random() < 0.5:
            writer.transport.abort()
    return "client gone"


async def gone_before_the_answer(target: Target, rng: random.Random) -> str:
    body, _, _ = greedy(rng.choice(target.known), rng)
    body |= {"stream": rng.random() < 0.5, "n": rng.randint(1, 3)}
    async with connected(target.port) as (_, writer):
        writer.write(message(COMPLETIONS, json.dumps(body).encode()))
        await writer.drain()
        await asyncio.sleep(rng.expovariate(20))
        if rng.random() < 0.5:
            writer.transport.abort()
    return "client gone"


async def gone_in_the_stream(target: Target, rng: random.Random) -> str:
    """What came until then is the beginning of the known text."""
    known = rng.choice(target.known)
    n = len(known.output)
    body = {"prompt": known.prompt, "max_tokens": n, "temperature": 0, "stream": True}
    received = b""
    async with connected(target.port) as (reader, writer):
        writer.write(message(COMPLETIONS, json.dumps(body).encode()))
        status, _ = await read_head(reader)
        if status == 429:
            return "queue full (429)"
        require(status == 200, "status", status)
        for _ in range(rng.randint(0, 8)):
            if b"[DONE]" not in received:  # the connection stays open
                received += await reader.read(rng.randint(1, 400))
        if rng.random() < 0.5:
            writer.transport.abort()
    events = [json.loads(line) for line in re.findall(rb"data: (\{.*\})\n", received)]
    text = "".join(event["choices"][0]["text"] for event in events)
    require(known.text(n).startswith(text), "other text:", text, "not", known.text(n))
    return "client gone"


async def malformed(target: Target, rng: random.Random) -> str:
    name, sent = rng.choice(list(REFUSED.items()))
    return await refused(target, name, sent)


async def too_large(target: Target, rng: random.Random) -> str:
    return await refused(target, "too large", TOO_LARGE)


async def refused(target: Target, name: str, sent: bytes) -> str:
    """Send what has to be answered by 4xx and a message."""
    answer = await exchange(target.port, sent)
    if answer.status == 429:
        return "queue full (429)"
    if not answer.status and name == "too large":  # closed while this side was sending
        return "refused (4xx)"
    require(400 <= answer.status < 500 and answer.complete, name, "was answered", answer)
    require(answer.document["error"]["message"], name, "without a message")
    return "refused (4xx)"


async def broken(target: Target, rng: random.Random) -> str:
    name, sent = rng.choice(list(BROKEN.items()))
    answer = await exchange(target.port, sent, half_close=True)
    require(answer.status == 0 or 400 <= answer.status < 500, name, "was answered", answer)
    return "no HTTP"


async def two_on_a_connection(target: Target, rng: random.Random) -> str:
    """Two requests, the second one sent before the first is answered."""
    expected = []
    sent = b""
    for _ in range(2):
        body, text, finish = greedy(rng.choice(target.known), rng)
        sent += message(COMPLETIONS, json.dumps(body).encode())
        expected.append((text, finish))
    async with connected(target.port) as (reader, writer):
        writer.write(sent)
        answers = [await read_answer(reader) for _ in range(2)]
    for answer, one in zip(answers, expected, strict=True):
        if answer.status == 429:
            return "queue full (429)"
        require(answer.status == 200 and answer.complete, "no answer:", answer)
        require(choices_of(answer, False) == [one], "other outputs:", answer, "not", one)
    return "answered"


Kind = Callable[[Target, random.Random], Awaitable[str]]
# Kind -> its share of the requests.
KINDS: Mapping[Kind, int] = {
    whole: 20,
    streamed: 20,
    several: 8,
    scored: 4,
    stopped: 6,
    special: 14,
    slow_reader: 3,
    two_on_a_connection: 2,
    gone_before_the_end_of_the_body: 4,
    gone_before_the_answer: 5,
    gone_in_the_stream: 5,
    malformed: 7,
    broken: 3,
}
FEW = (too_large,)  # one for each 500 requests

# Requests whose answers are learned alone, before the load.
SPECIAL: list[tuple[str, Body]] = []
for _seed in range(6):
    SPECIAL.append((COMPLETIONS, {"prompt": f"draw {_seed}", "seed": _seed, "n": 2, "top_p": 0.9}))
    _penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    SPECIAL.append((COMPLETIONS, {"prompt": f"vary {_seed}", "temperature": 0, **_penalties}))
    _bias = {"logit_bias": {str(40 + _seed): 3, "50": -100}, "temperature": 0}
    SPECIAL.append((COMPLETIONS, {"prompt": f"bias {_seed}", **_bias}))
    _date = {"guided_regex": DATE, "temperature": 1, "seed": _seed}
    SPECIAL.append((COMPLETIONS, {"prompt": f"date {_seed}", **_date}))
    _form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    _messages = [{"role": "user", "content": f"colour {_seed}?"}]
    SPECIAL.append(
        (CHAT, {"messages": _messages, "response_format": _form, "seed": _seed, "max_tokens": 90})
    )
    SPECIAL.append((CHAT, {"messages": _messages, "seed": _seed, "max_tokens": 20 + _seed}))


async def learn(port: int, path: str, body: Body) -> Special:
    """Ask alone, and remember the answer; that of a grammar has to satisfy it."""
    answer = await exchange(port, message(path, json.dumps(body).encode()))
    require(answer.status == 200, "no answer:", answer, "to", body)
    choices = choices_of(answer, False)
    text, finish = choices[0]
    if "guided_regex" in body:
        require(re.fullmatch(DATE, text), "no date:", text)
    if "response_format" in body and finish == "stop":
        document = json.loads(text)
        require(document["colour"] in COLOURS and len(document) == 2, "no such object:", text)
    return Special(path=path, body=body, choices=choices)
