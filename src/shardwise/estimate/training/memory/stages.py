"""The parts of what a stage of a pipeline holds at its fullest, in bytes.

What is kept for the backward pass stands in `activations_held`, what is held of the model in
`state_held`; here they become bytes, for the first stage and the last.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.training.memory.activations import LayerHeld, layers_held
from shardwise.estimate.training.memory.framework import Software
from shardwise.estimate.training.memory.local_elements import Local, activation_term
from shardwise.estimate.training.memory.parameters import (
    Parameters,
    StageLayers,
    largest_weights,
    layers_by_work,
    layers_in_places,
    layers_parameters,
    outer_parameters,
    stage_layers,
    with_experts,
    zero_shards,
)
from shardwise.estimate.training.optimizer import state_bytes
from shardwise.models import ModelConfig
from shardwise.models.weights import model_weights
from shardwise.ops.program import Step
from shardwise.strategy.layout import Form, Layout, Layouts, table
from shardwise.strategy.schedules import find
from shardwise.workload import Train

GATHERED_LAYERS = 2  # a layer's gathered weights, and the next one's on the way
HALF = 2.0  # bytes of what is gathered or bucketed: weights held wider are cast to 16 bits first
# Transformer Engine keeps a weight in fp8 and, as Hopper multiplies in one layout only, its
# transpose, from a step's first microbatch on ("FP8 weight caching" in its user guide).
FP8_COPIES = 2.0

# Bytes of weights, gradients, optimizer, activations, other.
Parts = tuple[Num, Num, Num, Num, Num]


class Shapes:
    """What of a model's arrays lies on a chip: the same for all forms of one table and microbatch.

    A search works it out once for a block of layouts.
    """

    def __init__(
        self, config: ModelConfig, job: Train, step: Step, split: Layout | Layouts
    ) -> None:
        self.config, self.job, self.step = config, job, step
        self.sizes = with_experts(split, split.sizes)
        common = {name: step.logits.sizes[name] for name in ("B", "T")}
        self.local = Local(self.sizes, {**common, "tensor": self.sizes["tensor"]})
        rules = table(split)
        self.layers = layers_parameters(config, rules, self.local)
        self.outer = outer_parameters(config, rules, self.local)
        self._rules = rules
        self._kept: dict[tuple[object, ...], list[LayerHeld]] = {}

    def largest(self) -> tuple[Num, Num]:
        """Elements of the largest weight on a chip: of all weights, and of those of layers."""
        return largest_weights(self.config, self._rules, self.local)

    def kept(self, form: Form, stage_layers: Num, software: Software) -> list[LayerHeld]:
        """For each kind of layer, what one of them holds for a microbatch."""
        given = (self.config, self.job, self.step, form, self.local, stage_layers, software)
        if form.remat_layers or form.offload_layers:  # as many on every stage, whatever it holds
            return layers_held(*given)
        key = (
            form.recomputed,
            form.offload,
            form.expert_tensor,
            form.context_kind,
            software,
        )
        if key not in self._kept:
            self._kept[key] = layers_held(*given)
        return self._kept[key]


class FullestStages:
    """The stages of one layout (or of arrays of them) that may be the fullest."""

    def __init__(self, split: Layout | Layouts, software: Software, shapes: Shapes) -> None:
        self.split, self.software, self.shapes = split, software, shapes
        self.config, self.job, self.step = shapes.config, shapes.job, shapes.step
        self.sizes, self.local = shapes.sizes, shapes.local
        self.layers, self.outer = shapes.layers, shapes.outer
        self.shards = zero_shards(split, self.sizes)

    def parts(self) -> Iterator[Parts]:
        """The parts of every stage that may be the fullest."""
        split, pipe, m = self.split, self.sizes["pipe"], self.split.n_microbatches
        first, last, both = self.outer
        held = stage_layers(self.config, split)
        if not split.is_pipelined:
            yield self._stage(held, both, 1, start=True, head=True)
            return
        schedule = find(split.schedule)
        shape = (pipe, m, held.chunks)
        if schedule.ends_meet:
            flying = schedule.in_flight(*shape, 0)
            yield self._stage(held, both, flying / held.chunks, start=True, head=True)
            return
        at_last = held
        if self.software.stages_by_work:
            held, at_last = layers_by_work(self.config, held, pipe)
        elif self.software.ends_are_layers:
            held, between = layers_in_places(self.config, pipe)
            yield self._stage(between, Parameters(), schedule.in_flight(*shape, 1))
            at_last = held
        flying = schedule.in_flight(*shape, 0) / held.chunks
        yield self._stage(held, first, flying, start=True)
        flying = schedule.in_flight(*shape, pipe - 1) / held.chunks
        yield self._stage(at_last, last, flying, head=True)

    def _stage(
        self,
        held: StageLayers,
        outer: Parameters,
        flying: Num,
        *,
        start: bool = False,
        head: bool = False,
    ) -> Parts:
        """Weights, gradients, optimizer, activations and other of one stage.

        Args:
            flying: Microbatches in flight, in whole stages.
            start: The embedding is here.
            head: Logits are computed here.
        """
        whole = outer
        for n, layer in zip(held.kinds, self.layers, strict=True):
            whole = whole.plus(layer, n)
        kept = self.shapes.kept(self.split, held.all, self.software)
        every = sum(n * layer.kept for n, layer in zip(held.kinds, kept, strict=True))
        held_bytes = every * self.job.activation_bytes
        if start and self.software.embedding_mask:
            held_bytes = held_bytes + self._tokens() * self.config.d_model * (
                self.software.embedding_mask
            )
        working = maximum(0, 0, *(layer.working for layer in kept))
        peak = working * self.job.activation_bytes + self._gathered_layer()
        if head:
            peak = maximum(peak, self._head(outer))
        if start and self.software.scheduled:  # all that layers keep is read by then
            apart = head and not self.config.tied_embeddings
            peak = maximum(peak, self._ends(outer, 2 if apart else 1) - held_bytes * flying)
        state = self._state(whole, ends=start or head)
        gradient = units.bytes_per_element(self.job.gradients)
        buffers = self.software.buffers * (gradient + HALF)
        if self.software.whole_at_start:
            gathered = self._gathered_layer()
            left = whole.all * HALF - sum(state) - gathered - buffers
            peak = peak + self._idle(left, held_bytes * flying + peak - gathered)
        return (*state, held_bytes * flying, peak + buffers)

    def _idle(self, left: Num, arrays: Num) -> Num:
        """What weights that were whole at the start leave reserved and unused.

        Args:
            left: Bytes of their room that shards, gathered weights and buffers do not take.
            arrays: Bytes of activations. Those as large as a layer's input lie in it if they fit.
        """
        array = self._tokens() * self.config.d_model * self.job.activation_bytes
        fit: Num = 0
        for weight, count in model_weights(self.config):
            fit = fit + count * (weight.size * HALF // array) * array
        left = maximum(left, 0)
        return left - minimum(left, minimum(fit, arrays))

    def _tokens(self) -> Num:
        """Of one microbatch on one chip."""
        return self.local.product(activation_term(self.step.logits).factors[:2])

    def _state(self, whole: Parameters, *, ends: bool) -> tuple[Num, Num, Num]:
        """Bytes of weights, gradients and optimizer state.

        Args:
            whole: Parameters of the stage.
            ends: An end of the model is among them.
        """
        job, zero, offload = self.job, self.split.zero, self.split.offload
        sharded = self.shards.of(whole) if zero else whole.all
        gradient = units.bytes_per_element(job.gradients)
        weights = (sharded if zero == 3 else whole.all) * job.weight_bytes
        gradients = (sharded if zero >= 2 else whole.all) * gradient
        if self.software.scheduled:
            gradients = gradients * where(self.split.n_microbatches > 1, 2, 1)
        if job.compute == "fp8" and zero < 3:
            weights = weights + whole.matmuls * FP8_COPIES
        largest: Num = 0
        if self.software.cast_bytes or self.software.norm_bytes:
            largest = self.shapes.largest()[0 if ends else 1]
        copies = self.software.gradient_copies
        if copies and gradient > HALF:
            gradients = gradients + whole.all * copies * HALF + largest * self.software.cast_bytes
        wide = units.bytes_per_element(job.master) if job.master else 0.0
        if gradient < wide and "optimizer" not in offload:
            # A shard's gradients, cast before the update, in the room of what their norm copied.
            norm = minimum(largest, sharded) * self.software.norm_bytes
            gradients = gradients + maximum(sharded * wide, norm)
        state = 0.0 if "optimizer" in offload else sharded * state_bytes(self.config, job)
        if job.lost_bytes:
            state = state + self._lost(whole)
        return (
            0.0 if "weights" in offload else weights,
            0.0 if "gradients" in offload else gradients,
            state,
        )

    def _lost(self, whole: Parameters) -> Num:
        """Bytes that sums of gradients in int8 have lost: of all that a chip sums over copies."""
        sizes, held, copies = self.sizes, whole.all, self.sizes["data"]
        if self.split.zero == 3:
            held = self.shards.of(whole)
        else:
            copies = copies * sizes["context"] * sizes["expert"]
        return where(copies > 1, held * self.job.lost_bytes, 0.0 * held)

    def _gathered_layer(self) -> Num:
        """The largest layer's gathered weights, and the next one's, and its whole gradient."""
        n_bytes = self._gather_bytes(GATHERED_LAYERS)
        if not n_bytes:
            return 0.0
        return maximum(0, 0, *map(self._scattered, self.layers)) * n_bytes

    def _gather_bytes(self, copies: int) -> float:
        """Bytes per parameter that is gathered `copies` times, its gradient scattered once."""
        gathers = self.split.zero == 3 or "weights" in self.split.offload
        weights = copies * min(self.job.weight_bytes, HALF) if gathers else 0.0
        return weights + self._gradient_bytes()

    def _gradient_bytes(self) -> float:
        """Bytes per parameter of a gradient that is whole until it is scattered."""
        scatters = self.split.zero >= 2 or "gradients" in self.split.offload
        return units.bytes_per_element(self.job.gradients) if scatters else 0.0

    def _scattered(self, held: Parameters) -> Num:
        """Parameters that lie on other chips, or in host memory; what nothing shards is held."""
        if {"weights", "gradients"} & {*self.split.offload}:
            return held.all
        return held.dense * (self.shards.dense > 1) + held.routed * (self.shards.routed > 1)

    def _head(self, outer: Parameters) -> Num:
        """Logits of a microbatch, what they are computed from and its gradient, the unembedding."""
        logits, job = self.step.logits, self.job
        bt = activation_term(logits).factors[:2]
        n = self.local.total([activation_term(logits)])
        inputs = 2 * self.config.d_model * self.local.product(bt) * job.activation_bytes
        if not self.software.root_unit:
            vocab = n / self.local.product(bt)
            outer = Parameters(dense=self.config.d_model * vocab)
        n_bytes = self._gather_bytes(1)
        if self.software.scheduled and self.split.loss_chunks == 1:
            n_bytes = max(n_bytes - self._gradient_bytes(), self._gradient_bytes())
        gathered = self._scattered(outer) * n_bytes if n_bytes else 0.0
        n = n / self.split.loss_chunks
        return n * max(self.software.logit_bytes, job.activation_bytes) + inputs + gathered

    def _ends(self, outer: Parameters, n: int) -> Num:
        """Gradients of `n` ends of the model on their way to those who update them."""
        n_bytes = self._gradient_bytes()
        return self._scattered(outer) * n_bytes * (n + 1) / n if n_bytes else 0.0
