"""Time of a pass: the interface that the simulation needs, and an affine implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class PassTimes(Protocol):
    """Interface for the time of a pass of one engine."""

    def pass_s(
        self,
        decode: int,
        kv_tokens: float,
        prefill: int,
        pairs: float,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> float:
        """Seconds of a pass.

        Args:
            decode: number of sequences that decode.
            kv_tokens: tokens in the KV cache that these sequences read, in all.
            prefill: number of prompt tokens that are computed.
            pairs: (query, key) pairs in the attention of these prompt tokens.
            chunks: (tokens, tokens in the KV cache before them) of each prompt; empty if they are
                not known.
        """
        ...

    def traverse_s(self, tokens: int, past: int) -> float:
        """Seconds after which a chunk of a prompt has been in all stages of a pipeline.

        The first token is not there before. Engines without a pipeline have 0.

        Args:
            tokens: of the chunk.
            past: tokens of the prompt in the KV cache before it.
        """
        return 0.0


@dataclass(frozen=True, kw_only=True)
class AffineTimes(PassTimes):
    """Pass times that are an affine function of the work in the pass.

    Args:
        fixed_s: seconds of every pass (to read the weights).
        decode_s: seconds per sequence that decodes.
        kv_s: seconds per token that is read from the KV cache.
        prefill_s: seconds per prompt token.
        pair_s: seconds per (query, key) pair of prompt tokens.
    """

    fixed_s: float
    decode_s: float = 0.0
    kv_s: float = 0.0
    prefill_s: float = 0.0
    pair_s: float = 0.0

    def pass_s(
        self,
        decode: float,
        kv_tokens: float,
        prefill: float,
        pairs: float,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> float:
        """Seconds of a pass: see `PassTimes`."""
        decode_s = self.decode_s * decode + self.kv_s * kv_tokens
        return self.fixed_s + decode_s + self.prefill_s * prefill + self.pair_s * pairs
