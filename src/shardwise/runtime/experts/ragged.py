"""Ragged expert dispatch: copies of tokens travel without padding.

No token is dropped, and no empty slot is sent or multiplied: copies are sorted by expert,
`ragged_all_to_all` moves as many rows as tokens chose, and products are grouped matmuls. How many
rows arrive differs from step to step; the receive buffer is large enough for the worst case.

Letters of arrays: N tokens of a chip, K experts per token, R rows of the receive buffer, S sending
and D receiving chips (the same chips), e experts per chip out of E, T chips of `tensor` that share
the rows of an expert. D in x_RD and y_RD is the width of a token.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.arrays import ceil_div
from shardwise.models import Moe
from shardwise.runtime.blocks.products import OfStack
from shardwise.runtime.experts import routing
from shardwise.runtime.experts.dispatch import ExpertLayout
from shardwise.runtime.experts.routing import FullSlots
from shardwise.runtime.kernels.grouped_matmul import ROW_TILE, grouped_matmul
from shardwise.runtime.layout.sharding import gather, scatter

Array = jax.Array
PLATFORMS = ("tpu", "gpu", "old gpu")  # XLA's CPU backend has no ragged AllToAll


class RaggedTransfer(NamedTuple):
    """Offsets and sizes for `lax.ragged_all_to_all`, in rows.

    Each array has an element for each pair of a chip and one of its experts: the rows for an expert
    are contiguous.
    """

    input_offsets: Array
    send_sizes: Array
    output_offsets: Array
    recv_sizes: Array


class RoundTrip(NamedTuple):
    """The transfer of rows to the experts (`out`), and of the same rows back (`back`)."""

    out: RaggedTransfer
    back: RaggedTransfer


def round_trip(counts_SE: Array, chip: Array) -> RoundTrip:
    """Compute the transfers of one chip.

    Rows are sorted by expert on a sender, and by expert and then by sender on a receiver.

    Args:
        counts_SE: number of rows that each chip sends to each expert.
        chip: index of this chip among the S chips.
    """
    n_chips = counts_SE.shape[0]
    counts_SDe = counts_SE.reshape(n_chips, n_chips, -1)
    send_start_SDe = (jnp.cumsum(counts_SE, axis=1) - counts_SE).reshape(counts_SDe.shape)
    counts_DeS = counts_SDe.transpose(1, 2, 0)
    flat_counts = counts_DeS.reshape(n_chips, -1)
    receive_start_DeS = (jnp.cumsum(flat_counts, axis=1) - flat_counts).reshape(counts_DeS.shape)
    receive_start_SDe = receive_start_DeS.transpose(2, 0, 1)
    outgoing = counts_SDe[chip].ravel()
    incoming = counts_SDe[:, chip].ravel()
    out = RaggedTransfer(
        send_start_SDe[chip].ravel(), outgoing, receive_start_SDe[chip].ravel(), incoming
    )
    back = RaggedTransfer(
        receive_start_SDe[:, chip].ravel(), incoming, send_start_SDe[:, chip].ravel(), outgoing
    )
    return RoundTrip(out, back)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def transfer(x: Array, trip: RoundTrip, n_rows: int, axes: tuple[str, ...]) -> Array:
    """Send rows by `trip.out` into a buffer of `n_rows`; the gradient returns by `trip.back`."""
    buffer = jnp.zeros((n_rows, *x.shape[1:]), x.dtype)
    return lax.ragged_all_to_all(x, buffer, *trip.out, axis_name=axes)


def _transfer_forward(
    x: Array, trip: RoundTrip, n_rows: int, axes: tuple[str, ...]
) -> tuple[Array, tuple[RoundTrip, int]]:
    return transfer(x, trip, n_rows, axes), (trip, x.shape[0])


def _transfer_backward(
    n_rows: int, axes: tuple[str, ...], residuals: tuple[RoundTrip, int], ct: Array
) -> tuple[Array, None]:
    trip, n_input_rows = residuals
    return transfer(ct, RoundTrip(*reversed(trip)), n_input_rows, axes), None


transfer.defvjp(_transfer_forward, _transfer_backward)


@dataclass(frozen=True, slots=True)
class RaggedDispatch:
    """Dispatch whose arrays have the rows for one expert after those for another: [R, ..].

    Rows behind the last expert's are undefined.

    Args:
        layout: layout of the experts.
        slots: the slot of each token's copies, before they are sent.
        trip: transfers of this chip; None if every expert is on the chip.
        sizes_Te: number of rows for each expert of the chip, from each chip of `tensor` with which
            it gathers rows.
        n_rows: number of rows of the receive buffer.
    """

    layout: ExpertLayout
    slots: FullSlots
    trip: RoundTrip | None
    sizes_Te: Array
    n_rows: int

    def send(self, x: Array) -> Array:
        """Send copies of this chip's tokens, in slot order; return T x R rows for its experts."""
        if self.trip is not None:
            x = transfer(x, self.trip, self.n_rows, self.layout.expert_axes)
        if self.layout.gathers_over_tensor:
            x = gather(x, self.layout.tensor_axes, 0)
        return x

    def send_back(self, y_RD: Array) -> Array:
        """Send outputs of this chip's experts back; return those of its own tokens' copies."""
        if self.layout.gathers_over_tensor:
            y_RD = scatter(y_RD, self.layout.tensor_axes, 0)
        if self.trip is not None:
            n_copies = self.slots.token_of_slot.shape[0]
            trip_back = RoundTrip(*reversed(self.trip))
            y_RD = transfer(y_RD, trip_back, n_copies, self.layout.expert_axes)
        return y_RD

    def product(self, x_RI: Array, w: Array | OfStack) -> Array:
        """Multiply the rows of each expert by the expert's matrix, w_eIJ or in its stack."""
        platform = self.layout.table.mesh.platform
        w_eIJ, first = (w, None) if not isinstance(w, OfStack) else _of_stack(w)
        outputs = []
        for rows, sizes_e in zip(jnp.split(x_RI, len(self.sizes_Te)), self.sizes_Te, strict=True):
            outputs.append(grouped_matmul(platform, rows, w_eIJ, sizes_e, first))
        return jnp.concatenate(outputs)

    def expand(self, b_eJ: Array) -> Array:
        """Repeat one row per expert for all rows that the expert received.

        Rows of the buffer that belong to no expert are zero and have no gradient.
        """
        ends_Te = jnp.cumsum(self.sizes_Te, axis=1)
        rows_R = jnp.arange(self.n_rows)
        expert_TR = (rows_R[:, None] >= ends_Te[:, None]).sum(-1).reshape(-1)
        is_expert_Re = expert_TR[:, None] == jnp.arange(len(b_eJ))
        has_expert = is_expert_Re.any(-1, keepdims=True)
        return jnp.where(has_expert, is_expert_Re.astype(b_eJ.dtype) @ b_eJ, 0)


