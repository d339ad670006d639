"""A forward pass of a serving engine: matmuls and collectives derived from terms and rules.

Dim B counts its tokens, of prompts and of decoding sequences, which are the same to a weight. The
attention core depends on the KV cache and is not part of it: see `estimate.serving.attention`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.models import ModelConfig
from shardwise.ops.layers import layer_terms, outer_terms
from shardwise.ops.program import Matmul, Transfer, derive_terms, weight_names
from shardwise.strategy.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """The matmuls and collectives of one chip in a forward pass.

    Args:
        matmuls, transfers: of all layers, where B counts the tokens of the pass; and the
            collectives of the embedding.
        head_matmuls, head_transfers: of the unembedding, where B counts the tokens to sample.
        weights: names of the arrays that are weights.
    """

    matmuls: tuple[Matmul, ...]
    transfers: tuple[Transfer, ...]
    head_matmuls: tuple[Matmul, ...]
    head_transfers: tuple[Transfer, ...]
    weights: frozenset[str]


def forward(config: ModelConfig, rules: Rules) -> Forward:
    """Derive a forward pass under sharding rules; sizes of B and of the mesh come later."""
    return _derived(config, tuple(rules.items()))


@functools.lru_cache(maxsize=256)
def _derived(config: ModelConfig, rows: tuple[tuple[str, tuple[str, ...]], ...]) -> Forward:
    rules = dict(rows)
    common: Mapping[str, Num] = {"T": 1, "S": 1, "D": config.d_model, "V": config.vocab}
    matmuls: list[Matmul] = []
    transfers: list[Transfer] = []
    weights: frozenset[str] = frozenset()
    for i, group in enumerate(config.groups):
        all_terms = layer_terms(config, group.layer, 1)
        terms = tuple(term for term in all_terms if term.block != "core")
        derive_terms(terms, group.count, ("forward",), common, rules, matmuls, transfers, group=i)
        weights |= weight_names(terms)
    lookup, *head = outer_terms(config)
    lookup_transfers: list[Transfer] = []
    derive_terms((lookup,), 1, ("forward",), common, rules, [], lookup_transfers)
    for transfer in lookup_transfers:
        # A lookup reads rows: their sum over `tensor` is sent, never the embedding itself.
        if transfer.move.before.name != lookup.einsum.right.name:
            transfers.append(transfer)
    head_matmuls: list[Matmul] = []
    head_transfers: list[Transfer] = []
    derive_terms(tuple(head), 1, ("forward",), common, rules, head_matmuls, head_transfers)
    return Forward(
        matmuls=tuple(matmuls),
        transfers=tuple(transfers),
        head_matmuls=tuple(head_matmuls),
        head_transfers=tuple(head_transfers),
        weights=weights | weight_names(tuple(head)),
    )
