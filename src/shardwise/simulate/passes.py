"""A pass of an engine, as it is asked for, and what it brought."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from shardwise.simulate.request import Live


class Chunk(NamedTuple):
    """`tokens` of a sequence's prompt, after `past` ones that are in the KV cache."""

    live: Live
    past: int
    tokens: int

    @property
    def pairs(self) -> int:
        """Query-key pairs: each token sees those before it and itself."""
        return self.tokens * self.past + self.tokens * (self.tokens + 1) // 2


class Pass(NamedTuple):
    """One pass: who decodes, which prompt tokens are computed, and what both read.

    `decode` is a view that changes with `advance`.
    """

    decode: Collection[Live]
    n_decode: int
    kv_tokens: float
    chunks: tuple[Chunk, ...]
    prefill: int
    pairs: int


class Advanced(NamedTuple):
    """What a pass brought: sequences whose prompt is done, and sequences that ended."""

    prefilled: list[Live]
    ended: list[Live]


NOTHING = Pass((), 0, 0.0, (), 0, 0)
