"""A request, and the state of the sequence by which the scheduler serves it."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class PrefixBlocks(NamedTuple):
    """The text that a prompt starts with, by blocks.

    Args:
        ids: an id for each block; prompts with the same id are equal up to the end of that block.
        block_tokens: tokens of a block.
    """

    ids: tuple[Hashable, ...]
    block_tokens: int

    def first_tokens_in(self, ids: Container[object]) -> int:
        """Tokens of the first blocks, up to the first whose id is not in `ids`."""
        n_tokens = 0
        for block_id in self.ids:
            if block_id not in ids:
                break
            n_tokens += self.block_tokens
        return n_tokens

    def id_at(self, end: int) -> Hashable:
        """The id of the block that has the token before position `end`."""
        return self.ids[(end - 1) // self.block_tokens]


class Request(NamedTuple):
    """A request for a completion.

    Args:
        id: number that identifies the request in the results.
        arrival_s: arrival time, in seconds from the start of the run.
        prompt: tokens of the prompt, at least 1.
        output: tokens to generate, at least 1; a real engine may stop earlier.
        prefix: name of the text that the prompt starts with, equal for prompts that share it, or
            its blocks; None for no shared text.
        shared: length of that text in tokens.
        client: who sent the request; requests of different clients take turns.
    """

    id: int
    arrival_s: float
    prompt: int
    output: int
    prefix: Hashable = None
    shared: int = 0
    client: str = ""

    def prefix_texts(self) -> Iterator[tuple[str, int]]:
        """The names of the texts that the shared prefix consists of, and their tokens."""
        if isinstance(self.prefix, PrefixBlocks):
            n_tokens = self.prefix.block_tokens
            for index, block_id in enumerate(self.prefix.ids):
                yield f"block {block_id}", max(0, min(n_tokens, self.shared - index * n_tokens))
        elif self.prefix is not None:
            yield f"prefix {self.prefix}", self.shared

    def prefix_keys(self, block_tokens: int) -> tuple[Hashable, ...]:
        """Return a key for each block that is full of tokens of the shared prefix."""
        if self.prefix is None:
            return ()
        n_blocks = self.shared // block_tokens
        if not isinstance(self.prefix, PrefixBlocks):
            return tuple((self.prefix, index) for index in range(n_blocks))
        ends = range(block_tokens, n_blocks * block_tokens + 1, block_tokens)
        return tuple((self.prefix.id_at(end), end) for end in ends)


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A full block of the KV cache that several sequences may share.

    Args:
        key: identifies the tokens in the block and before it.
        ref_count: number of sequences that use the block.
        physical_id: index of the physical block; None until a block table needs it.
    """

    key: Hashable
    ref_count: int = 1
    physical_id: int | None = None


class SequenceState:
    """State of a request while it is served. Only the scheduler changes it.

    Attributes:
        request: the request.
        block_keys: keys of the full blocks of the prompt that may be shared.
        generated: generated tokens; while the sequence decodes, `DecodeBatch` counts instead.
        prefill_target: tokens that prefill has to write to the KV cache: the prompt, and after a
            preemption also the tokens generated before it.
        past: tokens in the KV cache; not valid while the sequence decodes (see
            `DecodeBatch.context`).
        n_blocks: number of all blocks of the sequence.
        cached_blocks: its first blocks, which other sequences may share.
        private_block_ids: physical ids of its blocks after `cached_blocks`, of those that a block
            table has needed so far.
        context_base, ticket: state of `DecodeBatch`.
        preemptions: number of times that the sequence was preempted.
        start_s: start of its first pass; -1 before.
        first_token_s: time of its first token; -1 before.
        hit_tokens: prompt tokens that were found in the prefix cache.
        kv_ready: whether another engine has computed the prompt and the first token.
        pool: the pool of the engine that serves the sequence, see `pooled`.
    """

    __slots__ = (
        "block_keys", "cached_blocks", "context_base", "first_token_s", "generated", "hit_tokens",
        "kv_ready", "n_blocks", "past", "pool", "preemptions", "prefill_target",
        "private_block_ids", "request", "start_s", "ticket",
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
        self.pool = 0
        self.start_s = -1.0
        self.first_token_s = -1.0

    def __repr__(self) -> str:
        progress = f"{self.past} of {self.prefill_target}, {self.generated} generated"
        return f"SequenceState({self.request.id}, {progress})"
