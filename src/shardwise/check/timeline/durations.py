"""Seconds of one operation of the core, in two ways.

    cycles     what the compiler's own model of the chip estimates, over the clock. Of whole tiles,
               memory included; too high by a factor 2 or so for element-wise work. Where it is
               silent (kernels written by hand, updates in place), the roofline stands in.
    roofline   the slower of FLOPs at the peak of their dtype and HBM bytes at full bandwidth; what
               stays in VMEM costs nothing.

Kernels written by hand reach a share of the peak: in `cycles` that of attention in the chip's
calibration (`estimate.calibration`), in `roofline` all of it. GPU programs have no cycles.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.check.hlo.text import Instruction
from shardwise.errors import BadInput
from shardwise.estimate.calibration import calibration
from shardwise.hardware import Chip

MODES = ("cycles", "roofline")
UNKNOWN = 2**63 - 1  # what the compiler writes where its model has no answer

# Peaks of a chip that stand for an element type, the first that it has.
_PEAKS = {
    "s4": ("int4", "int8", "bf16"),
    "u4": ("int4", "int8", "bf16"),
    "s8": ("int8", "bf16"),
    "u8": ("int8", "bf16"),
    "f16": ("fp16", "bf16"),
    "bf16": ("bf16", "fp16"),
    "f32": ("tf32", "bf16", "fp32"),  # a TPU multiplies f32 in one bf16 pass unless asked for more
    "f64": ("fp64", "fp32", "bf16"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an operation asks of the chip.

    Args:
        flops: of matrix products.
        dtype: of their factors, as the program writes it.
        hbm_bytes: read and written.
        by_hand: a kernel that the compiler does not see into.
        width: of a head, where it is an attention kernel: a matrix unit that is wider stays empty
            in part.
    """

    flops: float = 0.0
    dtype: str = "bf16"
    hbm_bytes: float = 0.0
    by_hand: bool = False
    width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What one device does a second.

    Args:
        chip: the chip; a device has an equal part of it.
        mode: one of `MODES`.
        clock_hz: cycles a second; None where the compiler counts none.
        per_chip: devices of a chip.
        by_hand: share of the peak that kernels written by hand reach.
    """

    chip: Chip
    mode: str
    clock_hz: float | None
    per_chip: int = 1
    by_hand: float = 1.0

    @classmethod
    def of(cls, chip: Chip, mode: str, clock_hz: float | None, per_chip: int = 1) -> Speed:
        """With the share of kernels from the chip's calibration.

        Raises:
            BadInput: for another mode.
        """
        if mode not in MODES:
            raise BadInput(f'a timeline is made of {" or ".join(MODES)}, not of "{mode}".')
        share = calibration(chip.name).attention if mode == "cycles" else 1.0
        return cls(chip=chip, mode=mode, clock_hz=clock_hz, per_chip=per_chip, by_hand=share)

    @property
    def hbm(self) -> float:
        """Bytes per second of one device."""
        return self.chip.need("hbm.bandwidth") / self.per_chip

    @property
    def host(self) -> float:
        """Bytes per second between one device and its host, each way."""
        return self.chip.need("pcie.bandwidth") / self.per_chip

    def peak(self, dtype: str) -> float:
        """FLOP/s of one device at an element type, or at the next wider one that it has."""
        names = _PEAKS.get(dtype, ("fp8", "bf16") if dtype.startswith("f8") else ("bf16",))
        known = next((n for n in names if n in self.chip.peak_flops_per_s), "bf16")
        return self.chip.peak(known) / self.per_chip

    def seconds(self, one: Instruction, work: Work) -> float:
        """Of one run of an operation."""
        known = cycles(one) if self.mode == "cycles" and self.clock_hz else None
        if known is not None and self.clock_hz:
            return known / self.clock_hz
        share = self._share(work)
        math_s = work.flops / (self.peak(work.dtype) * share) if work.flops else 0.0
        return max(math_s, work.hbm_bytes / self.hbm if work.hbm_bytes else 0.0)

    def _share(self, work: Work) -> float:
        """Of the peak that an operation reaches, where no cycles say it."""
        if not work.by_hand or self.mode != "cycles":
            return 1.0
        side = max(self.chip.matrix_unit or (1,))
        return self.by_hand * (min(1.0, work.width / side) if work.width else 1.0)


def cycles(one: Instruction) -> float | None:
    """The compiler's estimate for one run of an operation, None where it has none."""
    found = one.backend.get("window_config")
    estimate = int(found.get("estimated_cycles", 0)) if isinstance(found, dict) else 0
    return float(estimate) if 0 < estimate < UNKNOWN else None
