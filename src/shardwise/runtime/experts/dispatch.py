"""Copies of tokens to the chips of their experts and back: which way, and in buffers of one size.

x_ND are the tokens that a chip sends, E experts (those of the chip where they multiply), C places
of an expert: for the tokens of one chip where they are sent, of all chips where they multiply.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Moe
from shardwise.runtime.experts import routing
from shardwise.runtime.experts.routing import Places
from shardwise.runtime.layout.sharding import Table, gather, scatter

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
    def joined(self) -> bool:
        """Whether chips of `tensor` then multiply what all of them were sent."""
        return self.apart and self.split

    @property
    def cut(self) -> bool:
        """Whether it has to take its part of the tokens first."""
        return "tensor" in self.dealt and not self.sequence

    @property
    def names(self) -> tuple[str, ...]:
        """Mesh axes over which experts are dealt out."""
        return self.table.on.names(self.dealt)

    @property
    def tensor(self) -> tuple[str, ...]:
        """Mesh axes of `tensor`."""
        return self.table.on.names(TENSOR)


def way(table: Table) -> Way:
    """As the table says."""
    expert = table.roles("weights", ("E", "D", "F"))
    residual = table.roles("residual", ("B", "T", "D"))
    return Way(table, expert.get("E", ()), "F" in expert, "tensor" in residual.get("T", ()))


@dataclass(frozen=True, slots=True)
class Padded:
    """Every expert has as many places, whether tokens lie in them or not: [E,C,...]."""

    way: Way
    at: Places
    n_experts: int

    def sent(self, x: Array) -> Array:
        """What a chip has of copies, as `at` lays them out -> at the experts that it has."""
        x_ECD = x.reshape(self.n_experts, -1, x.shape[-1])
        if self.way.dealt:
            x_ECD = lax.all_to_all(x_ECD, self.way.names, split_axis=0, concat_axis=1, tiled=True)
        return gather(x_ECD, self.way.tensor, 1) if self.way.joined else x_ECD

    def returned(self, y_ECD: Array) -> Array:
        """The way back."""
        if self.way.joined:
            y_ECD = scatter(y_ECD, self.way.tensor, 1)
        if self.way.dealt:
            y_ECD = lax.all_to_all(y_ECD, self.way.names, split_axis=1, concat_axis=0, tiled=True)
        return y_ECD.reshape(-1, y_ECD.shape[-1])

    def product(self, x_ECI: Array, w_EIJ: Array) -> Array:
        """All experts of the chip at once: I is what their matrices read, J what they write."""
        return jnp.einsum("eci,eij->ecj", x_ECI, w_EIJ)

    def each(self, b_EJ: Array) -> Array:
        """What each expert has once, for all its copies."""
        return b_EJ[:, None]


def padded(m: Moe, way: Way, experts_NK: Array, factor: float | None) -> Padded:
    """By the experts that tokens chose; what has no place in the room of its expert is dropped.

    Args:
        factor: of the room, see `routing.capacity`.
    """
    room = routing.capacity(m, len(experts_NK), factor)
    found = routing.places(experts_NK, m.n_experts, room)
    at = Places(*(checkpoint_name(p, routing.KEPT) for p in found))
    return Padded(way, at, m.n_experts)
