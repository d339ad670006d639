"""Calibration: achieved shares of each chip's peaks, as a few named, sourced, dated values.

One TOML file per chip; `like = "h100"` takes the values of another chip. A chip without a file is
taken at its peaks (`PEAK`). `bench/calibrate.py` fits the values on one half of the published runs
and tests them on the other; no value belongs to a single model or run.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from shardwise.arrays import Num

# dtype -> the next wider one, whose share is used where a chip's file has none.
WIDER = {"fp4": "fp8", "int8": "fp8", "fp8": "bf16", "fp16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Achieved shares of one chip's peaks in training, and its overheads.

    Args:
        name: the chip whose file it is, or "peak".
        as_of: date of the values.
        source: data that they were fitted to.
        matmuls: dtype -> share of the dense peak that a training step's matmuls achieve.
        attention: share of the 16-bit peak that tiled causal attention achieves.
        scan: the same for the matmuls of an SSM scan, whose kernels wait for memory and for each
            other (PyTorch blog, Accelerating Mamba2 with Kernel Fusion); None for `attention`.
        grouped: rate of the routed experts' matmuls relative to a plain matmul.
        hbm: share of the HBM bandwidth that element-wise work achieves.
        links: share of the link rates that collectives achieve inside a node or on a torus.
        network: the same between nodes or slices.
        contention: share of an overlapped collective's time by which it slows the compute: it needs
            SMs, HBM and power.
        kernel_s: seconds to launch one kernel.
        expert_s: host seconds to launch the matmul of one expert.
        collective_s: seconds to start one collective.
        spread: four of five predictions of held-out runs were within a factor 1 + spread of the
            measurement; 1 where nothing was compared.
    """

    name: str = "peak"
    as_of: str = ""
    source: str = ""
    matmuls: Mapping[str, float] = field(default_factory=dict, hash=False)
    attention: float = 1.0
    scan: Num = None
    grouped: float = 1.0
    hbm: float = 1.0
    links: float = 1.0
    network: float = 1.0
    contention: float = 0.0
    kernel_s: float = 0.0
    expert_s: float = 0.0
    collective_s: float = 0.0
    spread: float = 1.0

    @property
    def scan_share(self) -> Num:
        """Share of the 16-bit peak that an SSM scan achieves."""
        return self.attention if self.scan is None else self.scan

    def matmul(self, dtype: str) -> float:
        """Share of the peak at a dtype, or at the next wider one that is known."""
        return matmul_efficiency(self.matmuls, dtype)


def matmul_efficiency(shares: Mapping[str, float], dtype: str) -> float:
    """Share of the peak at a dtype, or at the next wider one that `shares` has; 1 without any."""
    while dtype not in shares and dtype in WIDER:
        dtype = WIDER[dtype]
    return shares.get(dtype, 1.0)


PEAK = Calibration()


@functools.cache
def calibration(chip: str) -> Calibration:
    """Calibration of a chip, or `PEAK` where it has no file."""
    file = files(__package__) / f"{chip}.toml"
    if not file.is_file():
        return PEAK
    data: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    if "like" in data:
        return calibration(data["like"])
    data.pop("serving", None)  # see estimate.serving.efficiency
    return Calibration(name=chip, **data) if data else PEAK
