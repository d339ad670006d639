"""Steps of training, on as many devices as a layout has: what parity compares.

Random tokens, random weights that no layout changes, and the weights afterwards in the order of
the model's layers, wherever stages and chips held them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from shardwise.models import ModelConfig
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.programs import factored_roles, tensor_axes
from shardwise.runtime.training.step import MakeOptimizer, TrainStep
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree, describe
from shardwise.strategy.layout import Layout, rules_of
from shardwise.workload import Train
from tests.unit.runtime.drawn import drawn_weights

RATE, EPSILON = 1e-3, 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What some steps did.

    Args:
        losses: of each.
        gradients: of the first, where the optimizer has them (`keeping`); else none.
        weights: after the last.
    """

    losses: list[float]
    gradients: list[np.ndarray[Any, Any]]
    weights: list[np.ndarray[Any, Any]]


def step_on(
    config: ModelConfig, job: Train, layout: Layout, update: MakeOptimizer | None = None
) -> TrainStep:
    """The step of a layout on the first devices of this process."""
    devices = np.array(jax.devices()[: layout.mesh.n_chips])
    on = role_mesh(layout.sizes, devices, factored_roles(layout), tensor_axes(config, layout))
    table = Table(rules=rules_of(layout), mesh=on)
    return TrainStep(config=config, job=job, layout=layout, table=table, make_optimizer=update)


def keeping(_: TrainStep) -> optax.GradientTransformation:
    """AdamW whose state also has the gradients that it was given.

    Its epsilon is above the rounding of gradients. With the usual 1e-8 it takes whole steps along
    gradients that are sums of rounding errors, and which way they go depends on the processor.
    """
    return optax.chain(optax.trace(0.0), optax.adamw(RATE, b2=0.95, eps=EPSILON))


def compiled(made: TrainStep) -> Any:
    """The step, as XLA made it; its state is given away."""
    return jax.jit(made.function(), donate_argnums=0).lower(*made.shapes()).compile()


def trained(made: TrainStep, n: int, step: Callable[..., Any] | None = None) -> Trained:
    """Take n steps.

    Args:
        step: compiled already.
    """
    shapes, batch = made.shapes()
    state, losses, gradients = _start(made, shapes), [], []
    step = step or compiled(made)
    random, job = np.random.default_rng(0), made.job
    for i in range(n):
        size = (job.batch, job.seq + 1)
        text = random.integers(0, made.config.vocab, size).astype(np.int32)
        cut = made.reorder_tokens({"tokens": text[:, :-1], "targets": text[:, 1:]})
        given = {
            name: jax.device_put(x.reshape(batch[name].shape), batch[name].sharding)
            for name, x in cut.items()
        }
        state, loss = step(state, given)
        losses.append(float(loss))
        if i == 0 and made.make_optimizer is keeping:
            gradients = _in_order(made, state["moments"][0].trace)
    return Trained(losses=losses, gradients=gradients, weights=_in_order(made, state["weights"]))


def _start(made: TrainStep, shapes: Tree) -> Tree:
    leaves, tree = jax.tree.flatten(
        describe(made.config, made.table), is_leaf=lambda x: isinstance(x, ArrayInfo)
    )
    weights = jax.tree.unflatten(tree, _random_weights(tuple(leaves)))
    if made.stages:
        weights["layers"] = [made.stages.to_stage_order(layer) for layer in weights["layers"]]
    # One program each for what would be one for each shape; the rest is laid out by NumPy.
    moments = jax.tree.map(np.asarray, jax.jit(made.optimizer.init)(weights))
    state = {"weights": weights, "moments": moments}
    if made.job.master:
        state["master"] = weights
    if "lost" in shapes:
        state["lost"] = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes["lost"])
    laid: Tree = jax.tree.map(
        lambda x, s: jax.device_put(x.astype(s.dtype), s.sharding), state, shapes
    )
    return laid


@functools.cache
def _random_weights(infos: tuple[ArrayInfo, ...]) -> list[np.ndarray[Any, Any]]:
    """Random weights, drawn once for all layouts."""
    drawn: list[np.ndarray[Any, Any]] = drawn_weights(list(infos))
    return drawn


def _in_order(made: TrainStep, tree: Tree) -> list[np.ndarray[Any, Any]]:
    found = jax.tree.map(np.asarray, tree)
    if made.stages:
        found["layers"] = [made.stages.to_model_order(layer) for layer in found["layers"]]
    leaves: list[np.ndarray[Any, Any]] = jax.tree.leaves(found)
    return leaves
