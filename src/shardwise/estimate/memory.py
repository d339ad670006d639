"""What each chip holds at the peak of a training step, in bytes. Book §5, §6."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from shardwise import units
from shardwise.arrays import Num, maximum
from shardwise.models import ModelConfig
from shardwise.models.weights import layer_weights, outer_weights
from shardwise.ops.program import Step, weight_elements
from shardwise.strategy.rules import Rules
from shardwise.workload import Train

LOGITS = "fp32"  # the loss is computed in fp32
GATHERED_LAYERS = 2  # a layer's gathered weights, and the next one's on the way


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per chip by part; `capacity` is the chip's documented HBM."""

    weights: Num = 0.0
    gradients: Num = 0.0
    optimizer: Num = 0.0
    activations: Num = 0.0
    kv_cache: Num = 0.0
    other: Num = 0.0
    margin: Num = 0.0
    capacity: float

    @property
    def total(self) -> Num:
        """The sum of the parts."""
        return sum(getattr(self, f.name) for f in fields(self) if f.name not in ("margin", "capacity"))

    @property
    def fits(self) -> Num:
        return self.total + self.margin <= self.capacity


def training_memory(
    config: ModelConfig,
    job: Train,
    step: Step,
    rules: Rules,
    mesh: Mapping[str, Num],
    capacity: float,
    *,
    remat: str,
) -> Memory:
    """Peak bytes per chip of one training step.

    - weights, gradients, optimizer state: each array's shard, times its bytes per element;
    - activations: what the layers keep; under remat `full` their inputs, and the largest layer;
    - other: the larger of two moments. At the head, logits and their gradient in fp32 with the
      gathered unembedding; in a layer, its gathered weights, the next one's, and its gradient
      before it is scattered.
    """
    held, layer, outer = _weights(config, rules, mesh)
    gradient = units.bytes_per_element(job.gradients)
    logits = 2 * step.logits.elements(mesh) * units.bytes_per_element(LOGITS)
    at_head = logits + outer * (job.weight_bytes + gradient)
    in_layer = layer * (GATHERED_LAYERS * job.weight_bytes + gradient)
    return Memory(
        weights=held * job.weight_bytes,
        gradients=held * gradient,
        optimizer=held * job.optimizer_bytes,
        activations=_activations(step, mesh, remat) * job.activation_bytes,
        other=maximum(at_head, in_layer),
        capacity=capacity,
    )


def _activations(step: Step, mesh: Mapping[str, Num], remat: str) -> Num:
    """Elements kept for the backward pass at its start."""
    if remat == "none":
        return sum(k.elements(mesh) for k in step.kept)
    one_layer: dict[int, Num] = {}
    for kept in step.kept:
        one_layer[kept.group] = one_layer.get(kept.group, 0) + kept.elements(mesh) / kept.count
    inputs = sum(k.elements(mesh) for k in step.layer_inputs)
    return inputs + maximum(0, 0, *one_layer.values())


def held_parameters(config: ModelConfig, rules: Rules, mesh: Mapping[str, Num]) -> Num:
    """Parameters that one chip holds."""
    return _weights(config, rules, mesh)[0]


def _weights(config: ModelConfig, rules: Rules, mesh: Mapping[str, Num]) -> tuple[Num, Num, Num]:
    """(parameters held by a chip, the largest layer gathered, the largest outer weight gathered).

    What nothing shards is not gathered: it is held.
    """
    gathered_rules = {
        row: tuple(a for a in axes if a not in ("fsdp", "context")) for row, axes in rules.items()
    }
    held: Num = 0
    largest: Num = 0
    for group in config.groups:
        layer: Num = 0
        for weight in layer_weights(config, group.layer):
            held = held + group.count * weight_elements(weight.dims, weight.shape, rules, mesh)
            layer = layer + weight_elements(weight.dims, weight.shape, gathered_rules, mesh)
        largest = maximum(largest, layer)
    outer: Num = 0
    for weight in outer_weights(config):
        held = held + weight_elements(weight.dims, weight.shape, rules, mesh)
        outer = maximum(outer, weight_elements(weight.dims, weight.shape, gathered_rules, mesh))
    sharded = mesh.get("fsdp", 1) * mesh.get("context", 1) > 1
    return held, largest * sharded, outer * sharded


def step_memory(config, job, works, split, capacity):  # TEMP
    from shardwise.estimate.sums import summed_parameters
    from shardwise.strategy.stages import stages
    from shardwise.strategy.schedules import find
    from shardwise.arrays import maximum

    stage = stages(config.n_layers, split)
    mesh = split.sizes
    n = sum(k for _, k in summed_parameters(config, split, stage))
    over = mesh["data"] * mesh["context"] if split.zero in (1, 2) else 1
    act = _activations(works, mesh, "full" if split.remat == "full" else "none")
    if split.schedule != "none":
        s = find(split.schedule)
        fl = s.in_flight(mesh["pipe"], split.n_microbatches, stage.chunks, 0)
        act = act * stage.held / config.n_layers / stage.chunks * fl
    return Memory(
        weights=n * job.weight_bytes,
        gradients=n * 2 / (over if split.zero > 1 else 1),
        optimizer=n * job.optimizer_bytes / over,
        activations=act * job.activation_bytes,
        other=2 * works.logits.elements(mesh) * 4.0,
        capacity=capacity,
    )
