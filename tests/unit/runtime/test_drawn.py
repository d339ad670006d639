"""Weights of the tests are those that the runtime draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models import ModelConfig
from shardwise.runtime.weights.descriptions import describe, init_weights
from tests.unit.runtime.drawn import drawn_weights

# Arrays of two sizes, and as few shapes as there can be: each of them is compiled.
MODEL = ModelConfig.dense(n_layers=1, d_model=8, d_ff=8, n_heads=1, n_kv_heads=1, vocab=24)


def test_the_same_numbers_as_init_weights() -> None:
    infos = describe(MODEL)
    found = drawn_weights(infos, seed=1)
    wanted = init_weights(infos, jax.random.key(1), jnp.float32)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype(np.float32)}
    assert len({x.size for x in jax.tree.leaves(found)}) > 2
