"""Calibration: shares of a chip's peak rates that training achieves, with sources and dates.

`training.toml` has one value for all chips and frameworks, and factors for an architecture, a chip
and a framework, all fitted together to the published runs by `bench/calibrate.py`. A chip without
runs takes the values of its architecture, or of all chips. No value is specific to a model or run.
The file of a chip has its values in serving.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from shardwise import units
from shardwise.arrays import Num, minimum
from shardwise.hardware import Chip, chip_names
from shardwise.vocabulary import UNKNOWN_FRAMEWORK

# dtype -> the next wider dtype, whose share is used if a chip's file has none for this dtype.
WIDER = {
    "fp4": "fp8", "int4": "int8", "int8": "fp8", "fp8": "bf16", "fp16": "bf16", "tf32": "bf16",
    "fp32": "bf16",
}  # fmt: skip

# Own runs say less of a step than their ratio: with n of them, others of the same model, chip and
# source are predicted best by the ratio to the power n / (n + 0.7) (bench/own_runs.py).
OWN_SHRINKAGE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class AchievedShares:
    """Shares of one chip's peak rates that programs of one kind achieve.

    Args:
        name: whose runs the values describe: a chip, an architecture, or a kind of chip; "peak" if
            nobody's.
        as_of: date of the values.
        source: data to which the values were fitted.
        matmuls: dtype -> share of the dense peak that large matmuls achieve.
        attention: share of the 16-bit peak that tiled attention over whole sequences achieves.
        grouped: rate of the routed experts' matmuls relative to a plain matmul.
        spread: 80 % of the predictions for held-out measurements were within a factor of
            1 + spread; 1 if no measurement was compared. Without runs of the chip, of its
            architecture or of the framework it is wider, as these were left out too.
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
        attention_backward: rate of tiled attention in the backward pass relative to the forward
            pass, whose FLOPs already include the scores that it computes again.
        scan: share of the 16-bit peak that the matmuls of an SSM scan achieve, whose kernels wait
            for memory and for each other (PyTorch blog, Accelerating Mamba2 with Kernel Fusion);
            None to use `attention`.
        hbm: share of the HBM bandwidth that element-wise work achieves.
        links: share of the link bandwidth that collectives achieve inside a node or on a torus.
        network: share of the link bandwidth that collectives achieve between nodes or slices.
        contention: compute time added by an overlapped collective, as a share of the collective's
            time: it uses SMs, HBM and power.
        kernel_s: seconds between two kernels on the chip.
        host_s: host seconds to launch the kernels of one layer in one phase; a phase takes no less.
        expert_s: host seconds to launch the matmul of one expert.
    """

    attention_backward: float = 1.0
    scan: Num = None
    hbm: float = 1.0
    links: float = 1.0
    network: float = 1.0
    contention: float = 0.0
    kernel_s: float = 0.0
    host_s: Num = 0.0
    expert_s: float = 0.0

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
            host_s=self.host_s * factor,
            expert_s=self.expert_s * factor,
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

MATMUL_DTYPES = ("bf16", "fp8", "fp4")
# Most that a fitted share can be: kernels reach no more.
MAX_SHARE = 0.95
SHARES = (*MATMUL_DTYPES, "attention", "attention_backward", "grouped", "hbm", "links", "network")
GPU_ONLY = ("kernel_s", "host_s", "expert_s")  # XLA launches whole programs on TPUs
KINDS = ("gpu", "tpu")  # kinds of chips with published runs


def calibration(chip: Chip, framework: str = UNKNOWN_FRAMEWORK) -> Calibration:
    """Calibration of a chip under a framework; `PEAK` if nothing is published of its kind.

    Figures of a chip outside the catalog may be measured: they are taken to be what it reaches.

    Args:
        chip: the chip; its power per FLOP matters if its architecture has no runs.
        framework: one of `vocabulary.FRAMEWORKS`.
    """
    if chip.kind not in KINDS or chip.name not in chip_names():
        return PEAK
    return _calibration(chip.name, chip.kind, power_per_flop(chip), framework)


def power_per_flop(chip: Chip) -> float:
    """`power_ratio` of a chip, or beyond the chips that have runs that of the nearest of them."""
    lowest, highest = training_fit()["power"]["range"]
    return float(min(max(power_ratio(chip), lowest), highest))


def power_ratio(chip: Chip) -> float:
    """Power per peak 16-bit FLOP/s, relative to an H100's; 1 if it is unknown.

    Boards with more power for the same peak sustain a larger share of it.
    """
    peaks = chip.peak_flops_per_s
    peak = peaks.get("bf16") or peaks.get("fp16")
    if not (chip.power_w and peak):
        return 1.0
    return float(chip.power_w / peak / training_fit()["power"]["watts_per_flop_s"])


@functools.cache
def _calibration(chip: str, kind: str, power: float, framework: str) -> Calibration:
    fit = training_fit()
    architecture = architecture_of(chip)
    values = {name: factor for name, (factor, _) in fit["all"].items()}
    for name in MATMUL_DTYPES:
        values[name] *= power ** fit["power"]["exponent"]
    levels = (("architecture", architecture), ("chip", chip), ("framework", framework))
    for level, member in levels:
        for name, (factor, _) in fit[level].get(member, {}).items():
            values[name] *= factor
    return Calibration(
        name=_name(fit, chip, architecture, kind),
        as_of=fit["as_of"],
        source=fit["source"],
        spread=_spread(fit, chip, architecture, framework),
        **fields_of(values, kind),
    )


def fields_of(rates: Mapping[str, Num], kind: str) -> dict[str, Any]:
    """Fields of a `Calibration` with fitted rates, or arrays of them, on a kind of chip.

    Shares are capped at what kernels reach, and only GPUs launch kernels one by one.
    """
    fields: dict[str, Any] = dict(rates)
    for name in SHARES:
        fields[name] = minimum(fields[name], MAX_SHARE)
    for name in GPU_ONLY:
        fields[name] = fields[name] * (kind == "gpu")
    return {"matmuls": {dtype: fields.pop(dtype) for dtype in MATMUL_DTYPES}, **fields}


def _name(fit: dict[str, Any], chip: str, architecture: str, kind: str) -> str:
    """Whose runs the values are of: the chip's, its architecture's, or those of all its kind."""
    if chip in fit["chip"]:
        return chip
    return architecture if architecture in fit["architecture"] else kind.upper()


def _spread(fit: dict[str, Any], chip: str, architecture: str, framework: str) -> float:
    """Factor less 1 that holds 80 % of the errors, of runs whose group was left out of the fit."""
    spreads = fit["spread"]
    logs = [math.log1p(spreads["group"])]
    if framework not in fit["framework"]:
        logs.append(math.log1p(spreads["framework"]))
    if architecture not in fit["architecture"]:
        logs.append(math.log1p(spreads["architecture"]))
    elif chip not in fit["chip"]:
        logs.append(math.log1p(spreads["chip"]))
    return math.expm1(math.hypot(*logs))


def spread_outside_practice(spread: float) -> float:
    """Spread of a layout whose parallelisms no published run combines."""
    wider = training_fit()["spread"]["layout"]
    return math.expm1(math.hypot(math.log1p(spread), math.log1p(wider)))


def architecture_of(chip: str) -> str:
    """The architecture of a chip, by which chips share values; "" if it has no name here."""
    for architecture, chips in training_fit()["chips"].items():
        if chip in chips:
            return str(architecture)
    return ""


@functools.cache
def training_fit() -> dict[str, Any]:
    """Content of `training.toml`."""
    return tomllib.loads((files(__package__) / "training.toml").read_text(encoding="utf-8"))


def read_file(chip: str) -> dict[str, Any]:
    """Content of a chip's calibration file for serving; empty if it has none."""
    file = files(__package__) / f"{chip}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
