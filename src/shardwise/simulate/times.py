"""How long a pass takes: the interface that a simulation needs, and its simplest implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class PassTimes(Protocol):
    """Seconds of a pass of one engine."""

    def pass_s(self, decode: int, kv_tokens: float, prefill: int, pairs: float) -> float:
        """Seconds of a pass.

        Args:
            decode: sequences that decode one token (or `tokens_per_pass` of them).
            kv_tokens: sum of the contexts that they read.
            prefill: prompt tokens that are computed.
            pairs: query-key pairs of these prompt tokens.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineTimes:
    """Pass times with a fixed part and a part proportional to each kind of work.

    Args:
        fixed_s: seconds of any pass (reading the weights).
        decode_s: seconds for each sequence that decodes.
        kv_s: seconds for each token of context that is read.
        prefill_s: seconds for each prompt token.
        pair_s: seconds for each query-key pair of prompt tokens.
    """

    fixed_s: float
    decode_s: float = 0.0
    kv_s: float = 0.0
    prefill_s: float = 0.0
    pair_s: float = 0.0

    def pass_s(self, decode: float, kv_tokens: float, prefill: float, pairs: float) -> float:
        """Seconds of a pass."""
        decode_s = self.decode_s * decode + self.kv_s * kv_tokens
        return self.fixed_s + decode_s + self.prefill_s * prefill + self.pair_s * pairs
