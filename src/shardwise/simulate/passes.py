"""One pass of an engine: the work that the scheduler chose, and the result."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from shardwise.simulate.request import SequenceState


class Chunk(NamedTuple):
    """The next part of a sequence's prompt.

    Args:
        past: its tokens that are in the KV cache already.
        tokens: tokens of the chunk.
    """

    sequence: SequenceState
    past: int
    tokens: int

    @property
    def pairs(self) -> int:
        """Number of (query, key) pairs: each token attends to itself and to all before it."""
        return self.tokens * self.past + self.tokens * (self.tokens + 1) // 2


class Pass(NamedTuple):
    """Work of one pass.

    Args:
        decode: sequences that decode; a view that changes when the scheduler advances.
        n_decode: number of these sequences.
        kv_tokens: tokens in the KV cache that they read, in all.
        chunks: prompt chunks that are computed.
        prefill: tokens of all chunks.
        pairs: (query, key) pairs of all chunks.
    """

    decode: Collection[SequenceState]
    n_decode: int
    kv_tokens: float
    chunks: tuple[Chunk, ...]
    prefill: int
    pairs: int


class PassResult(NamedTuple):
    """Result of a pass.

    Args:
        prefilled: sequences whose prompts are complete and that have sampled their next token.
        ended: sequences that have generated their last token.
    """

    prefilled: list[SequenceState]
    ended: list[SequenceState]


EMPTY_PASS = Pass((), 0, 0.0, (), 0, 0)
