"""Optimizer wrapper that clips by the global gradient norm and skips the update of bad steps.

A step is bad if its loss or gradient norm is NaN or inf, or its loss a spike. Each chip updates its
shard of every weight, so the gradient norm has to be summed over the mesh, counting each gradient
that several chips have a copy of only once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from shardwise.runtime.training.gradient_sync import state_spec
from shardwise.runtime.training.optimizers import optimizer
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.descriptions import Tree, map_infos
from shardwise.train.recipe import Recipe

Array = jax.Array

MIN_GOOD_STEPS = 20  # steps before the running mean of the loss is used to detect spikes
LOSS_DECAY = 0.95  # weight of the previous running mean of the loss, per step


class GuardState(NamedTuple):
    """State of a guarded optimizer; its field names are keys of checkpoints.

    Attributes:
        inner: state of the wrapped optimizer.
        norm: global gradient norm of the last step, before clipping.
        usual: running mean of the losses of good steps.
        good: number of good steps, which changed the weights.
        bad: number of bad steps, which did not.
    """

    inner: Any
    norm: Array
    usual: Array
    good: Array
    bad: Array


def guarded_optimizer(recipe: Recipe) -> Callable[[TrainStep], optax.GradientTransformation]:
    """Return a function that makes the guarded optimizer for a given training step."""

    def make(step: TrainStep) -> optax.GradientTransformation:
        return guard(_plan_optimizer(step, recipe), global_norm(step), recipe)

    return make


def _plan_optimizer(step: TrainStep, recipe: Recipe) -> optax.GradientTransformation:
    """Return the plan's optimizer, with weight decay for matrices only."""
    return optimizer(
        step.job.optimizer,
        recipe.learning_rate_schedule(),
        step.infos,
        b1=recipe.b1,
        b2=recipe.b2,
        decay=recipe.decay,
        mask=map_infos(lambda info: info.is_matrix, step.infos),
    )


def global_norm(step: TrainStep) -> Callable[[Tree], Array]:
    """Return a function from gradients to their global norm, for use inside the sharded step."""
    if step.global_optimizer:
        return optax.tree.norm
    mesh = step.table.mesh.jax_mesh
    specs = map_infos(
        lambda info, partition: state_spec(info, step.table, partition),
        step.infos,
        step.partitions,
    )
    spec_leaves = jax.tree.leaves(specs, is_leaf=_is_spec)
    n_copies = [_copies(spec, mesh) for spec in spec_leaves]

    def norm(gradients: Tree) -> Array:
        leaves = jax.tree.leaves(gradients)
        squares = [
            jnp.sum(jnp.square(gradient.astype(jnp.float32))) / n
            for gradient, n in zip(leaves, n_copies, strict=True)
        ]
        return jnp.sqrt(lax.psum(sum(squares), mesh.axis_names))

    return norm


def _copies(spec: jax.sharding.PartitionSpec, mesh: jax.sharding.Mesh) -> int:
    """Return the number of chips that hold the same shard of an array."""
    n_shards = 1
    for axes in spec:
        if axes:
            names = axes if isinstance(axes, tuple) else (axes,)
            n_shards *= math.prod(mesh.shape[name] for name in names)
    return int(mesh.size) // n_shards


def _is_spec(x: Any) -> bool:
    return isinstance(x, jax.sharding.PartitionSpec)


def guard(
    inner: optax.GradientTransformation, norm_of: Callable[[Tree], Array], recipe: Recipe
) -> optax.GradientTransformationExtraArgs:
    """Wrap an optimizer to clip the gradients and to skip the update of a bad step.

    Args:
        norm_of: computes the global norm of the gradients.
        recipe: the clipping norm and the size of a loss spike.
    """

    def init(params: Tree) -> GuardState:
        no_steps = jnp.zeros((), jnp.int32)
        zero = jnp.zeros((), jnp.float32)
        return GuardState(
            inner=inner.init(params), norm=zero, usual=zero, good=no_steps, bad=no_steps
        )

    def update(
        gradients: Tree, state: GuardState, params: Tree | None = None, *, value: Array, **_: Any
    ) -> tuple[Tree, GuardState]:
        norm = norm_of(gradients)
        is_good = jnp.isfinite(norm) & jnp.isfinite(value)
        if recipe.spike is not None:
            is_good &= (state.good < MIN_GOOD_STEPS) | (value < state.usual + recipe.spike)
        scale = jnp.where(is_good, 1.0, 0.0)
        if recipe.clip is not None:
            clip_scale = jnp.minimum(1.0, recipe.clip / jnp.maximum(norm, 1e-30))
            scale = jnp.where(is_good, clip_scale, 0.0)
        clipped = jax.tree.map(lambda g: jnp.where(is_good, g * scale, 0.0), gradients)
        updates, inner_state = inner.update(clipped, state.inner, params)
        mean_loss = LOSS_DECAY * state.usual + (1 - LOSS_DECAY) * value
        mean_loss = jnp.where(state.good == 0, value, mean_loss)
        if_good = lambda new, old: jnp.where(is_good, new, old)
        return (
            jax.tree.map(lambda u: jnp.where(is_good, u, 0.0), updates),
            GuardState(
                inner=jax.tree.map(if_good, inner_state, state.inner),
                norm=norm,
                usual=jnp.where(is_good, mean_loss, state.usual),
                good=state.good + is_good,
                bad=state.bad + ~is_good,
            ),
        )

    return optax.GradientTransformationExtraArgs(init, update)
