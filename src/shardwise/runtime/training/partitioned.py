"""A training step on global arrays, whose collectives XLA's partitioner chooses.

The model's code is that of `TrainStep`, run as if the mesh had one device. Each move of the
sharding algebra becomes a sharding constraint: the array gets its layout after the move, and its
gradient the layout before. XLA chooses what to send between these layouts, and when. It cannot
partition kernels, so attention runs inside a `shard_map` on the shards of each chip.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import ModelConfig
from shardwise.ops.einsum import Array as Named
from shardwise.ops.sharded import Move
from shardwise.runtime.blocks.model import loss_function
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.error_feedback import Residuals
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.descriptions import Tree
from shardwise.strategy.layout import Layout
from shardwise.workload import Train

Array = jax.Array


class WholeMesh(RoleMesh):
    """A mesh of one chip, for code that computes with global arrays.

    Its platform is unknown to the kernels, so that code takes the path without special kernels.
    """

    @property
    def platform(self) -> str:
        return "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintTable(Table):
    """A table for code that computes with global arrays: its moves are sharding constraints.

    Args:
        chips: the table with the mesh of all chips, which shards the arrays.
    """

    chips: Table

    def apply(self, move: Move, x: Array) -> Array:
        """Constrain x to its layout after the move, and its gradient to the layout before."""
        if self.chips.mesh.size(move.axes) == 1:
            return x
        before = self._sharding(move.before, x)
        constrained: Array = _constrained(before, self._sharding(move.after, x), x)
        return constrained

    def on_chips(
        self, kernel: Callable[..., Array], arrays: Sequence[Any], dims: Sequence[str]
    ) -> Array:
        """Run a kernel on the shards of the arrays, in a `shard_map`: see `Table.on_chips`."""
        specs = []
        for x, letters in zip(arrays, dims, strict=True):
            spec = PartitionSpec()
            if x is not None:
                spec = self._spec("activations", letters, x)
            specs.append(spec)
        return jax.shard_map(
            functools.partial(kernel, self.chips),
            mesh=self.mesh.jax_mesh,
            in_specs=tuple(specs),
            out_specs=specs[0],
            check_vma=False,
        )(*arrays)

    def _sharding(self, array: Named, x: Array) -> NamedSharding:
        """Sharding of x in the layout of a named array."""
        axes = {dim.name: dim.axes for dim in array.dims}
        return NamedSharding(
            self.mesh.jax_mesh, self._dividing_spec([axes[dim] for dim in array.names], x)
        )

    def _spec(self, kind: str, dims: str, x: Array) -> PartitionSpec:
        """Partition spec of x by the sharding rules for this kind of array."""
        roles = self.chips.roles(kind, dims)
        return self._dividing_spec([roles.get(dim, ()) for dim in dims], x)

    def _dividing_spec(self, roles: Sequence[Sequence[str]], x: Array) -> PartitionSpec:
        """Partition spec of x over the roles of each dim, without axes that do not divide the dim.

        KV heads, if there are fewer of them than chips, are thus replicated over some chips.
        """
        mesh = self.chips.mesh
        names = [
            mesh.dividing_axes(mesh.axis_names(dim_roles), size)
            for dim_roles, size in zip(roles, x.shape, strict=True)
        ]
        return PartitionSpec(*(axes or None for axes in names))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _constrained(before: NamedSharding, after: NamedSharding, x: Array) -> Array:
    """x in the sharding `after`; its gradient gets the sharding `before`."""
    return lax.with_sharding_constraint(x, after)


def _constrained_forward(
    before: NamedSharding, after: NamedSharding, x: Array
) -> tuple[Array, None]:
    return _constrained(before, after, x), None


def _constrained_backward(
    before: NamedSharding, after: NamedSharding, _: None, ct: Array
) -> tuple[Array]:
    return (lax.with_sharding_constraint(ct, before),)


_constrained.defvjp(_constrained_forward, _constrained_backward)


class PartitionedStep(TrainStep):
    """A training step whose collectives the compiler chooses: see `TrainStep`."""

    @property
    def model_table(self) -> Table:
        """The table with which the model's code computes on global arrays."""
        mesh = self.table.mesh
        single_chip = WholeMesh(
            jax_mesh=mesh.jax_mesh,
            axes=dict.fromkeys(mesh.axes, ()),
            sizes=dict.fromkeys(mesh.sizes, 1),
        )
        return ConstraintTable(rules=self.table.rules, mesh=single_chip, chips=self.table)

    @property
    def global_optimizer(self) -> bool:
        """True: the optimizer always runs on global arrays."""
        return True

    def _global_gradients(
        self, weights: Tree, residuals: Residuals, batch: Tree
    ) -> tuple[Array, Tree, dict[str, Array]]:
        """Return (mean loss, gradients laid out as the optimizer's state, no residuals)."""
        differentiate = jax.value_and_grad(
            loss_function(self.settings, self.layout, self.partitions)
        )

        def loss_and_gradients(microbatch: Tree) -> tuple[Array, Tree]:
            tokens = microbatch["tokens"]
            total, gradients = differentiate(weights, None, tokens, microbatch["targets"])
            return total / self.job.tokens_per_step, self._as_state(gradients)

        zeros = self._as_state(jax.tree.map(jnp.zeros_like, weights))
        return *self._accumulate(loss_and_gradients, zeros, batch), {}

    def _as_state(self, gradients: Tree) -> Tree:
        """Lay out the gradients of a microbatch as the optimizer's state.

        A sharding constraint cannot describe sums that chips have not reduced yet. Under ZeRO 1
        gradients are therefore reduced and scattered after each microbatch, as under ZeRO 2.
        """
        mesh = self.table.mesh.jax_mesh
        gradient_dtype = self.settings.precision.gradients

        def constrain(gradient: Array, spec: PartitionSpec) -> Array:
            cast = gradient.astype(gradient_dtype)
            return lax.with_sharding_constraint(cast, NamedSharding(mesh, spec))

        constrained: Tree = jax.tree.map(constrain, gradients, self._update_specs)
        return constrained


def unsupported_partitioned(model: ModelConfig, layout: Layout, job: Train) -> list[str]:
    """List the features of a plan that a partitioned step does not support, as messages."""
    problems = []
    if layout.schedule != "none":
        problems.append(
            f"schedule {layout.schedule} is a program for each stage, not a layout of arrays: with "
            "--collectives compiler, run shardwise plan with --max pipe=1."
        )
    if layout.context_kind != "gather" and layout.sizes["context"] > 1:
        problems.append(
            f"context_kind {layout.context_kind} is implemented by explicit collectives only: with "
            "--collectives compiler, run shardwise plan with --fix context_kind=gather."
        )
    explicit_only = {
        "overlap tp_comm": layout.uses_collective_matmul,
        f"loss_chunks {layout.loss_chunks}": layout.loss_chunks > 1,
        "reduce int8": job.sums_in_int8,
    }
    problems += [
        f"{option} is implemented by explicit collectives only: with --collectives compiler plan "
        "without it."
        for option, is_used in explicit_only.items()
        if is_used
    ]
    if model.is_moe:
        problems.append(
            f"{model.name} has experts: the partitioner would gather all tokens on every chip to "
            "route them. With --collectives plan each token goes to its experts only."
        )
    return problems
