"""Memory of one chip by component, in training and in serving."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num
from shardwise.hardware import Chip

# HBM that the driver and its kernels occupy before a program allocates anything: 1573 MiB on an
# A100 (BigScience, train/tr11-176B-ml/chronicles-prequel.md, 2022-02, read from nvidia-smi).
DRIVER_BYTES = 1573.0 * units.MiB


def capacity_bytes(chip: Chip) -> float:
    """HBM of a chip that plans count with, before anything is kept free.

    On a GPU it is the memory that the driver reports (nvidia-smi's `memory.total`), of which
    `DRIVER_BYTES` are in use before a program starts: vendors' "80 GB" are 80 GiB less what error
    correction takes. On other chips, and on GPUs without that figure, it is the documented one.

    Raises:
        UnknownFigure: the chip's file states no capacity.
    """
    if chip.kind == "gpu" and chip.hbm_usable_bytes is not None:
        return chip.hbm_usable_bytes
    return chip.need("hbm.capacity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of HBM that a program occupies on one chip, by component.

    Args:
        other: logits, gathered weights, arrays that live for one layer, communication buffers.
        capacity: HBM of the chip, from `capacity_bytes`.
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
    def left(self) -> Num:
        """Bytes beside the components and the margin; negative if they do not fit."""
        return self.capacity - self.margin - self.total

    @property
    def fits(self) -> Num:
        """Whether the components and the margin fit in the capacity."""
        return self.total + self.margin <= self.capacity
