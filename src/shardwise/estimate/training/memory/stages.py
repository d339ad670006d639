"""Bytes of HBM, by component, on the pipeline stages that may be the fullest: the first, the last.

The modules `activations` and `parameters` count elements; this module turns them into bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardwise import units
from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.training.measured_rates import n_query_blocks
from shardwise.estimate.training.memory.activations import LayerActivations, layer_activations
from shardwise.estimate.training.memory.framework import FrameworkMemory
from shardwise.estimate.training.memory.local_elements import LocalElements, activation_term
from shardwise.estimate.training.memory.parameters import (
    Parameters,
    StageLayers,
    largest_weights,
    layer_parameters,
    layers_by_work,
    layers_with_outer_places,
    mesh_with_experts,
    outer_parameters,
    stage_layers,
    zero_shards,
)
from shardwise.estimate.training.memory.token_prediction import (
    MtpLayers,
    layers_beyond,
    saved_elements,
)
from shardwise.estimate.training.optimizer import state_bytes
from shardwise.models import ModelConfig
from shardwise.models.weights import model_weights
from shardwise.ops.program import Step
from shardwise.strategy.layout import Form, Layout, Layouts, table
from shardwise.strategy.schedules import find
from shardwise.workload import Train

# Layers whose gathered weights are live at once: the present one, and the next one, prefetched.
GATHERED_LAYERS = 2
# Bytes per element of gathered weights and of buckets: wider weights are cast to 16 bits first.
HALF = 2.0
FP32 = 4.0
# Arrays of scores in the backward pass of `runtime.kernels.cpu`, and those that are cast in 16
# bits.
LIVE_SCORES, CAST_SCORES = 5.0, 3.0
# Bytes per parameter of fp8 copies. Transformer Engine caches a weight in fp8 and, because Hopper
# supports only one layout of fp8 matmuls, also its transpose ("FP8 weight caching" in its user
# guide). Weights in fp8 are these copies themselves; of other arrays than matmuls' they are in
# 16 bits.
FP8_COPIES = 2.0

# Bytes of (weights, gradients, optimizer, activations, other), the components of `Memory`.
Parts = tuple[Num, Num, Num, Num, Num]


class LocalShapes:
    """Sizes of a model's arrays on one chip, under one table of sharding rules and one microbatch.

    A search computes them once for all forms of a block of layouts.
    """

    def __init__(
        self, config: ModelConfig, job: Train, step: Step, layout: Layout | Layouts
    ) -> None:
        self.config = config
        self.job = job
        self.step = step
        self.mesh = mesh_with_experts(layout, layout.sizes)
        batch_sizes = {name: step.logits.sizes[name] for name in ("B", "T")}
        self.local = LocalElements(self.mesh, {**batch_sizes, "tensor": self.mesh["tensor"]})
        self._rules = table(layout)
        self.layers = layer_parameters(config, self._rules, self.local)
        self.outer = outer_parameters(config, self._rules, self.local, job.mtp_layers)
        self.mtp = MtpLayers(config, self._rules, self.local) if job.mtp_layers else None
        self._activations: dict[tuple[object, ...], list[LayerActivations]] = {}

    def largest(self) -> tuple[Num, Num]:
        """Numbers of elements on a chip of (the largest weight, the largest of the layers)."""
        return largest_weights(self.config, self._rules, self.local)

    def activations(
        self, form: Form, n_layers: Num, framework: FrameworkMemory
    ) -> list[LayerActivations]:
        """Activations of one layer of each kind, on a stage of `n_layers` layers."""
        arguments = (self.config, self.job, self.step, form, self.local, n_layers, framework)
        if form.remat_layers or form.offload_layers:  # their shares depend on the stage
            return layer_activations(*arguments)
        key = (form.recomputed, form.offload, form.expert_tensor, form.context_kind, framework)
        if key not in self._activations:
            self._activations[key] = layer_activations(*arguments)
        return self._activations[key]


class FullestStages:
    """Memory of the stages that may be the fullest, for one layout or arrays of layouts."""

    def __init__(
        self, layout: Layout | Layouts, framework: FrameworkMemory, shapes: LocalShapes
    ) -> None:
        self.layout = layout
        self.framework = framework
        self.shapes = shapes
        self.config = shapes.config
        self.job = shapes.job
        self.local = shapes.local
        self.mesh = shapes.mesh
        self.shards = zero_shards(layout, self.mesh)

    def parts(self) -> Iterator[Parts]:
        """Bytes by component of every stage that may be the fullest."""
        first, last, single = self.shapes.outer
        layers = stage_layers(self.config, self.layout)
        if not self.layout.is_pipelined:
            yield self._stage(layers, single, 1, has_embedding=True, has_head=True)
            return
        pipe = self.mesh["pipe"]
        schedule = find(self.layout.schedule)
        sizes = (pipe, self.layout.n_microbatches, layers.chunks)
        on_first = schedule.in_flight(*sizes, 0)
        if schedule.ends_meet:
            in_flight = on_first / layers.chunks
            yield self._stage(layers, single, in_flight, has_embedding=True, has_head=True)
            return
        last_layers = layers
        if self.framework.stages_by_work:
            layers, last_layers = layers_by_work(self.config, layers, pipe)
        elif self.framework.outer_as_layers:
            layers, inner_layers = layers_with_outer_places(self.config, pipe)
            yield self._stage(inner_layers, Parameters(), schedule.in_flight(*sizes, 1))
            last_layers = layers
        yield self._stage(layers, first, on_first / layers.chunks, has_embedding=True)
        on_last = schedule.in_flight(*sizes, pipe - 1)
        yield self._stage(last_layers, last, on_last / layers.chunks, has_head=True)

    def _stage(
        self,
        layers: StageLayers,
        outer: Parameters,
        in_flight: Num,
        *,
        has_embedding: bool = False,
        has_head: bool = False,
    ) -> Parts:
        """Bytes by component of one stage.

        Args:
            layers: numbers of layers on the stage.
            outer: parameters outside the layers on the stage.
            in_flight: microbatches whose activations the stage saves; a microbatch that has passed
                only some of the stage's chunks counts as a fraction.
            has_embedding: whether the stage has the embedding.
            has_head: whether the stage computes logits.
        """
        parameters = outer
        for n_layers, layer in zip(layers.kinds, self.shapes.layers, strict=True):
            parameters = parameters.plus(layer, n_layers)
        if has_head and self.shapes.mtp:
            n_mtp = self.job.mtp_layers
            beyond = layers_beyond(self.config, self.layout, n_mtp)
            parameters = parameters.plus(self.shapes.mtp.layer, beyond)
            parameters = parameters.plus(self.shapes.mtp.joint, n_mtp)
        activations = self.shapes.activations(self.layout, layers.all, self.framework)
        elements: Num = 0
        working: Num = 0
        for n_layers, layer_kind in zip(layers.kinds, activations, strict=True):
            elements = elements + n_layers * layer_kind.saved
            working = maximum(working, layer_kind.working)
        saved = elements * self.job.activation_bytes
        if has_embedding and self.framework.embedding_mask_bytes:
            masked = self._tokens() * self.config.d_model
            saved = saved + masked * self.framework.embedding_mask_bytes
        saved = saved * in_flight
        if has_head:
            saved = saved + self._saved_by_mtp(activations)
        peak = working * self.job.activation_bytes + self._gathered_layer() + self._live_scores()
        if has_head:
            peak = maximum(peak, self._head(outer))
        if has_embedding and self.framework.xla_scheduled:
            # The activations of the layers are freed before these gradients are rearranged.
            n_weights = 2 if has_head and not self.config.tied_embeddings else 1
            peak = maximum(peak, self._outer_gradients(outer, n_weights) - saved)
        state = self._state(parameters, has_outer=has_embedding or has_head)
        gradient_bytes = units.bytes_per_element(self.job.gradients)
        buckets = self.framework.bucket_elements * (gradient_bytes + HALF)
        if self.framework.full_weights_at_start:
            gathered = self._gathered_layer()
            freed = parameters.all * HALF - sum(state) - gathered - buckets
            peak = peak + self._unused(freed, saved + peak - gathered)
        return (*state, saved, peak + buckets)

    def _saved_by_mtp(self, activations: list[LayerActivations]) -> Num:
        """Bytes that MTP layers save beyond those of a stage full of layers; 0 without them."""
        if not self.job.mtp_layers:
            return 0.0
        elements = saved_elements(
            self.config,
            self.shapes.step,
            self.layout,
            self.local,
            activations,
            self.job.mtp_layers,
        )
        return elements * self.job.activation_bytes

    def _live_scores(self) -> Num:
        """Scores of a layer in the backward pass of attention on one CPU device.

        It computes scores, masked scores, probabilities, and the gradients of both, in fp32. In 16
        bits three of these are cast, and cast back to be multiplied.
        """
        if not self.framework.live_scores:
            return 0.0
        n_arrays = LIVE_SCORES if self.job.compute == "fp32" else LIVE_SCORES + CAST_SCORES
        heads = [group.layer.attention.n_heads for group in self.config.groups
                 if group.layer.attention]  # fmt: skip
        n_blocks = n_query_blocks(self.job.seq)
        share = (n_blocks + 1) / (2 * n_blocks)  # keys behind a block of queries are left out
        scores = share * self._tokens() * self.job.seq * max(heads, default=0)
        n_chips = math.prod(self.layout.sizes.values())
        return where(n_chips > 1, 0 * scores, FP32 * n_arrays * scores)

    def _unused(self, freed: Num, activations: Num) -> Num:
        """Bytes of the memory of full initial weights that stay reserved but unused.

        Args:
            freed: bytes of this memory that shards, gathered weights and buckets do not reuse.
            activations: bytes of activations. They reuse this memory in arrays of the size of a
                layer's input, as many as fit in the memory of each weight.
        """
        array_bytes = self._tokens() * self.config.d_model * self.job.activation_bytes
        reusable: Num = 0
        for weight, count in model_weights(self.config):
            reusable = reusable + count * (weight.size * HALF // array_bytes) * array_bytes
        freed = maximum(freed, 0)
        return freed - minimum(freed, minimum(reusable, activations))

    def _tokens(self) -> Num:
        """Number of tokens of one microbatch on one chip."""
        return self.local.product(activation_term(self.shapes.step.logits).factors[:2])

    def _state(self, parameters: Parameters, *, has_outer: bool) -> tuple[Num, Num, Num]:
        """Bytes of (weights, gradients, optimizer state) on a stage.

        Args:
            parameters: parameters of the stage before ZeRO shards them.
            has_outer: whether they include the embedding or the head.
        """
        job = self.job
        zero = self.layout.zero
        offload = self.layout.offload
        sharded = self.shards.local(parameters) if zero else parameters.all
        gradient_bytes = units.bytes_per_element(job.gradients)
        weights = (sharded if zero == 3 else parameters.all) * job.weight_bytes
        gradients = (sharded if zero >= 2 else parameters.all) * gradient_bytes
        if self.framework.xla_scheduled:
            gradients = gradients * where(self.layout.n_microbatches > 1, 2, 1)
        if job.compute == "fp8" and zero < 3:
            if job.weights == "fp8":
                weights = (parameters.all - parameters.matmuls) * HALF
            weights = weights + parameters.matmuls * FP8_COPIES
        largest: Num = 0
        if self.framework.cast_bytes or self.framework.norm_bytes:
            of_all, of_layers = self.shapes.largest()
            largest = of_all if has_outer else of_layers
        copies = self.framework.gradient_copies
        if copies and gradient_bytes > HALF:
            gradients = gradients + parameters.all * copies * HALF
            gradients = gradients + largest * self.framework.cast_bytes
        master_bytes = units.bytes_per_element(job.master) if job.master else 0.0
        if gradient_bytes < master_bytes and "optimizer" not in offload:
            # Gradients of a shard are cast to the master dtype before the update, in the memory
            # that the copies for the gradient norm have freed.
            norm = minimum(largest, sharded) * self.framework.norm_bytes
            gradients = gradients + maximum(sharded * master_bytes, norm)
        state = 0.0 if "optimizer" in offload else sharded * state_bytes(self.config, job)
        if job.error_feedback_bytes:
            state = state + self._error_feedback(parameters)
        return (
            0.0 if "weights" in offload else weights,
            0.0 if "gradients" in offload else gradients,
            state,
        )

    def _error_feedback(self, parameters: Parameters) -> Num:
        """Bytes of error feedback of int8 gradient sync; 0 if no gradients have replicas."""
        replicas = self.mesh["data"]
        elements = parameters.all
        if self.layout.zero == 3:
            elements = self.shards.local(parameters)
        else:
            replicas = replicas * self.mesh["context"] * self.mesh["expert"]
        return where(replicas > 1, elements * self.job.error_feedback_bytes, 0.0 * elements)

    def _gathered_layer(self) -> Num:
        """Bytes of gathered weights of two layers, and of one layer's gradient before its scatter.

        The layer is the one with the most gathered parameters; 0 if nothing is gathered.
        """
        n_bytes = self._gather_bytes(GATHERED_LAYERS)
        if not n_bytes:
            return 0.0
        return maximum(0, 0, *map(self._remote, self.shapes.layers)) * n_bytes

    def _gather_bytes(self, copies: int) -> float:
        """Bytes per gathered parameter: `copies` of the weight, and its gradient before scatter."""
        n_bytes = self._whole_gradient_bytes()
        if self.layout.zero == 3 or "weights" in self.layout.offload:
            return copies * min(self.job.weight_bytes, HALF) + n_bytes
        return n_bytes

    def _whole_gradient_bytes(self) -> float:
        """Bytes per parameter of a gradient before it is scattered or offloaded; 0 if it is not."""
        if self.layout.zero >= 2 or "gradients" in self.layout.offload:
            return units.bytes_per_element(self.job.gradients)
        return 0.0

    def _remote(self, parameters: Parameters) -> Num:
        """Number of parameters that must be gathered: ZeRO shards them, or they are offloaded."""
        if {"weights", "gradients"} & {*self.layout.offload}:
            return parameters.all
        dense = parameters.dense * (self.shards.dense > 1)
        return dense + parameters.routed * (self.shards.routed > 1)

    def _head(self, outer: Parameters) -> Num:
        """Bytes at the head: logits, their input and its gradient, the gathered unembedding."""
        logits = activation_term(self.shapes.step.logits)
        n_logits = self.local.total([logits])
        tokens = self._tokens()
        inputs = 2 * self.config.d_model * tokens * self.job.activation_bytes
        if not self.framework.root_unit:
            outer = Parameters(dense=self.config.d_model * (n_logits / tokens))
        n_bytes = self._gather_bytes(1)
        if self.framework.xla_scheduled and self.layout.loss_chunks == 1:
            gradient_bytes = self._whole_gradient_bytes()
            n_bytes = max(n_bytes - gradient_bytes, gradient_bytes)
        gathered = self._remote(outer) * n_bytes if n_bytes else 0.0
        logit_bytes = max(self.framework.logit_bytes, self.job.activation_bytes)
        if self.layout.loss_chunks == 1:  # all heads run before the backward pass of the first
            n_logits = n_logits * (1 + self.job.mtp_layers)
        return n_logits / self.layout.loss_chunks * logit_bytes + inputs + gathered

    def _outer_gradients(self, outer: Parameters, n_weights: int) -> Num:
        """Bytes of the gradients of embedding and head while one of them is rearranged (copied)."""
        n_bytes = self._whole_gradient_bytes()
        if not n_bytes:
            return 0.0
        return self._remote(outer) * n_bytes * (n_weights + 1) / n_weights
