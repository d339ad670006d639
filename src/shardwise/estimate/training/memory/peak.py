"""Peak memory of a training step on the fullest chip. Book §5, §6.

`stages` computes the memory, by component, of each pipeline stage that may be the fullest.
"""

from __future__ import annotations

import math

from shardwise.arrays import minimum, where
from shardwise.estimate.chip_memory import DRIVER_BYTES, Memory
from shardwise.estimate.training.memory.framework import DEFAULT_FRAMEWORK, FrameworkMemory
from shardwise.estimate.training.memory.stages import FullestStages, LocalShapes
from shardwise.models import ModelConfig
from shardwise.ops.program import Step
from shardwise.strategy.layout import Layout, Layouts
from shardwise.workload import Train

# Memory that PyTorch's allocator reserves beyond the sum of the components, as a share of the sum,
# or of the chip if the sum is larger. 12 of the 15 peaks that torchtitan and nanotron publish, in
# the groups used for calibration, are below the sum plus this share.
FRAGMENTATION = 0.065
# Share of a chip that is kept free at most: that of chips with less memory than the driver takes.
MAX_MARGIN_SHARE = 0.9


def step_memory(
    config: ModelConfig,
    job: Train,
    step: Step,
    layout: Layout | Layouts,
    capacity: float,
    framework: FrameworkMemory = DEFAULT_FRAMEWORK,
    shapes: LocalShapes | None = None,
) -> Memory:
    """Peak memory of a chip on the fullest stage of a layout, or of arrays of layouts.

    Every component counts with its own peak, although the peaks are at different times: PyTorch's
    allocator has a pool for each stream, so memory that activations free is not reused for gathered
    weights or gradients.

    - weights, gradients, optimizer: those of a stage's layers and of its embedding or head, after
      ZeRO shards them;
    - activations: those that every layer saves, times the microbatches in flight;
    - other: the larger of the memory at two times. At the head of the last stage: logits of one
      microbatch and, under ZeRO-3, the gathered unembedding. In a layer: recomputed activations,
      gradients of its arrays, gathered weights of this layer and the next, and the layer's gradient
      before it is scattered.

    The fullest stage of a pipeline is the first (most microbatches in flight, the embedding) or the
    last (logits, the unembedding). Both are evaluated.

    Args:
        step: program of one microbatch on all chips, from `table(layout)`, with any remat.
        layout: the layout; its `schedule` is "none" if and only if `pipe` is 1.
        capacity: HBM of a chip, bytes.
        framework: memory behavior of the framework; by default the planner's.
        shapes: local shapes, if already computed for the same model, microbatch and sharding rules.
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
    fragments = FRAGMENTATION * minimum(total, capacity)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        other=other,
        capacity=capacity,
        margin=minimum(reserve + fragments, MAX_MARGIN_SHARE * capacity),
    )
