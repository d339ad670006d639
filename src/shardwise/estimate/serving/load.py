"""What one pass of an engine computes."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Tokens of one pass of one engine, over all of its chips.

    Args:
        decode: sequences that generate.
        kv_tokens: keys that they read, the sum of their contexts.
        drafted: tokens that each of them puts in: 1, or more where drafted ones are scored too.
        prefill: tokens of prompts.
        pairs: query-key pairs of those: n p + n (n + 1) / 2 for n tokens after p earlier ones.
        sampled: tokens for which the unembedding runs; None for one of each sequence.
    """

    decode: Num = 0
    kv_tokens: Num = 0
    drafted: Num = 1
    prefill: Num = 0
    pairs: Num = 0
    sampled: Num = None

    @property
    def rows(self) -> Num:
        """Rows of every matmul in the layers."""
        return self.decode * self.drafted + self.prefill

    @property
    def head_rows(self) -> Num:
        """Rows of the unembedding."""
        return self.decode * self.drafted if self.sampled is None else self.sampled

    @property
    def context(self) -> Num:
        """Mean keys of a sequence that generates."""
        return self.kv_tokens / maximum(self.decode, 1)

    @property
    def reach(self) -> Num:
        """Length of the prompts, had they no earlier tokens: twice the mean keys of a token."""
        return 2 * self.pairs / maximum(self.prefill, 1)


def decoding(batch: Num, context: Num, drafted: Num = 1) -> Load:
    """One token for each of `batch` sequences of `context` tokens."""
    return Load(decode=batch, kv_tokens=batch * context, drafted=drafted)


def prompts(n: Num, length: Num, cached: Num = 0) -> Load:
    """`n` whole prompts, of which the first `cached` tokens have their keys already."""
    fresh = length - cached
    pairs = fresh * cached + fresh * (fresh + 1) / 2
    return Load(prefill=n * fresh, pairs=n * pairs, sampled=n)
