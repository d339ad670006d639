"""Pipeline parallelism: one program that executes the events of a schedule on all stages.

Every stage has arrays of the same shapes: its chunks of layers, the embedding (which only the first
stage uses) and the head (which only the last stage uses). In each tick a stage executes at most one
event of the schedule (`ticks`); then all stages exchange results. Between its forward and its
backward event a chunk saves the activations that remat leaves for the backward pass. Each layer
writes them in place into buffers [slot, position], reads them there, and adds its gradients in
place, so that a tick moves nothing of the size of a stack.

x_BTD is the residual stream of a microbatch on a chip, ct_BTD its gradient. Where the chips of
`tensor` have the same residual stream, each sends a different part of it to the next stage (arXiv
2104.04473, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import stack as model_stack
from shardwise.runtime.blocks.attention_core import sequence_attention
from shardwise.runtime.blocks.head import head_loss
from shardwise.runtime.blocks.layers import LayerSettings
from shardwise.runtime.blocks.model import embed, period_function, with_accumulators
from shardwise.runtime.layout.sharding import gather, row_major, scatter
from shardwise.runtime.layout.stages import StageLayers
from shardwise.runtime.training.ticks import BACKWARD, FORWARD, Ticks
from shardwise.runtime.weights.descriptions import Tree
from shardwise.strategy.layout import Form

Array = jax.Array
Row = dict[str, Array]  # field of `ticks.FIELDS` -> its value for this stage in one tick


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline schedule, which computes the loss and gradients of one step.

    Args:
        settings: model, sharding rules and options that all layers share.
        form: discrete choices of the layout.
        layers: the assignment of layers to stages.
        ticks: the event of each stage in each tick.
        partitions: how copies of each weight share its update.
    """

    settings: LayerSettings
    form: Form
    layers: StageLayers
    ticks: Ticks
    partitions: Tree

    def gradients(self, weights: Tree, accumulators: Tree, batch: Tree) -> tuple[Array, Tree]:
        """Return (this chip's part of the summed loss, gradients of the stage's weights).

        Args:
            weights: weights of all chunks of this stage.
            accumulators: zeros, in the shapes of the gradients.
            batch: tokens and targets [m, B, T] of m microbatches.
        """
        trace = _Trace(self, self._by_chunk(weights), self._by_chunk(accumulators), batch)
        carry = trace.initial_carry()
        rows = {name: jnp.asarray(table) for name, table in self.ticks.rows.items()}
        carry, _ = lax.scan(lambda c, row: (trace.tick(c, self._of_stage(row)), None), carry, rows)
        gradients = carry["gradients"]
        layers = self.layers.merge_chunks(gradients["layers"])
        return carry["loss"], {"layers": layers, "outer": gradients["outer"]}

    def _by_chunk(self, tree: Tree) -> Tree:
        """The tree with the stage's stacked layers as [chunk, position]."""
        return {"layers": self.layers.split_chunks(tree["layers"]), "outer": tree["outer"]}

    def _of_stage(self, row: Row) -> Row:
        """This stage's entries in the rows of all stages."""
        return {name: numbers[self.stage] for name, numbers in row.items()}

    @property
    def stage(self) -> Any:
        """Index of this chip's stage."""
        return self.settings.table.index(("pipe",))


