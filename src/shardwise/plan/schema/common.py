"""Parts that plans of training and of serving have in common: model, machine, operations, reasons.

Field names are the keys of their JSON (schema "shardwise.plan/2").
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from shardwise.plan.schema.json_output import write

SCHEMA = "shardwise.plan/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """The model: its sizes, and the whole architecture as plain data."""

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
    """The machine, with the figures of its chip that the plan used (SI units)."""

    name: str
    chip: str
    topology: str
    slices: int
    n_chips: int
    as_of: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Seconds of a step, or of a pass of an engine.

    Args:
        lower: the roofline: every product at the peak, all communication hidden.
        expected: at the rates that the chip reaches, communication as the strategy overlaps it.
        upper: at these rates, no communication hidden.
    """

    lower: float
    expected: float
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBytes:
    """Bytes per chip at the peak of the step; `total` excludes the `margin` that stays free."""

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
        """The sum of the parts."""
        return self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesUsed:
    """The calibration behind `expected`; named "peak" where the chip has none.

    Args:
        spread: 0.2 means that 80 % of the published runs on the chip took within 20 % of the
            expected time.
    """

    name: str
    as_of: str
    source: str
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kind of work of the step on the busiest stage: a local operation, or a collective.

    Args:
        network_bytes: received by one chip, in all occurrences.
        time_s: at peak rates, of all `count` occurrences together.
        math_s, hbm_s: the two sides of a matmul's roofline.
        hidden: most of it overlaps with other work.
        joined_bytes: size of the array that a collective joins over its shards (V of the book), in
            all occurrences; for a permute, the bytes that a chip sends.
        axes: mesh axes over which a collective runs.
        computed_flops: FLOPs that the chip's kernels compute. For attention they exceed `flops`,
            which MFU counts.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A constraint on the plan, and its margin (above 1: met).

    Subclasses, one for each constraint, have the numbers behind it as fields.
    """

    constraint: str
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The disadvantage of another strategy or deployment against the plan.

    Args:
        kind: "memory", "time", "batch", "dtype", or "none" where there is no disadvantage.
        part: the part of the step or pass that takes longer.
        amount: extra seconds in that part; for memory, bytes needed over bytes available.
        remat: policy of the other strategy, where it differs from the plan's.
    """

    kind: Literal["memory", "time", "batch", "dtype", "none"]
    part: str = ""
    amount: float = 0.0
    remat: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaFlag:
    """An option of XLA's compiler for the program of a plan, with its reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """A plan for training or for serving. `shardwise.load(path)` reads back an equal value."""

    schema: str = SCHEMA
    model: PlannedModel
    hardware: PlannedHardware

    def headline(self, mesh: dict[str, int], bound: str) -> str:
        """`llama3-8b on v5e:4x4: fsdp 16, compute-bound`."""
        sizes = " x ".join(f"{role} {n}" for role, n in mesh.items() if n > 1) or "one chip"
        return f"{self.model.name} on {self.hardware.name}: {sizes}, {bound}-bound"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write plan.json.

        Raises:
            BadFile: the file cannot be written.
        """
        write(self, path)
