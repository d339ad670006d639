"""Expert dispatch: copies of tokens travel to the chips of their experts and back.

`PaddedDispatch` sends the same number of slots to every expert; `ragged.RaggedDispatch` sends only
as many rows as tokens chose. Letters of arrays: N tokens that a chip sends, K experts that a token
chose, D width of a token, E experts (of the layer before the exchange, of the chip after it), C
slots of an expert (for the tokens of one chip before the exchange, of all chips after it), I input
and J output columns of an expert's matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Moe
from shardwise.runtime.experts import routing
from shardwise.runtime.experts.routing import Slots
from shardwise.runtime.layout.sharding import Table, gather, row_major, scatter
from shardwise.runtime.weights.quantized import sum_dtype

Array = jax.Array
TENSOR = ("tensor",)


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """How the sharding rules distribute experts, and the tokens that experts receive.

    Args:
        table: sharding rules on the mesh.
        expert_roles: roles that shard the experts; tokens are exchanged over their chips.
        splits_experts: whether `tensor` shards the matrices of an expert.
        splits_residual: whether `tensor` shards the tokens of the residual.
    """

    table: Table
    expert_roles: tuple[str, ...]
    splits_experts: bool
    splits_residual: bool

    @property
    def sends_residual_tokens(self) -> bool:
        """Whether each chip of `tensor` sends only its own tokens of the residual."""
        return bool(self.expert_roles) and self.splits_residual

    @property
    def gathers_over_tensor(self) -> bool:
        """Whether chips of `tensor` gather the tokens that the others received."""
        return self.sends_residual_tokens and self.splits_experts

    @property
    def slices_tokens(self) -> bool:
        """Whether each chip of `tensor` sends a part of the tokens of a replicated residual."""
        return "tensor" in self.expert_roles and not self.splits_residual

    @property
    def token_roles(self) -> tuple[str, ...]:
        """Roles over which chips with other experts have other tokens; `tensor` has the same."""
        return tuple(role for role in self.expert_roles if role != "tensor")

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Mesh axes that shard the experts."""
        return self.table.mesh.axis_names(self.expert_roles)

    @property
    def tensor_axes(self) -> tuple[str, ...]:
        """Mesh axes of `tensor`."""
        return self.table.mesh.axis_names(TENSOR)


def expert_layout(table: Table) -> ExpertLayout:
    """Layout of the experts under the rules of a table."""
    expert = table.roles("weights", ("E", "D", "F"))
    residual = table.roles("residual", ("B", "T", "D"))
    splits_residual = "tensor" in residual.get("T", ())
    return ExpertLayout(table, expert.get("E", ()), "F" in expert, splits_residual)


class EqualSlots:
    """Products of copies [.., E, C, I]: each expert has equally many slots, some of them empty."""

    def product(self, x_ECI: Array, w_EIJ: Array) -> Array:
        """Multiply the copies that each expert received by the expert's matrix."""
        sums = sum_dtype(x_ECI.dtype)
        return jnp.einsum("...eci,eij->...ecj", x_ECI, w_EIJ, preferred_element_type=sums)

    def expand(self, b_EJ: Array) -> Array:
        """Broadcast one row per expert to all copies that the expert received."""
        return b_EJ[:, None]


@dataclass(frozen=True)
class PaddedDispatch(EqualSlots):
    """Dispatch with arrays [E, C, ..], of as many slots for each expert.

    Args:
        layout: layout of the experts.
        slots: the slot of each token's copies, before they are sent.
        n_experts: number of experts of the layer.
    """

    layout: ExpertLayout
    slots: Slots
    n_experts: int

    def send(self, x: Array) -> Array:
        """Send copies of this chip's tokens, in slot order; return the copies for its experts.

        Copies are [E, C, D], but [S, E, C, D] on TPUs if S chips exchange them.
        """
        x = x.reshape(self.n_experts, -1, x.shape[-1])
        if self.layout.expert_roles:
            x_SeCD = x.reshape(lax.axis_size(self.layout.expert_axes), -1, *x.shape[1:])
            x = self._exchange(x_SeCD)
            if not self._keeps_senders_apart:
                x = x.swapaxes(0, 1).reshape(x.shape[1], -1, x.shape[-1])
        if self.layout.gathers_over_tensor:
            x = gather(x, self.layout.tensor_axes, x.ndim - 2)
        return x

    def send_back(self, y: Array) -> Array:
        """Send outputs of this chip's experts back; return those of its own tokens' copies."""
        if self.layout.gathers_over_tensor:
            y = scatter(y, self.layout.tensor_axes, y.ndim - 2)
        if self.layout.expert_roles:
            if not self._keeps_senders_apart:
                n_experts, _, width = y.shape
                y = y.reshape(n_experts, self.n_experts // n_experts, -1, width).swapaxes(0, 1)
            # A TPU lays out products by expert. As they are, what comes back is copied once more.
            y = self._exchange(row_major(y, self.layout.table.mesh))
        return y.reshape(-1, y.shape[-1])

    @property
    def _keeps_senders_apart(self) -> bool:
        """Whether received copies stay apart by sender: a TPU would copy all to put E first.

        Products of GPUs are faster with E first.
        """
        return self.layout.table.mesh.platform == "tpu"

    def _exchange(self, x: Array) -> Array:
        """Exchange the first dim with the chips that it numbers.

        XLA's TPU compiler copies an array back and forth between layouts if it splits another dim.
        """
        return lax.all_to_all(x, self.layout.expert_axes, split_axis=0, concat_axis=0, tiled=True)


def padded_dispatch(
    m: Moe, layout: ExpertLayout, experts_NK: Array, factor: float | None
) -> PaddedDispatch:
    """Make the dispatch of tokens to their experts, with the capacity of an expert as its slots.

    Choices beyond the capacity are dropped.

    Args:
        layout: layout of the experts.
        experts_NK: indices of the experts that each token chose.
        factor: capacity factor, see `routing.capacity`.
    """
    n_slots = routing.capacity(m, len(experts_NK), factor)
    slots = routing.assign_slots(experts_NK, m.n_experts, n_slots)
    slots = Slots(*(checkpoint_name(x, routing.SAVED) for x in slots))
    return PaddedDispatch(layout, slots, m.n_experts)
