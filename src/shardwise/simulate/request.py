"""A request, and the scheduler's state of the sequence that serves it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Request(NamedTuple):
    """One user's request.

    Args:
        id: its number, returned with the results.
        arrival_s: seconds from the start of the run.
        prompt: tokens of the prompt, at least 1.
        output: tokens to be generated, at least 1; for an engine the maximum.
        prefix: name of the text that its prompt shares with other prompts, or None.
        shared: leading tokens of the prompt that are this text.
    """

    id: int
    arrival_s: float
    prompt: int
    output: int
    prefix: Hashable = None
    shared: int = 0

    def prefix_keys(self, block_tokens: int) -> tuple[Hashable, ...]:
        """One key for each full block of the shared prefix."""
        if self.prefix is None:
            return ()
        return tuple((self.prefix, index) for index in range(self.shared // block_tokens))


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A full block of keys and values that other sequences may read too.

    Args:
        key: identifies its contents.
        ref_count: sequences that use it.
        physical_id: the physical block; None until a block table needs it.
    """

    key: Hashable
    ref_count: int = 1
    physical_id: int | None = None


class SequenceState:
    """A request while it is served; the scheduler writes it, everyone else only reads.

    Attributes:
        prefill_target: tokens that must be in the KV cache before the next token is sampled.
        past: tokens in the KV cache; during prefill only (see `DecodeBatch.context`).
        n_blocks: all blocks of the sequence.
        cached_blocks: its leading blocks, which other sequences may read.
        private_block_ids: physical blocks after these, as far as a block table needed them.
        context_base, ticket: of `DecodeBatch`.
        start_s, first_token_s: start of its first pass and time of its first token; -1 before.
        hit_tokens: prompt tokens found in the prefix cache.
        kv_ready: whether another engine computed its keys and values and its first token.
    """

    __slots__ = (
        "block_keys", "cached_blocks", "context_base", "first_token_s", "generated", "hit_tokens",
        "kv_ready", "n_blocks", "past", "preemptions", "prefill_target", "private_block_ids",
        "request", "start_s", "ticket",
    )  # fmt: skip

    def __init__(
        self, request: Request, block_keys: Sequence[Hashable] = (), kv_ready: bool = False
    ) -> None:
        self.request = request
        self.block_keys = block_keys
        self.kv_ready = kv_ready
        self.generated = int(kv_ready)
        self.prefill_target = request.prompt
        self.past = 0
        self.n_blocks = 0
        self.cached_blocks: list[CachedBlock] = []
        self.private_block_ids: list[int] = []
        self.context_base = 0
        self.ticket = 0
        self.hit_tokens = 0
        self.preemptions = 0
        self.start_s = -1.0
        self.first_token_s = -1.0

    def __repr__(self) -> str:
        progress = f"{self.past} of {self.prefill_target}, {self.generated} generated"
        return f"SequenceState({self.request.id}, {progress})"
