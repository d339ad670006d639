"""Bodies of requests: read up to a limit, and decoded into structs with worded errors."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from shardwise.serve.http.errors import ApiError, bad_request
from shardwise.serve.http.requests import NOT_SERVED

T = TypeVar("T", bound=msgspec.Struct)

MISSING = re.compile(r"missing required field `(\w+)`$")
# How JSON calls Python's types, which msgspec writes between back quotes.
JSON_NAMES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}
QUOTED = re.compile(r"`([^`]*)`")
BODY_SECONDS = 60  # for a body to come: a request that is read takes a place in the queue
LEAST_LIKENESS = 0.85  # of a misspelled field, as difflib counts it
LONGEST_VALUE = 80  # characters of a wrong value that a message repeats
PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")  # where msgspec says what is wrong


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request.

    Raises:
        ApiError: 413 if the body is longer than `limit` bytes, 415 if it is declared as no JSON,
            408 if it does not come in time.
        ClientDisconnect: the client went away.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise ApiError(
            415, f"the body is declared as {shortened(kind)}: send content-type: application/json."
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_long(limit)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(request, limit)
    except TimeoutError:
        raise ApiError(
            408,
            f"the body did not come within {BODY_SECONDS} seconds.",
            code="body_too_slow",
            headers={"connection": "close"},
        ) from None


async def _read(request: Request, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_long(limit)
        if not message.get("more_body", False):
            return bytes(body)


def decode_body(body: bytes, asked: type[T]) -> T:
    """Decode a body.

    Raises:
        ApiError: 400; the message names the field, the value and what would be accepted.
    """
    try:
        request = msgspec.json.decode(body, type=asked)
        _refuse_misspelled(msgspec.json.decode(body, type=dict[str, msgspec.Raw]), asked)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), body) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is no JSON: {error}.") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply.") from None
    return request


def _refuse_misspelled(fields: Iterable[str], asked: type[msgspec.Struct]) -> None:
    """Refuse unknown fields that are almost a known one; other unknown ones are ignored.

    Raises:
        ApiError: 400.
    """
    known = {_plain(name): name for name in asked.__struct_fields__}
    for field in fields:
        if field in asked.__struct_fields__:
            continue
        near = difflib.get_close_matches(_plain(field), known, n=1, cutoff=LEAST_LIKENESS)
        if near:
            message = f"{shortened(field)} is not a field. Did you mean {known[near[0]]}?"
            raise bad_request(message, param=shortened(field))


def _plain(name: str) -> str:
    """A name in lower case and without underscores: max_tokens and maxTokens are alike."""
    return name.replace("_", "").lower()


def shortened(text: str) -> str:
    """A text that a message repeats."""
    if len(text) > LONGEST_VALUE:
        return text[: LONGEST_VALUE - 3] + "..."
    return text


def _too_long(limit: int) -> ApiError:
    return ApiError(
        413,
        f"the body is longer than {limit:,} bytes, which is the most that this server takes.",
        code="body_too_long",
        headers={"connection": "close"},  # the rest of the body is not read
    )


def _wrong_field(problem: str, body: bytes) -> ApiError:
    """The error for what msgspec reports, which names the place and not the value."""
    place = PLACE.search(problem)
    if place is None:
        missing = MISSING.search(problem)
        param = missing[1] if missing else None
        return bad_request(f"the body is refused: {_sentence(problem)}", param=param)
    field = place[1].removesuffix("[...]")  # a value of an object, whose key msgspec does not name
    message = f"{field or 'body'}: {_sentence(problem[: place.start()])}"
    if field in NOT_SERVED:
        message = f"{field} is not served. {NOT_SERVED[field]}"
    elif field.endswith(".type") and "content[" in field:
        message += " The model reads texts: parts of type text."
    elif re.fullmatch(r"\w+", field):
        message += _value(body, field)
    return bad_request(message, param=field or None)


def _value(body: bytes, field: str) -> str:
    """A sentence with the value of a field; none if the body is no JSON after that field."""
    try:
        value = msgspec.json.decode(body, type=dict[str, msgspec.Raw])[field]
        return f" It is {shortened(bytes(value).decode())}."
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _sentence(problem: str) -> str:
    """What msgspec reports, in the words of JSON."""
    problem = QUOTED.sub(_in_json, problem)
    return f"{problem[0].lower()}{problem[1:]}."


def _in_json(quoted: re.Match[str]) -> str:
    names = []
    for name in quoted[1].split(" | "):
        names.append(JSON_NAMES.get(name, name))
    return " or ".join(names)
