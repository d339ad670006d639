"""Memory of one chip by component, in training and in serving."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num

# HBM that the driver and its kernels occupy before a program allocates anything: 1573 MiB on an
# A100 (BigScience, train/tr11-176B-ml/chronicles-prequel.md, 2022-02, read from nvidia-smi).
DRIVER_BYTES = 1573.0 * units.MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of HBM that a program occupies on one chip, by component.

    Args:
        other: logits, gathered weights, arrays that live for one layer, communication buffers.
        capacity: documented HBM of the chip.
        margin: reserve for memory that no component counts (driver, fragmentation, NCCL); not
            included in `total`.
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
        """Sum of the components, without the margin."""
        state = self.weights + self.gradients + self.optimizer
        return state + self.activations + self.kv_cache + self.other

    @property
    def fits(self) -> Num:
        """Whether the components and the margin fit in the capacity."""
        return self.total + self.margin <= self.capacity
