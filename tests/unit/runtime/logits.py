"""Logits of whole sequences under a layout: the forward pass of the model alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardwise.models import ModelConfig
from shardwise.runtime.blocks.attention_core import SequenceAttention
from shardwise.runtime.blocks.head import head
from shardwise.runtime.blocks.layers import LayerSettings
from shardwise.runtime.blocks.model import embed, run_layers, with_accumulators
from shardwise.runtime.blocks.products import Precision
from shardwise.runtime.layout.context_order import ContextOrder
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import UpdatePartition
from shardwise.runtime.weights.descriptions import Tree, describe, map_infos
from shardwise.strategy.layout import Form

Array = jax.Array

# No gradients are computed, so no chips share an update.
UNPARTITIONED = UpdatePartition(cuts=(), sum_axes=(), in_backward=False)


def logits(
    config: ModelConfig, table: Table, seq: int, compute: Any
) -> Callable[[Tree, Array], Array]:
    """Make a function `(weights, tokens_BT) -> logits_BTV` of global arrays, to be jitted.

    B is sharded over the roles of the batch, T over `context`, V over `tensor`. Columns that pad
    the vocabulary are removed.

    Args:
        config: the model.
        table: sharding rules on the mesh.
        seq: tokens of a sequence.
        compute: dtype of matmuls; logits are in fp32.
    """
    precision = Precision(compute=compute, gradients=compute, reduce=compute)
    settings = LayerSettings(config=config, table=table, precision=precision, seq=seq)
    infos = describe(config, table)
    partitions = map_infos(lambda _: UNPARTITIONED, infos)

    def local_logits(weights: Tree, tokens_BT: Array) -> Array:
        pairs = with_accumulators(weights, weights)
        outer = pairs["outer"], partitions["outer"]
        order = ContextOrder(n=table.mesh.size(("context",)))
        core = SequenceAttention(table=table, order=order)
        x_BTD = embed(settings, core, tokens_BT, *outer)
        x_BTD = run_layers(settings, Form(), core, x_BTD, pairs["layers"], partitions["layers"])
        return head(settings, x_BTD, *outer)

    def global_logits(weights: Tree, tokens_BT: Array) -> Array:
        sharded = jax.shard_map(
            local_logits,
            mesh=table.mesh.jax_mesh,
            in_specs=(map_infos(lambda info: info.spec(table), infos), tokens_spec(table)),
            out_specs=table.spec("activations", ("B", "T", "V")),
            check_vma=False,
        )
        return sharded(weights, tokens_BT)[..., : config.vocab]

    return global_logits


def tokens_spec(table: Table) -> PartitionSpec:
    """Partition spec of tokens_BT."""
    return table.spec("activations", ("B", "T"))
