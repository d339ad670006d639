"""The routed feed-forward block: tokens to their experts and back, and shared experts beside them.

n_BTD is the normed input of the block, x_ND the tokens that a chip sends, E experts (those of the
chip where it multiplies), C places of an expert: for the tokens of one chip where they are sent,
of all chips where they are multiplied. F are the chip's columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Moe
from shardwise.runtime import elementwise, routing
from shardwise.runtime.products import Block
from shardwise.runtime.routing import Places
from shardwise.runtime.table import Table, gather, scatter

Array = jax.Array
TENSOR = ("tensor",)


@dataclass(frozen=True, slots=True)
class Way:
    """How tokens reach experts, as the table lays experts and tokens out.

    Args:
        table: rules on the mesh.
        dealt: roles over which whole experts are dealt out, to which tokens are sent.
        split: whether the matrices of an expert are split over `tensor`.
        sequence: whether the residual is split over `tensor`.
    """

    table: Table
    dealt: tuple[str, ...]
    split: bool
    sequence: bool

    @property
    def apart(self) -> bool:
        """Whether each chip of `tensor` sends the tokens of its part of the sequence alone."""
        return bool(self.dealt) and self.sequence

    @property
    def cut(self) -> bool:
        """Whether it has to take its part of the tokens first."""
        return "tensor" in self.dealt and not self.sequence

    def sent(self, x_ECD: Array) -> Array:
        """Places of all experts for the chip's tokens -> of the chip's experts for all tokens."""
        if self.dealt:
            x_ECD = lax.all_to_all(x_ECD, self._names, split_axis=0, concat_axis=1, tiled=True)
        if self.apart and self.split:
            x_ECD = gather(x_ECD, self._tensor, 1)
        return x_ECD

    def returned(self, y_ECD: Array) -> Array:
        """The way back."""
        if self.apart and self.split:
            y_ECD = scatter(y_ECD, self._tensor, 1)
        if self.dealt:
            y_ECD = lax.all_to_all(y_ECD, self._names, split_axis=1, concat_axis=0, tiled=True)
        return y_ECD

    @property
    def _names(self) -> tuple[str, ...]:
        return self.table.on.names(self.dealt)

    @property
    def _tensor(self) -> tuple[str, ...]:
        return self.table.on.names(TENSOR)


def way(table: Table) -> Way:
    """As the table says."""
    expert = table.roles("weights", ("E", "D", "F"))
    residual = table.roles("residual", ("B", "T", "D"))
    return Way(table, expert.get("E", ()), "F" in expert, "tensor" in residual.get("T", ()))


def moe(m: Moe, block: Block, n_BTD: Array, factor: float | None) -> Array:
    """The block from its normed input to what it adds to the residual.

    Args:
        factor: of the room for tokens, see `routing.capacity`.
    """
    on = way(block.table)
    whole_BTD = n_BTD
    if m.d_ff_shared or not on.apart:
        whole_BTD = block.enter(n_BTD, "shared.up" if m.d_ff_shared else "moe.up")
    whole_BTD = checkpoint_name(whole_BTD, "ffn_input")
    x_BTD = n_BTD if on.apart and m.d_ff_shared else whole_BTD
    if on.cut:
        x_BTD = on.table.slice(x_BTD, TENSOR, 1)
    y_BTD = _routed(m, block, on, x_BTD, factor)
    if m.d_ff_shared:
        _shared(m, block, whole_BTD)
    if on.apart:  # every chip has its tokens' sums: those of its part of the residual
        return block.leave() + y_BTD if m.d_ff_shared else y_BTD
    if on.cut:
        return _joined(m, block, on, y_BTD)
    block.put("moe.down", y_BTD)
    return block.leave()


def _joined(m: Moe, block: Block, on: Way, y_BTD: Array) -> Array:
    """Parts of the tokens come back to a residual that every chip of `tensor` has whole."""
    if not m.d_ff_shared:
        with jax.named_scope("moe.combine"):
            return gather(y_BTD, on.table.on.names(TENSOR), 1)
    n, part = on.table.on.size(TENSOR), y_BTD.shape[1]
    whole_BTD = jnp.zeros((y_BTD.shape[0], n * part, y_BTD.shape[2]), y_BTD.dtype)
    at = on.table.index(TENSOR) * part
    block.put("shared.down", lax.dynamic_update_slice_in_dim(whole_BTD, y_BTD, at, 1))
    return block.leave()


def _routed(m: Moe, block: Block, on: Way, x_BTD: Array, factor: float | None) -> Array:
    """What routed experts write, for the tokens that this chip sends."""
    x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
    weights_NK, at = _routes(m, block, x_ND, factor)
    with jax.named_scope("moe.dispatch"):
        x_ECD = routing.spread(x_ND, at).reshape(m.n_experts, -1, x_ND.shape[-1])
        weights_EC1 = routing.spread_choices(weights_NK, at).reshape(m.n_experts, -1, 1)
        x_ECD = checkpoint_name(on.sent(x_ECD), "expert_input")
        weights_EC1 = checkpoint_name(on.sent(weights_EC1), "expert_input")
    y_ECD = _experts(m, block, x_ECD, weights_EC1)
    with jax.named_scope("moe.combine"):
        y_ECD = on.returned(y_ECD)
        y_ND = routing.collect(y_ECD.reshape(-1, y_ECD.shape[-1]), at)
    return y_ND.reshape(x_BTD.shape)


def _routes(m: Moe, block: Block, x_ND: Array, factor: float | None) -> tuple[Array, Places]:
    """Weights of the experts of each token, in fp32, and the places of its copies."""
    router_DE = block.operand("moe.router")
    with jax.named_scope("moe.router"):
        logits_NE = jnp.einsum("nd,de->ne", x_ND, router_DE, preferred_element_type=jnp.float32)
        if m.router_bias:
            logits_NE = logits_NE + block.weight("b_router").astype(jnp.float32)
        logits_NE = checkpoint_name(logits_NE, routing.KEPT)
        correction_E = block.statistic("router_correction") if m.routing.correction else None
        weights_NK, experts_NK = routing.choose(m, logits_NE, correction_E)
        found = routing.places(experts_NK, m.n_experts, routing.capacity(m, len(x_ND), factor))
        return weights_NK, Places(*(checkpoint_name(p, routing.KEPT) for p in found))


def _experts(m: Moe, block: Block, x_ECD: Array, weights_EC1: Array) -> Array:
    """Each expert of the chip on its places.

    Weights are put on before the last product, so that its gradients need no result of it.
    """
    weights_EC1 = weights_EC1.astype(x_ECD.dtype)
    if m.routing.on_input:
        x_ECD = x_ECD * weights_EC1
    up_ECF = checkpoint_name(_product(m, block, "up", x_ECD), "up")
    gate_ECF = checkpoint_name(_product(m, block, "gate", x_ECD), "gate") if m.gated else None
    h_ECF = _activated(m, up_ECF, gate_ECF)
    if not m.routing.on_input:
        h_ECF = h_ECF * weights_EC1
    y_ECD = _product(m, block, "down", checkpoint_name(h_ECF, "hidden"))
    return y_ECD + _written_bias(m, block, weights_EC1) if m.bias else y_ECD


def _product(m: Moe, block: Block, part: str, x_ECI: Array) -> Array:
    """All experts of the chip at once: I is what their matrices read, J what they write."""
    w_EIJ = block.operand(f"moe.{part}")
    with jax.named_scope(f"moe.{part}"):
        y_ECJ = jnp.einsum("eci,eij->ecj", x_ECI, w_EIJ)
        return y_ECJ + block.weight(f"b_{part}")[:, None] if m.bias and part != "down" else y_ECJ


def _written_bias(m: Moe, block: Block, weights_EC1: Array) -> Array:
    """The bias of the last product, weighted; of one chip where chips have parts of the sum."""
    bias_E1D = block.weight("b_down")[:, None]
    if way(block.table).split:
        bias_E1D = jnp.where(block.table.index(TENSOR) == 0, bias_E1D, 0)
    return bias_E1D * ((weights_EC1 != 0) if m.routing.on_input else weights_EC1)


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
