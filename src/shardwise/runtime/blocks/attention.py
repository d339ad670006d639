"""The attention block: projections to queries, keys and values of this chip's heads, attention, and
the output projection.

n_BTD is the block's normalized input with all tokens that the chip's products take, q_BTNH k_BTKH
v_BTKH are the chip's heads, o_BTNH is the attention output.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention, Norm
from shardwise.runtime.blocks import elementwise, positions
from shardwise.runtime.blocks.positions import RotaryAngles
from shardwise.runtime.blocks.products import BlockProducts

Array = jax.Array


class AttentionCore(Protocol):
    """Attention between projections: over whole sequences, over parts of them, or over a cache."""

    def positions(self, n_tokens: int) -> Array:
        """positions_BT (or 1 for B) of the tokens that a block's products take."""
        ...

    def rotary_angles(self, a: Attention, n_tokens: int, seq: int) -> RotaryAngles:
        """Rotary angles of those tokens in sequences of `seq`."""
        ...

    def attend(self, block: BlockProducts, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """o_BTNH of rotated q_BTNH k_BTKH and of v_BTKH.

        What the backward pass may save carries the checkpoint name "attended": for a kernel its own
        output, once.

        Args:
            block: collectives of the core's terms.
        """
        ...


def attention(
    a: Attention,
    block: BlockProducts,
    core_block: BlockProducts,
    core: AttentionCore,
    n_BTD: Array,
    *,
    norm: Norm,
    seq: int,
) -> None:
    """Add the attention of a normalized input to the output of the block.

    Args:
        a: the attention.
        block: products of the projections.
        core_block: collectives of the core's terms.
        core: computes the attention output.
        n_BTD: the normalized input, after `move_input`.
        norm: norm of queries and keys.
        seq: tokens of a whole sequence.
    """
    v_BTKH = block.to_sequence_order(project(block, "attn.v", n_BTD, "bv"))
    v_BTKH = checkpoint_name(v_BTKH, "v")
    with jax.named_scope("rope"):
        angles = core.rotary_angles(a, v_BTKH.shape[1], seq) if a.rope else None
    q_BTNH = _query_or_key(a, block, "q", n_BTD, angles, norm)
    k_BTKH = _query_or_key(a, block, "k", n_BTD, angles, norm)
    if a.temperature:
        with jax.named_scope("temperature"):
            positions_BT = core.positions(q_BTNH.shape[1])
            q_BTNH = positions.scale_by_position(a.temperature, q_BTNH, positions_BT)
    o_BTNH = core.attend(core_block, a, q_BTNH, k_BTKH, v_BTKH)
    block.add_product("attn.out", block.to_arrival_order(o_BTNH))


def project(block: BlockProducts, name: str, n_BTD: Array, bias: str) -> Array:
    """The product of a term, plus its bias where the layer has one."""
    y = block.product(name, n_BTD)
    if bias not in block.weights:
        return y
    with jax.named_scope(name):
        return y + block.weight(bias)


def _query_or_key(
    a: Attention,
    block: BlockProducts,
    kind: str,
    n_BTD: Array,
    angles: RotaryAngles | None,
    norm: Norm,
) -> Array:
    """q_BTNH or k_BTKH by their `kind` "q" or "k", normalized and rotated.

    The backward pass of a norm reads its input, so with a norm remat saves the product and
    normalizes it again.
    """
    x_BTNH = block.to_sequence_order(project(block, f"attn.{kind}", n_BTD, f"b{kind}"))
    has_norm = bool(a.qk_norm or a.qk_unit)
    if has_norm:
        x_BTNH = checkpoint_name(x_BTNH, kind)
    if a.qk_norm:
        with jax.named_scope(f"{kind}_norm"):
            x_BTNH = _normalize_heads(block, f"{kind}_norm", norm, x_BTNH)
    if angles:
        with jax.named_scope("rope"):
            x_BTNH = positions.rotate(a.rotary, x_BTNH, angles)
    if a.qk_unit:
        with jax.named_scope(f"{kind}_norm"):
            unit = elementwise.normalize(Norm(eps=norm.eps), x_BTNH.astype(jnp.float32))
            x_BTNH = unit.astype(x_BTNH.dtype)
    return x_BTNH if has_norm else checkpoint_name(x_BTNH, kind)


def _normalize_heads(block: BlockProducts, name: str, norm: Norm, x_BTNH: Array) -> Array:
    """Normalize each head alone, or all heads together where the scale is [N, H]: the chips that
    share the heads then sum their squares."""
    scale = block.weight(name)
    roles = ("tensor",) if scale.ndim == 2 else ()
    normalized = elementwise.normalize(
        norm,
        x_BTNH.astype(jnp.float32),
        scale.ndim,
        n_chips=block.table.mesh.size(roles),
        all_reduce=lambda x: block.table.sum(x, roles),
    )
    return elementwise.scale_and_shift(norm, normalized, scale, dtype=x_BTNH.dtype)
