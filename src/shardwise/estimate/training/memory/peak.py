"""What each chip holds at the peak of a training step, in bytes. Book §5, §6.

`stage_memory` has the parts of each stage that may be the fullest; here is the fullest one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from shardwise import units
from shardwise.arrays import Num, where
from shardwise.estimate.training.memory.framework import PLANNED, Software
from shardwise.estimate.training.memory.stages import FullestStages, Shapes
from shardwise.models import ModelConfig
from shardwise.ops.program import Step
from shardwise.strategy.layout import Layout, Layouts
from shardwise.workload import Train

# What a driver and its kernels take before a program allocates anything: 1573 MiB on an A100
# (BigScience, train/tr11-176B-ml/chronicles-prequel.md, 2022-02, read from nvidia-smi).
RUNTIME = 1573.0 * units.MiB

# What PyTorch's allocator reserves beyond the parts: of the peaks that torchtitan and nanotron
# publish, in the groups that constants are chosen on, 12 of 15 lie below the parts and this share.
FRAGMENTATION = 0.065


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per chip by part.

    Args:
        other: Logits, gathered weights, arrays that live for one layer, communication buffers.
        capacity: The chip's documented HBM.
        margin: For what the parts do not count: `RUNTIME`, `FRAGMENTATION` and, on more than one
            chip, what its software takes to join a job; not part of `total`.
    """

    weights: Num = 0.0
    gradients: Num = 0.0
    optimizer: Num = 0.0
    activations: Num = 0.0
    kv_cache: Num = 0.0
    other: Num = 0.0
    capacity: float
    margin: Num = 0.0

    @property
    def total(self) -> Num:
        """The sum of the parts."""
        parts = (f.name for f in fields(self) if f.name not in ("capacity", "margin"))
        return sum(getattr(self, name) for name in parts)

    @property
    def fits(self) -> Num:
        """Whether the parts and the margin fit the capacity."""
        return self.total + self.margin <= self.capacity


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
    beside = RUNTIME
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
