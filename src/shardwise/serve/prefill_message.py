"""What a decode server asks of a prefill server, and the answer: a first token and a KV cache.

The answer is the length of its head in 4 bytes, the head in JSON, and the bytes of its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwise.serve.request import Generation, Token

PATH = "/v1/prefill"
HEAD_LENGTH_BYTES = 4
LONGEST_HEAD = 1 << 20  # bytes
PIECE_BYTES = 1 << 20


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of an answer: the first token, and shape and dtype of each array."""

    token: Token
    arrays: list[tuple[tuple[int, ...], str]]


def request_of(generation: Generation, model: str) -> bytes:
    """The body of a request for the prompt and the first token of a generation.

    It has the fields of a completion, and the tokens that a grammar allows, as in `TokenMask`.
    """
    body = {name: x for name, x in asdict(generation.sampling).items() if x is not None}
    body |= {"model": model, "prompt": generation.prompt, "user": generation.client}
    if generation.mask is not None:
        body["allowed"] = generation.mask.allowed()
    return msgspec.json.encode(body)


def answer_of(first: Token, arrays: Sequence[NDArray[Any]]) -> list[memoryview]:
    """The parts of an answer."""
    shapes = [(x.shape, str(x.dtype)) for x in arrays]
    head = msgspec.json.encode(Head(token=first._replace(finish=""), arrays=shapes))
    parts = [memoryview(len(head).to_bytes(HEAD_LENGTH_BYTES, "little") + head)]
    for x in arrays:
        parts.append(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
    return parts


def pieces(parts: Sequence[memoryview]) -> Iterator[bytes]:
    """The parts of an answer in pieces to send."""
    for part in parts:
        for start in range(0, len(part), PIECE_BYTES):
            yield bytes(part[start : start + PIECE_BYTES])


def read_answer(read_into: Callable[[Any], int]) -> tuple[Token, list[NDArray[Any]]]:
    """Read an answer.

    Args:
        read_into: reads some bytes into a buffer and returns their number, 0 at the end.

    Raises:
        EOFError: the answer ends early.
        ValueError: it is no such answer.
    """
    length = bytearray(HEAD_LENGTH_BYTES)
    _fill(read_into, length)
    n_bytes = int.from_bytes(length, "little")
    if n_bytes > LONGEST_HEAD:
        raise ValueError(f"the head of the answer has {n_bytes:,} bytes")
    head_bytes = bytearray(n_bytes)
    _fill(read_into, head_bytes)
    head = msgspec.json.decode(head_bytes, type=Head)  # its errors are ValueErrors
    arrays = []
    for shape, dtype in head.arrays:
        x = np.empty(shape, np.dtype(dtype))
        _fill(read_into, x.reshape(-1).view(np.uint8))
        arrays.append(x)
    return head.token, arrays


def _fill(read_into: Callable[[Any], int], buffer: Any) -> None:
    view = memoryview(buffer).cast("B")
    while len(view):
        n = read_into(view)
        if not n:
            raise EOFError("the answer ends early")
        view = view[n:]
