"""The mixture-of-experts block: routed experts, and shared experts that every token uses.

n_BTD is the block's normalized input, x_ND the tokens that a chip sends and x_RD the copies of
tokens that its experts receive. R stands for the rows of `RaggedDispatch`, and for the dims [E, C]
of `PaddedDispatch`. E are experts, K the experts of a token, F is the chip's shard of the hidden
width.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Moe
from shardwise.runtime.blocks import elementwise
from shardwise.runtime.blocks.products import BlockProducts, OfStack
from shardwise.runtime.experts import routing
from shardwise.runtime.experts.dispatch import (
    TENSOR,
    EqualSlots,
    ExpertLayout,
    PaddedDispatch,
    expert_layout,
    padded_dispatch,
)
from shardwise.runtime.experts.gathered import gathered_experts, n_gathers
from shardwise.runtime.experts.ragged import RaggedDispatch
from shardwise.runtime.experts.ragged import ragged_dispatch as dispatch_ragged
from shardwise.runtime.kernels import cpu
from shardwise.runtime.layout.sharding import gather
from shardwise.runtime.weights.quantized import Scaled, quantize

Array = jax.Array
Dispatch = PaddedDispatch | RaggedDispatch
Products = EqualSlots | RaggedDispatch


def moe(
    m: Moe,
    block: BlockProducts,
    n_BTD: Array,
    factor: float | None,
    *,
    ragged_dispatch: bool = False,
    is_token_BT: Array | None = None,
) -> Array:
    """Output of the block, in the layout of the residual.

    Args:
        block: products of the block.
        n_BTD: normalized input, in the layout of the residual.
        factor: capacity factor, see `routing.capacity`.
        ragged_dispatch: whether to use `RaggedDispatch` if there is no capacity factor.
        is_token_BT: see `LayerSettings`.
    """
    layout = expert_layout(block.table)
    gathered_BTD = n_BTD
    if m.d_ff_shared or not layout.sends_residual_tokens:
        gathered_BTD = block.move_input(n_BTD, "shared.up" if m.d_ff_shared else "moe.up")
    gathered_BTD = checkpoint_name(gathered_BTD, "ffn_input")
    x_BTD = gathered_BTD
    if layout.sends_residual_tokens and m.d_ff_shared:
        x_BTD = n_BTD
    gathers_all = is_token_BT is not None and bool(layout.expert_roles)
    if layout.slices_tokens and not gathers_all:
        x_BTD = layout.table.slice(x_BTD, TENSOR, 1)
    x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
    weights_NK, experts_NK = _route(m, block, x_ND)
    if gathers_all and is_token_BT is not None:
        experts_NK = jnp.where(is_token_BT.reshape(-1, 1), experts_NK, m.n_experts)

        def compute(x_eCD: Array, weights_eC1: Array) -> Array:
            late = block
            if n_gathers(layout, len(x_ND)) == 1:
                late, weights_eC1 = _reading_after(block, weights_eC1)
            return _experts(m, late, EqualSlots(), x_eCD, weights_eC1)

        y_ND = gathered_experts(m, layout, x_ND, weights_NK, experts_NK, compute)
    elif ragged_dispatch and factor is None:
        with jax.named_scope("moe.router"):
            ragged = dispatch_ragged(m, layout, experts_NK)
        y_ND = _routed_experts(m, block, ragged, x_ND, weights_NK)
    else:
        with jax.named_scope("moe.router"):
            padded = padded_dispatch(m, layout, experts_NK, factor)
        y_ND = _routed_experts(m, block, padded, x_ND, weights_NK)
    y_BTD = y_ND.reshape(x_BTD.shape)
    if m.d_ff_shared:
        _shared_experts(m, block, gathered_BTD)
    if layout.sends_residual_tokens:  # y_BTD is reduced already, in the layout of the residual
        return block.output() + y_BTD if m.d_ff_shared else y_BTD
    if layout.slices_tokens:
        join = _join_experts if gathers_all else _join_tokens
        return join(m, block, layout, y_BTD)
    block.add_output("moe.down", y_BTD)
    return block.output()


def _reading_after(block: BlockProducts, x: Array) -> tuple[BlockProducts, Array]:
    """A block whose weights of stacks are read after x, and x.

    A loop that computes x then reads them in every turn. Otherwise XLA's TPU compiler may copy them
    before the loop, which pays only where the loop has many turns.
    """
    weights = {}
    for name, (w, accumulator) in block.weights.items():
        if isinstance(w, OfStack):
            index, x = lax.optimization_barrier((w.index, x))
            w = replace(w, index=index)
        weights[name] = (w, accumulator)
    return replace(block, weights=weights), x


def _join_tokens(m: Moe, block: BlockProducts, layout: ExpertLayout, y_BTD: Array) -> Array:
    """Output of all tokens, from the parts of the tokens that the chips of `tensor` have."""
    if not m.d_ff_shared:
        with jax.named_scope("moe.combine"):
            return gather(y_BTD, layout.tensor_axes, 1)
    n_tensor = layout.table.mesh.size(TENSOR)
    n_tokens = y_BTD.shape[1]
    zeros_BTD = jnp.zeros((y_BTD.shape[0], n_tensor * n_tokens, y_BTD.shape[2]), y_BTD.dtype)
    start = layout.table.index(TENSOR) * n_tokens
    padded_BTD = lax.dynamic_update_slice_in_dim(zeros_BTD, y_BTD, start, 1)
    block.add_output("shared.down", padded_BTD)
    return block.output()


def _join_experts(m: Moe, block: BlockProducts, layout: ExpertLayout, y_BTD: Array) -> Array:
    """Output of all experts, from the sums over those that each chip of `tensor` has."""
    if not m.d_ff_shared:
        with jax.named_scope("moe.combine"):
            return layout.table.sum(y_BTD, TENSOR)
    block.add_output("shared.down", y_BTD)
    return block.output()


def _route(m: Moe, block: BlockProducts, x_ND: Array) -> tuple[Array, Array]:
    """Route tokens: return (weights_NK in fp32, indices experts_NK) of each token's experts."""
    router_DE = block.operand("moe.router")
    with jax.named_scope("moe.router"):
        logits_NE = jnp.einsum("nd,de->ne", x_ND, router_DE, preferred_element_type=jnp.float32)
    logits_NE = block.reduced("moe.router", logits_NE)
    with jax.named_scope("moe.router"):
        if m.router_bias:
            logits_NE = logits_NE + block.weight("b_router").astype(jnp.float32)
        logits_NE = checkpoint_name(logits_NE, routing.SAVED)
        correction_E = block.buffer("router_correction") if m.routing.correction else None
        return routing.choose(m, logits_NE, correction_E)


