"""The attention block: projections to queries, keys and values of this chip's heads, attention, and
the output projection.

n_BTD is the block's normalized input, gathered for the chip's products. q_BTNH are queries, k_BTKH
keys and v_BTKH values of the chip's heads, o_BTNH is the attention output.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention, Norm
from shardwise.runtime.blocks import elementwise, positions
from shardwise.runtime.blocks.positions import RotaryAngles
from shardwise.runtime.blocks.products import BlockProducts

Array = jax.Array


class AttentionCore(Protocol):
    """Attention between the projections: over whole sequences, parts of them, or a KV cache."""

    def positions(self, n_tokens: int) -> Array:
        """Positions [B or 1, T] of the tokens in the block's products; T is `n_tokens`."""
        ...

    def rotary_angles(self, a: Attention, n_tokens: int, seq: int) -> RotaryAngles:
        """Rotary angles of these tokens, in sequences of `seq` tokens."""
        ...

    def attend(self, block: BlockProducts, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """Compute the attention output o_BTNH.

        In training the arrays that the backward pass may save get the checkpoint name
        `kernels.attention.SAVED`.

        Args:
            block: collectives of the attention core.
            q: rotated queries q_BTNH.
            k: rotated keys k_BTKH.
            v: values v_BTKH.
        """
        ...


@runtime_checkable
class LatentCore(Protocol):
    """An attention core that caches the latents of keys and values instead of them."""

    def rotary_angles(self, a: Attention, n_tokens: int, seq: int) -> RotaryAngles:
        """Rotary angles, as those of `AttentionCore`."""
        ...

    def attend_latents(self, a: Attention, q_BTNC: Array, ckv_BTC: Array) -> Array:
        """Compute the attention output o_BTNC, whose values are latents.

        Args:
            q_BTNC: queries projected to the width of latents, followed by their rotary part.
            ckv_BTC: latents of keys and values, followed by the keys' rotary part.
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
        block: products of the projections.
        core_block: collectives of the attention core.
        core: computes attention between the projections.
        n_BTD: the normalized input, after `move_input`.
        norm: norm of queries and keys.
        seq: number of tokens of a whole sequence.
    """
    v_BTKH = block.to_sequence_order(project(block, "attn.v", n_BTD, "bv"))
    v_BTKH = elementwise.clip(checkpoint_name(v_BTKH, "v"), a.clip)
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
    """Multiply n_BTD by the weight of the term `name`; add the bias if the layer has it."""
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
    """Project n_BTD to queries (`kind` "q") or keys ("k"); normalize and rotate them.

    With a norm or a clip the checkpoint name is on its input, which its backward pass reads; what
    follows is recomputed from it.
    """
    x_BTNH = block.to_sequence_order(project(block, f"attn.{kind}", n_BTD, f"b{kind}"))
    saves_projection = bool(a.qk_norm or a.qk_unit or a.clip is not None)
    if saves_projection:
        x_BTNH = checkpoint_name(x_BTNH, kind)
    if a.qk_norm:
        with jax.named_scope(f"{kind}_norm"):
            x_BTNH = _normalize_heads(a, block, f"{kind}_norm", norm, x_BTNH)
    x_BTNH = elementwise.clip(x_BTNH, a.clip)
    if angles:
        with jax.named_scope("rope"):
            x_BTNH = positions.rotate(a.rotary, x_BTNH, angles)
    if a.qk_unit:
        with jax.named_scope(f"{kind}_norm"):
            unit = elementwise.normalize(Norm(eps=norm.eps), x_BTNH.astype(jnp.float32))
            x_BTNH = unit.astype(x_BTNH.dtype)
    return x_BTNH if saves_projection else checkpoint_name(x_BTNH, kind)


def _normalize_heads(
    a: Attention, block: BlockProducts, name: str, norm: Norm, x_BTNH: Array
) -> Array:
    """Normalize each head alone, or all heads together if `qk_norm` is "full".

    In the second case the chips that shard the heads add up their sums of squares.
    """
    scale = block.weight(name)
    is_joint = a.qk_norm == "full"
    roles = ("tensor",) if is_joint else ()
    normalized = elementwise.normalize(
        norm,
        x_BTNH.astype(jnp.float32),
        2 if is_joint else 1,
        n_chips=block.table.mesh.size(roles),
        all_reduce=lambda x: block.table.sum(x, roles),
    )
    return elementwise.scale_and_shift(norm, normalized, scale, dtype=x_BTNH.dtype)
