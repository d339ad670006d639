"""Copies of tokens on their way to experts: how they are laid out makes no difference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.runtime.experts import dispatch
from shardwise.runtime.experts.dispatch import PaddedDispatch
from shardwise.runtime.experts.routing import Slots

CHIPS, EXPERTS, SLOTS, WIDTH = 4, 8, 3, 5
LOCAL = EXPERTS // CHIPS
NO_SLOTS = Slots(jnp.zeros((1, 1), jnp.int32), jnp.zeros(1, jnp.int32))


def exchanged(platform: str) -> PaddedDispatch:
    """The dispatch of a chip of four, which have two experts each."""
    mesh = SimpleNamespace(platform=platform)
    layout: Any = SimpleNamespace(
        expert_roles=("expert",),
        expert_axes="expert",
        gathers_over_tensor=False,
        table=SimpleNamespace(mesh=mesh),
    )
    return PaddedDispatch(layout, NO_SLOTS, EXPERTS)


@pytest.mark.parametrize(
    ("platform", "shape"),
    [("tpu", (CHIPS, LOCAL, SLOTS, WIDTH)), ("gpu", (LOCAL, CHIPS * SLOTS, WIDTH))],
)
def test_experts_compute_the_same_whatever_comes_first(
    platform: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "row_major", lambda x, mesh: x)  # a layout of TPUs alone
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CHIPS, EXPERTS * SLOTS, WIDTH)).astype(np.float32)
    w = rng.normal(size=(CHIPS, LOCAL, WIDTH, WIDTH)).astype(np.float32)
    b = rng.normal(size=(CHIPS, LOCAL, WIDTH)).astype(np.float32)
    one = exchanged(platform)

    def of_chip(x: jax.Array, w: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        sent = one.send(x)
        return sent, one.send_back(one.product(sent, w) + one.expand(b))

    sent, back = jax.vmap(of_chip, axis_name="expert")(x, w, b)
    assert sent.shape == (CHIPS, *shape)
    of_expert = x.reshape(CHIPS, EXPERTS, SLOTS, WIDTH)
    every_w, every_b = w.reshape(EXPERTS, WIDTH, WIDTH), b.reshape(EXPERTS, 1, WIDTH)
    expected = np.einsum("seci,eij->secj", of_expert, every_w) + every_b
    np.testing.assert_allclose(back.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)
