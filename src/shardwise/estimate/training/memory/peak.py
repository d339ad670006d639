"""What each chip holds at the peak of a training step, in bytes. Book §5, §6.

`stage_memory` has the parts of each stage that may be the fullest; here is the fullest one.
"""

from __future__ import annotations

import math

from shardwise.arrays import where
from shardwise.estimate.chip_memory import DRIVER_BYTES, Memory
from shardwise.estimate.training.memory.framework import PLANNED, Software
from shardwise.estimate.training.memory.stages import FullestStages, Shapes
from shardwise.models import ModelConfig
from shardwise.ops.program import Step
from shardwise.strategy.layout import Layout, Layouts
from shardwise.workload import Train

# What PyTorch's allocator reserves beyond the parts: of the peaks that torchtitan and nanotron
# publish, in the groups that constants are chosen on, 12 of 15 lie below the parts and this share.
FRAGMENTATION = 0.065


def step_memory(
    config: ModelConfig,
    job: Train,
    step: Step,
    split: Layout | Layouts,
    capacity: float,
    software: Software = PLANNED,
    shapes: Shapes | None = None,
) -> Memory:
    """Peak bytes of a chip on the fullest stage of a layout, or of arrays of layouts.

    Each part at its fullest. The allocator of PyTorch keeps a pool for each stream, and memory that
    activations leave is not lent to gathered weights or gradients, so the parts add up.

    - weights, gradients, optimizer: of the layers of a stage and of its end of the model, sharded
      as ZeRO says;
    - activations: what remat leaves of each layer, times the microbatches in flight;
    - other: the larger of two moments. At the head of the last stage, logits of one microbatch
      and, under ZeRO 3, the gathered unembedding; in a layer, what runs again, the gradients of its
      arrays, and its weights gathered, the next one's, and their whole gradient.

    A pipeline is fullest on its first stage (most in flight, the embedding) or its last (logits,
    the unembedding); both are evaluated.

    Args:
        config: The model.
        job: Dtypes.
        step: Of one microbatch on all chips, from `table(split)`, whatever its remat.
        split: The layout; `schedule` is "none" where `pipe` is 1 and only there.
        capacity: HBM of a chip, bytes.
        software: What a framework fuses and keeps; the defaults are those of a planner.
        shapes: Of the same model, microbatch and table, if they are worked out already.
    """
    shapes = shapes or Shapes(config, job, step, split)
    first, *rest = FullestStages(split, software, shapes).parts()
    total = sum(first)
    for other in rest:
        new = sum(other)
        first = tuple(where(new > total, b, a) for a, b in zip(first, other, strict=True))
        total = where(new > total, new, total)
    weights, gradients, optimizer, activations, left = first
    beside = DRIVER_BYTES
    if software.joining:
        n_chips = math.prod(split.sizes.values())
        beside = beside + where(n_chips > 1, software.joining, 0 * software.joining)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        other=left,
        capacity=capacity,
        margin=beside + FRAGMENTATION * total,
    )
