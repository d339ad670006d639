"""Copies of tokens to the chips of their experts and back, of each as many as there are.

No token is dropped and no empty place is sent or multiplied: copies lie in the order of their
experts, `ragged_all_to_all` moves as many rows as are wanted, and products are of groups of rows.
What arrives differs from step to step; the buffer has room for all that could.

M = N K copies are sent by a chip, R rows is the room for what arrives, S chips send to D chips (the
same ones), of which each has e of E experts. T chips of `tensor` multiply together.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Moe
from shardwise.runtime.experts import routing
from shardwise.runtime.experts.dispatch import Way
from shardwise.runtime.experts.routing import Places
from shardwise.runtime.kernels.grouped_matmul import ROWS, grouped
from shardwise.runtime.layout.sharding import gather, scatter

Array = jax.Array
PLATFORMS = ("tpu", "gpu", "old gpu")  # XLA's CPU has no such collective


class Trip(NamedTuple):
    """Runs of rows, one of each expert of each chip, as `ragged_all_to_all` takes them."""

    begin: Array
    sizes: Array
    arrive: Array
    received: Array


class Trips(NamedTuple):
    """To the experts, and back the same rows."""

    out: Trip
    back: Trip


def trips(counts_SE: Array, me: Array) -> Trips:
    """Where rows begin and arrive, from how many each chip has for each expert.

    Where they are sent, rows lie by expert; where they arrive, by expert and then by who sent them.
    """
    n = counts_SE.shape[0]
    counts_SDe = counts_SE.reshape(n, n, -1)
    begin_SDe = (jnp.cumsum(counts_SE, axis=1) - counts_SE).reshape(counts_SDe.shape)
    counts_DeS = counts_SDe.transpose(1, 2, 0)
    flat = counts_DeS.reshape(n, -1)
    arrive_DeS = (jnp.cumsum(flat, axis=1) - flat).reshape(counts_DeS.shape)
    arrive_SDe = arrive_DeS.transpose(2, 0, 1)
    mine, others = counts_SDe[me].ravel(), counts_SDe[:, me].ravel()
    out = Trip(begin_SDe[me].ravel(), mine, arrive_SDe[me].ravel(), others)
    back = Trip(arrive_SDe[:, me].ravel(), others, begin_SDe[:, me].ravel(), mine)
    return Trips(out, back)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def moved(x: Array, there: Trips, room: int, names: tuple[str, ...]) -> Array:
    """Rows on the way out, in a buffer of so many; what flows back takes the way back."""
    empty = jnp.zeros((room, *x.shape[1:]), x.dtype)
    return lax.ragged_all_to_all(x, empty, *there.out, axis_name=names)


def _forward(
    x: Array, there: Trips, room: int, names: tuple[str, ...]
) -> tuple[Array, tuple[Trips, int]]:
    return moved(x, there, room, names), (there, x.shape[0])


def _backward(
    room: int, names: tuple[str, ...], kept: tuple[Trips, int], ct: Array
) -> tuple[Array, None]:
    there, sent = kept
    return moved(ct, Trips(*reversed(there)), sent, names), None


moved.defvjp(_forward, _backward)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Experts have rows one behind the other; behind the last one's lies what nobody reads.

    Args:
        way: as the table says.
        at: where copies lie before they are sent.
        there: how they travel; None where every expert is on the chip.
        sizes_Te: rows of each expert of the chip, for each chip of `tensor` whose rows it has.
        room: for rows that arrive.
    """

    way: Way
    at: Places
    there: Trips | None
    sizes_Te: Array
    room: int

    def sent(self, x: Array) -> Array:
        """What a chip has of copies, as `at` lays them out -> at the experts that it has, [T R]."""
        if self.there is not None:
            x = moved(x, self.there, self.room, self.way.names)
        return gather(x, self.way.tensor, 0) if self.way.joined else x

    def returned(self, y_RD: Array) -> Array:
        """The way back."""
        if self.way.joined:
            y_RD = scatter(y_RD, self.way.tensor, 0)
        if self.there is not None:
            copies = self.at.token.shape[0]
            y_RD = moved(y_RD, Trips(*reversed(self.there)), copies, self.way.names)
        return y_RD

    def product(self, x_RI: Array, w_eIJ: Array) -> Array:
        """All experts of the chip: I is what their matrices read, J what they write."""
        platform = self.way.table.on.platform
        parts = jnp.split(x_RI, len(self.sizes_Te))
        return jnp.concatenate(
            [
                grouped(platform, part, w_eIJ, sizes_e)
                for part, sizes_e in zip(parts, self.sizes_Te, strict=True)
            ]
        )

    def each(self, b_eJ: Array) -> Array:
        """What each expert has once, for all its copies; rows of nobody get nothing back."""
        ends_Te = jnp.cumsum(self.sizes_Te, axis=1)
        rows_R = jnp.arange(self.room)
        expert_TR = (rows_R[:, None] >= ends_Te[:, None]).sum(-1).reshape(-1)
        own_Re = expert_TR[:, None] == jnp.arange(len(b_eJ))
        return jnp.where(own_Re.any(-1, keepdims=True), own_Re.astype(b_eJ.dtype) @ b_eJ, 0)


def ragged(m: Moe, way: Way, experts_NK: Array) -> Ragged:
    """By the experts that tokens chose."""
    found, count_E = routing.in_order(experts_NK, m.n_experts)
    at = Places(*(checkpoint_name(p, routing.KEPT) for p in found))
    copies, there = experts_NK.size, None
    if not way.dealt:
        return Ragged(way, at, None, checkpoint_name(count_E, routing.KEPT)[None], copies)
    counts_SE = checkpoint_name(lax.all_gather(count_E, way.names), routing.KEPT)
    n, me = len(counts_SE), way.table.index(way.dealt)
    there = trips(counts_SE, me)
    sizes_Te = counts_SE.reshape(n, n, -1)[:, me].sum(0)[None]
    if way.joined:
        sizes_Te = lax.all_gather(sizes_Te[0], way.tensor)
    # The most that can arrive: all chips' tokens, each at as many of the chip's experts as it has.
    most = n * len(experts_NK) * min(m.experts_per_token, m.n_experts // n)
    return Ragged(way, at, there, sizes_Te, -(-most // ROWS) * ROWS)
