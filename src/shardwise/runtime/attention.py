"""The attention block: queries, keys and values of this chip's heads, and what becomes of them.

n_BTD is the input of the block with all tokens that the chip's products take, q_BTNH k_BTKH v_BTKH
are the chip's heads, o_BTNH what they attended.
"""

from __future__ import annotations

from typing import Protocol

import jax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention
from shardwise.runtime import elementwise
from shardwise.runtime.products import Block

Array = jax.Array


class Core(Protocol):
    """Where keys come from and how scores are computed: whole sequences, parts of them, a cache."""

    def positions(self, n_tokens: int) -> Array:
        """positions_BT (or 1 for B) of the tokens that a block's products take."""
        ...

    def attend(self, block: Block, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """o_BTNH of q_BTNH k_BTKH v_BTKH, all rotated; `block` has the products of the core."""
        ...


def attention(a: Attention, block: Block, scores: Block, core: Core, n_BTD: Array) -> Array:
    """The block from its normed input to what it adds to the residual."""
    n_BTD = checkpoint_name(block.enter(n_BTD, "attn.q"), "attention_input")
    q_BTNH = block.product("attn.q", n_BTD)
    k_BTKH = block.product("attn.k", n_BTD)
    v_BTKH = checkpoint_name(block.product("attn.v", n_BTD), "v")
    with jax.named_scope("rope"):
        positions = core.positions(n_BTD.shape[1])
        turns = elementwise.frequencies(a.rotary, a.d_head)
        q_BTNH = checkpoint_name(elementwise.rotate(q_BTNH, positions, turns), "q")
        k_BTKH = checkpoint_name(elementwise.rotate(k_BTKH, positions, turns), "k")
    o_BTNH = core.attend(scores, a, q_BTNH, k_BTKH, v_BTKH)
    block.add("attn.out", checkpoint_name(o_BTNH, "attended"))
    return block.leave()
