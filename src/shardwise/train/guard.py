"""The optimizer of a run: clipping by the norm over all chips, and no update from bad numbers.

Each chip updates its part of every weight, so what a step decides from all gradients together
(their norm, whether one is no number) is summed over the mesh first, each number once.
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
from shardwise.runtime.weights.descriptions import Tree, each
from shardwise.train.recipe import Recipe

Array = jax.Array

SETTLED = 20  # steps before a mean of losses says what is usual
MEMORY = 0.95  # of the running mean, per step


class Guarded(NamedTuple):
    """State of the optimizer.

    Attributes:
        inner: of the optimizer itself.
        norm: of the last gradients, over all chips, before clipping.
        usual: running mean of the losses of good steps.
        good: steps that changed the weights.
        bad: steps that did not.
    """

    inner: Any
    norm: Array
    usual: Array
    good: Array
    bad: Array


def update_of(recipe: Recipe) -> Callable[[TrainStep], optax.GradientTransformation]:
    """What makes the optimizer of a step under a recipe."""

    def make(step: TrainStep) -> optax.GradientTransformation:
        return guarded(_inner(step, recipe), norm_over(step), recipe)

    return make


def _inner(step: TrainStep, recipe: Recipe) -> optax.GradientTransformation:
    """Of optax, by the plan's word; matrices decay."""
    return optimizer(
        step.job.optimizer,
        recipe.rates(),
        step.infos,
        b1=recipe.b1,
        b2=recipe.b2,
        decay=recipe.decay,
        mask=each(lambda info: info.is_table, step.infos),
    )


def norm_over(step: TrainStep) -> Callable[[Tree], Array]:
    """`parts -> norm of all gradients`, inside of the step: equal on every chip."""
    mesh = step.table.mesh.jax_mesh
    specs = each(lambda info, dealt: state_spec(info, step.table, dealt), step.infos, step.deals)

    def copies(spec: jax.sharding.PartitionSpec) -> int:
        names = [n for dim in spec if dim for n in (dim if isinstance(dim, tuple) else (dim,))]
        return int(mesh.size) // math.prod(mesh.shape[n] for n in names)

    shared = [copies(s) for s in jax.tree.leaves(specs, is_leaf=_is_spec)]

    def norm(parts: Tree) -> Array:
        leaves = jax.tree.leaves(parts)
        squares = [
            jnp.sum(jnp.square(g.astype(jnp.float32))) / n
            for g, n in zip(leaves, shared, strict=True)
        ]
        return jnp.sqrt(lax.psum(sum(squares), mesh.axis_names))

    return optax.tree.norm if step.by_compiler else norm


def _is_spec(x: Any) -> bool:
    return isinstance(x, jax.sharding.PartitionSpec)


def guarded(
    inner: optax.GradientTransformation, norm_of: Callable[[Tree], Array], recipe: Recipe
) -> optax.GradientTransformationExtraArgs:
    """An optimizer that clips, and that a bad step leaves as it was."""

    def init(params: Tree) -> Guarded:
        none, zero = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)
        return Guarded(inner=inner.init(params), norm=zero, usual=zero, good=none, bad=none)

    def update(
        gradients: Tree, state: Guarded, params: Tree | None = None, *, value: Array, **_: Any
    ) -> tuple[Tree, Guarded]:
        norm = norm_of(gradients)
        ok = jnp.isfinite(norm) & jnp.isfinite(value)
        if recipe.spike is not None:
            ok &= (state.good < SETTLED) | (value < state.usual + recipe.spike)
        scale = jnp.where(ok, 1.0, 0.0)
        if recipe.clip is not None:
            scale = jnp.where(ok, jnp.minimum(1.0, recipe.clip / jnp.maximum(norm, 1e-30)), 0.0)
        clipped = jax.tree.map(lambda g: jnp.where(ok, g * scale, 0.0), gradients)
        updates, after = inner.update(clipped, state.inner, params)
        first = jnp.where(state.good == 0, value, MEMORY * state.usual + (1 - MEMORY) * value)
        keep = lambda new, old: jnp.where(ok, new, old)
        return (
            jax.tree.map(lambda u: jnp.where(ok, u, 0.0), updates),
            Guarded(
                inner=jax.tree.map(keep, after, state.inner),
                norm=norm,
                usual=jnp.where(ok, first, state.usual),
                good=state.good + ok,
                bad=state.bad + ~ok,
            ),
        )

    return optax.GradientTransformationExtraArgs(init, update)
