"""The feed-forward block; h_BTF are the chip's columns of it."""

from __future__ import annotations

import jax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Mlp
from shardwise.runtime.blocks.attention import projected
from shardwise.runtime.blocks.elementwise import ACTIVATIONS
from shardwise.runtime.blocks.products import Block

Array = jax.Array


def mlp(ffn: Mlp, block: Block, n_BTD: Array) -> None:
    """Add to the block what it makes of its normed input, as it entered."""
    activation = ACTIVATIONS[ffn.activation]
    up_BTF = checkpoint_name(projected(block, "mlp.up", n_BTD, "b_up"), "up")
    if ffn.gated:
        gate_BTF = checkpoint_name(projected(block, "mlp.gate", n_BTD, "b_gate"), "gate")
        h_BTF = activation(gate_BTF) * up_BTF
    else:
        h_BTF = activation(up_BTF)
    block.add("mlp.down", checkpoint_name(h_BTF, "hidden"))
