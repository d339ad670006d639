"""The routed feed-forward block: tokens to their experts and back, and shared experts beside them.

n_BTD is the normed input of the block, x_ND the tokens that a chip sends, E experts (those of the
chip where it multiplies), R their copies of tokens: as dispatch lays them out, in more than one
dim where each expert has as many places. F are the chip's columns.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Moe
from shardwise.runtime.blocks import elementwise
from shardwise.runtime.blocks.products import Block
from shardwise.runtime.experts import routing
from shardwise.runtime.experts.dispatch import TENSOR, Padded, Way, padded, way
from shardwise.runtime.experts.ragged import Ragged, ragged
from shardwise.runtime.layout.sharding import gather

Array = jax.Array


def moe(
    m: Moe, block: Block, n_BTD: Array, factor: float | None, *, by_count: bool = False
) -> Array:
    """The block from its normed input to what it adds to the residual.

    Args:
        factor: of the room for tokens, see `routing.capacity`.
        by_count: without a factor, no empty places are sent or multiplied, see `ragged`.
    """
    on = way(block.table)
    whole_BTD = n_BTD
    if m.d_ff_shared or not on.apart:
        whole_BTD = block.enter(n_BTD, "shared.up" if m.d_ff_shared else "moe.up")
    whole_BTD = checkpoint_name(whole_BTD, "ffn_input")
    x_BTD = n_BTD if on.apart and m.d_ff_shared else whole_BTD
    if on.cut:
        x_BTD = on.table.slice(x_BTD, TENSOR, 1)
    x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
    weights_NK, experts_NK = _chosen(m, block, x_ND)
    tokens: Padded | Ragged
    with jax.named_scope("moe.router"):
        if by_count and factor is None:
            tokens = ragged(m, on, experts_NK)
        else:
            tokens = padded(m, on, experts_NK, factor)
    y_BTD = _routed(m, block, tokens, x_ND, weights_NK).reshape(x_BTD.shape)
    if m.d_ff_shared:
        _shared(m, block, whole_BTD)
    if on.apart:  # every chip has its tokens' sums: those of its part of the residual
        return block.leave() + y_BTD if m.d_ff_shared else y_BTD
    if on.cut:
        return _whole(m, block, on, y_BTD)
    block.put("moe.down", y_BTD)
    return block.leave()


def _whole(m: Moe, block: Block, on: Way, y_BTD: Array) -> Array:
    """Parts of the tokens come back to a residual that every chip of `tensor` has whole."""
    if not m.d_ff_shared:
        with jax.named_scope("moe.combine"):
            return gather(y_BTD, on.tensor, 1)
    n, part = on.table.on.size(TENSOR), y_BTD.shape[1]
    whole_BTD = jnp.zeros((y_BTD.shape[0], n * part, y_BTD.shape[2]), y_BTD.dtype)
    at = on.table.index(TENSOR) * part
    block.put("shared.down", lax.dynamic_update_slice_in_dim(whole_BTD, y_BTD, at, 1))
    return block.leave()


def _chosen(m: Moe, block: Block, x_ND: Array) -> tuple[Array, Array]:
    """Weights of the experts of each token, in fp32, and which experts these are."""
    router_DE = block.operand("moe.router")
    with jax.named_scope("moe.router"):
        logits_NE = jnp.einsum("nd,de->ne", x_ND, router_DE, preferred_element_type=jnp.float32)
        if m.router_bias:
            logits_NE = logits_NE + block.weight("b_router").astype(jnp.float32)
        logits_NE = checkpoint_name(logits_NE, routing.KEPT)
        correction_E = block.statistic("router_correction") if m.routing.correction else None
        return routing.choose(m, logits_NE, correction_E)


def _routed(m: Moe, block: Block, tokens: Padded | Ragged, x_ND: Array, weights_NK: Array) -> Array:
    """What routed experts write, for the tokens that this chip sends."""
    with jax.named_scope("moe.dispatch"):
        weights = routing.spread_choices(weights_NK, tokens.at)[:, None]
        x_RD = checkpoint_name(tokens.sent(routing.spread(x_ND, tokens.at)), "expert_input")
        weights_R1 = checkpoint_name(tokens.sent(weights), "expert_input")
    y_RD = _experts(m, block, tokens, x_RD, weights_R1)
    with jax.named_scope("moe.combine"):
        return routing.collect(tokens.returned(y_RD), tokens.at)


def _experts(
    m: Moe, block: Block, tokens: Padded | Ragged, x_RD: Array, weights_R1: Array
) -> Array:
    """Each expert of the chip on its places.

    Weights are put on before the last product, so that its gradients need no result of it.
    """

    def product(part: str, x_RI: Array) -> Array:
        w_EIJ = block.operand(f"moe.{part}")
        with jax.named_scope(f"moe.{part}"):
            y_RJ = tokens.product(x_RI, w_EIJ)
            biased = m.bias and part != "down"
            return y_RJ + tokens.each(block.weight(f"b_{part}")) if biased else y_RJ

    weights_R1 = weights_R1.astype(x_RD.dtype)
    if m.routing.on_input:
        x_RD = x_RD * weights_R1
    up_RF = checkpoint_name(product("up", x_RD), "up")
    gate_RF = checkpoint_name(product("gate", x_RD), "gate") if m.gated else None
    h_RF = _activated(m, up_RF, gate_RF)
    if not m.routing.on_input:
        h_RF = h_RF * weights_R1
    y_RD = product("down", checkpoint_name(h_RF, "hidden"))
    if not m.bias:
        return y_RD
    return y_RD + tokens.each(_written_bias(block)) * (
        (weights_R1 != 0) if m.routing.on_input else weights_R1
    )


def _written_bias(block: Block) -> Array:
    """The bias of the last product; of one chip where chips have parts of the sum."""
    bias_ED = block.weight("b_down")
    if way(block.table).split:
        bias_ED = jnp.where(block.table.index(TENSOR) == 0, bias_ED, 0)
    return bias_ED


def _activated(m: Moe, up: Array, gate: Array | None) -> Array:
    """The activated gate times what goes up, or the activation alone where there is no gate."""
    act = elementwise.ACTIVATIONS[m.activation]
    if gate is None:
        return act(up)
    if m.clamp is None:
        return act(gate) * up
    limit = m.clamp.limit
    gate = jnp.minimum(gate, limit)
    return gate * jax.nn.sigmoid(m.clamp.alpha * gate) * (jnp.clip(up, -limit, limit) + 1)


def _shared(m: Moe, block: Block, n_BTD: Array) -> None:
    """Experts that every token uses: a dense block, added to the output of this one."""
    up_BTF = checkpoint_name(block.product("shared.up", n_BTD), "shared_up")
    gate_BTF = None
    if m.gated:
        gate_BTF = checkpoint_name(block.product("shared.gate", n_BTD), "shared_gate")
    h_BTF = _activated(m, up_BTF, gate_BTF)
    if m.shared_gate:
        scale_BT = jax.nn.sigmoid(block.product("moe.shared_scale", n_BTD).astype(jnp.float32))
        h_BTF = h_BTF * scale_BT[..., None].astype(h_BTF.dtype)
    block.add("shared.down", checkpoint_name(h_BTF, "shared_hidden"))
