"""Peak memory of a training step on the fullest chip. Book §5, §6.

`stages` has the parts of each pipeline stage that may be the fullest.
"""

from __future__ import annotations

import math

from shardwise.arrays import where
from shardwise.estimate.chip_memory import DRIVER_BYTES, Memory
from shardwise.estimate.training.memory.framework import DEFAULT_FRAMEWORK, FrameworkMemory
from shardwise.estimate.training.memory.stages import FullestStages, LocalShapes
from shardwise.models import ModelConfig
from shardwise.ops.program import Step
from shardwise.strategy.layout import Layout, Layouts
from shardwise.workload import Train

# Reserved by the allocator of PyTorch, as a share of the parts: 12 of the 15 peaks that torchtitan
# and nanotron publish, in the groups used for calibration, are below the parts and this share.
FRAGMENTATION = 0.065


def step_memory(
    config: ModelConfig,
    job: Train,
    step: Step,
    layout: Layout | Layouts,
    capacity: float,
    framework: FrameworkMemory = DEFAULT_FRAMEWORK,
    shapes: LocalShapes | None = None,
) -> Memory:
    """Peak bytes of a chip on the fullest stage of a layout, or of arrays of layouts.

    Parts are summed at their individual peaks: PyTorch's allocator has a pool for each stream, and
    memory that activations free is not reused for gathered weights or gradients.

    - weights, gradients, optimizer: of a stage's layers and its embedding or head, as ZeRO shards
      them;
    - activations: those of each layer that remat saves, times the microbatches in flight;
    - other: the larger of two moments. At the head of the last stage, logits of one microbatch
      and, under ZeRO 3, the gathered unembedding; in a layer, recomputed activations, the gradients
      of its arrays, its gathered weights and the next layer's, and its whole gradient.

    A pipeline is fullest on its first stage (most in flight, the embedding) or its last (logits,
    the unembedding); both are evaluated.

    Args:
        config: the model.
        job: dtypes.
        step: one microbatch on all chips, from `table(layout)`, with any remat.
        layout: the layout; `schedule` is "none" exactly where `pipe` is 1.
        capacity: HBM of a chip, bytes.
        framework: memory behaviour of the framework; by default the planner's.
        shapes: precomputed for the same model, microbatch and table.
    """
    shapes = shapes or LocalShapes(config, job, step, layout)
    first, *others = FullestStages(layout, framework, shapes).parts()
    fullest = first
    total = sum(first)
    for parts in others:
        stage_total = sum(parts)
        is_fuller = stage_total > total
        pairs = zip(fullest, parts, strict=True)
        fullest = tuple(where(is_fuller, part, largest) for largest, part in pairs)
        total = where(is_fuller, stage_total, total)
    weights, gradients, optimizer, activations, other = fullest
    reserve = DRIVER_BYTES
    if framework.communicator_bytes:
        n_chips = math.prod(layout.sizes.values())
        communicator_bytes = framework.communicator_bytes
        reserve = reserve + where(n_chips > 1, communicator_bytes, 0 * communicator_bytes)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        other=other,
        capacity=capacity,
        margin=reserve + FRAGMENTATION * total,
    )