class _Trace:
    """The functions of one step, with the arrays that JAX traces.

    Args:
        weights: weights of this stage, stacked as [chunk, position].
        accumulators: zeros like the gradients, stacked in the same way.
        batch: tokens and targets of the microbatches.
    """

    def __init__(self, pipeline: Pipeline, weights: Tree, accumulators: Tree, batch: Tree) -> None:
        self.pipeline = pipeline
        self.weights = weights
        self.accumulators = accumulators
        self.batch = batch
        self.settings = pipeline.settings
        self.core = sequence_attention(
            self.settings.config, pipeline.form, self.settings.table, self.settings.seq
        )
        # Backward function of a position: (its tree structure; for each leaf the index of the
        # weight that it is, None for an activation).
        self.vjp: Any = None

    def initial_carry(self) -> Tree:
        """Carry of the scan over ticks: empty buffers, zero gradients and zero loss."""
        zero = jnp.int32(0)
        embedded = lambda: self._embedded(0)
        saved, y_BTD = jax.eval_shape(lambda: self._layer(zero, zero, embedded()))
        part = jax.eval_shape(self._part, y_BTD)
        slots = (self.pipeline.ticks.n_saved, self._n_positions)
        n_inputs = self.pipeline.ticks.n_inputs + 1
        return {
            "layer_activations": [jnp.zeros((*slots, *x.shape), x.dtype) for x in saved],
            "inputs": jnp.zeros((n_inputs, *part.shape), part.dtype),
            "gradients": self.accumulators,
            "loss": jnp.zeros((), jnp.float32),
        }

    def tick(self, carry: Tree, row: Row) -> Tree:
        """Execute one event of this chip's stage, and exchange results with other stages.

        Saved activations pass only through the conditional of the forward event, which writes
        them. The one of the backward event reads them: if it returned them too, XLA would copy all
        slots in each backward tick.
        """
        nothing = jnp.zeros_like(carry["inputs"][0])
        inputs = carry["inputs"]
        with jax.named_scope("stage.forward"):
            buffers, part = self._run_if(
                row["kind"] == FORWARD,
                lambda changed: self._forward(changed[0], inputs, row),
                (carry["layer_activations"], nothing),
            )
        changed = {name: carry[name] for name in ("gradients", "loss")}
        with jax.named_scope("stage.backward"):
            changed, part = self._run_if(
                row["kind"] == BACKWARD,
                lambda changed: self._backward(changed[0], buffers, inputs, row),
                (changed, part),
            )
        return {
            "layer_activations": buffers,
            "inputs": self._exchange(inputs, part, row),
            **changed,
        }

    def _run_if(self, condition: Array, run: Callable[[Any], Any], arrays: Any) -> Any:
        """`run(arrays)` under a condition, otherwise `arrays`; what `run` leaves stays in place.

        XLA's GPU compiler gives the results of a conditional memory of their own, and copies all
        of them; the arrays that a loop carries stay in place.
        """
        if self.settings.table.mesh.platform in ("gpu", "old gpu"):
            return lax.fori_loop(0, condition.astype(jnp.int32), lambda _, x: run(x), arrays)
        return lax.cond(condition, run, lambda x: x, arrays)

    def _exchange(self, inputs: Array, part: Array, row: Row) -> Array:
        """The buffer of inputs after stages have sent their results (`part`) to each other."""
        table = self.settings.table
        ticks = self.pipeline.ticks
        n_stages = table.mesh.sizes["pipe"]
        (axis,) = table.mesh.axis_names(("pipe",))
        with jax.named_scope("stage.send"):
            inputs = _updated(inputs, part, row["stay_slot"])
            directions = ((ticks.up, 1, "from_previous"), (ticks.down, -1, "from_next"))
            for is_used, shift, slot in directions:
                if is_used:
                    pairs = [(stage, (stage + shift) % n_stages) for stage in range(n_stages)]
                    inputs = _updated(inputs, lax.ppermute(part, axis, pairs), row[slot])
        return inputs

    def _forward(
        self, buffers: Sequence[Array], inputs: Array, row: Row
    ) -> tuple[list[Array], Array]:
        """Event F: (buffers with the chunk's saved activations, the part of its output to send)."""
        with jax.named_scope("stage.embed"):
            x_BTD = lax.cond(
                row["first"],
                lambda: self._embedded(row["microbatch"]),
                lambda: self._gathered(inputs[row["read_slot"]]),
            )
        slot = row["keep_slot"]

        def step(
            carry: tuple[Array, list[Array]], position: Array
        ) -> tuple[tuple[Array, list[Array]], None]:
            x_BTD, buffers = carry
            activations, y_BTD = self._layer(row["chunk"], position, x_BTD)
            saved = zip(buffers, map(self._row_major, activations), strict=True)
            return (y_BTD, [_updated(buffer, x, slot, position) for buffer, x in saved]), None

        carried = (x_BTD, list(buffers))
        (y_BTD, updated), _ = lax.scan(step, carried, jnp.arange(self._n_positions))
        return updated, self._part(y_BTD)

    def _layer(self, chunk: Any, position: Any, x_BTD: Array) -> tuple[list[Array], Array]:
        """Run the layers of one position: (activations to save for the backward pass, output)."""
        arrays = self._arrays(chunk, position)

        def run(accumulators: Sequence[Tree], x_BTD: Array) -> Array:
            return self._run_period(arrays, accumulators, x_BTD)

        y_BTD, vjp = jax.vjp(run, arrays["accumulators"], x_BTD)
        leaves, tree = jax.tree.flatten(vjp)
        weights = jax.tree.leaves(arrays)
        # Weights are the same for every microbatch, so they are not saved with the activations.
        indices = [
            next((i for i, weight in enumerate(weights) if weight is leaf), None) for leaf in leaves
        ]
        self.vjp = (tree, indices)
        return [leaf for leaf, i in zip(leaves, indices, strict=True) if i is None], y_BTD

    def _run_period(self, arrays: Tree, accumulators: Sequence[Tree], x_BTD: Array) -> Array:
        """The residual stream after the layers of one position."""
        (segment,) = model_stack(self.settings.config)
        partitions = self.pipeline.partitions["layers"]
        period = period_function(self.settings, self.pipeline.form, self.core, segment, partitions)
        pairs = zip(arrays["weights"], accumulators, strict=True)
        y_BTD = period(x_BTD, [with_accumulators(*pair) for pair in pairs])
        # An empty position (layers that do not divide) passes its input on.
        return jnp.where(arrays["used"], y_BTD, x_BTD)

    def _arrays(self, chunk: Any, position: Any) -> Tree:
        """Weights and gradient accumulators of one position of a chunk of this stage."""
        is_filled = jnp.asarray(self.pipeline.layers.is_filled)[self.pipeline.stage]
        arrays = {
            "weights": self.weights["layers"],
            "accumulators": self.accumulators["layers"],
            "used": is_filled,
        }
        return jax.tree.map(lambda x: _element(x, chunk, position), arrays)

    @property
    def _n_positions(self) -> int:
        """Number of positions of a chunk."""
        return int(self.pipeline.layers.order.shape[2])

    def _row_major(self, x: Array) -> Array:
        """The same array, in the layout in which buffers of activations are.

        Otherwise the TPU compiler may lay out a buffer for the forward event, and copy all of it to
        another layout in each backward event.
        """
        return row_major(x, self.settings.table.mesh)

    def _backward(
        self, changed: Tree, buffers: Sequence[Array], inputs: Array, row: Row
    ) -> tuple[Tree, Array]:
        """Event B: (gradients and loss with its own, the part of the input's gradient to send)."""
        received = inputs[row["read_slot"]]
        outer = changed["gradients"]["outer"]
        with jax.named_scope("stage.head"):
            loss, outer, ct_BTD = self._run_if(
                row["last"],
                lambda x: self._head(x[0], x[1], row, self._gathered(received)),
                (changed["loss"], outer, self._whole_gradient(received)),
            )
        layers = changed["gradients"]["layers"]
        layers, before_BTD = self._pull_back(layers, buffers, row, ct_BTD)
        with jax.named_scope("stage.embed"):
            outer = self._run_if(
                row["first"], lambda outer: self._embed_backward(outer, row, before_BTD), outer
            )
        changed = {"gradients": {"layers": layers, "outer": outer}, "loss": loss}
        return changed, self._part_of_gradient(before_BTD)

    def _pull_back(
        self, gradients: Tree, buffers: Sequence[Array], row: Row, ct_BTD: Array
    ) -> tuple[Tree, Array]:
        """The backward pass of a part of a chunk's layers, from the saved activations.

        Args:
            gradients: those of the stage's layers.

        Returns:
            (`gradients` with those of the part added, gradient of its input).
        """
        tree, indices = self.vjp
        chunk = row["chunk"]
        slot = row["keep_slot"]

        def step(carry: tuple[Tree, Array], position: Array) -> tuple[tuple[Tree, Array], None]:
            gradients, ct_BTD = carry
            weights = jax.tree.leaves(self._arrays(chunk, position))
            activations = iter(buffers)
            leaves = []
            for index in indices:
                if index is None:
                    saved = _element(next(activations), slot, position)
                    leaves.append(self._row_major(saved))
                else:
                    leaves.append(weights[index])
            parts, before_BTD = jax.tree.unflatten(tree, leaves)(ct_BTD)
            added = lambda total, part: _updated(
                total, _element(total, chunk, position) + part, chunk, position
            )
            return (jax.tree.map(added, gradients, parts), before_BTD), None

        n_positions = self._n_positions // self.pipeline.ticks.parts
        positions = row["part"] * n_positions + jnp.arange(n_positions)
        return lax.scan(step, (gradients, ct_BTD), positions, reverse=True)[0]

    def _embedded(self, microbatch: Any) -> Array:
        """x_BTD of a microbatch before the first layer."""
        tokens_BT = _element(self.batch["tokens"], microbatch)
        return self._embed(self.accumulators["outer"], tokens_BT)

    def _embed(self, accumulators: Tree, tokens_BT: Array) -> Array:
        """x_BTD before the first layer; it is differentiated with respect to `accumulators`."""
        outer = with_accumulators(self.weights["outer"], accumulators)
        return embed(self.settings, self.core, tokens_BT, outer, self.pipeline.partitions["outer"])

    def _embed_backward(self, outer: Tree, row: Row, ct_BTD: Array) -> Tree:
        """Add the gradients of the embedding to `outer`."""
        tokens_BT = _element(self.batch["tokens"], row["microbatch"])
        embedding = lambda accumulators: self._embed(accumulators, tokens_BT)
        _, vjp = jax.vjp(embedding, self.accumulators["outer"])
        return jax.tree.map(jnp.add, outer, vjp(ct_BTD)[0])

    def _head(self, loss: Array, outer: Tree, row: Row, x_BTD: Array) -> tuple[Array, Tree, Array]:
        """(loss and `outer` with this microbatch's added, gradient of the head's input).

        `outer` has the gradients of embedding and head.
        """
        targets_BT = _element(self.batch["targets"], row["microbatch"])

        def microbatch_loss(accumulators: Tree, x_BTD: Array) -> Array:
            weights = with_accumulators(self.weights["outer"], accumulators)
            outer = (weights, self.pipeline.partitions["outer"])
            return head_loss(self.settings, self.pipeline.form, x_BTD, targets_BT, *outer)

        differentiate = jax.value_and_grad(microbatch_loss, argnums=(0, 1))
        added_loss, (gradients, ct_BTD) = differentiate(self.accumulators["outer"], x_BTD)
        return loss + added_loss, jax.tree.map(jnp.add, outer, gradients), ct_BTD

    @property
    def _n_sharing(self) -> int:
        """Number of chips of `tensor` that have the same residual stream."""
        if self.pipeline.form.sequence_parallel:
            return 1
        return self.settings.table.mesh.sizes["tensor"]

    def _part(self, x_BTD: Array) -> Array:
        """The part of the shared residual stream that this chip sends."""
        if self._n_sharing == 1:
            return x_BTD
        return self.settings.table.slice(x_BTD, ("tensor",), 2)

    def _gathered(self, x_BTD: Array) -> Array:
        """The whole residual stream, from the parts that the sharing chips received."""
        if self._n_sharing == 1:
            return x_BTD
        names = self.settings.table.mesh.axis_names(("tensor",))
        return gather(x_BTD, names, 2)

    def _part_of_gradient(self, ct_BTD: Array) -> Array:
        """The part of the gradient that this chip sends, summed over the sharing chips' addends."""
        if self._n_sharing == 1:
            return ct_BTD
        names = self.settings.table.mesh.axis_names(("tensor",))
        return scatter(ct_BTD, names, 2)

    def _whole_gradient(self, ct_BTD: Array) -> Array:
        """This chip's addend of the whole gradient: the part that it received, zeros elsewhere."""
        if self._n_sharing == 1:
            return ct_BTD
        width = ct_BTD.shape[2]
        whole = jnp.zeros((*ct_BTD.shape[:2], width * self._n_sharing), ct_BTD.dtype)
        start = self.settings.table.index(("tensor",)) * width
        return lax.dynamic_update_slice_in_dim(whole, ct_BTD, start, 2)


def _element(x: Array, *indices: Any) -> Array:
    """Element of the first dims at traced indices, which are in range."""
    for index in indices:
        x = lax.dynamic_index_in_dim(x, index, keepdims=False)
    return x


def _updated(x: Array, element: Array, *indices: Any) -> Array:
    """The array with the element of the first dims at traced indices, in range, replaced."""
    starts = (*indices, *(0,) * element.ndim)
    return lax.dynamic_update_slice(x, jnp.expand_dims(element, range(len(indices))), starts)