def _of_stack(w: OfStack) -> tuple[Array, Array]:
    """The matrices of the experts of all layers, and the index of this layer's first."""
    n_layers, n_experts, *sizes = w.stacked.shape
    return w.stacked.reshape(n_layers * n_experts, *sizes), w.index * n_experts


def ragged_dispatch(m: Moe, layout: ExpertLayout, experts_NK: Array) -> RaggedDispatch:
    """Make the dispatch of tokens to the experts `experts_NK` that they chose."""
    slots, count_E = routing.sort_by_expert(experts_NK, m.n_experts)
    slots = FullSlots(*(checkpoint_name(x, routing.SAVED) for x in slots))
    if not layout.expert_roles:
        sizes_Te = checkpoint_name(count_E, routing.SAVED)[None]
        return RaggedDispatch(layout, slots, None, sizes_Te, experts_NK.size)
    gathered_counts = lax.all_gather(count_E, layout.expert_axes)
    counts_SE = checkpoint_name(gathered_counts, routing.SAVED)
    n_chips = len(counts_SE)
    chip = layout.table.index(layout.expert_roles)
    trip = round_trip(counts_SE, chip)
    sizes_Te = counts_SE.reshape(n_chips, n_chips, -1)[:, chip].sum(0)[None]
    if layout.gathers_over_tensor:
        sizes_Te = lax.all_gather(sizes_Te[0], layout.tensor_axes)
    # In the worst case every token of all chips chooses as many of this chip's experts as it can.
    max_rows = n_chips * len(experts_NK) * min(m.experts_per_token, m.n_experts // n_chips)
    n_rows = int(ceil_div(max_rows, ROW_TILE)) * ROW_TILE
    return RaggedDispatch(layout, slots, trip, sizes_Te, n_rows)
