"""The training step of a plan: microbatches, sums of gradients over chips, and the optimizer."""

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
from shardwise.runtime.blocks.layers import LayerSettings
from shardwise.runtime.blocks.model import loss_function
from shardwise.runtime.blocks.products import Precision
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.experts import ragged
from shardwise.runtime.layout.context_order import context_order
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.layout.stages import StageLayers, stage_layers
from shardwise.runtime.training import host_offload
from shardwise.runtime.training.error_feedback import FeedbackState, Residuals
from shardwise.runtime.training.gradient_sync import (
    UpdatePartition,
    partition_update,
    state_spec,
)
from shardwise.runtime.training.optimizers import WHOLE_ARRAY, optimizer, state_specs
from shardwise.runtime.training.pipeline import Pipeline
from shardwise.runtime.training.ticks import pipeline_ticks
from shardwise.runtime.training.update import is_offloaded, updated_state
from shardwise.runtime.weights.descriptions import (
    ArrayInfo,
    Tree,
    describe,
    map_infos,
    shape_struct,
)
from shardwise.strategy.layout import Layout
from shardwise.strategy.schedules import find
from shardwise.workload import Train

Array = jax.Array
BATCH = ("data", "fsdp", "expert")  # roles that shard the batch

DEFAULT_RATE = 3e-4  # learning rate of a step without `make_optimizer`


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """A training step: the function to compile, and the shapes and shardings of its arguments.

    The state is a dict: `weights`; `moments`, the state of the optimizer; `master`, the master copy
    of the weights, if the job has one; `lost`, the residuals of gradient sums, if these are in int8
    (`FeedbackState`). A batch is a dict of `tokens` and `targets`, both [microbatch, sequence,
    token].

    Args:
        job: batch and dtypes.
        table: the sharding rules of the layout, on a mesh.
        capacity: capacity factor of experts: the most tokens that an expert takes, relative to its
            share under balanced routing. Tokens beyond it are dropped. None for no limit.
        make_optimizer: function that makes the optimizer of this step; None for the plan's
            optimizer.
    """

    config: ModelConfig
    job: Train
    layout: Layout
    table: Table
    capacity: float | None = None
    make_optimizer: MakeOptimizer | None = None

    @functools.cached_property
    def infos(self) -> Tree:
        """Descriptions of the weights."""
        n_stacked = None
        if self.stages:
            n_stacked = self.stages.n_positions
        return describe(self.config, self.table, n_stacked)

    @functools.cached_property
    def stages(self) -> StageLayers | None:
        """The assignment of layers to pipeline stages; None without a pipeline."""
        if self.layout.schedule == "none":
            return None
        return stage_layers(self.config, self.layout)

    @functools.cached_property
    def partitions(self) -> Tree:
        """For each weight, how its copies share the update."""

        def partition(info: ArrayInfo) -> UpdatePartition:
            return partition_update(
                info,
                self.table,
                zero=self.layout.zero,
                n_microbatches=self.layout.n_microbatches,
                in_int8=self.job.sums_in_int8,
            )

        return map_infos(partition, self.infos)

    @functools.cached_property
    def feedback(self) -> FeedbackState:
        """The residuals of gradients that are summed in int8."""
        return FeedbackState(infos=self.infos, partitions=self.partitions, table=self.table)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformationExtraArgs:
        """The optimizer; its update takes the loss as `value`."""
        if self.make_optimizer:
            return optax.with_extra_args_support(self.make_optimizer(self))
        transformation = optimizer(self.job.optimizer, DEFAULT_RATE, self.infos)
        return optax.with_extra_args_support(transformation)

    @property
    def model_table(self) -> Table:
        """The sharding rules, on the mesh over which the model's code computes."""
        return self.table

    @functools.cached_property
    def settings(self) -> LayerSettings:
        """Model, sharding rules and dtypes, which all layers of the step share."""
        job = self.job
        reduce_dtype = job.gradients
        if not job.sums_in_int8:
            reduce_dtype = job.reduce or job.gradients
        precision = Precision(
            compute=dtype(job.compute),
            gradients=dtype(job.gradients),
            reduce=dtype(reduce_dtype),
        )
        return LayerSettings(
            config=self.config,
            table=self.model_table,
            precision=precision,
            seq=job.seq,
            capacity_factor=self.capacity,
            ragged_dispatch=self.table.mesh.platform in ragged.PLATFORMS,
            use_collective_matmul=self.layout.uses_collective_matmul,
        )

    def specs(self) -> Tree:
        """Partition specs of the state."""
        update_specs = self._update_specs
        specs = {
            "weights": map_infos(lambda info: info.spec(self.table), self.infos),
            "moments": state_specs(self._moments(), self._params(), update_specs),
        }
        if self.job.master:
            specs["master"] = update_specs
        if self.feedback.int8_weights:
            specs["lost"] = self.feedback.specs()
        return specs

    @property
    def _update_specs(self) -> Tree:
        """Partition specs of the weights in the update, where a chip has only its parts of them."""
        return map_infos(
            lambda info, partition: state_spec(info, self.table, partition),
            self.infos,
            self.partitions,
        )

    @property
    def batch_spec(self) -> PartitionSpec:
        """Partition spec of tokens and targets [microbatch, sequence, token]."""
        mesh = self.table.mesh
        return PartitionSpec(None, mesh.axis_names(BATCH), mesh.axis_names(("context",)))

    def reorder_tokens(self, batch: Tree) -> Tree:
        """Reorder tokens and targets to the order in which the step's chips hold them.

        Every batch has to be reordered before the step gets it. The loss does not depend on the
        order of the tokens.

        Args:
            batch: NumPy arrays [..., token], in the order of the text.
        """
        return {name: x[..., self.token_order] for name, x in batch.items()}

    @functools.cached_property
    def token_order(self) -> np.ndarray[Any, Any]:
        """For each position of a reordered sequence, the index of its token in the text."""
        n = self.model_table.mesh.size(("context",))
        return context_order(self.config, self.layout, n, self.job.seq).token_order(self.job.seq)

    def shapes(self) -> tuple[Tree, Tree]:
        """Shapes, dtypes and shardings of (state, batch), as JAX takes them for lowering."""
        mesh = self.table.mesh.jax_mesh
        job = self.job
        layout = self.layout
        weight_dtype = dtype(job.weights)
        state: Tree = {
            "weights": map_infos(
                lambda info: shape_struct(info, self.table, weight_dtype), self.infos
            ),
            "moments": self._moments(),
        }
        if job.master:
            state["master"] = self._weight_shapes(job.master)
        if self.feedback.int8_weights:
            state["lost"] = self.feedback.shapes()

        def with_sharding(x: Any, spec: PartitionSpec, offload: bool) -> jax.ShapeDtypeStruct:
            sharding = NamedSharding(mesh, spec)
            if offload:
                sharding = NamedSharding(mesh, spec, memory_kind=host_offload.KIND)
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

        sharded = jax.tree.map(with_sharding, state, self.specs(), is_offloaded(self.layout, state))
        shape = (layout.n_microbatches, job.batch // layout.n_microbatches, job.seq)
        sharding = NamedSharding(mesh, self.batch_spec)
        tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)
        return sharded, {"tokens": tokens, "targets": tokens}

    def _moments(self) -> Any:
        """Shapes of the optimizer's state."""
        return jax.eval_shape(self.optimizer.init, self._params())

    def _params(self) -> Tree:
        """Shapes of the weights as the optimizer gets them, in the dtype of its moments."""
        return self._weight_shapes(self.job.moments)

    def _weight_shapes(self, dtype_name: str) -> Tree:
        """Shapes of the weights in a dtype, without shardings."""
        array_dtype = dtype(dtype_name)
        return map_infos(lambda info: jax.ShapeDtypeStruct(info.shape, array_dtype), self.infos)

    @property
    def global_optimizer(self) -> bool:
        """Whether the optimizer runs on global arrays outside of `shard_map`: see `optimizers`."""
        return self.job.optimizer in WHOLE_ARRAY

    def function(self) -> Callable[[Tree, Tree], tuple[Tree, Array]]:
        """The function `(state, batch) -> (new state, mean loss of a token)` on global arrays."""
        if self.global_optimizer:
            return self._with_global_optimizer
        specs = self.specs()
        return jax.shard_map(
            self.local,
            mesh=self.table.mesh.jax_mesh,
            in_specs=(specs, self._batch_specs),
            out_specs=(specs, PartitionSpec()),
            check_vma=False,
        )

    @property
    def _batch_specs(self) -> Tree:
        """Partition specs of a batch."""
        return {"tokens": self.batch_spec, "targets": self.batch_spec}

    def _with_global_optimizer(self, state: Tree, batch: Tree) -> tuple[Tree, Array]:
        """The step with an optimizer on global arrays, which the compiler partitions."""
        loss, gradients, residuals = self._global_gradients(
            state["weights"], state.get("lost", {}), batch
        )
        with jax.named_scope("optimizer"):
            state = updated_state(self, state, gradients, loss, residuals)
        shapes, _ = self.shapes()
        constrained = jax.tree.map(
            lambda x, shape: lax.with_sharding_constraint(x, shape.sharding), state, shapes
        )
        return constrained, loss

    def _global_gradients(
        self, weights: Tree, residuals: Residuals, batch: Tree
    ) -> tuple[Array, Tree, dict[str, Array]]:
        """Results of `_local_gradients` as global arrays, sharded as the optimizer's state."""
        feedback_specs = self.feedback.specs()
        return jax.shard_map(
            self._local_gradients,
            mesh=self.table.mesh.jax_mesh,
            in_specs=(
                map_infos(lambda info: info.spec(self.table), self.infos),
                feedback_specs,
                self._batch_specs,
            ),
            out_specs=(PartitionSpec(), self._update_specs, feedback_specs),
            check_vma=False,
        )(weights, residuals, batch)

    def local(self, state: Tree, batch: Tree) -> tuple[Tree, Array]:
        """Run the step on the shards of one chip, inside `shard_map`."""
        loss, gradients, residuals = self._local_gradients(
            state["weights"], state.get("lost", {}), batch
        )
        with jax.named_scope("optimizer"):
            state = updated_state(self, state, gradients, loss, residuals)
        return state, loss

    def _local_gradients(
        self, weights: Tree, residuals: Residuals, batch: Tree
    ) -> tuple[Array, Tree, dict[str, Array]]:
        """Return (mean loss, summed gradients of the parts that this chip updates, residuals)."""
        zeros = map_infos(self._accumulator, self.infos, self.partitions, weights)
        accumulators = self.feedback.add_residuals(zeros, residuals)
        if self.stages:
            pipeline = self._pipeline(self.stages)
            total, gradients = pipeline.gradients(weights, accumulators, batch)
            total = total / self.job.tokens_per_step
        else:
            total, gradients = self._microbatches(weights, accumulators, batch)
        loss = lax.psum(total, self.table.mesh.jax_mesh.axis_names)
        return loss, *self.feedback.reduce_gradients(gradients, residuals, self._reduce)

    def _pipeline(self, stages: StageLayers) -> Pipeline:
        """The pipeline that computes the gradients of a step."""
        layout = self.layout
        n_chunks = stages.order.shape[1]
        schedule = find(layout.schedule)
        order = schedule.order(layout.sizes["pipe"], layout.n_microbatches, n_chunks)
        return Pipeline(
            settings=self.settings,
            form=layout,
            layers=stages,
            ticks=pipeline_ticks(order, stages.order.shape[2], recomputes=layout.full_remat),
            partitions=self.partitions,
        )

    def _microbatches(self, weights: Tree, accumulators: Tree, batch: Tree) -> tuple[Array, Tree]:
        """Sum over microbatches: return (this chip's part of the mean loss, gradients)."""
        loss = loss_function(self.settings, self.layout, self.partitions)
        differentiate = jax.value_and_grad(loss, argnums=1)
        n_tokens = self.job.tokens_per_step
        mesh = self.table.mesh

        def loss_and_gradients(microbatch: Tree) -> tuple[Array, Tree]:
            tokens = microbatch["tokens"]
            zeros = accumulators
            if self.layout.n_microbatches > 1:
                # Those from outside of the loop would be in memory during all of it.
                zeros = jax.tree.map(lambda x: jnp.full_like(x, -0.0), accumulators)
            total, gradients = differentiate(weights, zeros, tokens, microbatch["targets"])
            if mesh.jax_mesh.size > 1 or mesh.platform == "cpu":
                # Without the barrier XLA would move the sums over chips behind the loop over
                # microbatches: it would keep whole gradients of embedding and head during the step,
                # and sum them by AllReduce at its end. On one GPU it would only keep the update
                # from reading the gradients of each layer where they are.
                gradients = lax.optimization_barrier(gradients)
            return total / n_tokens, gradients

        return self._accumulate(loss_and_gradients, accumulators, batch)

    def _accumulate(
        self,
        loss_and_gradients: Callable[[Tree], tuple[Array, Tree]],
        zeros: Tree,
        batch: Tree,
    ) -> tuple[Array, Tree]:
        """Sum the loss and the gradients over the microbatches of a batch.

        Args:
            loss_and_gradients: function of one microbatch.
            zeros: zeros like the gradients.
        """
        if self.layout.n_microbatches == 1:
            return loss_and_gradients(jax.tree.map(lambda x: x[0], batch))

        def add(sums: Any, microbatch: Tree) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, loss_and_gradients(microbatch)), None

        sums, _ = lax.scan(add, (jnp.zeros((), jnp.float32), zeros), batch)
        return sums

    def _reduce(self, partition: UpdatePartition, gradient: Array) -> Array:
        """Sum a gradient over the copies of its weight, unless the backward pass has done so."""
        precision = self.settings.precision
        if partition.in_backward:
            return gradient
        return partition.reduce(gradient.astype(precision.reduce)).astype(precision.gradients)

    def _accumulator(self, info: Any, partition: Any, weight: Array) -> Array:
        """Zeros like the gradient of a weight that the backward pass returns.

        They are minus zero: XLA would take the zeros of the optimizer for the same array, and keep
        it in memory from here to there.
        """
        shape = list(weight.shape)
        if partition.in_backward:
            for _, n, dim in partition.cuts:
                shape[dim] //= n
        return jnp.full(shape, -0.0, self.settings.precision.gradients)


# A function that makes the optimizer of a step.
MakeOptimizer = Callable[[TrainStep], optax.GradientTransformation]
