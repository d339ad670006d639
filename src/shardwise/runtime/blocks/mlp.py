"""The feed-forward block. h_BTF is the chip's shard of its hidden activations."""

from __future__ import annotations

import jax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Mlp
from shardwise.runtime.blocks.attention import project
from shardwise.runtime.blocks.elementwise import ACTIVATIONS
from shardwise.runtime.blocks.products import BlockProducts
from shardwise.runtime.kernels import cpu

Array = jax.Array


def mlp(ffn: Mlp, block: BlockProducts, n_BTD: Array) -> None:
    """Add the feed-forward network of n_BTD to the block's output.

    Args:
        block: products of the block.
        n_BTD: the normalized input, after `move_input`.
    """
    activation = ACTIVATIONS[ffn.activation]

    def activated(up_BTF: Array, gate_BTF: Array | None) -> Array:
        return activation(up_BTF) if gate_BTF is None else activation(gate_BTF) * up_BTF

    up_BTF = checkpoint_name(project(block, "mlp.up", n_BTD, "b_up"), "up")
    gate_BTF = None
    if ffn.gated:
        gate_BTF = checkpoint_name(project(block, "mlp.gate", n_BTD, "b_gate"), "gate")
    with jax.named_scope("activation"):
        h_BTF = cpu.recomputed(block.table.mesh, activated)(up_BTF, gate_BTF)
    block.add_product("mlp.down", checkpoint_name(h_BTF, "hidden"))
