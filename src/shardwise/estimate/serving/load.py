"""Sequences and tokens that an engine processes in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Sequences and tokens of one pass of one engine, in total over its chips.

    Args:
        n_decoding: number of decoding sequences.
        kv_tokens: sum of the context lengths of the decoding sequences.
        tokens_per_sequence: tokens that the pass computes for each decoding sequence: 1, or with
            speculative decoding 1 + the drafted tokens that it verifies.
        prefill_tokens: number of prompt tokens that the pass computes.
        query_key_pairs: causal query-key pairs of the prompts: for each prompt
            n p + n (n + 1) / 2, where n tokens are computed after p cached ones.
        n_sampled: tokens for which the unembedding computes logits; None for all tokens of the
            decoding sequences.
    """

    n_decoding: Num = 0
    kv_tokens: Num = 0
    tokens_per_sequence: Num = 1
    prefill_tokens: Num = 0
    query_key_pairs: Num = 0
    n_sampled: Num = None

    @property
    def rows(self) -> Num:
        """Rows of every matmul in the layers: all tokens that the pass computes."""
        return self.n_decoding * self.tokens_per_sequence + self.prefill_tokens

    @property
    def head_rows(self) -> Num:
        """Rows of the unembedding matmul."""
        if self.n_sampled is None:
            return self.n_decoding * self.tokens_per_sequence
        return self.n_sampled

    @property
    def mean_context(self) -> Num:
        """Mean context length of the decoding sequences, in tokens."""
        return self.kv_tokens / maximum(self.n_decoding, 1)

    @property
    def prefill_length(self) -> Num:
        """Length of an uncached prompt with the same number of query-key pairs per token."""
        return 2 * self.query_key_pairs / maximum(self.prefill_tokens, 1)


def decode_load(batch: Num, context: Num, tokens_per_sequence: Num = 1) -> Load:
    """Load of one decoding step for `batch` sequences of `context` tokens."""
    return Load(
        n_decoding=batch, kv_tokens=batch * context, tokens_per_sequence=tokens_per_sequence
    )


def prefill_load(n: Num, length: Num, cached: Num = 0) -> Load:
    """Load of a pass over `n` whole prompts of `length` tokens, of which `cached` are cached."""
    fresh = length - cached
    pairs = fresh * cached + fresh * (fresh + 1) / 2
    return Load(prefill_tokens=n * fresh, query_key_pairs=n * pairs, n_sampled=n)
