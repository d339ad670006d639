"""Experts that serve the tokens of all chips: each chip gathers them, and picks those for its own.

An AllGather brings the tokens to all chips, and a ReduceScatter sums the outputs of their experts.
No token is dropped, and sizes are static, which TPUs need that have no AllToAll of unequal sizes.
With many experts per token this is no more traffic than an AllToAll of the copies.

An expert computes its tokens in rounds of equally many slots. Balanced experts need one round; a
round more costs another read of the chip's experts.

Letters of arrays: N tokens of a chip, G those of all chips, K experts of a token, e experts of a
chip, C slots of an expert in a round, D width of a token.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.arrays import ceil_div
from shardwise.models import Moe
from shardwise.runtime.experts.dispatch import ExpertLayout
from shardwise.runtime.layout.sharding import gather, scatter

Array = jax.Array

MOST_GATHERED = 4096  # tokens at a time, which bounds the memory
SLOTS = 1.5  # of an expert in a round, relative to its tokens under balanced routing
SLOT_TILE = 8  # rows of a tile of TPUs


def gathered_experts(
    m: Moe,
    layout: ExpertLayout,
    x_ND: Array,
    weights_NK: Array,
    experts_NK: Array,
    experts: Callable[[Array, Array], Array],
) -> Array:
    """Output of the routed experts for the tokens of this chip; a partial sum over `tensor`.

    Chips of `tensor` have the same tokens, also where they have different experts.

    Args:
        experts_NK: indices of the experts of each token; `m.n_experts` for a token without.
        experts: computes (x_eCD, weights_eC1) -> y_eCD by the experts of this chip.
    """
    n_tokens = len(x_ND)
    n_parts = n_gathers(layout, n_tokens)
    arrays = (x_ND, weights_NK, experts_NK)
    if n_parts == 1:
        return _part(m, layout, arrays, experts)
    missing = -n_tokens % n_parts
    padded = [
        jnp.pad(x, ((0, missing), (0, 0)), constant_values=fill).reshape(n_parts, -1, x.shape[1])
        for x, fill in zip(arrays, (0, 0, m.n_experts), strict=True)
    ]
    y_PND = lax.map(lambda part: _part(m, layout, part, experts), tuple(padded))
    return y_PND.reshape(-1, x_ND.shape[1])[:n_tokens]


def n_gathers(layout: ExpertLayout, n_tokens: int) -> int:
    """How often the tokens of all chips are gathered, of which each has `n_tokens`."""
    n_chips = layout.table.mesh.size(layout.token_roles)
    return int(ceil_div(n_tokens * n_chips, MOST_GATHERED))


def n_slots(m: Moe, n_tokens: int) -> int:
    """Slots of an expert in a round, for the tokens of all chips."""
    balanced = n_tokens * m.experts_per_token / m.n_experts
    return min(n_tokens, int(ceil_div(SLOTS * balanced, SLOT_TILE)) * SLOT_TILE)


def _part(
    m: Moe,
    layout: ExpertLayout,
    arrays: tuple[Array, Array, Array],
    experts: Callable[[Array, Array], Array],
) -> Array:
    """`gathered_experts` of so many tokens as are gathered at a time."""
    x_ND, weights_NK, experts_NK = arrays
    axes = layout.table.mesh.axis_names(layout.token_roles)
    choices = jnp.concatenate([weights_NK, experts_NK.astype(weights_NK.dtype)], axis=1)
    with jax.named_scope("moe.dispatch"):
        x_GD = gather(x_ND, axes, 0) if axes else x_ND
        choices_G = gather(choices, axes, 0) if axes else choices
        weights_GK, chosen_GK = jnp.split(choices_G, 2, axis=1)
    with jax.named_scope("moe.router"):
        n_local = m.n_experts // layout.table.mesh.size(layout.expert_roles)
        local_e = layout.table.index(layout.expert_roles) * n_local + jnp.arange(n_local)
        is_chosen_eKG = local_e[:, None, None].astype(choices.dtype) == chosen_GK.T
        weight_eG = jnp.where(is_chosen_eKG, weights_GK.T, 0).sum(1)
        rank_eG = jnp.cumsum(is_chosen_eKG.any(1).astype(jnp.int32), axis=1)
    slots = n_slots(m, len(x_GD))

    def compute(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        first, y_GD = carry
        with jax.named_scope("moe.router"):
            slot_C = first + jnp.arange(slots)
            # The first token up to which more tokens chose the expert than slots precede.
            token_eC = (rank_eG[:, None] <= slot_C[:, None]).sum(-1, dtype=jnp.int32)
            weights_eC = jnp.take_along_axis(weight_eG, token_eC, 1, mode="fill", fill_value=0)
        with jax.named_scope("moe.dispatch"):
            x_eCD = x_GD.at[token_eC].get(mode="fill", fill_value=0)
        y_eCD = experts(x_eCD, weights_eC[..., None])
        with jax.named_scope("moe.combine"):
            return first + slots, y_GD.at[token_eC].add(y_eCD.astype(y_GD.dtype), mode="drop")

    most = rank_eG[:, -1].max()
    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(x_GD))
    _, y_GD = lax.while_loop(lambda carry: carry[0] < most, compute, start)
    with jax.named_scope("moe.combine"):
        return scatter(y_GD, axes, 0) if axes else y_GD
