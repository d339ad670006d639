"""Seconds of one operation of the core, from the compiler's cycles or from a roofline.

    cycles     the estimate of the compiler's own model of the chip, over the clock. It counts whole
               tiles and memory; too high by about a factor of 2 for element-wise work. Where it has
               no answer (custom kernels, in-place updates), the roofline stands in.
    roofline   the slower of FLOPs at the peak of their dtype and HBM bytes at full bandwidth;
               traffic within VMEM costs nothing.

Custom kernels reach a share of the peak: in `cycles` that of attention in the chip's calibration
(`estimate.calibration`), in `roofline` all of it. GPU programs have no cycles.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.check.hlo.text import Instruction
from shardwise.errors import BadInput
from shardwise.estimate.calibration import calibration
from shardwise.hardware import Chip

MODES = ("cycles", "roofline")
UNKNOWN_CYCLES = 2**63 - 1  # what the compiler writes where its model has no answer

# Peaks that apply to an element type; the first that the chip has is used.
_PEAKS = {
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
        flops: of matrix products.
        dtype: of their factors, as the program writes it.
        hbm_bytes: read and written.
        is_kernel: whether it is a custom kernel, opaque to the compiler.
        head_dim: of an attention kernel; a wider matrix unit stays partly empty.
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
        chip: the chip, of which a device has an equal part.
        mode: one of `MODES`.
        clock_hz: cycles per second; None where the compiler counts none.
        kernel_share: share of the peak that custom kernels reach.
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
        """Rates with the share of kernels from the chip's calibration.

        Raises:
            BadInput: an unknown mode.
        """
        if mode not in MODES:
            raise BadInput(f'the mode of a timeline is {" or ".join(MODES)}, not "{mode}".')
        kernel_share = calibration(chip.name).attention if mode == "cycles" else 1.0
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
        """Peak of one device for an element type, or for the next wider one that it has."""
        default = ("fp8", "bf16") if dtype.startswith("f8") else ("bf16",)
        for name in _PEAKS.get(dtype, default):
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
        """Share of the peak that an operation without cycles reaches."""
        if not work.is_kernel or self.mode != "cycles":
            return 1.0
        if not work.head_dim:
            return self.kernel_share
        return self.kernel_share * min(1.0, work.head_dim / max(self.chip.matrix_unit or (1,)))


def estimated_cycles(instruction: Instruction) -> float | None:
    """The compiler's estimate for one run of an operation, None where it has none."""
    config = instruction.backend_config.get("window_config")
    if not isinstance(config, dict):
        return None
    cycles = int(config.get("estimated_cycles", 0))
    return float(cycles) if 0 < cycles < UNKNOWN_CYCLES else None
