"""The update of weights by AdamW, with the clipping of gradients that precedes it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from shardwise.measure.all_devices import AllDevices, Program
from shardwise.measure.sizes import sizes_of
from shardwise.measure.timing import Part
from shardwise.runtime.kernels import cpu
from shardwise.train.guard import guard
from shardwise.train.recipe import Recipe

N_ARRAYS = 3
# Weight, gradient and both moments in fp32: the gradient is read, the others read and written.
PARAMETER_BYTES = 4.0 * 7


def update_bytes_per_s(devices: AllDevices) -> Part[float]:
    """Bytes per second, as a plan counts the bytes of an update: each array once."""
    transformation = guard(
        optax.adamw(1e-3, b1=0.9, b2=0.95, weight_decay=0.1), optax.tree.norm, Recipe(steps=100)
    )

    def update(*arrays: Any) -> Any:
        weights, first, second, gradients = (
            list(arrays[i * N_ARRAYS : (i + 1) * N_ARRAYS]) for i in range(4)
        )
        state = transformation.init(weights)
        adam, *others = state.inner
        state = state._replace(inner=(adam._replace(mu=first, nu=second), *others))
        changes, new = transformation.update(gradients, state, weights, value=jnp.float32(1))
        weights = optax.apply_updates(weights, changes)
        moments = (new.inner[0].mu, new.inner[0].nu)
        if devices.platform == "cpu":
            moments = cpu.write_after(weights, moments, (first, second))
        return *jax.tree.leaves(weights), *jax.tree.leaves(moments)

    shape = sizes_of(devices.platform).update
    n_elements = N_ARRAYS * shape[0] * shape[1]
    arrays = [(shape, jnp.float32)] * (4 * N_ARRAYS)
    seconds = yield from devices.seconds(Program(update, arrays, in_place=3 * N_ARRAYS))
    return PARAMETER_BYTES * n_elements / seconds
