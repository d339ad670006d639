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
    capacity: float

    @property
    def total(self) -> Num:
        """The sum of the parts."""
        return sum(getattr(self, f.name) for f in fields(self) if f.name != "capacity")

    @property
    def fits(self) -> Num:
        return self.total <= self.capacity


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
    - activations: what the layers keep; under remat `full` their inputs, and one layer whole;
    - other: logits in fp32, and the gathered weights of the layer at work and the next.
    """
    held, gathered = _weights(config, rules, mesh)
    element = job.activation_bytes
    whole = sum(k.elements(mesh) for k in step.kept) * element
    if remat == "full":
        inputs = sum(k.elements(mesh) for k in step.layer_inputs) * element
        activations = inputs + whole / config.n_layers
    else:
        activations = whole
    logits = step.logits.elements(mesh) * units.bytes_per_element(LOGITS)
    return Memory(
        weights=held * job.weight_bytes,
        gradients=held * units.bytes_per_element(job.gradients),
        optimizer=held * job.optimizer_bytes,
        activations=activations,
        other=logits + gathered * job.weight_bytes,
        capacity=capacity,
    )


def held_parameters(config: ModelConfig, rules: Rules, mesh: Mapping[str, Num]) -> Num:
    """Parameters that one chip holds."""
    return _weights(config, rules, mesh)[0]


def _weights(config: ModelConfig, rules: Rules, mesh: Mapping[str, Num]) -> tuple[Num, Num]:
    """(parameters held by a chip, elements of gathered layers in flight)."""
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
    for weight in outer_weights(config):
        held = held + weight_elements(weight.dims, weight.shape, rules, mesh)
    sharded = mesh.get("fsdp", 1) * mesh.get("context", 1)
    return held, GATHERED_LAYERS * largest * (sharded > 1)
