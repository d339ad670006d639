"""The other school: a step of whole arrays, whose collectives XLA's partitioner chooses.

The model's code is that of the planned step. It sees a mesh of one device, and where the planned
step has a move of the sharding algebra, this one has a sharding constraint: the layout that the
table gives the array before and after. What XLA sends to get from one to the other, and when, is
its own choice. Kernels are no arithmetic that it could cut: attention runs on what each chip holds.
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

from shardwise.models import ModelConfig, Moe
from shardwise.ops.einsum import Array as Named
from shardwise.ops.sharded import Move
from shardwise.runtime.blocks.model import loss_function
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.error_feedback import Lost
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.descriptions import Tree
from shardwise.strategy.layout import Layout
from shardwise.workload import Train

Array = jax.Array


class WholeMesh(RoleMesh):
    """A mesh as code sees it that has whole arrays: one chip, of no platform with own products."""

    @property
    def platform(self) -> str:
        return "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Table):
    """A table for code that has whole arrays.

    Args:
        chips: the table of the mesh that the arrays lie on.
    """

    chips: Table

    def apply(self, move: Move, x: Array) -> Array:
        """The array as the move leaves it, and its gradient as the move finds it."""
        if self.chips.mesh.size(move.axes) == 1:
            return x
        found: Array = _laid(self._sharding(move.before, x), self._sharding(move.after, x), x)
        return found

    def on_chips(
        self, kernel: Callable[..., Array], arrays: Sequence[Any], dims: Sequence[str]
    ) -> Array:
        """See `Table.on_chips`."""
        specs = [
            PartitionSpec() if x is None else self._spec("activations", letters, x)
            for x, letters in zip(arrays, dims, strict=True)
        ]
        return jax.shard_map(
            functools.partial(kernel, self.chips),
            mesh=self.mesh.jax_mesh,
            in_specs=tuple(specs),
            out_specs=specs[0],
            check_vma=False,
        )(*arrays)

    def _sharding(self, array: Named, x: Array) -> NamedSharding:
        cuts = {d.name: d.axes for d in array.dims}
        return NamedSharding(self.mesh.jax_mesh, self._dealt([cuts[d] for d in array.names], x))

    def _spec(self, kind: str, dims: str, x: Array) -> PartitionSpec:
        roles = self.chips.roles(kind, dims)
        return self._dealt([roles.get(d, ()) for d in dims], x)

    def _dealt(self, roles: Sequence[Sequence[str]], x: Array) -> PartitionSpec:
        """Of the axes of each dim those that divide it: fewer KV heads than chips have copies."""
        on = self.chips.mesh
        names = [on.dividing_axes(on.axis_names(r), n) for r, n in zip(roles, x.shape, strict=True)]
        return PartitionSpec(*(n or None for n in names))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _laid(before: NamedSharding, after: NamedSharding, x: Array) -> Array:
    return lax.with_sharding_constraint(x, after)


def _laid_forward(before: NamedSharding, after: NamedSharding, x: Array) -> tuple[Array, None]:
    return _laid(before, after, x), None


def _laid_backward(before: NamedSharding, after: NamedSharding, _: None, ct: Array) -> tuple[Array]:
    return (lax.with_sharding_constraint(ct, before),)


_laid.defvjp(_laid_forward, _laid_backward)


class PartitionedStep(TrainStep):
    """A step of training whose collectives the compiler chooses: see `TrainStep`."""

    @property
    def seen(self) -> Table:
        """One chip that has all arrays."""
        on = self.table.mesh
        one = WholeMesh(
            jax_mesh=on.jax_mesh, axes=dict.fromkeys(on.axes, ()), sizes=dict.fromkeys(on.sizes, 1)
        )
        return Whole(rules=self.table.rules, mesh=one, chips=self.table)

    @property
    def by_compiler(self) -> bool:
        """The optimizer sees whole arrays too."""
        return True

    def _whole_gradients(
        self, weights: Tree, lost: Lost, batch: Tree
    ) -> tuple[Array, Tree, dict[str, Array]]:
        """The mean loss, and gradients laid out as the state of the optimizer; nothing is lost."""
        differentiate = jax.value_and_grad(loss_function(self.stack, self.layout, self.deals))

        def one(microbatch: Tree) -> tuple[Array, Tree]:
            total, found = differentiate(weights, None, microbatch["tokens"], microbatch["targets"])
            return total / self.job.tokens_per_step, self._held(found)

        zeros = self._held(jax.tree.map(jnp.zeros_like, weights))
        return *self._in_turn(one, zeros, batch), {}

    def _held(self, gradients: Tree) -> Tree:
        """Gradients of a microbatch, laid out as the state of the optimizer: sums that wait for the
        last microbatch have no layout, so those of ZeRO 1 are scattered with each as under ZeRO 2.
        """
        mesh, held = self.table.mesh.jax_mesh, self.stack.precision.gradients

        def laid(gradient: Array, spec: PartitionSpec) -> Array:
            return lax.with_sharding_constraint(gradient.astype(held), NamedSharding(mesh, spec))

        found: Tree = jax.tree.map(laid, gradients, self._parts)
        return found


def not_partitioned(model: ModelConfig, layout: Layout, job: Train) -> list[str]:
    """What a plan asks for that this step does not do."""
    found = []
    if layout.is_pipelined:
        found.append(
            f"schedule {layout.schedule} is a program for each stage, not a layout of arrays: with "
            "--collectives compiler plan with --max pipe=1."
        )
    if layout.context_kind != "gather" and layout.sizes["context"] > 1:
        found.append(
            f"context_kind {layout.context_kind} is written down, not partitioned: with "
            "--collectives compiler plan with --fix context_kind=gather."
        )
    by_hand = {
        "overlap tp_comm": layout.passes_on,
        f"loss_chunks {layout.loss_chunks}": layout.loss_chunks > 1,
        "reduce int8": job.sums_in_int8,
    }
    found += [
        f"{what} is written down, not partitioned: with --collectives compiler plan without it."
        for what, asked in by_hand.items()
        if asked
    ]
    if any(isinstance(group.layer.ffn, Moe) for group in model.groups):
        found.append(
            f"{model.name} has experts: the partitioner would bring all tokens to every chip to "
            "route them. --collectives plan sends each to its expert."
        )
    return found
