"""A forward pass of a serving engine: its matmuls and collectives under sharding rules.

Dim B counts the tokens of the pass, those of prompts and those of decoding sequences, which a
matmul with a weight treats alike. The attention core, which depends on the KV cache, is in
`estimate.serving.attention`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.models import ModelConfig
from shardwise.ops.layers import collective_matmul_blocks, layer_terms, outer_terms
from shardwise.ops.program import Matmul, Transfer, derive_terms, weight_names
from shardwise.strategy.rules import Rules

# A collective matmul reads the weights once for each chip's tokens: with fewer, HBM would bound it.
MIN_SHARDED_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """The matmuls and collectives of one chip in a forward pass.

    Args:
        matmuls: matmuls of all layers; B counts the tokens of the pass.
        transfers: collectives of all layers and of the embedding; B as in `matmuls`.
        head_matmuls, head_transfers: those of the unembedding; B counts the tokens to sample.
        weights: names of the arrays that are weights.
    """

    matmuls: tuple[Matmul, ...]
    transfers: tuple[Transfer, ...]
    head_matmuls: tuple[Matmul, ...]
    head_transfers: tuple[Transfer, ...]
    weights: frozenset[str]


def forward(config: ModelConfig, rules: Rules) -> Forward:
    """Derive a forward pass under sharding rules, without sizes of B and of the mesh axes.

    Callers set them when they compute FLOPs and bytes.
    """
    return _derive(config, tuple(rules.items()))


def shards_tokens(config: ModelConfig, sizes: Mapping[str, int], n_tokens: int) -> bool:
    """Whether a pass on TPUs shards its tokens over `tensor` between the blocks of all layers.

    Then the transfers over `tensor` before and after a block are collective matmuls.

    Args:
        sizes: mesh role -> number of chips in an engine.
        n_tokens: tokens of each sequence.
    """
    n_chips = sizes["tensor"]
    shares_work = any(sizes[role] > 1 for role in ("fsdp", "context", "expert", "pipe"))
    if n_chips == 1 or shares_work or n_tokens % n_chips:
        return False
    blocks = [collective_matmul_blocks(group.layer) for group in config.groups]
    return n_tokens >= n_chips * MIN_SHARDED_TOKENS and all(len(two) == 2 for two in blocks)


@functools.lru_cache(maxsize=256)
def _derive(config: ModelConfig, rows: tuple[tuple[str, tuple[str, ...]], ...]) -> Forward:
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
        # A lookup reads single rows: the result is summed over `tensor`, the weight never sent.
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
