"""Work of one forward pass of an engine, in tokens."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Tokens of one pass of one engine, over all of its chips.

    Args:
        n_decoding: sequences that decode.
        kv_tokens: sum of their contexts.
        tokens_per_sequence: tokens that each of them computes: 1, or 1 + the drafted tokens that
            speculative decoding verifies.
        prefill_tokens: tokens of prompts.
        query_key_pairs: of the prompts: n p + n (n + 1) / 2 for n tokens after p cached ones.
        n_sampled: tokens that the unembedding computes; None for all tokens that decode.
    """

    n_decoding: Num = 0
    kv_tokens: Num = 0
    tokens_per_sequence: Num = 1
    prefill_tokens: Num = 0
    query_key_pairs: Num = 0
    n_sampled: Num = None

    @property
    def rows(self) -> Num:
        """Rows of every matmul in the layers."""
        return self.n_decoding * self.tokens_per_sequence + self.prefill_tokens

    @property
    def head_rows(self) -> Num:
        """Rows of the unembedding."""
        if self.n_sampled is None:
            return self.n_decoding * self.tokens_per_sequence
        return self.n_sampled

    @property
    def mean_context(self) -> Num:
        """Mean context of a decoding sequence, in tokens."""
        return self.kv_tokens / maximum(self.n_decoding, 1)

    @property
    def prefill_length(self) -> Num:
        """Length of uncached prompts with as many query-key pairs per token."""
        return 2 * self.query_key_pairs / maximum(self.prefill_tokens, 1)


def decode_load(batch: Num, context: Num, tokens_per_sequence: Num = 1) -> Load:
    """Load of one decoding step for `batch` sequences of `context` tokens."""
    return Load(
        n_decoding=batch, kv_tokens=batch * context, tokens_per_sequence=tokens_per_sequence
    )


def prefill_load(n: Num, length: Num, cached: Num = 0) -> Load:
    """Load of `n` whole prompts of `length` tokens, the first `cached` of them in the KV cache."""
    fresh = length - cached
    pairs = fresh * cached + fresh * (fresh + 1) / 2
    return Load(prefill_tokens=n * fresh, query_key_pairs=n * pairs, n_sampled=n)