def _routed_experts(
    m: Moe, block: BlockProducts, dispatch: Dispatch, x_ND: Array, weights_NK: Array
) -> Array:
    """Output of the routed experts, for the tokens that this chip sends."""
    with jax.named_scope("moe.dispatch"):
        weights = routing.choices_to_slots(weights_NK, dispatch.slots)[:, None]
        copies = routing.tokens_to_slots(x_ND, dispatch.slots)
        x_RD = checkpoint_name(dispatch.send(copies), "expert_input")
        weights_R1 = checkpoint_name(dispatch.send(weights), "expert_input")
    y_RD = _experts(m, block, dispatch, x_RD, weights_R1)
    with jax.named_scope("moe.combine"):
        return routing.slots_to_tokens(dispatch.send_back(y_RD), dispatch.slots)


def _experts(
    m: Moe, block: BlockProducts, dispatch: Products, x_RD: Array, weights_R1: Array
) -> Array:
    """Outputs of the chip's experts for the copies of tokens that they received.

    Routing weights are applied before the last product, so that their gradients do not need its
    output.
    """

    def product(part: str, x_RI: Array) -> Array:
        w_EIJ = block.operand(f"moe.{part}")
        with jax.named_scope(f"moe.{part}"):
            if isinstance(w_EIJ, Scaled):
                y_RJ = _scaled_product(dispatch, x_RI, w_EIJ, block.precision.narrow)
            else:
                y_RJ = dispatch.product(x_RI, w_EIJ)
        if part == "down":  # reduced after it was sent back
            return y_RJ
        y_RJ = block.reduced(f"moe.{part}", y_RJ)
        with jax.named_scope(f"moe.{part}"):
            return y_RJ + dispatch.expand(block.weight(f"b_{part}")) if m.bias else y_RJ

    weights_R1 = weights_R1.astype(x_RD.dtype)
    if m.routing.on_input:
        x_RD = x_RD * weights_R1
    up_RF = checkpoint_name(product("up", x_RD), "up")
    gate_RF = checkpoint_name(product("gate", x_RD), "gate") if m.gated else None

    def hidden(up_RF: Array, gate_RF: Array | None, weights_R1: Array) -> Array:
        h_RF = _activation(m, up_RF, gate_RF)
        return h_RF if m.routing.on_input else h_RF * weights_R1

    h_RF = cpu.recomputed(block.table.mesh, hidden)(up_RF, gate_RF, weights_R1)
    y_RD = product("down", checkpoint_name(h_RF, "hidden"))
    if not m.bias:
        return y_RD
    bias_RD = dispatch.expand(_down_bias(block))
    if m.routing.on_input:
        return y_RD + bias_RD * (weights_R1 != 0)
    return y_RD + bias_RD * weights_R1


