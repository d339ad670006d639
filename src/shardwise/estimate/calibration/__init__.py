"""Calibration: shares of a chip's peak rates that training achieves, with sources and dates.

There is one TOML file per chip; `like = "h100"` uses the values of another chip. A chip without a
file is estimated at its peak rates (`PEAK`). `bench/calibrate.py` fits the values on one half of
the published runs and tests them on the other; no value is specific to a single model or run.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from shardwise import units
from shardwise.arrays import Num

# dtype -> the next wider dtype, whose share is used if a chip's file has none for this dtype.
WIDER = {"fp4": "fp8", "int8": "fp8", "fp8": "bf16", "fp16": "bf16"}

# Own runs say less of a step than their ratio: with n of them, others of the same model, chip and
# source are predicted best by the ratio to the power n / (n + 0.7) (bench/own_runs.py).
OWN_SHRINKAGE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class AchievedShares:
    """Shares of one chip's peak rates that programs of one kind achieve.

    Args:
        name: the chip whose file holds the values, or "peak".
        as_of: date of the values.
        source: data to which the values were fitted.
        matmuls: dtype -> share of the dense peak that large matmuls achieve.
        attention: share of the 16-bit peak that tiled attention over whole sequences achieves.
        grouped: rate of the routed experts' matmuls relative to a plain matmul.
        spread: 80 % of the predictions for held-out measurements were within a factor of
            1 + spread; 1 if no measurement was compared.
    """

    name: str = "peak"
    as_of: str = ""
    source: str = ""
    matmuls: Mapping[str, float] = field(default_factory=dict, hash=False)
    attention: float = 1.0
    grouped: float = 1.0
    spread: float = 1.0

    def matmul(self, dtype: str) -> float:
        """Share of the dense peak for a dtype, or for the next wider one in `matmuls`; else 1."""
        while dtype not in self.matmuls and dtype in WIDER:
            dtype = WIDER[dtype]
        return self.matmuls.get(dtype, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(AchievedShares):
    """Shares of one chip's peak rates that training achieves, and its overheads.

    Args:
        scan: share of the 16-bit peak that the matmuls of an SSM scan achieve, whose kernels wait
            for memory and for each other (PyTorch blog, Accelerating Mamba2 with Kernel Fusion);
            None to use `attention`.
        hbm: share of the HBM bandwidth that element-wise work achieves.
        links: share of the link bandwidth that collectives achieve inside a node or on a torus.
        network: share of the link bandwidth that collectives achieve between nodes or slices.
        contention: compute time added by an overlapped collective, as a share of the collective's
            time: it uses SMs, HBM and power.
        kernel_s: seconds to launch one kernel.
        expert_s: host seconds to launch the matmul of one expert.
        collective_s: seconds to start one collective.
    """

    scan: Num = None
    hbm: float = 1.0
    links: float = 1.0
    network: float = 1.0
    contention: float = 0.0
    kernel_s: float = 0.0
    expert_s: float = 0.0
    collective_s: float = 0.0

    @property
    def scan_share(self) -> Num:
        """Share of the 16-bit peak that an SSM scan achieves."""
        return self.attention if self.scan is None else self.scan

    def slowed(self, factor: float) -> Calibration:
        """Rates at which all work of a step takes `factor` times as long."""
        return replace(
            self,
            matmuls={dtype: share / factor for dtype, share in self.matmuls.items()}
            or dict.fromkeys(units.BYTES_PER_ELEMENT, 1 / factor),
            attention=self.attention / factor,
            scan=None if self.scan is None else self.scan / factor,
            hbm=self.hbm / factor,
            links=self.links / factor,
            network=self.network / factor,
            kernel_s=self.kernel_s * factor,
            expert_s=self.expert_s * factor,
            collective_s=self.collective_s * factor,
        )


def own_factor(ratio: float, n_runs: int) -> float:
    """By what the expected seconds of other steps are multiplied after some own runs.

    Args:
        ratio: measured over expected seconds of the own runs: their geometric mean.
        n_runs: number of own runs.
    """
    return float(ratio ** (n_runs / (n_runs + OWN_SHRINKAGE)))


PEAK = Calibration()
# Of a machine whose rates `hw measure` has found: `estimate.training.measured_rates` has its times.
MEASURED = Calibration(name="hw measure")


@functools.cache
def calibration(chip: str) -> Calibration:
    """Calibration of a chip, or `PEAK` if it has no file."""
    data = read_file(chip)
    if "like" in data:
        return calibration(data["like"])
    data.pop("serving", None)  # see estimate.serving.efficiency
    return Calibration(name=chip, **data) if data else PEAK


def read_file(chip: str) -> dict[str, Any]:
    """Content of a chip's calibration file; empty if it has none."""
    file = files(__package__) / f"{chip}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
