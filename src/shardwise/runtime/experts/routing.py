"""Which experts a token uses, and where its copies lie in buffers of equal size.

N tokens of a chip, E experts, K experts of a token, G groups of experts, C places that an expert
has for the tokens of a chip, D the width of a token. Places are numbered from the first of the
first expert; tokens, choices and places that there are none of have the number behind the last.
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
# Under this name remat finds what was chosen: a few numbers of a token, dear to find again.
KEPT = "router_logits"


def choose(moe: Moe, logits_NE: Array, correction_E: Array | None) -> tuple[Array, Array]:
    """(weights_NK, experts_NK) of each token, weights in the dtype of the logits."""
    routing = moe.routing
    score = jax.nn.softmax if routing.score == "softmax" else jax.nn.sigmoid
    scores_NE = score(logits_NE)
    choice_NE = lax.stop_gradient(scores_NE)
    if correction_E is not None:
        choice_NE = choice_NE + correction_E
    if routing.n_groups > 1:
        choice_NE = _within_groups(routing, choice_NE)
    _, experts_NK = lax.top_k(choice_NE, moe.experts_per_token)
    experts_NK = checkpoint_name(experts_NK, KEPT)
    # As a masked sum, whose gradient is elementwise too: that of an indexed read is a scatter.
    chosen_NKE = experts_NK[..., None] == jnp.arange(moe.n_experts)
    weights_NK = jnp.where(chosen_NKE, scores_NE[:, None], 0.0).sum(-1)
    if routing.normalized:
        weights_NK = weights_NK / weights_NK.sum(-1, keepdims=True)
    return weights_NK * routing.scale, experts_NK


def _within_groups(routing: Routing, choice_NE: Array) -> Array:
    """Scores of the experts in the best groups; no expert of another group is chosen."""
    grouped = choice_NE.reshape(len(choice_NE), routing.n_groups, -1)
    worth_NG = lax.top_k(grouped, routing.group_best)[0].sum(-1)
    _, best = lax.top_k(worth_NG, routing.top_groups)
    allowed_NG = (best[..., None] == jnp.arange(routing.n_groups)).any(1)
    return jnp.where(allowed_NG[..., None], grouped, -jnp.inf).reshape(choice_NE.shape)


class Places(NamedTuple):
    """Where the copies of tokens lie.

    Args:
        of_choice: place of each choice, [K, N]; a choice beyond the room of its expert has none.
        token: which token lies in each place, [E C].
    """

    of_choice: Array
    token: Array


def capacity(moe: Moe, n_tokens: int, factor: float | None) -> int:
    """Places that an expert has for the tokens of a chip.

    Args:
        factor: of k n / E, which is what experts receive that are used alike; None for as many as
            there are tokens, so that none is ever dropped.
    """
    if factor is None:
        return n_tokens
    even = n_tokens * moe.experts_per_token / moe.n_experts
    return min(n_tokens, max(1, math.ceil(even * factor)))


def places(experts_NK: Array, n_experts: int, capacity: int) -> Places:
    """Each expert takes tokens in their order, until its room is full.

    Counted, neither sorted nor scattered: the TPU's compiler takes many times longer for a sort.
    Choices stand before tokens, as few numbers at the end of an array are slow to move there.
    """
    mine_KNE, taken_NE = _taken(experts_NK, n_experts)
    rank_KN = jnp.where(mine_KNE, taken_NE - 1, 0).sum(-1)
    place_KN = experts_NK.T * capacity + rank_KN
    of_choice = jnp.where(rank_KN < capacity, place_KN, n_experts * capacity)
    # Before the token in place c stand all those after which no more than c had been taken.
    token_EC = (taken_NE.T[..., None] <= jnp.arange(capacity)).sum(1, dtype=jnp.int32)
    return Places(of_choice, token_EC.reshape(-1))


def _taken(experts_NK: Array, n_experts: int) -> tuple[Array, Array]:
    """Whether each choice is of each expert, and how many tokens up to each one chose it."""
    mine_KNE = experts_NK.T[..., None] == jnp.arange(n_experts)
    return mine_KNE, jnp.cumsum(mine_KNE.any(0).astype(jnp.int32), axis=0)


def in_order(experts_NK: Array, n_experts: int) -> tuple[Places, Array]:
    """Copies of tokens by expert and then by token, without places between them; and how many each
    expert has."""
    N, (mine_KNE, taken_NE) = len(experts_NK), _taken(experts_NK, n_experts)
    count_E = taken_NE[-1]
    begin_E = jnp.cumsum(count_E) - count_E
    of_choice = jnp.where(mine_KNE, begin_E + taken_NE - 1, 0).sum(-1, dtype=jnp.int32)
    token = lax.sort((experts_NK.T * N + jnp.arange(N)).reshape(-1)) % N
    return Places(of_choice, token), count_E


@jax.custom_vjp
def spread(x_ND: Array, at: Places) -> Array:
    """A copy of its token in every place, zeros in places of none."""
    return _rows(x_ND, at.token)


@jax.custom_vjp
def collect(places_D: Array, at: Places) -> Array:
    """The sum of all copies of each token: the transpose of `spread`."""
    K, N = at.of_choice.shape
    return _rows(places_D, at.of_choice.reshape(-1)).reshape(K, N, -1).sum(0)


@jax.custom_vjp
def spread_choices(weights_NK: Array, at: Places) -> Array:
    """The weight of the choice in every place, zero in places of none."""
    here = _rows(at.of_choice.T, at.token) == jnp.arange(len(at.token))[:, None]
    return jnp.where(here, _rows(weights_NK, at.token), 0).sum(-1)


def collect_choices(places: Array, at: Places) -> Array:
    """For each choice what its place has, [N, K]: the transpose of `spread_choices`."""
    return _rows(places, at.of_choice).T


def _rows(x: Array, rows: Array) -> Array:
    return x.at[rows].get(mode="fill", fill_value=0)


# All are reads: left to differentiation, each would become a scatter that adds.
spread.defvjp(lambda x, at: (spread(x, at), at), lambda at, ct: (collect(ct, at), None))
collect.defvjp(lambda x, at: (collect(x, at), at), lambda at, ct: (spread(ct, at), None))
spread_choices.defvjp(
    lambda w, at: (spread_choices(w, at), at), lambda at, ct: (collect_choices(ct, at), None)
)
