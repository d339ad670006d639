"""The arrays of a run: state made where it lies, batches of which each host reads its part."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.runtime.dtypes import dtype
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.descriptions import Tree, describe, each, initialised
from shardwise.train.data_order import Order
from shardwise.train.portable import Portable


def initial(step: TrainStep, seed: int) -> Tree:
    """Random weights with the optimizer's state, each array made in the parts that chips hold.

    Under one seed every layout has the same numbers, wherever its stages hold the layers.
    """
    job, (shapes, _) = step.job, step.shapes()

    def make(key: jax.Array) -> Tree:
        wide = Portable(step=step).put(initialised(describe(step.config), key, jnp.float32))
        held = each(lambda info: jnp.zeros(info.shape, dtype(job.moments)), step.infos)
        cast = lambda to: jax.tree.map(lambda w: w.astype(dtype(to)), wide)
        state = {"weights": cast(job.weights), "moments": step.optimizer.init(held)}
        state |= {"master": cast(job.master)} if job.master else {}
        return state | ({"lost": nothing_lost(shapes)} if "lost" in shapes else {})

    laid = jax.tree.map(lambda shape: shape.sharding, shapes)
    made: Tree = jax.jit(make, out_shardings=laid)(jax.random.key(seed))
    return made


def nothing_lost(shapes: Tree) -> Tree:
    """What sums of gradients have lost before the first of them, where it is to lie."""
    found: Tree = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), shapes["lost"]
    )
    return found


def batch(order: Order, number: int, shapes: Tree, places: np.ndarray[Any, Any]) -> Tree:
    """Tokens and targets of a step; rows that no device of this process has are not read.

    Args:
        number: of the step.
        shapes: of the batch, [microbatch, sequence, token].
        places: which token of a sequence lies at each place, `TrainStep.places`.
    """

    @functools.cache
    def rows(first: int, last: int) -> np.ndarray[Any, Any]:
        return order.rows(number, range(first, last))

    def part(shift: int, shape: jax.ShapeDtypeStruct, index: tuple[slice, ...]) -> Any:
        (m0, m1, _), (b0, b1, _), (t0, t1, _) = (
            s.indices(n) for s, n in zip(index, shape.shape, strict=True)
        )
        width = shape.shape[1]
        found = [rows(m * width + b0, m * width + b1) for m in range(m0, m1)]
        return np.stack(found)[:, :, places[t0:t1] + shift]

    return {
        name: jax.make_array_from_callback(
            shapes[name].shape, shapes[name].sharding, functools.partial(part, shift, shapes[name])
        )
        for name, shift in (("tokens", 0), ("targets", 1))
    }
