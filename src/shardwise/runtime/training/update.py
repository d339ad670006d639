"""The optimizer's part of a training step: each chip updates its parts of the weights."""

from __future__ import annotations

import functools
from typing import Protocol

import jax
import jax.numpy as jnp
import optax

from shardwise.runtime.dtypes import dtype
from shardwise.runtime.kernels import cpu
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training import host_offload
from shardwise.runtime.training.error_feedback import Residuals
from shardwise.runtime.training.gradient_sync import UpdatePartition
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree, map_infos
from shardwise.strategy.layout import Layout
from shardwise.workload import Train

Array = jax.Array

# The partition of a weight whose update runs on the global array.
WHOLE = UpdatePartition(cuts=(), sum_axes=(), in_backward=False)


class Updates(Protocol):
    """The attributes of a training step that an update reads: see `step.TrainStep`."""

    @property
    def job(self) -> Train: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def table(self) -> Table: ...
    @property
    def infos(self) -> Tree: ...
    @property
    def partitions(self) -> Tree: ...
    @property
    def global_optimizer(self) -> bool: ...
    @property
    def optimizer(self) -> optax.GradientTransformationExtraArgs: ...


def is_offloaded(layout: Layout, state: Tree) -> Tree:
    """Tree like the state of booleans: whether an array is in host memory between steps."""
    offloaded: tuple[str, ...] = ()
    if "optimizer" in layout.offload:
        offloaded = ("moments", "master")
    flags = {}
    for name, tree in state.items():
        if name in offloaded:
            flags[name] = jax.tree.map(host_offload.is_offloadable, tree)
        else:
            flags[name] = jax.tree.map(lambda _: False, tree)
    return flags


def updated_state(
    step: Updates, state: Tree, gradients: Tree, loss: Array, residuals: Residuals
) -> Tree:
    """The state after the optimizer's update, with whole weights.

    Args:
        state: the state before.
        gradients: summed gradients of the parts that this chip updates.
        loss: mean loss of a token.
        residuals: new residuals of int8 gradient sums; empty without them.
    """
    partitions = step.partitions
    if step.global_optimizer:
        partitions = map_infos(lambda _: WHOLE, step.infos)
    parts = state.get("master") or map_infos(
        lambda _, partition, weight: partition.part(weight),
        step.infos,
        partitions,
        state["weights"],
    )
    args = (gradients, state["moments"], parts, loss)
    update = functools.partial(_update_parts, step)
    if "optimizer" in step.layout.offload:
        goes_to_host = functools.partial(is_offloaded, step.layout)
        computed = jax.tree.leaves(gradients)
        updated = host_offload.apply_in_parts(update, args, goes_to_host, computed)
    else:
        updated = update(*args)

    def gather(info: ArrayInfo, partition: UpdatePartition, part: Array, old: Array) -> Array:
        if info.is_trained:
            return partition.gather(part)
        return old

    updated["weights"] = map_infos(
        gather, step.infos, partitions, updated["weights"], state["weights"]
    )
    if residuals:
        updated["lost"] = residuals
    return updated


def _update_parts(step: Updates, gradients: Tree, moments: Tree, parts: Tree, loss: Array) -> Tree:
    """The state after the optimizer's update, with the weights' parts that this chip updates."""
    n_tokens = step.job.tokens_per_step
    weight_dtype = dtype(step.job.weights)
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
    parts = jax.tree.map(lambda p: p.astype(jnp.float32), parts)
    gradients = jax.tree.map(lambda g: g / n_tokens, gradients)
    updates, new_moments = step.optimizer.update(gradients, moments, parts, value=loss)
    parts = optax.apply_updates(parts, updates)
    new_moments = jax.tree.map(lambda new, old: new.astype(old.dtype), new_moments, moments)
    if step.table.mesh.platform == "cpu" and not step.global_optimizer:
        new_moments = cpu.write_after(parts, new_moments, moments)
    updated = {
        "weights": jax.tree.map(lambda p: p.astype(weight_dtype), parts),
        "moments": new_moments,
    }
    if step.job.master:
        updated["master"] = parts
    return updated
