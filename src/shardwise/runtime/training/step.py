"""One step of training under a plan: microbatches, sums of gradients, the optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import ModelConfig
from shardwise.runtime.blocks.layers import Stack
from shardwise.runtime.blocks.model import loss_function
from shardwise.runtime.blocks.products import Precision
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.experts import ragged
from shardwise.runtime.kernels import cpu
from shardwise.runtime.layout.context_order import context_order
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.layout.stages import StageLayers, stage_layers
from shardwise.runtime.training import host_offload
from shardwise.runtime.training.error_feedback import Lost, Owed
from shardwise.runtime.training.gradient_sync import Deal, deal, state_spec
from shardwise.runtime.training.optimizers import WHOLE, optimizer, state_specs
from shardwise.runtime.training.pipeline import Pipeline
from shardwise.runtime.training.ticks import ticks
from shardwise.runtime.weights.descriptions import Tree, describe, each, shaped
from shardwise.strategy.layout import Layout
from shardwise.strategy.schedules import find
from shardwise.workload import Train

Array = jax.Array
BATCH = ("data", "fsdp", "expert")  # roles that cut the batch

RATE = 3e-4  # where nobody makes the optimizer of a step


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """A step of training: a function of arrays, and how they are laid out.

    The state is a dict: `weights`, `moments` (of optax), `master` where weights have an exact copy,
    `lost` where sums of gradients travel in int8 (`owed`). A batch is tokens and targets
    [microbatch, sequence, token].

    Args:
        config: the model.
        job: batch and dtypes.
        layout: the strategy.
        table: its rules on a mesh.
        capacity: room of an expert for tokens, over what experts receive that are used alike: what
            goes beyond it is dropped. None for as much as there are tokens, which drops none.
        update: makes the optimizer of this step; None for the one of the plan's word.
    """

    config: ModelConfig
    job: Train
    layout: Layout
    table: Table
    capacity: float | None = None
    update: Update | None = None

    @functools.cached_property
    def infos(self) -> Tree:
        """The weights as descriptions."""
        return describe(self.config, self.table, self.stages.n_positions if self.stages else None)

    @functools.cached_property
    def stages(self) -> StageLayers | None:
        """Where layers lie in a pipeline; None without one."""
        piped = self.layout.is_pipelined
        return stage_layers(self.config, self.layout) if piped else None

    @functools.cached_property
    def deals(self) -> Tree:
        """How copies of each weight share its update."""
        zero, n, in_int8 = self.layout.zero, self.layout.n_microbatches, self.job.sums_in_int8
        return each(
            lambda i: deal(i, self.table, zero=zero, n_microbatches=n, in_int8=in_int8), self.infos
        )

    @functools.cached_property
    def owed(self) -> Owed:
        """What sums in int8 have lost."""
        return Owed(infos=self.infos, deals=self.deals, table=self.table)

    @functools.cached_property
    def _undealt(self) -> Tree:
        """Whole arrays, which nobody deals out by hand."""
        return each(lambda _: Deal(cuts=(), summed=(), each=False), self.infos)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformationExtraArgs:
        """Of optax; it is told the loss as `value`."""
        made = self.update(self) if self.update else optimizer(self.job.optimizer, RATE, self.infos)
        return optax.with_extra_args_support(made)

    @property
    def seen(self) -> Table:
        """The table as the model's code sees it."""
        return self.table

    @functools.cached_property
    def stack(self) -> Stack:
        """What every layer of the step knows."""
        job = self.job
        precision = Precision(
            compute=dtype(job.compute),
            gradients=dtype(job.gradients),
            reduce=dtype(job.gradients if job.sums_in_int8 else job.reduce or job.gradients),
        )
        return Stack(
            config=self.config,
            table=self.seen,
            precision=precision,
            seq=job.seq,
            capacity_factor=self.capacity,
            ragged_dispatch=self.table.mesh.platform in ragged.PLATFORMS,
            use_collective_matmul=self.layout.passes_on,
        )

    def specs(self) -> Tree:
        """Layout of the state."""
        parts = self._parts
        found = {
            "weights": each(lambda info: info.spec(self.table), self.infos),
            "moments": state_specs(self._moments(), self._whole(), parts),
        }
        found |= {"master": parts} if self.job.master else {}
        return found | ({"lost": self.owed.specs()} if self.owed.rounded else {})

    @property
    def _parts(self) -> Tree:
        """Layout of what chips update of the weights."""
        return each(lambda i, d: state_spec(i, self.table, d), self.infos, self.deals)

    @property
    def batch_spec(self) -> PartitionSpec:
        """Layout of tokens and targets."""
        on = self.table.mesh
        return PartitionSpec(None, on.axis_names(BATCH), on.axis_names(("context",)))

    def arranged(self, batch: Tree) -> Tree:
        """A batch with its tokens in the order in which chips hold them: see `order`.

        Which token lies where does not change the loss, but the step takes no other order. Takes
        and gives arrays of the host, [..., token].
        """
        return {name: x[..., self.places] for name, x in batch.items()}

    @functools.cached_property
    def places(self) -> np.ndarray[Any, Any]:
        """For each place of a sequence in a batch, the number of the token that lies there."""
        n = self.seen.mesh.size(("context",))
        return context_order(self.config, self.layout, n, self.job.seq).token_order(self.job.seq)

    def shapes(self) -> tuple[Tree, Tree]:
        """(state, batch) without their numbers, as JAX takes them for lowering."""
        mesh, job, layout = self.table.mesh.jax_mesh, self.job, self.layout
        state: Tree = {
            "weights": each(lambda i: shaped(i, self.table, dtype(job.weights)), self.infos),
            "moments": self._moments(),
        }
        if job.master:
            wide = dtype(job.master)
            state["master"] = each(lambda i: jax.ShapeDtypeStruct(i.shape, wide), self.infos)
        if self.owed.rounded:
            state["lost"] = self.owed.shapes()
        laid = jax.tree.map(
            lambda x, spec, out: jax.ShapeDtypeStruct(
                x.shape,
                x.dtype,
                sharding=NamedSharding(mesh, spec, memory_kind=host_offload.KIND if out else None),
            ),
            state,
            self.specs(),
            self._outside(state),
        )
        shape = (layout.n_microbatches, job.batch // layout.n_microbatches, job.seq)
        sharding = NamedSharding(mesh, self.batch_spec)
        tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)
        return laid, {"tokens": tokens, "targets": tokens}

    def _moments(self) -> Any:
        return jax.eval_shape(self.optimizer.init, self._whole())

    def _whole(self) -> Tree:
        """Shapes of the weights, in the dtype of moments."""
        held = dtype(self.job.moments)
        return each(lambda i: jax.ShapeDtypeStruct(i.shape, held), self.infos)

    @property
    def by_compiler(self) -> bool:
        """Whether the optimizer is outside of what each chip does: see `optimizers`."""
        return self.job.optimizer in WHOLE

    def function(self) -> Callable[[Tree, Tree], tuple[Tree, Array]]:
        """`(state, batch) -> (state, mean loss of a token)` over the whole mesh."""
        if self.by_compiler:
            return self._apart
        specs, batch = self.specs(), {"tokens": self.batch_spec, "targets": self.batch_spec}
        return jax.shard_map(
            self.local,
            mesh=self.table.mesh.jax_mesh,
            in_specs=(specs, batch),
            out_specs=(specs, PartitionSpec()),
            check_vma=False,
        )

    def _apart(self, state: Tree, batch: Tree) -> tuple[Tree, Array]:
        """Gradients, then the optimizer on whole arrays, which the compiler cuts as it is told
        where they lie."""
        loss, gradients, lost = self._whole_gradients(
            state["weights"], state.get("lost", {}), batch
        )
        with jax.named_scope("optimizer"):
            state = self._updated(state, gradients, loss, lost)
        shapes, _ = self.shapes()
        placed = jax.tree.map(
            lambda x, shape: lax.with_sharding_constraint(x, shape.sharding), state, shapes
        )
        return placed, loss

    def _whole_gradients(
        self, weights: Tree, lost: Lost, batch: Tree
    ) -> tuple[Array, Tree, dict[str, Array]]:
        """As `_local_gradients`, gradients laid out as the state of the optimizer."""
        owed = self.owed.specs()
        return jax.shard_map(
            self._local_gradients,
            mesh=self.table.mesh.jax_mesh,
            in_specs=(
                each(lambda info: info.spec(self.table), self.infos),
                owed,
                {"tokens": self.batch_spec, "targets": self.batch_spec},
            ),
            out_specs=(PartitionSpec(), self._parts, owed),
            check_vma=False,
        )(weights, lost, batch)

    def local(self, state: Tree, batch: Tree) -> tuple[Tree, Array]:
        """What one chip does of a step."""
        loss, gradients, lost = self._local_gradients(
            state["weights"], state.get("lost", {}), batch
        )
        with jax.named_scope("optimizer"):
            state = self._updated(state, gradients, loss, lost)
        return state, loss

    def _local_gradients(
        self, weights: Tree, lost: Lost, batch: Tree
    ) -> tuple[Array, Tree, dict[str, Array]]:
        """The mean loss, the gradients of what this chip updates, and what their sums lose."""
        holders = self.owed.holders(each(self._holder, self.infos, self.deals, weights), lost)
        if self.stages:
            total, found = self._piped(self.stages).gradients(weights, holders, batch)
            total = total / self.job.tokens_per_step
        else:
            total, found = self._accumulated(weights, holders, batch)
        loss = lax.psum(total, self.table.mesh.jax_mesh.axis_names)
        return loss, *self.owed.settled(found, lost, self._summed)

    def _piped(self, stages: StageLayers) -> Pipeline:
        layout = self.layout
        schedule, chunks = find(layout.schedule), stages.order.shape[1]
        order = schedule.order(layout.sizes["pipe"], layout.n_microbatches, chunks)
        return Pipeline(
            stack=self.stack, form=layout, layers=stages, ticks=ticks(order), deals=self.deals
        )

    def _accumulated(self, weights: Tree, holders: Tree, batch: Tree) -> tuple[Array, Tree]:
        """Microbatches one after the other: their part of the mean loss, and sums of gradients."""
        loss = loss_function(self.stack, self.layout, self.deals)
        differentiate = jax.value_and_grad(loss, argnums=1)
        tokens = self.job.tokens_per_step

        def one(microbatch: Tree) -> tuple[Array, Tree]:
            total, found = differentiate(
                weights, holders, microbatch["tokens"], microbatch["targets"]
            )
            # XLA moves sums over chips out of a loop of sums: it would keep whole gradients of
            # the ends through the step, and sum them by AllReduce after it.
            return total / tokens, lax.optimization_barrier(found)

        return self._in_turn(one, holders, batch)

    def _in_turn(
        self, one: Callable[[Tree], tuple[Array, Tree]], zeros: Tree, batch: Tree
    ) -> tuple[Array, Tree]:
        """Sums of what `one` makes of each microbatch: a loss, and gradients like `zeros`."""
        if self.layout.n_microbatches == 1:
            return one(jax.tree.map(lambda x: x[0], batch))
        start = (jnp.zeros((), jnp.float32), zeros)
        sums, _ = lax.scan(
            lambda sums, m: (jax.tree.map(jnp.add, sums, one(m)), None), start, batch
        )
        return sums

    def _summed(self, dealt: Deal, gradient: Array) -> Array:
        """Over copies of the weight, where the backward pass has not done it."""
        precision = self.stack.precision
        if dealt.each:
            return gradient
        return dealt.reduce(gradient.astype(precision.reduce)).astype(precision.gradients)

    def _holder(self, info: Any, dealt: Any, weight: Array) -> Array:
        """Zeros of the shape in which a gradient comes out of the backward pass."""
        shape = list(weight.shape)
        for _, n, dim in dealt.cuts if dealt.each else ():
            shape[dim] //= n
        return jnp.zeros(shape, self.stack.precision.gradients)

    def _outside(self, state: Tree) -> Tree:
        """Of each array of the state whether it waits in host memory between steps."""
        away = ("moments", "master") if "optimizer" in self.layout.offload else ()
        return {
            name: jax.tree.map(host_offload.waits if name in away else lambda _: False, tree)
            for name, tree in state.items()
        }

    def _updated(self, state: Tree, gradients: Tree, loss: Array, lost: Lost) -> Tree:
        """Weights and moments after the optimizer, each chip on its part."""
        deals = self._undealt if self.by_compiler else self.deals
        parts = state.get("master") or each(
            lambda _, d, w: d.part(w), self.infos, deals, state["weights"]
        )
        args = (gradients, state["moments"], parts, loss)
        if "optimizer" in self.layout.offload:
            computed = jax.tree.leaves(gradients)
            found = host_offload.in_turn(self._of_parts, args, self._outside, computed)
        else:
            found = self._of_parts(*args)
        found["weights"] = each(
            lambda i, d, p, w: d.whole(p) if i.is_trained else w,
            self.infos,
            deals,
            found["weights"],
            state["weights"],
        )
        return found | ({"lost": lost} if lost else {})

    def _of_parts(self, gradients: Tree, moments: Tree, parts: Tree, loss: Array) -> Tree:
        """The state after the optimizer, of weights the parts that this chip updates."""
        tokens, held = self.job.tokens_per_step, dtype(self.job.weights)
        wide, parts = (jax.tree.map(lambda x: x.astype(jnp.float32), t) for t in (gradients, parts))
        wide = jax.tree.map(lambda g: g / tokens, wide)
        updates, after = self.optimizer.update(wide, moments, parts, value=loss)
        parts = optax.apply_updates(parts, updates)
        after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, moments)
        if self.table.mesh.platform == "cpu" and not self.by_compiler:
            after = cpu.write_after(parts, after, moments)
        found = {"weights": jax.tree.map(lambda p: p.astype(held), parts), "moments": after}
        return found | ({"master": parts} if self.job.master else {})


# What makes the optimizer of a step.
Update = Callable[[TrainStep], optax.GradientTransformation]
