"""Pipeline parallelism: one program that executes the events of a schedule on all stages.

Every stage has arrays of the same shapes: its chunks of layers, the embedding (which only the first
stage uses) and the head (which only the last stage uses). In each tick a stage executes at most one
event of the schedule (`ticks`); then all stages exchange results. Between its forward and its
backward event a chunk saves the activations that remat leaves for the backward pass.

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
from shardwise.runtime.layout.sharding import gather, scatter
from shardwise.runtime.layout.stages import StageLayers
from shardwise.runtime.training.ticks import Ticks
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
        # Backward function of a chunk: (its tree structure; for each leaf the index of the weight
        # that it is, None for an activation).
        self.vjp: Any = None

    def initial_carry(self) -> Tree:
        """Carry of the scan over ticks: empty buffers, zero gradients and zero loss."""
        saved, part = jax.eval_shape(lambda: self._layers(jnp.int32(0), self._embedded(0)))
        n_saved = self.pipeline.ticks.n_saved
        n_inputs = self.pipeline.ticks.n_inputs + 1
        return {
            "layer_activations": [jnp.zeros((n_saved, *x.shape), x.dtype) for x in saved],
            "inputs": jnp.zeros((n_inputs, *part.shape), part.dtype),
            "gradients": self.accumulators,
            "loss": jnp.zeros((), jnp.float32),
        }

    def tick(self, carry: Tree, row: Row) -> Tree:
        """Execute one event of this chip's stage, and exchange results with other stages."""
        events: list[Callable[[Tree], tuple[Tree, Array]]] = [
            lambda c: (c, jnp.zeros_like(c["inputs"][0])),
            lambda c: self._forward(c, row),
            lambda c: self._backward(c, row),
        ]
        if self.pipeline.ticks.splits:
            events.append(lambda c: (self._weights(c, row), jnp.zeros_like(c["inputs"][0])))
        with jax.named_scope("stage"):
            carry, part = lax.switch(row["kind"], events, carry)
        return carry | {"inputs": self._exchange(carry["inputs"], part, row)}

    def _exchange(self, inputs: Array, part: Array, row: Row) -> Array:
        """The buffer of inputs after stages have sent their results (`part`) to each other."""
        table = self.settings.table
        ticks = self.pipeline.ticks
        n_stages = table.mesh.sizes["pipe"]
        (axis,) = table.mesh.axis_names(("pipe",))
        with jax.named_scope("stage.send"):
            inputs = inputs.at[row["stay_slot"]].set(part)
            directions = ((ticks.up, 1, "from_previous"), (ticks.down, -1, "from_next"))
            for is_used, shift, slot in directions:
                if is_used:
                    pairs = [(stage, (stage + shift) % n_stages) for stage in range(n_stages)]
                    inputs = inputs.at[row[slot]].set(lax.ppermute(part, axis, pairs))
        return inputs

    def _forward(self, carry: Tree, row: Row) -> tuple[Tree, Array]:
        """Event F: (carry with the chunk's saved activations, the part of its output to send)."""
        with jax.named_scope("stage.embed"):
            x_BTD = lax.cond(
                row["first"],
                lambda: self._embedded(row["microbatch"]),
                lambda: self._gathered(carry["inputs"][row["read_slot"]]),
            )
        activations, part = self._layers(row["chunk"], x_BTD)
        slot = row["keep_slot"]
        buffers = [
            lax.dynamic_update_index_in_dim(buffer, x, slot, 0)
            for buffer, x in zip(carry["layer_activations"], activations, strict=True)
        ]
        return carry | {"layer_activations": buffers}, part

    def _layers(self, chunk: Any, x_BTD: Array) -> tuple[list[Array], Array]:
        """Run a chunk: (activations to save for the backward pass, part of the output to send)."""
        arrays = self._chunk(chunk)

        def run(accumulators: Tree, x_BTD: Array) -> Array:
            return self._run_chunk(arrays, accumulators, x_BTD)

        y_BTD, vjp = jax.vjp(run, arrays["accumulators"], x_BTD)
        leaves, tree = jax.tree.flatten(vjp)
        weights = jax.tree.leaves(arrays)
        # Weights are the same for every microbatch, so they are not saved with the activations.
        indices = [
            next((i for i, weight in enumerate(weights) if weight is leaf), None) for leaf in leaves
        ]
        self.vjp = (tree, indices)
        activations = [leaf for leaf, i in zip(leaves, indices, strict=True) if i is None]
        return activations, self._part(y_BTD)

    def _run_chunk(self, arrays: Tree, accumulators: Tree, x_BTD: Array) -> Array:
        """The residual stream after the layers of a chunk."""
        (segment,) = model_stack(self.settings.config)
        partitions = self.pipeline.partitions["layers"]
        period = period_function(self.settings, self.pipeline.form, self.core, segment, partitions)

        def step(x_BTD: Array, layers: Tree) -> tuple[Array, None]:
            pairs = zip(layers["weights"], layers["accumulators"], strict=True)
            y_BTD = period(x_BTD, [with_accumulators(*pair) for pair in pairs])
            # An empty position (layers that do not divide) passes its input on.
            return jnp.where(layers["used"], y_BTD, x_BTD), None

        return lax.scan(step, x_BTD, arrays | {"accumulators": accumulators})[0]

    def _chunk(self, chunk: Any) -> Tree:
        """Weights and gradient accumulators of one chunk of this stage."""
        layers = self.pipeline.layers
        is_filled = jnp.asarray(layers.is_filled)[self.pipeline.stage]
        arrays = {
            "weights": self.weights["layers"],
            "accumulators": self.accumulators["layers"],
            "used": is_filled,
        }
        return jax.tree.map(lambda x: _index(x, chunk), arrays)

    def _backward(self, carry: Tree, row: Row) -> tuple[Tree, Array]:
        """Event B: (carry with gradients added, the part of the input's gradient to send)."""
        slot = row["read_slot"]
        outer = carry["gradients"]["outer"]
        with jax.named_scope("stage.head"):
            loss, outer, ct_BTD = lax.cond(
                row["last"],
                lambda: self._head(
                    carry["loss"], outer, row, self._gathered(carry["inputs"][slot])
                ),
                lambda: (carry["loss"], outer, self._whole_gradient(carry["inputs"][slot])),
            )
        chunk_gradients, before_BTD = self._pull_back(carry["layer_activations"], row, ct_BTD)
        with jax.named_scope("stage.embed"):
            outer = lax.cond(
                row["first"], lambda: self._embed_backward(outer, row, before_BTD), lambda: outer
            )
        layers = carry["gradients"]["layers"]
        if self.pipeline.ticks.splits:  # event W will read this gradient
            inputs = carry["inputs"].at[slot].set(self._part_of_gradient(ct_BTD))
            carry = carry | {"inputs": inputs}
        else:
            layers = _add_to_chunk(layers, row["chunk"], chunk_gradients)
        carry = carry | {"loss": loss, "gradients": {"layers": layers, "outer": outer}}
        return carry, self._part_of_gradient(before_BTD)

    def _weights(self, carry: Tree, row: Row) -> Tree:
        """Event W: run the backward pass again, for the gradients of the chunk's weights only."""
        ct_BTD = self._whole_gradient(carry["inputs"][row["read_slot"]])
        chunk_gradients, _ = self._pull_back(carry["layer_activations"], row, ct_BTD)
        gradients = carry["gradients"]
        layers = _add_to_chunk(gradients["layers"], row["chunk"], chunk_gradients)
        return carry | {"gradients": gradients | {"layers": layers}}

    def _pull_back(self, buffers: Sequence[Array], row: Row, ct_BTD: Array) -> tuple[Tree, Array]:
        """(gradients of a chunk's weights, gradient of its input), from the saved activations."""
        tree, indices = self.vjp
        weights = jax.tree.leaves(self._chunk(row["chunk"]))
        activations = iter(buffers)
        leaves = []
        for index in indices:
            if index is None:
                leaves.append(next(activations)[row["keep_slot"]])
            else:
                leaves.append(weights[index])
        gradients, before_BTD = jax.tree.unflatten(tree, leaves)(ct_BTD)
        return gradients, before_BTD

    def _embedded(self, microbatch: Any) -> Array:
        """x_BTD of a microbatch before the first layer."""
        tokens_BT = _index(self.batch["tokens"], microbatch)
        return self._embed(self.accumulators["outer"], tokens_BT)

    def _embed(self, accumulators: Tree, tokens_BT: Array) -> Array:
        """x_BTD before the first layer; it is differentiated with respect to `accumulators`."""
        outer = with_accumulators(self.weights["outer"], accumulators)
        return embed(self.settings, self.core, tokens_BT, outer, self.pipeline.partitions["outer"])

    def _embed_backward(self, outer: Tree, row: Row, ct_BTD: Array) -> Tree:
        """Add the gradients of the embedding to `outer`."""
        tokens_BT = _index(self.batch["tokens"], row["microbatch"])
        embedding = lambda accumulators: self._embed(accumulators, tokens_BT)
        _, vjp = jax.vjp(embedding, self.accumulators["outer"])
        return jax.tree.map(jnp.add, outer, vjp(ct_BTD)[0])

    def _head(self, loss: Array, outer: Tree, row: Row, x_BTD: Array) -> tuple[Array, Tree, Array]:
        """(loss and `outer` with this microbatch's added, gradient of the head's input).

        `outer` has the gradients of embedding and head.
        """
        targets_BT = _index(self.batch["targets"], row["microbatch"])

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


def _add_to_chunk(gradients: Tree, chunk: Any, chunk_gradients: Tree) -> Tree:
    """Add the gradients of one chunk to those of all chunks of the stage."""
    return jax.tree.map(lambda total, part: total.at[chunk].add(part), gradients, chunk_gradients)


def _index(x: Array, index: Any) -> Array:
    """Element of dim 0 at a traced index."""
    return lax.dynamic_index_in_dim(x, index, keepdims=False)
