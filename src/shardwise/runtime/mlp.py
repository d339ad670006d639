"""The feed-forward block; h_BTF are the chip's columns of it."""

from __future__ import annotations

import jax
from jax.ad_checkpoint import checkpoint_name

from shardwise.runtime.products import Block

Array = jax.Array


def mlp(block: Block, n_BTD: Array) -> Array:
    """The block from its normed input to what it adds to the residual."""
    n_BTD = checkpoint_name(block.enter(n_BTD, "mlp.up"), "ffn_input")
    up_BTF = checkpoint_name(block.product("mlp.up", n_BTD), "up")
    gate_BTF = checkpoint_name(block.product("mlp.gate", n_BTD), "gate")
    h_BTF = jax.nn.silu(gate_BTF) * up_BTF
    block.add("mlp.down", checkpoint_name(h_BTF, "hidden"))
    return block.leave()