def _scaled_product(dispatch: Products, x_RI: Array, w_EIJ: Scaled, narrow: Any) -> Array:
    """Multiply copies by quantized matrices; see `quantized.product`."""
    scale_RJ = dispatch.expand(w_EIJ.scale)
    if narrow is None:
        y_RJ = dispatch.product(x_RI, w_EIJ.values.astype(x_RI.dtype))
        return (y_RJ * scale_RJ).astype(x_RI.dtype)
    rows = quantize(x_RI, narrow, (-1,))
    y_RJ = dispatch.product(rows.values, w_EIJ.values.astype(narrow))
    return (y_RJ.astype(jnp.float32) * rows.scale[..., None] * scale_RJ).astype(x_RI.dtype)


def _down_bias(block: BlockProducts) -> Array:
    """Bias of the last product; zero on all but one of the chips whose partial sums are added."""
    roles = block.program("moe.down").local.output.dims[-1].axes
    bias_ED = block.table.slice(block.weight("b_down"), roles, 1)
    if expert_layout(block.table).splits_experts:
        bias_ED = jnp.where(block.table.index(TENSOR) == 0, bias_ED, 0)
    return bias_ED


@jax.named_scope("activation")
def _activation(m: Moe, up: Array, gate: Array | None) -> Array:
    """Activation of the gate times the up projection; without a gate, of the up projection."""
    if gate is None or m.clamp is None:
        return elementwise.gated(m.activation, up, gate)
    limit = m.clamp.limit
    gate = jnp.minimum(gate, limit)
    return gate * jax.nn.sigmoid(m.clamp.alpha * gate) * (jnp.clip(up, -limit, limit) + 1)


def _shared_experts(m: Moe, block: BlockProducts, n_BTD: Array) -> None:
    """Add the shared experts to the block's output: a feed-forward network for all tokens."""
    up_BTF = checkpoint_name(block.product("shared.up", n_BTD), "shared_up")
    gate_BTF = None
    if m.gated:
        gate_BTF = checkpoint_name(block.product("shared.gate", n_BTD), "shared_gate")
    hidden = cpu.recomputed(block.table.mesh, functools.partial(_activation, m))
    h_BTF = hidden(up_BTF, gate_BTF)
    if m.shared_gate:
        scale_BT = jax.nn.sigmoid(block.product("moe.shared_scale", n_BTD).astype(jnp.float32))
        h_BTF = h_BTF * scale_BT[..., None].astype(h_BTF.dtype)
    block.add_product("shared.down", checkpoint_name(h_BTF, "shared_hidden"))
