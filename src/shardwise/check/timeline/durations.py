"""Seconds of one operation of the core, in one of two modes.

    cycles     the cycles that the compiler estimates with its own model of the chip, divided by the
               clock rate. They include tile padding and memory access, and are about 2 times too
               high for element-wise work. Operations without an estimate (custom kernels, in-place
               updates) use the roofline.
    roofline   the larger of FLOPs at the peak of their dtype and HBM bytes at full bandwidth;
               traffic within VMEM takes no time.

Custom kernels reach a fraction of the peak: in mode `cycles` that of attention in the chip's
calibration (`estimate.calibration`), in mode `roofline` 1. GPU programs have no cycles.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.check.hlo.text import Instruction
from shardwise.errors import BadInput
from shardwise.estimate.calibration import calibration
from shardwise.hardware import Chip

MODES = ("cycles", "roofline")
UNKNOWN_CYCLES = 2**63 - 1  # the compiler's estimate for operations that its model does not cover

# Element type -> dtypes of the peaks that apply to it; the first that the chip has is used.
_PEAK_DTYPES = {
    "s4": ("int4", "int8", "bf16"),
    "u4": ("int4", "int8", "bf16"),
    "s8": ("int8", "bf16"),
    "u8": ("int8", "bf16"),
    "f16": ("fp16", "bf16"),
    "bf16": ("bf16", "fp16"),
    "f32": ("tf32", "bf16", "fp32"),  # a TPU multiplies f32 in one bf16 pass by default
    "f64": ("fp64", "fp32", "bf16"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """FLOPs and bytes of one run of an operation.

    Args:
        flops: FLOPs of matmuls and convolutions.
        dtype: element type of their inputs, as HLO writes it.
        hbm_bytes: bytes read and written in HBM.
        is_kernel: whether it is a custom kernel, opaque to the compiler.
        head_dim: head dim of an attention kernel, 0 for others. It leaves part of a wider matrix
            unit unused.
    """

    flops: float = 0.0
    dtype: str = "bf16"
    hbm_bytes: float = 0.0
    is_kernel: bool = False
    head_dim: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """FLOP/s and bytes per second of one device.

    Args:
        chip: the chip; its rates are divided evenly among its devices.
        mode: one of `MODES`.
        clock_hz: cycles per second in the compiler's estimates; None if it makes none.
        kernel_share: fraction of the peak FLOP/s that custom kernels reach.
    """

    chip: Chip
    mode: str
    clock_hz: float | None
    devices_per_chip: int = 1
    kernel_share: float = 1.0

    @classmethod
    def of_chip(
        cls, chip: Chip, mode: str, clock_hz: float | None, devices_per_chip: int = 1
    ) -> DeviceRates:
        """Rates of one device of a chip, with `kernel_share` from the chip's calibration.

        Raises:
            BadInput: an unknown mode.
        """
        if mode not in MODES:
            raise BadInput(f'the mode of a timeline is {" or ".join(MODES)}, not "{mode}".')
        kernel_share = calibration(chip).attention if mode == "cycles" else 1.0
        return cls(
            chip=chip,
            mode=mode,
            clock_hz=clock_hz,
            devices_per_chip=devices_per_chip,
            kernel_share=kernel_share,
        )

    @property
    def hbm_bytes_per_s(self) -> float:
        """HBM bandwidth of one device."""
        return self.chip.need("hbm.bandwidth") / self.devices_per_chip

    @property
    def host_bytes_per_s(self) -> float:
        """Bandwidth between one device and its host, each way."""
        return self.chip.need("pcie.bandwidth") / self.devices_per_chip

    def peak_flops_per_s(self, dtype: str) -> float:
        """Peak FLOP/s of one device for an element type, or for the next wider type it supports."""
        default = ("fp8", "bf16") if dtype.startswith("f8") else ("bf16",)
        names = _PEAK_DTYPES.get(dtype, default)
        if self.chip.kind == "cpu" and dtype == "f32":  # accelerators multiply it in fewer bits
            names = ("fp32", "bf16")
        for name in names:
            if name in self.chip.peak_flops_per_s:
                return self.chip.peak(name) / self.devices_per_chip
        return self.chip.peak("bf16") / self.devices_per_chip

    def seconds(self, instruction: Instruction, work: OpWork) -> float:
        """Seconds of one run of an operation."""
        if self.mode == "cycles" and self.clock_hz:
            cycles = estimated_cycles(instruction)
            if cycles is not None:
                return cycles / self.clock_hz
        math_s = 0.0
        if work.flops:
            math_s = work.flops / (self.peak_flops_per_s(work.dtype) * self._peak_share(work))
        hbm_s = work.hbm_bytes / self.hbm_bytes_per_s if work.hbm_bytes else 0.0
        return max(math_s, hbm_s)

    def _peak_share(self, work: OpWork) -> float:
        """Fraction of the peak FLOP/s that an operation without estimated cycles reaches."""
        if not work.is_kernel or self.mode != "cycles":
            return 1.0
        if not work.head_dim:
            return self.kernel_share
        return self.kernel_share * min(1.0, work.head_dim / max(self.chip.matrix_unit or (1,)))


def estimated_cycles(instruction: Instruction) -> float | None:
    """The compiler's estimate of the cycles of one run of an operation; None if it has none."""
    config = instruction.backend_config.get("window_config")
    if not isinstance(config, dict):
        return None
    cycles = int(config.get("estimated_cycles", 0))
    return float(cycles) if 0 < cycles < UNKNOWN_CYCLES else None
