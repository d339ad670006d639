"""What chips reach of their peaks: a few named, sourced, dated corrections for each.

One TOML file a chip; `like = "h100"` takes those of another. A chip without a file reaches its
peaks (`PEAK`). `bench/calibrate.py` makes the values from one half of the published runs and tests
them on the other: none belongs to a model or to a row.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from shardwise.arrays import Num

# The dtype whose share stands in where a chip's file has none: the next wider one.
WIDER = {"fp4": "fp8", "int8": "fp8", "fp8": "bf16", "fp16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Corrections of one chip.

    Args:
        name: the chip whose file it is, or "peak".
        as_of: when the values were made.
        source: from what.
        matmuls: dtype -> share of the dense peak that a training step's matmuls reach.
        attention: share of the 16-bit peak that causal attention in tiles reaches.
        scan: the same of the products of a scan, whose kernels wait for memory and for each other
            (PyTorch blog, Accelerating Mamba2 with Kernel Fusion); that of attention where no run
            told it.
        grouped: share of a plain matmul's rate that the products of routed experts reach.
        hbm: share of the HBM bandwidth that element-wise work reaches.
        links: share of the link rates that collectives reach inside a node or on a torus.
        network: the same between nodes or slices.
        contention: share of a hidden collective's time by which it slows what hides it: it needs
            SMs, HBM and power.
        kernel_s: seconds to start one kernel.
        expert_s: seconds that the host takes to start the product of one expert.
        collective_s: seconds to start one collective.
        spread: predictions of runs that had no part in the values were within a factor 1 + spread
            of what was measured in four cases of five; 1 where nothing was compared.
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
    def scanned(self) -> Num:
        """Share of the 16-bit peak in a scan."""
        return self.attention if self.scan is None else self.scan

    def matmul(self, dtype: str) -> float:
        """Share of the peak at a dtype, or at the next wider one that is known."""
        at: str | None = dtype
        while at is not None and at not in self.matmuls:
            at = WIDER.get(at)
        return 1.0 if at is None else self.matmuls[at]


PEAK = Calibration()


@functools.cache
def calibration(chip: str) -> Calibration:
    """The corrections of a chip, or `PEAK` where it has no file."""
    file = files(__package__) / f"{chip}.toml"
    if not file.is_file():
        return PEAK
    data: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    if "like" in data:
        return calibration(data["like"])
    data.pop("serving", None)  # see estimate.engine.shares
    return Calibration(name=chip, **data) if data else PEAK
