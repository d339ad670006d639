"""Routing against NumPy, and the places of tokens: all have one, none has two, rooms are kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.models import Moe
from shardwise.models.numerics import Routing
from shardwise.runtime.experts import routing
from tests.oracle import forward

N, E, K, D = 24, 8, 2, 4

ROUTINGS = {
    "mixtral": Routing(),
    "not normalized": Routing(normalized=False, scale=2.0),
    "groups": Routing(normalized=False, n_groups=4, top_groups=2),
    "deepseek": Routing(
        score="sigmoid", correction=True, n_groups=2, top_groups=1, group_best=2, scale=2.5
    ),
    "llama 4": Routing(score="sigmoid", normalized=False, on_input=True),
}


def _moe(kind: Routing) -> Moe:
    return Moe(n_experts=E, experts_per_token=K, d_ff=16, routing=kind)


def _random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", ROUTINGS)
def test_experts_and_weights_are_those_of_numpy(name: str) -> None:
    moe, router = _moe(ROUTINGS[name]), _random(D, E)
    x, correction = _random(N, D), _random(E)
    expected = forward.route(moe, {"router": router, "router_correction": correction}, x)
    corrected = jnp.asarray(correction) if moe.routing.correction else None
    weights, experts = jax.jit(routing.choose, static_argnums=0)(moe, x @ router, corrected)
    found = np.zeros((N, E))
    np.put_along_axis(found, np.asarray(experts), np.asarray(weights), axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def _experts() -> Any:
    scores = _random(N, E)
    return jnp.asarray(np.argsort(-scores, axis=1)[:, :K].astype(np.int32))


def test_every_choice_has_a_place_of_its_own_expert() -> None:
    experts = _experts()
    slots = routing.assign_slots(experts, E, N)
    slot_NK = np.asarray(slots.slot_of_choice).T
    assert len({*slot_NK.flat}) == N * K
    np.testing.assert_array_equal(slot_NK // N, experts)
    tokens = np.broadcast_to(np.arange(N)[:, None], (N, K))
    np.testing.assert_array_equal(np.asarray(slots.token_of_slot)[slot_NK], tokens)


def test_a_full_expert_keeps_the_first_tokens() -> None:
    """All tokens want expert 3 first; its room is for four of them."""
    experts = jnp.stack([jnp.full(N, 3), jnp.arange(N) % 3], axis=1)
    slots = routing.assign_slots(experts, E, 4)
    wanted = np.asarray(slots.slot_of_choice)[0]
    np.testing.assert_array_equal(wanted[:4], [12, 13, 14, 15])
    assert (wanted[4:] == E * 4).all()
    copies = np.asarray(routing.tokens_to_slots(jnp.ones((N, D)), slots)).reshape(E, 4, D)
    assert copies.sum() == 4 * 4 * D  # experts 0 to 3 are full, the others have no token
    assert copies[4:].sum() == 0


@pytest.mark.parametrize(("factor", "room"), [(None, 24), (1.0, 6), (1.25, 8), (100.0, 24)])
def test_room_of_an_expert(factor: float | None, room: int) -> None:
    assert routing.capacity(_moe(Routing()), N, factor) == room


def test_what_comes_back_is_the_transpose_of_what_is_sent() -> None:
    slots = routing.assign_slots(_experts(), E, 5)
    x, y = jnp.asarray(_random(N, D)), jnp.asarray(_random(E * 5, D))
    sent, back = jax.vjp(lambda x: routing.tokens_to_slots(x, slots), x)
    np.testing.assert_allclose(
        jnp.vdot(sent, y), jnp.vdot(x, routing.slots_to_tokens(y, slots)), rtol=1e-4
    )
    np.testing.assert_allclose(back(y)[0], routing.slots_to_tokens(y, slots), atol=1e-6)
    _, back = jax.vjp(lambda y: routing.slots_to_tokens(y, slots), y)
    np.testing.assert_allclose(back(x)[0], sent, atol=1e-6)


def test_the_weight_of_a_choice_goes_to_its_place_and_back() -> None:
    slots = routing.assign_slots(_experts(), E, 5)
    weights = jnp.asarray(_random(N, K))
    y = _random(E * 5)
    sent, back = jax.vjp(lambda w: routing.choices_to_slots(w, slots), weights)
    slot_NK = np.asarray(slots.slot_of_choice).T
    expected = np.zeros(E * 5 + 1, np.float32)
    expected[slot_NK] = weights
    np.testing.assert_array_equal(sent, expected[:-1])
    np.testing.assert_array_equal(back(jnp.asarray(y))[0], np.append(y, 0.0)[slot_NK])
