"""Parts common to training and serving plans: model, machine, memory, operations, reasons.

Field names are the keys of their JSON (schema "shardwise.plan/2").
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any, Literal

from shardwise.plan.schema.json_output import write

SCHEMA = "shardwise.plan/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """The model: its sizes, and its whole architecture as JSON data."""

    name: str
    source: str
    family: str
    n_parameters: int
    n_active_parameters: int
    n_layers: int
    d_model: int
    d_ff: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    vocab: int
    n_experts: int
    experts_per_token: int
    architecture: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHardware:
    """The machine.

    Args:
        topology: the network in words: `torus 4x4, all axes wrap`.
        as_of: date of the chip's data.
        gpus_per_node: GPUs that the machine has in each node or rack; None on a torus.
        figures: path in the chip's file -> the value that the plan used, SI units.
        measured_devices: of a CPU, the devices that shared it when it was measured, if they are
            more than the machine has.
    """

    name: str
    chip: str
    topology: str
    slices: int
    n_chips: int
    as_of: str
    figures: dict[str, float]
    gpus_per_node: int | None = None
    measured_devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Three predictions of the seconds of a training step, or of a forward pass of an engine.

    Args:
        lower: the roofline: matmuls at peak rates, all communication overlapped with compute.
        expected: at calibrated rates, with the overlap that the strategy has.
        upper: at calibrated rates, without any overlap.
    """

    lower: float
    expected: float
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBytes:
    """Bytes per chip when memory use is highest.

    Args:
        total: the sum of the parts above it.
        margin: bytes that stay free, not part of `total`.
        capacity: bytes of the chip's memory.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    kv_cache: float
    other: float
    total: float
    margin: float
    capacity: float

    @property
    def per_chip(self) -> float:
        """The sum of the parts, `total`."""
        return self.total

    @property
    def left(self) -> float:
        """Bytes beside the parts and the margin; negative if they do not fit."""
        return self.capacity - self.margin - self.total

    @property
    def largest_parts(self) -> dict[str, float]:
        """Part of `total`, as text -> its bytes, the largest first; without empty parts."""
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
            "KV cache": self.kv_cache,
            "logits and gathered weights": self.other,
        }
        ordered = sorted(parts.items(), key=lambda part: -part[1])
        return {name: n_bytes for name, n_bytes in ordered if n_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesUsed:
    """The calibrated rates behind the expected times.

    Args:
        name: name of the calibration; "peak" if the expected times are at peak rates.
        spread: 0.2 means that 80 % of the published runs on the chip took within 20 % of the
            expected time.
    """

    name: str
    as_of: str
    source: str
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One local operation or collective of a step, with all its occurrences on one chip.

    The chip belongs to the fullest pipeline stage; numbers are sums over `count` occurrences.

    Args:
        flops: FLOPs that MFU counts.
        network_bytes: bytes that the chip receives.
        time_s: seconds at peak rates.
        math_s, hbm_s: seconds of a matmul's FLOPs, and of its HBM traffic, at peak rates.
        hidden: whether most of the communication overlaps with compute.
        joined_bytes: bytes of the whole array, all shards together, that a collective moves (V of
            the book); for a permute, the bytes that the chip sends.
        axes: mesh axes over which a collective runs.
        computed_flops: FLOPs that kernels execute. For attention they exceed `flops`, since
            kernels also compute masked tiles.
        end: end of the model to which a local operation of a training step belongs, "embed" or
            "unembed"; empty for the layers and for collectives.
    """

    name: str
    phase: str
    expression: str
    count: int
    flops: float
    hbm_bytes: float
    collective: str | None
    role: str | None
    network_bytes: float
    time_s: float
    math_s: float
    hbm_s: float
    hidden: bool
    joined_bytes: float = 0.0
    axes: tuple[str, ...] = ()
    computed_flops: float = 0.0
    end: Literal["", "embed", "unembed"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A constraint on the plan, and how well the plan meets it.

    Each constraint has a subclass, whose fields are the numbers behind it.

    Args:
        margin: a ratio; above 1 the constraint is met.
    """

    constraint: str
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Why another strategy or deployment is worse than the plan.

    Args:
        kind: where it is worse: "memory", "time", "batch" or "dtype"; "none" if it is not worse.
        part: for "time", the part of the step or pass that takes longer.
        amount: for "time", the extra seconds of that part; for "memory", bytes needed over bytes
            available.
        remat: the other strategy's remat policy, if it differs from the plan's.
    """

    kind: Literal["memory", "time", "batch", "dtype", "none"]
    part: str = ""
    amount: float = 0.0
    remat: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaFlag:
    """An XLA compiler option for the program of a plan, and why it is set."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """A plan for training or for serving. `shardwise.load(path)` reads back an equal value."""

    schema: str = SCHEMA
    model: PlannedModel
    hardware: PlannedHardware

    def _repr_html_(self) -> str:
        """The plan in a notebook, drawn by a room above this one: imported when it is shown."""
        html: str = importlib.import_module("shardwise.ui.notebook").html(self)
        return html

    def headline(self, mesh: dict[str, int], bound: str) -> str:
        """One line that names the plan: `llama3-8b on v5e:4x4: fsdp 16, compute-bound`."""
        sizes = " x ".join(f"{role} {n}" for role, n in mesh.items() if n > 1) or "one chip"
        return f"{self.model.name} on {self.hardware.name}: {sizes}, {bound}-bound"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON to `path`.

        Raises:
            BadFile: the file cannot be written.
        """
        write(self, path)
