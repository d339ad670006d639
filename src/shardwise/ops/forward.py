"""A forward pass of an engine as works: matmuls and collectives derived from terms and rules.

Its rows are tokens (dim B, one each), those of prompts and those that sequences generate alike: a
weight does not tell them apart. Attention does, and is priced beside it (`estimate.serving`): its
keys lie in a cache.
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
    """What one chip does in a pass through all layers, and at the ends of the model.

    Args:
        matmuls, transfers: of all layers, with dim B for the tokens of a pass; what is sent for
            the embedding too.
        head_matmuls, head_transfers: of the unembedding, whose rows are the tokens to sample.
        weights: names of the weights among the arrays.
    """

    matmuls: tuple[Matmul, ...]
    transfers: tuple[Transfer, ...]
    head_matmuls: tuple[Matmul, ...]
    head_transfers: tuple[Transfer, ...]
    weights: frozenset[str]


def forward(config: ModelConfig, rules: Rules) -> Forward:
    """The works of a pass under a sharding table; sizes of B and of the mesh come later."""
    return _derived(config, tuple(rules.items()))


@functools.lru_cache(maxsize=256)
def _derived(config: ModelConfig, rows: tuple[tuple[str, tuple[str, ...]], ...]) -> Forward:
    rules = dict(rows)
    common: Mapping[str, Num] = {"T": 1, "S": 1, "D": config.d_model, "V": config.vocab}
    matmuls: list[Matmul] = []
    transfers: list[Transfer] = []
    weights: frozenset[str] = frozenset()
    for i, group in enumerate(config.groups):
        terms = tuple(t for t in layer_terms(config, group.layer, 1) if t.block != "core")
        derive_terms(terms, group.count, ("forward",), common, rules, matmuls, transfers, group=i)
        weights |= weight_names(terms)
    lookup, *head = outer_terms(config)
    found: list[Transfer] = []
    derive_terms((lookup,), 1, ("forward",), common, rules, [], found)
    # A lookup reads rows: it is their sum over `tensor` that is sent, never the table.
    transfers += [t for t in found if t.move.before.name != lookup.einsum.right.name]
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
