"""Multi-head latent attention: queries, keys and values are projected up from narrow latents.

n_BTD is the block's normalized input, for the chip's tokens of the residual. cq_BTQ is the latent
of queries. ckv_BTC is the latent of keys and values, followed by the R numbers of the keys' rotary
part. q_BTNH, k_BTNH and v_BTNV are queries, keys and values of the chip's heads, o_BTNV is the
attention output. Latents are normalized before they are gathered over `tensor`, because they are
narrower than their projections.

A `LatentCore` caches latents and attends to them.

Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models.config import Attention, Mla
from shardwise.models.numerics import Norm
from shardwise.runtime.blocks import elementwise
from shardwise.runtime.blocks.attention import AttentionCore, LatentCore, project
from shardwise.runtime.blocks.positions import rotate
from shardwise.runtime.blocks.products import BlockProducts
from shardwise.runtime.weights.quantized import Scaled

Array = jax.Array


def latent_attention(
    a: Attention,
    mla: Mla,
    block: BlockProducts,
    core_block: BlockProducts,
    core: AttentionCore,
    n_BTD: Array,
    *,
    seq: int,
) -> None:
    """Add the latent attention of a normalized input to the output of the block.

    Args:
        mla: widths of its latents and heads.
        block: products of the projections.
        core_block: collectives of the attention core.
        core: computes attention between the projections.
        n_BTD: the normalized input, for the chip's tokens of the residual.
        seq: number of tokens of a whole sequence.
    """
    n_BTD = block.move_input(n_BTD, "attn.kv_down")  # gathers D, if chips share it
    if mla.q_lora_rank is None:
        q_BTD = n_BTD if block.table.width_roles else block.move_input(n_BTD, "attn.q")
        q_BTNH = block.product("attn.q", checkpoint_name(q_BTD, "attention_input"))
    else:
        n_BTD = checkpoint_name(n_BTD, "attention_input")
        q_BTNH = block.product("attn.q_up", _query_latent(mla, block, n_BTD))
    ckv_BTC = _key_value_latent(mla, block, n_BTD)
    c_BTC, rotary_BTR = jnp.split(ckv_BTC, [mla.kv_lora_rank], axis=-1)
    if isinstance(core, LatentCore):
        o_BTNV = _attend_latents(a, mla, block, core, q_BTNH, c_BTC, rotary_BTR, seq)
        block.add_product("attn.out", o_BTNV)
        return
    k_BTNH = checkpoint_name(block.product("attn.k_up", c_BTC), "k")
    v_BTNV = checkpoint_name(block.product("attn.v_up", c_BTC), "v")
    with jax.named_scope("rope"):
        angles = core.rotary_angles(a, q_BTNH.shape[1], seq)
        plain_BTNH, q_BTNR = jnp.split(q_BTNH, [mla.d_nope], axis=-1)
        q_BTNR = rotate(a.rotary, q_BTNR, angles)
        q_BTNH = checkpoint_name(jnp.concatenate([plain_BTNH, q_BTNR], axis=-1), "q")
        rotary_BT1R = rotate(a.rotary, rotary_BTR[:, :, None], angles)
        rotary_BTNR = jnp.broadcast_to(rotary_BT1R, (*k_BTNH.shape[:3], mla.d_rope))
        k_BTNH = jnp.concatenate([k_BTNH, rotary_BTNR], axis=-1)
    o_BTNV = core.attend(core_block, a, q_BTNH, k_BTNH, v_BTNV)
    block.add_product("attn.out", o_BTNV)


def _attend_latents(
    a: Attention,
    mla: Mla,
    block: BlockProducts,
    core: LatentCore,
    q_BTNH: Array,
    c_BTC: Array,
    rotary_BTR: Array,
    seq: int,
) -> Array:
    """Attention over cached latents: o_BTNV.

    Queries are multiplied by the weights of keys, and outputs by those of values, so that no keys
    and values of single heads exist (DeepSeek-V2, section 2.1.2).
    """
    plain_BTNH, q_BTNR = jnp.split(q_BTNH, [mla.d_nope], axis=-1)
    with jax.named_scope("rope"):
        angles = core.rotary_angles(a, q_BTNH.shape[1], seq)
        q_BTNR = rotate(a.rotary, q_BTNR, angles)
        rotary_BT1R = rotate(a.rotary, rotary_BTR[:, :, None], angles)
    w_CNH = block.operand("attn.k_up")
    with jax.named_scope("attn.k_up"):
        if isinstance(w_CNH, Scaled):
            plain_BTNH = plain_BTNH * w_CNH.scale.astype(plain_BTNH.dtype)
            w_CNH = w_CNH.values.astype(plain_BTNH.dtype)
        q_BTNC = jnp.einsum("btnh,cnh->btnc", plain_BTNH, w_CNH)
    o_BTNC = core.attend_latents(
        a,
        jnp.concatenate([q_BTNC, q_BTNR], axis=-1),
        jnp.concatenate([c_BTC, rotary_BT1R[:, :, 0]], axis=-1),
    )
    w_CNV = block.operand("attn.v_up")
    with jax.named_scope("attn.v_up"):
        if not isinstance(w_CNV, Scaled):
            return jnp.einsum("btnc,cnv->btnv", o_BTNC, w_CNV)
        o_BTNV = jnp.einsum("btnc,cnv->btnv", o_BTNC, w_CNV.values.astype(o_BTNC.dtype))
        return o_BTNV * w_CNV.scale.astype(o_BTNV.dtype)


def _query_latent(mla: Mla, block: BlockProducts, n_BTD: Array) -> Array:
    """The latent of queries, normalized and gathered."""
    cq_BTQ = checkpoint_name(project(block, "attn.q_down", n_BTD, "b_dq"), "q_latent")
    cq_BTQ = _normalize(mla, block, cq_BTQ, "q_norm")
    return checkpoint_name(block.move_input(cq_BTQ, "attn.q_up"), "q_normed")


def _key_value_latent(mla: Mla, block: BlockProducts, n_BTD: Array) -> Array:
    """The latent of keys and values, normalized except for its rotary part, and gathered."""
    ckv_BTC = checkpoint_name(project(block, "attn.kv_down", n_BTD, "b_dkv"), "kv_latent")
    c_BTC, rotary_BTR = jnp.split(ckv_BTC, [mla.kv_lora_rank], axis=-1)
    c_BTC = _normalize(mla, block, c_BTC, "kv_norm")
    ckv_BTC = jnp.concatenate([c_BTC, rotary_BTR], axis=-1)
    return checkpoint_name(block.move_input(ckv_BTC, "attn.k_up"), "kv_normed")


def _normalize(mla: Mla, block: BlockProducts, latent: Array, name: str) -> Array:
    """Apply the RMS norm with the scale `name` to a latent."""
    with jax.named_scope(name):
        norm = Norm(eps=mla.norm_eps)
        normalized = elementwise.normalize(norm, latent.astype(jnp.float32))
        return elementwise.scale_and_shift(norm, normalized, block.weight(name), dtype=latent.dtype)
