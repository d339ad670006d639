"""The runtime on published weights: their logits are those of the transformers library.

Files that transformers wrote are read into arrays of JAX, run, and written again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.oracle import xla
from tests.oracle.test_checkpoints import TOLERANCE, saved

pytestmark = pytest.mark.oracle

__all__ = ["saved"]


@pytest.fixture
def table():
    jax = xla.load()
    from shardwise.runtime.layout.mesh import role_mesh
    from shardwise.runtime.layout.sharding import Table
    from shardwise.strategy.layout import Layout, rules_of
    from shardwise.strategy.mesh import Mesh

    one = Layout(mesh=Mesh())
    on = role_mesh(one.sizes, np.array(jax.devices("cpu")[:1]))
    return Table(rules=rules_of(one), mesh=on)


def test_logits_of_the_runtime_equal_transformers(saved, table, tmp_path):
    import jax
    import jax.numpy as jnp

    from shardwise.runtime.weights.published_weights import load_weights, save_weights
    from shardwise.runtime.weights.safetensors import read_tensors
    from tests.unit.runtime.logits import logits

    config, held, tokens, expected = saved
    weights = load_weights(Path(config.source).parent, config, table, jnp.float32)
    run = jax.jit(logits(config, table, len(tokens), jnp.float32))
    got = np.asarray(run(weights, tokens[None].astype(np.int32)))[0]
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    save_weights(tmp_path, config, weights)
    again = read_tensors(tmp_path)
    assert set(again) == set(held)
    assert all(np.array_equal(again[name], array) for name, array in held.items())
