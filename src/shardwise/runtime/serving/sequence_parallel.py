"""Sequence parallelism of prompts: between blocks, each chip of `tensor` has a part of the tokens.

Norms and residual sums then read and write these alone. The AllReduce after a block becomes a
ReduceScatter, and an AllGather before the next one: as many bytes, and on TPUs both overlap with
products (`blocks.collective_matmul`; Korthikanti et al., arXiv 2205.05198).
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from shardwise.ops import forward
from shardwise.runtime.blocks.layers import LayerSettings
from shardwise.runtime.layout.sharding import gather
from shardwise.runtime.serving.engine_state import EngineState

Array = jax.Array

TENSOR = ("tensor",)
PLATFORMS = ("tpu", "old tpu")


def shards_tokens(engine: EngineState, n_tokens: int) -> bool:
    """Whether a pass over `n_tokens` of each sequence shards them over `tensor` between blocks.

    Not on GPUs, where an AllReduce through the switch is faster than its two halves.
    """
    mesh = engine.table.mesh
    return mesh.platform in PLATFORMS and forward.shards_tokens(engine.config, mesh.sizes, n_tokens)


def sharded(settings: LayerSettings) -> LayerSettings:
    """The settings of such a pass."""
    table = settings.table
    return replace(
        settings,
        table=replace(table, rules={**table.rules, "residual.T": TENSOR}),
        use_collective_matmul=True,
    )


def on_all_chips(settings: LayerSettings, x_BTD: Array, new_B: Array | None) -> Array:
    """The residual [B,1,D] of the last new token of each row, or [B,T,D] of all tokens.

    Args:
        x_BTD: the residual of this chip's tokens.
        new_B: number of new tokens of each row; None for the residual of all tokens.
    """
    table = settings.table
    if new_B is None:
        return gather(x_BTD, table.mesh.axis_names(TENSOR), 1)
    n_tokens = x_BTD.shape[1]
    local_B11 = (jnp.maximum(new_B - 1, 0) - table.index(TENSOR) * n_tokens)[:, None, None]
    is_local_B11 = (local_B11 >= 0) & (local_B11 < n_tokens)
    x_B1D = jnp.take_along_axis(x_BTD, jnp.clip(local_B11, 0, n_tokens - 1), axis=1)
    return table.sum(jnp.where(is_local_B11, x_B1D, 0), TENSOR)
