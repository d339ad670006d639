"""One pass of an engine: what the scheduler chose, and what it produced."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from shardwise.simulate.request import SequenceState


class Chunk(NamedTuple):
    """`tokens` of a sequence's prompt, after the `past` ones that are in the KV cache."""

    sequence: SequenceState
    past: int
    tokens: int

    @property
    def pairs(self) -> int:
        """Query-key pairs: each token attends to those before it and to itself."""
        return self.tokens * self.past + self.tokens * (self.tokens + 1) // 2


class Pass(NamedTuple):
    """The sequences that decode, the prompt chunks that are computed, and their sums.

    `decode` is a view that changes with `advance`. `n_decode` counts it, `kv_tokens` are the
    contexts that decoding reads, `prefill` and `pairs` the tokens and query-key pairs of `chunks`.
    """

    decode: Collection[SequenceState]
    n_decode: int
    kv_tokens: float
    chunks: tuple[Chunk, ...]
    prefill: int
    pairs: int


class PassResult(NamedTuple):
    """Sequences whose prompt was completed by a pass, and sequences that ended with it."""

    prefilled: list[SequenceState]
    ended: list[SequenceState]


EMPTY_PASS = Pass((), 0, 0.0, (), 0, 0)
