"""Logits of whole sequences under a layout: the model's forward pass and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardwise.models import ModelConfig
from shardwise.runtime.blocks.attention_core import Sequences
from shardwise.runtime.blocks.head import head
from shardwise.runtime.blocks.layers import Stack
from shardwise.runtime.blocks.model import embed, paired, run_layers
from shardwise.runtime.blocks.products import Precision
from shardwise.runtime.layout.context_order import Order
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import UpdatePartition
from shardwise.runtime.weights.descriptions import Tree, describe, map_infos
from shardwise.strategy.layout import Form

Array = jax.Array

# Without gradients no update is partitioned.
UNSHARED = UpdatePartition(cuts=(), sum_axes=(), in_backward=False)


def logits(
    config: ModelConfig, table: Table, seq: int, compute: Any
) -> Callable[[Tree, Array], Array]:
    """`(weights, tokens_BT) -> logits_BTV`, to be jitted.

    Sequences are over the roles that cut the batch, tokens over `context`, V over `tensor`; a
    vocabulary that its chips do not divide is given back without what fills it up.

    Args:
        config: the model.
        table: rules on the mesh.
        seq: tokens of a sequence.
        compute: dtype of products; logits are in fp32.
    """
    precision = Precision(compute=compute, gradients=compute, reduce=compute)
    stack = Stack(config=config, table=table, precision=precision, seq=seq)
    infos = describe(config, table)
    deals = map_infos(lambda _: UNSHARED, infos)

    def local(weights: Tree, tokens_BT: Array) -> Array:
        both = paired(weights, weights)
        outer = both["outer"], deals["outer"]
        core = Sequences(table=table, order=Order(n=table.on.size(("context",))))
        x_BTD = embed(stack, core, tokens_BT, *outer)
        x_BTD = run_layers(stack, Form(), core, x_BTD, both["layers"], deals["layers"])
        return head(stack, x_BTD, *outer)

    def whole(weights: Tree, tokens_BT: Array) -> Array:
        placed = jax.shard_map(
            local,
            mesh=table.on.mesh,
            in_specs=(map_infos(lambda info: info.spec(table), infos), tokens_spec(table)),
            out_specs=table.spec("activations", ("B", "T", "V")),
            check_vma=False,
        )
        return placed(weights, tokens_BT)[..., : config.vocab]

    return whole


def tokens_spec(table: Table) -> PartitionSpec:
    """Layout of tokens_BT."""
    return table.spec("activations", ("B", "T"))
