"""Limits of an engine: size of a pass, and size and management of its KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput, raise_all
from shardwise.simulate.request import Request

MAX_TOKENS_PER_PASS = 64  # most tokens of a sequence; published drafts are far shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Size of a pass of an engine, and size and management of its KV cache.

    Args:
        n_blocks: number of blocks in the KV cache.
        block_tokens: tokens per block.
        max_sequences: the most sequences that run at the same time.
        max_tokens: the most tokens in one pass; a sequence that decodes counts as one token.
        chunked: whether prompts are split into chunks, which share passes with decoding (chunked
            prefill). Otherwise passes with whole prompts take precedence over decode passes; the
            first prompt of a pass may be longer than `max_tokens`.
        paged: whether blocks are allocated as contexts grow. Otherwise a request reserves all
            blocks that it can need when it is admitted, and prefixes are not shared.
        prefix_cache: whether full blocks of shared prefixes are kept for reuse.
        n_host_blocks: blocks of host memory that keep the contents of evicted blocks. An engine has
            to run the copies (`BlockManager.take_copies`); the simulation keeps none.
        watermark: share of the blocks that stay free when a request is admitted, so that the
            running sequences can grow.
        passes_ahead: passes that the engine chooses before the one that runs has ended; 0 or 1. The
            simulation keeps requests that arrive meanwhile out of them. Such an engine computes
            the prompts of a pass after its decoding sequences, one after another.
        tokens_per_pass: mean tokens that a sequence gains in a decode pass; above 1 with
            speculative decoding. Every pass adds a whole number; fractions are carried over.

    Raises:
        BadInput: a limit is out of range.
    """

    n_blocks: int
    block_tokens: int = 16
    max_sequences: int = 256
    max_tokens: int = 8192
    chunked: bool = True
    paged: bool = True
    prefix_cache: bool = True
    n_host_blocks: int = 0
    watermark: float = 0.01
    tokens_per_pass: float = 1.0
    passes_ahead: int = 0

    def __post_init__(self) -> None:
        problems = []
        for name in ("n_blocks", "block_tokens", "max_sequences", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                problems.append(f"{name} must be a positive integer, not {value!r}.")
        if not isinstance(self.n_host_blocks, int) or self.n_host_blocks < 0:
            problems.append(f"n_host_blocks must be a whole number, not {self.n_host_blocks!r}.")
        if not 0 <= self.watermark < 1:
            problems.append(f"watermark must be in [0, 1), not {self.watermark!r}.")
        if not 1 <= self.tokens_per_pass <= MAX_TOKENS_PER_PASS:
            problems.append(
                f"tokens_per_pass must be in [1, {MAX_TOKENS_PER_PASS}], "
                f"not {self.tokens_per_pass!r}."
            )
        raise_all(BadInput, problems)
        if self.chunked and self.max_tokens < self.max_sequences:
            raise BadInput(
                f"max_tokens {self.max_tokens:,} is below max_sequences {self.max_sequences:,}: "
                "sequences that decode would not fit into a pass. Raise one or lower the other."
            )

    @property
    def max_gain(self) -> int:
        """The most tokens that a sequence can gain in one pass."""
        return math.ceil(self.tokens_per_pass)

    def of_pool(self, n_pools: int) -> Limits:
        """The limits of each of `n_pools` pools of an engine, see `pooled`."""
        return replace(
            self,
            n_blocks=self.n_blocks // n_pools,
            n_host_blocks=self.n_host_blocks // n_pools,
            max_sequences=int(ceil_div(self.max_sequences, n_pools)),
            max_tokens=int(ceil_div(self.max_tokens, n_pools)),
        )

    def blocks_for(self, request: Request) -> int:
        """The most blocks that a request can need.

        Keys and values of its last token are never written. With `tokens_per_pass` above 1 its last
        pass may write up to `max_gain - 1` tokens too many.
        """
        tokens = request.prompt + request.output - 2 + self.max_gain
        return int(ceil_div(tokens, self.block_tokens))
