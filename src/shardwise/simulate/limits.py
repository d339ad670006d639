"""Limits of an engine: what one pass may contain, and how much KV cache there is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput, raise_all
from shardwise.simulate.request import Request

MAX_TOKENS_PER_PASS = 64  # per sequence; no published draft is nearly as long


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one pass of an engine may contain, and its KV cache.

    Args:
        n_blocks: blocks of the KV cache.
        block_tokens: tokens of one block.
        max_sequences: most sequences that run at once.
        max_tokens: most tokens of one pass; a sequence that decodes counts as one.
        chunked: split prompts into chunks that share passes with decoding, within `max_tokens`.
            Otherwise passes of whole prompts come first (one prompt may exceed `max_tokens`).
        paged: allocate blocks as contexts grow; otherwise all that a request can need is reserved
            when it is admitted, and no prefix is shared.
        prefix_cache: keep full blocks of shared prefixes for reuse.
        watermark: share of the blocks that admission leaves free for sequences that decode.
        tokens_per_pass: tokens that a sequence gains in a pass (above 1: speculative decoding).
            Fractions are carried from pass to pass, the same for all sequences.

    Raises:
        BadInput: limits out of range.
    """

    n_blocks: int
    block_tokens: int = 16
    max_sequences: int = 256
    max_tokens: int = 8192
    chunked: bool = True
    paged: bool = True
    prefix_cache: bool = True
    watermark: float = 0.01
    tokens_per_pass: float = 1.0

    def __post_init__(self) -> None:
        problems = []
        for name in ("n_blocks", "block_tokens", "max_sequences", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                problems.append(f"{name} must be a positive integer, not {value!r}.")
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
        """The most tokens that a sequence gains in one pass."""
        return math.ceil(self.tokens_per_pass)

    def blocks_for(self, request: Request) -> int:
        """The most blocks that a request uses.

        The last token is never written; a last pass may write more than `output` tokens.
        """
        tokens = request.prompt + request.output - 2 + self.max_gain
        return int(ceil_div(tokens, self.block_tokens))
