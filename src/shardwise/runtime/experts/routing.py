"""Expert routing: which experts a token chooses, and in which slots of them its copies are.

Letters of arrays: N tokens of a chip, E experts, K experts per token, G groups of experts, C slots
of an expert for the tokens of a chip, D width of a token. A choice is one of the K experts of a
token. Slots are numbered over all experts, beginning with those of the first expert. An index one
past the end stands for a missing token, choice or slot.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Moe
from shardwise.models.numerics import Routing

Array = jax.Array
# Checkpoint name of the routing results: few numbers per token, but expensive to recompute.
SAVED = "router_logits"


def choose(moe: Moe, logits_NE: Array, correction_E: Array | None) -> tuple[Array, Array]:
    """Choose the experts of each token: return (weights_NK in the dtype of the logits, experts_NK).

    Args:
        logits_NE: output of the router.
        correction_E: added to the scores by which experts are chosen, not to the weights.
    """
    routing = moe.routing
    score = jax.nn.softmax if routing.score == "softmax" else jax.nn.sigmoid
    scores_NE = score(logits_NE)
    ranking_NE = lax.stop_gradient(scores_NE)
    if correction_E is not None:
        ranking_NE = ranking_NE + correction_E
    if routing.n_groups > 1:
        ranking_NE = _within_groups(routing, ranking_NE)
    _, experts_NK = lax.top_k(ranking_NE, moe.experts_per_token)
    experts_NK = checkpoint_name(experts_NK, SAVED)
    # A masked sum: its gradient is elementwise, while the gradient of an indexed read is a scatter.
    is_chosen_NKE = experts_NK[..., None] == jnp.arange(moe.n_experts)
    weights_NK = jnp.where(is_chosen_NKE, scores_NE[:, None], 0.0).sum(-1)
    if routing.normalized:
        weights_NK = weights_NK / weights_NK.sum(-1, keepdims=True)
    return weights_NK * routing.scale, experts_NK


def _within_groups(routing: Routing, ranking_NE: Array) -> Array:
    """Set the scores of experts outside of the best groups of experts to minus infinity."""
    grouped = ranking_NE.reshape(len(ranking_NE), routing.n_groups, -1)
    group_scores_NG = lax.top_k(grouped, routing.group_best)[0].sum(-1)
    _, best_groups = lax.top_k(group_scores_NG, routing.top_groups)
    is_allowed_NG = (best_groups[..., None] == jnp.arange(routing.n_groups)).any(1)
    return jnp.where(is_allowed_NG[..., None], grouped, -jnp.inf).reshape(ranking_NE.shape)


class Slots(NamedTuple):
    """Mapping between the choices of tokens and the slots of experts.

    Args:
        slot_of_choice: [K, N], index of a slot; one past the end for a choice beyond the capacity
            of its expert.
        token_of_slot: [E x C], index of a token; one past the end for an empty slot.
    """

    slot_of_choice: Array
    token_of_slot: Array


class FullSlots(Slots):
    """Slots without empty ones, so that no index is past the end: rows are read without a mask."""


def capacity(moe: Moe, n_tokens: int, factor: float | None) -> int:
    """Number of slots of each expert for the tokens of one chip.

    Args:
        n_tokens: number of tokens of the chip, N.
        factor: slots relative to K N / E, the tokens that an expert gets under balanced routing.
            None for N slots, so that no token is ever dropped.
    """
    if factor is None:
        return n_tokens
    balanced = n_tokens * moe.experts_per_token / moe.n_experts
    return min(n_tokens, max(1, math.ceil(balanced * factor)))


def assign_slots(experts_NK: Array, n_experts: int, capacity: int) -> Slots:
    """Assign choices to slots in the order of tokens, up to `capacity` slots per expert.

    Slots are computed by cumulative sums: on TPUs a sort takes XLA many times longer. The dim of
    choices comes before that of tokens, because arrays with a small last dim are slow on TPUs.
    """
    is_choice_KNE, rank_NE = _rank_in_expert(experts_NK, n_experts)
    rank_KN = jnp.where(is_choice_KNE, rank_NE - 1, 0).sum(-1)
    slot_KN = experts_NK.T * capacity + rank_KN
    slot_of_choice = jnp.where(rank_KN < capacity, slot_KN, n_experts * capacity)
    # Slot c has the first token up to which more than c tokens chose the expert. Its index is the
    # number of tokens up to which at most c tokens chose it.
    token_EC = (rank_NE.T[..., None] <= jnp.arange(capacity)).sum(1, dtype=jnp.int32)
    return Slots(slot_of_choice, token_EC.reshape(-1))


def _rank_in_expert(experts_NK: Array, n_experts: int) -> tuple[Array, Array]:
    """Return (whether a choice is an expert, how many tokens up to a token chose the expert)."""
    is_choice_KNE = experts_NK.T[..., None] == jnp.arange(n_experts)
    return is_choice_KNE, jnp.cumsum(is_choice_KNE.any(0).astype(jnp.int32), axis=0)


def sort_by_expert(experts_NK: Array, n_experts: int) -> tuple[FullSlots, Array]:
    """Assign all choices to slots without gaps: return (slots, number of slots of each expert).

    Slots are sorted by expert and then by token.
    """
    N = len(experts_NK)
    is_choice_KNE, rank_NE = _rank_in_expert(experts_NK, n_experts)
    count_E = rank_NE[-1]
    start_E = jnp.cumsum(count_E) - count_E
    slots_KNE = jnp.where(is_choice_KNE, start_E + rank_NE - 1, 0)
    slot_of_choice = slots_KNE.sum(-1, dtype=jnp.int32)
    token_of_slot = lax.sort((experts_NK.T * N + jnp.arange(N)).reshape(-1)) % N
    return FullSlots(slot_of_choice, token_of_slot), count_E


@jax.custom_vjp
def tokens_to_slots(x_ND: Array, slots: Slots) -> Array:
    """Copy to each slot the row of its token; empty slots get zeros.

    The zeros are a row of their own. To mask them, a TPU would read and write all copies again.
    """
    if not isinstance(slots, FullSlots):
        x_ND = jnp.concatenate([x_ND, jnp.zeros_like(x_ND[:1])])
    return x_ND.at[slots.token_of_slot].get(mode="promise_in_bounds")


@jax.custom_vjp
def slots_to_tokens(slots_D: Array, slots: Slots) -> Array:
    """Sum all copies of each token: the transpose of `tokens_to_slots`."""
    K, N = slots.slot_of_choice.shape
    return _rows(slots_D, slots.slot_of_choice.reshape(-1), slots).reshape(K, N, -1).sum(0)


@jax.custom_vjp
def choices_to_slots(weights_NK: Array, slots: Slots) -> Array:
    """Copy to each slot the weight of its choice; empty slots get zero."""
    slot_of_choice_NK = slots.slot_of_choice.T
    n_slots = len(slots.token_of_slot)
    choices_of_token = _rows(slot_of_choice_NK, slots.token_of_slot, slots)
    is_choice = choices_of_token == jnp.arange(n_slots)[:, None]
    return jnp.where(is_choice, _rows(weights_NK, slots.token_of_slot, slots), 0).sum(-1)


def slots_to_choices(values: Array, slots: Slots) -> Array:
    """Copy to each choice the value of its slot, [N, K]: the transpose of `choices_to_slots`."""
    return _rows(values, slots.slot_of_choice, slots).T


def _rows(x: Array, rows: Array, slots: Slots) -> Array:
    """The rows of x at these indices of `slots`; zeros for an index past the end."""
    if isinstance(slots, FullSlots):
        return x.at[rows].get(mode="promise_in_bounds")
    return x.at[rows].get(mode="fill", fill_value=0)


# Gradients are written by hand as reads; automatic differentiation would make them scatter-adds.
tokens_to_slots.defvjp(
    lambda x, slots: (tokens_to_slots(x, slots), slots),
    lambda slots, ct: (slots_to_tokens(ct, slots), None),
)
slots_to_tokens.defvjp(
    lambda x, slots: (slots_to_tokens(x, slots), slots),
    lambda slots, ct: (tokens_to_slots(ct, slots), None),
)
choices_to_slots.defvjp(
    lambda weights, slots: (choices_to_slots(weights, slots), slots),
    lambda slots, ct: (slots_to_choices(ct, slots), None),
)
