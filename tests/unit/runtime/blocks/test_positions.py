"""Rotary embeddings and their gradients, against rotations written as complex numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.models.numerics import Rope
from shardwise.runtime.blocks.positions import RotaryAngles, rotate
from tests.unit.runtime.near import assert_near

PAIRS, WIDTH = 3, 8  # the last two dims have no angle


def rotated(x, radians, interleaved):
    """Each pair as a complex number, times exp(i radians)."""
    turned = x[..., : 2 * PAIRS]
    first, second = (
        (turned[..., ::2], turned[..., 1::2])
        if interleaved
        else (turned[..., :PAIRS], turned[..., PAIRS:])
    )
    z = (first + 1j * second) * np.exp(1j * radians)
    pairs = np.stack([z.real, z.imag], axis=-1 if interleaved else -2)
    return np.concatenate([pairs.reshape(turned.shape), x[..., 2 * PAIRS :]], axis=-1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_gradient_is_rotated_back(interleaved):
    random = np.random.default_rng(0)
    x, ct = random.normal(size=(2, 2, 5, 4, WIDTH))
    radians = random.normal(size=(1, 5, 1, PAIRS))
    angles = RotaryAngles(jnp.cos(radians), jnp.sin(radians))
    rope = Rope(interleaved=interleaved)
    y, pull_back = jax.vjp(lambda x: rotate(rope, x, angles), jnp.asarray(x, jnp.float32))
    assert_near(y, rotated(x, radians, interleaved), abs=1e-6)
    (gradient,) = pull_back(jnp.asarray(ct, jnp.float32))
    assert_near(gradient, rotated(ct, -radians, interleaved), abs=1e-6)
