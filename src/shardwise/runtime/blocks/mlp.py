"""The feed-forward block. h_BTF is the chip's shard of its hidden activations."""

from __future__ import annotations

import functools

import jax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Mlp
from shardwise.runtime.blocks import elementwise
from shardwise.runtime.blocks.attention import project
from shardwise.runtime.blocks.products import BlockProducts
from shardwise.runtime.kernels import cpu

Array = jax.Array


def mlp(ffn: Mlp, block: BlockProducts, n_BTD: Array) -> None:
    """Add the feed-forward network of n_BTD to the block's output.

    Args:
        block: products of the block.
        n_BTD: the normalized input, after `move_input`.
    """
    up_BTF = checkpoint_name(project(block, "mlp.up", n_BTD, "b_up"), "up")
    gate_BTF = None
    if ffn.gated:
        gate_BTF = checkpoint_name(project(block, "mlp.gate", n_BTD, "b_gate"), "gate")
    gated = cpu.recomputed(block.table.mesh, functools.partial(elementwise.gated, ffn.activation))
    with jax.named_scope("activation"):
        h_BTF = gated(up_BTF, gate_BTF)
    block.add_product("mlp.down", checkpoint_name(h_BTF, "hidden"))
