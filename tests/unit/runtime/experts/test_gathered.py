"""Experts that compute gathered tokens in rounds: each token gets the outputs of its experts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from shardwise.models import Moe
from shardwise.runtime.experts import gathered
from shardwise.runtime.experts.dispatch import ExpertLayout
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.strategy.mesh import Mesh

E, K, D = 8, 2, 3
MODEL = Moe(n_experts=E, experts_per_token=K, d_ff=4)


def outputs(x_ND: np.ndarray, weights_NK: np.ndarray, experts_NK: np.ndarray) -> np.ndarray:
    """The outputs if expert e multiplies by e + 1."""
    on = role_mesh(Mesh().sizes, np.array(jax.devices()[:1]))
    layout = ExpertLayout(Table(rules={}, mesh=on), ("expert",), True, False)
    scale_e = jnp.arange(1.0, E + 1)[:, None, None]

    def run(*arrays: jax.Array) -> jax.Array:
        return gathered.gathered_experts(
            MODEL, layout, *arrays, lambda x_eCD, weights_eC1: x_eCD * scale_e * weights_eC1
        )

    none = PartitionSpec()
    sharded = jax.shard_map(
        run, mesh=on.jax_mesh, in_specs=(none, none, none), out_specs=none, check_vma=False
    )
    return np.asarray(jax.jit(sharded)(x_ND, weights_NK, experts_NK))


@pytest.mark.parametrize("most", [4096, 10])
def test_one_expert_may_have_all_tokens(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(gathered, "MOST_GATHERED", most)
    random = np.random.default_rng(0)
    n = 57  # 12 tokens for each expert if they were balanced, so that the busiest needs rounds
    assert gathered.n_slots(MODEL, n) == 24
    x_ND = random.normal(size=(n, D)).astype(np.float32)
    weights_NK = random.uniform(size=(n, K)).astype(np.float32)
    second = random.integers(0, E - 1, n)
    experts_NK = np.stack([np.full(n, E - 1), second], axis=1).astype(np.int32)
    experts_NK[5:9] = E  # without experts
    scale_N = (weights_NK * (experts_NK + 1) * (experts_NK < E)).sum(1)
    found = outputs(x_ND, weights_NK, experts_NK)
    np.testing.assert_allclose(found, x_ND * scale_N[:, None], rtol=1e-5, atol=1e-5)
