"""The attention block: queries, keys and values of this chip's heads, and what becomes of them.

n_BTD is the input of the block with all tokens that the chip's products take, q_BTNH k_BTKH v_BTKH
are the chip's heads, o_BTNH what they attended.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention, Norm
from shardwise.runtime.blocks import elementwise, positions
from shardwise.runtime.blocks.positions import Turns
from shardwise.runtime.blocks.products import Block

Array = jax.Array


class Core(Protocol):
    """Where keys come from and how scores are computed: whole sequences, parts of them, a cache."""

    def positions(self, n_tokens: int) -> Array:
        """positions_BT (or 1 for B) of the tokens that a block's products take."""
        ...

    def turns(self, a: Attention, n_tokens: int, seq: int) -> Turns:
        """Rotary positions of those tokens in sequences of `seq`."""
        ...

    def attend(self, block: Block, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """o_BTNH of q_BTNH k_BTKH v_BTKH, all rotated; `block` has the products of the core.

        What remat keeps of it carries the name "attended": of a kernel its own result, once.
        """
        ...


def attention(
    a: Attention, block: Block, scores: Block, core: Core, n_BTD: Array, *, norm: Norm, seq: int
) -> None:
    """Add to the block what its normed input, as it entered, attends.

    Args:
        a: the attention.
        block: has the projections.
        scores: has the products of the core.
        core: attends.
        n_BTD: the normed input.
        norm: of queries and keys.
        seq: tokens of a whole sequence.
    """
    v_BTKH = checkpoint_name(block.in_sequence(projected(block, "attn.v", n_BTD, "bv")), "v")
    with jax.named_scope("rope"):
        by = core.turns(a, v_BTKH.shape[1], seq) if a.rope else None
    q_BTNH = _query_or_key(a, block, "q", n_BTD, by, norm)
    k_BTKH = _query_or_key(a, block, "k", n_BTD, by, norm)
    if a.temperature:
        with jax.named_scope("temperature"):
            at_BT = core.positions(q_BTNH.shape[1])
            q_BTNH = positions.tempered(a.temperature, q_BTNH, at_BT)
    o_BTNH = core.attend(scores, a, q_BTNH, k_BTKH, v_BTKH)
    block.add("attn.out", block.as_arrived(o_BTNH))


def projected(block: Block, name: str, n_BTD: Array, bias: str) -> Array:
    """The product of a term with its bias, where it has one."""
    y = block.product(name, n_BTD)
    if bias not in block.weights:
        return y
    with jax.named_scope(name):
        return y + block.weight(bias)


def _query_or_key(
    a: Attention, block: Block, which: str, n_BTD: Array, by: Turns | None, norm: Norm
) -> Array:
    """q_BTNH or k_BTKH, normed and turned.

    The backward pass of a norm reads its input: remat keeps the product then, and norms it again.
    """
    x_BTNH = block.in_sequence(projected(block, f"attn.{which}", n_BTD, f"b{which}"))
    normed = bool(a.qk_norm or a.qk_unit)
    x_BTNH = checkpoint_name(x_BTNH, which) if normed else x_BTNH
    if a.qk_norm:
        with jax.named_scope(f"{which}_norm"):
            x_BTNH = _normed(block, f"{which}_norm", norm, x_BTNH)
    if by:
        with jax.named_scope("rope"):
            x_BTNH = positions.turned(a.rotary, x_BTNH, by)
    if a.qk_unit:
        with jax.named_scope(f"{which}_norm"):
            wide = elementwise.normalized(Norm(eps=norm.eps), x_BTNH.astype(jnp.float32))
            x_BTNH = wide.astype(x_BTNH.dtype)
    return x_BTNH if normed else checkpoint_name(x_BTNH, which)


def _normed(block: Block, name: str, norm: Norm, x_BTNH: Array) -> Array:
    """Each head by itself, or all heads together where the scale has a number for each: the chips
    that share the heads add up their squares."""
    scale = block.weight(name)
    heads = ("tensor",) if scale.ndim == 2 else ()
    wide = elementwise.normalized(
        norm,
        x_BTNH.astype(jnp.float32),
        scale.ndim,
        chips=block.table.on.size(heads),
        total=lambda x: block.table.sum(x, heads),
    )
    return elementwise.scaled(norm, wide, scale, dtype=x_BTNH.dtype)
