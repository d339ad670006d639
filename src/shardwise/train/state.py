"""Arrays of a training run: the initial state, and the batch of each step."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.runtime.dtypes import dtype
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.descriptions import Tree, describe, init_weights, map_infos
from shardwise.train.data_order import DataOrder
from shardwise.train.portable import PortableState


def random_state(step: TrainStep, seed: int) -> Tree:
    """Return random weights and the initial optimizer state, sharded as the step needs them.

    The weights depend on the seed only, not on the layout.
    """
    job = step.job
    shapes, _ = step.shapes()

    def make(key: jax.Array) -> Tree:
        weights = init_weights(describe(step.config), key, jnp.float32)
        weights = PortableState(step=step).traced_weights_to_step(weights)
        params = map_infos(lambda info: jnp.zeros(info.shape, dtype(job.moments)), step.infos)
        cast = lambda name: jax.tree.map(lambda w: w.astype(dtype(name)), weights)
        state = {"weights": cast(job.weights), "moments": step.optimizer.init(params)}
        if job.master:
            state["master"] = cast(job.master)
        if "lost" in shapes:
            state["lost"] = zero_residuals(shapes)
        return state

    shardings = jax.tree.map(lambda shape: shape.sharding, shapes)
    key = jax.random.key(seed)
    state: Tree = jax.jit(make, out_shardings=shardings).lower(key).compile()(key)
    return state


def zero_residuals(shapes: Tree) -> Tree:
    """Return the residuals of int8 gradient sums before the first step: zeros."""
    residuals: Tree = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), shapes["lost"]
    )
    return residuals


def load_batch(
    order: DataOrder, step: int, shapes: Tree, token_order: np.ndarray[Any, Any]
) -> Tree:
    """Load the tokens and targets of a step; each process reads only the rows of its devices.

    Args:
        order: the training sequences in their order.
        step: index of the step: the number of completed steps.
        shapes: shapes and shardings of both arrays, [microbatch, sequence, token].
        token_order: `TrainStep.token_order`, the index in the text of the token at each position
            of a sequence (context parallelism reorders tokens).
    """

    @functools.cache
    def rows(first: int, stop: int) -> np.ndarray[Any, Any]:
        return order.rows(step, range(first, stop))

    def shard(shift: int, shape: jax.ShapeDtypeStruct, index: tuple[slice, ...]) -> Any:
        n_microbatches, n_rows, n_tokens = shape.shape
        first_row, stop_row, _ = index[1].indices(n_rows)
        sequences = []
        for microbatch in range(n_microbatches)[index[0]]:
            start = microbatch * n_rows
            sequences.append(rows(start + first_row, start + stop_row))
        positions = token_order[:n_tokens][index[2]]
        return np.stack(sequences)[:, :, positions + shift]

    return {
        name: jax.make_array_from_callback(
            shapes[name].shape, shapes[name].sharding, functools.partial(shard, shift, shapes[name])
        )
        for name, shift in (("tokens", 0), ("targets", 1))
    }
