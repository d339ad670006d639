"""Latent attention: queries, and keys with values, each rebuilt from one narrow latent of a token.

n_BTD is the normed input of the block on the tokens of the residual, cq_BTQ and ckv_BTC the latents
(C has C' numbers for keys and values and R for the part of keys with positions), q_BTNH k_BTNH
v_BTNV the chip's heads, o_BTNV what they attended. Between their two products latents lie as the
residual does, so that what is gathered over `tensor` is narrow.

Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models.config import Attention, Mla
from shardwise.models.numerics import Norm
from shardwise.runtime.blocks import elementwise
from shardwise.runtime.blocks.attention import Core, projected
from shardwise.runtime.blocks.positions import turned
from shardwise.runtime.blocks.products import Block

Array = jax.Array


def latent(
    a: Attention, mla: Mla, block: Block, scores: Block, core: Core, n_BTD: Array, *, seq: int
) -> None:
    """Add to the block what its normed input attends.

    Args:
        a, mla: the attention.
        block: has the projections.
        scores: has the products of the core.
        core: attends.
        n_BTD: the normed input, on the tokens of the residual.
        seq: tokens of a whole sequence.
    """
    if mla.q_lora_rank is None:
        whole_BTD = checkpoint_name(block.enter(n_BTD, "attn.q"), "attention_input")
        q_BTNH = block.product("attn.q", whole_BTD)
    else:
        n_BTD = checkpoint_name(n_BTD, "attention_input")
        q_BTNH = block.product("attn.q_up", _query_latent(mla, block, n_BTD))
    ckv_BTC = _key_latent(mla, block, n_BTD)
    c_BTC, r_BTR = jnp.split(ckv_BTC, [mla.kv_lora_rank], axis=-1)
    k_BTNH = checkpoint_name(block.product("attn.k_up", c_BTC), "k")
    v_BTNV = checkpoint_name(block.product("attn.v_up", c_BTC), "v")
    with jax.named_scope("rope"):
        by = core.turns(a, q_BTNH.shape[1], seq)
        plain_BTNH, q_BTNR = jnp.split(q_BTNH, [mla.d_nope], axis=-1)
        q_BTNR = turned(a.rotary, q_BTNR, by)
        q_BTNH = checkpoint_name(jnp.concatenate([plain_BTNH, q_BTNR], axis=-1), "q")
        r_BT1R = turned(a.rotary, r_BTR[:, :, None], by)
        shared = (*k_BTNH.shape[:3], mla.d_rope)
        k_BTNH = jnp.concatenate([k_BTNH, jnp.broadcast_to(r_BT1R, shared)], axis=-1)
    o_BTNV = core.attend(scores, a, q_BTNH, k_BTNH, v_BTNV)
    block.add("attn.out", o_BTNV)


def _query_latent(mla: Mla, block: Block, n_BTD: Array) -> Array:
    """Normed, with all tokens that the chip's heads take."""
    cq_BTQ = projected(block, "attn.q_down", n_BTD, "b_dq")
    cq_BTQ = _normed(mla, block, checkpoint_name(cq_BTQ, "q_latent"), "q_norm")
    return checkpoint_name(block.enter(cq_BTQ, "attn.q_up"), "q_normed")


def _key_latent(mla: Mla, block: Block, n_BTD: Array) -> Array:
    """Normed but for the part with positions, with all tokens that the chip's heads take."""
    ckv_BTC = checkpoint_name(projected(block, "attn.kv_down", n_BTD, "b_dkv"), "kv_latent")
    c_BTC, r_BTR = jnp.split(ckv_BTC, [mla.kv_lora_rank], axis=-1)
    both = [_normed(mla, block, c_BTC, "kv_norm"), r_BTR]
    return checkpoint_name(block.enter(jnp.concatenate(both, axis=-1), "attn.k_up"), "kv_normed")


def _normed(mla: Mla, block: Block, c: Array, name: str) -> Array:
    with jax.named_scope(name):
        kind = Norm(eps=mla.norm_eps)
        wide = elementwise.normalized(kind, c.astype(jnp.float32))
        return elementwise.scaled(kind, wide, block.weight(name), dtype=c.dtype)
