"""What an engine may do in one pass, and how much KV cache it has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.errors import BadInput, raise_all
from shardwise.simulate.request import Request

LARGEST_GAIN = 64  # tokens a pass; no published draft is nearly as long


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine may do in one pass, and the KV cache that it has.

    Args:
        n_blocks: blocks of the KV cache.
        block: tokens of one block.
        max_sequences: sequences that are served at once.
        max_tokens: tokens of one pass; a sequence that decodes counts as one.
        chunked: prompts are cut to what decoding leaves of `max_tokens`, and both share a pass.
            Otherwise passes of whole prompts come first (one prompt may exceed `max_tokens`).
        paged: blocks are taken as contexts grow; otherwise all that a request can need is reserved
            when it is admitted, and no prefix is shared.
        prefix_cache: full blocks of shared prefixes are kept and used again.
        watermark: share of the blocks that admission leaves free for those that decode already.
        tokens_per_pass: tokens that a sequence gains in a pass (above 1: speculative decoding).
            Fractions are carried from pass to pass, the same for all sequences.

    Raises:
        BadInput: for limits that cannot be.
    """

    n_blocks: int
    block: int = 16
    max_sequences: int = 256
    max_tokens: int = 8192
    chunked: bool = True
    paged: bool = True
    prefix_cache: bool = True
    watermark: float = 0.01
    tokens_per_pass: float = 1.0

    def __post_init__(self) -> None:
        problems = [
            f"{name} {getattr(self, name)!r} is not a whole number of at least 1."
            for name in ("n_blocks", "block", "max_sequences", "max_tokens")
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1
        ]
        if not 0 <= self.watermark < 1:
            problems.append(f"watermark {self.watermark!r} is not a share from 0 to below 1.")
        if not 1 <= self.tokens_per_pass <= LARGEST_GAIN:
            problems.append(
                f"tokens_per_pass {self.tokens_per_pass!r} is not from 1 to {LARGEST_GAIN}."
            )
        raise_all(BadInput, problems)
        if self.chunked and self.max_tokens < self.max_sequences:
            raise BadInput(
                f"max_tokens {self.max_tokens:,} is below max_sequences {self.max_sequences:,}: "
                "sequences that decode would not fit into a pass. Raise one or lower the other."
            )

    @property
    def largest_gain(self) -> int:
        """The most tokens that a sequence gains in one pass."""
        return math.ceil(self.tokens_per_pass)

    def blocks_for(self, request: Request) -> int:
        """Blocks that a request holds at its end, at most.

        The last token is never written; a last pass may write more than is asked.
        """
        return -(-(request.prompt + request.output - 2 + self.largest_gain) // self.block)
