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
    """The machine, and the figures that the plan used (SI units, as the chip's file has them)."""

    name: str
    chip: str
    topology: str
    slices: int
    n_chips: int
    as_of: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Seconds of a step.

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
    """Bytes per chip at the peak of the step; `margin` is kept free and in no sum."""

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
    """The calibration behind `expected`: "peak" where the chip has none.

    Args:
        spread: 0.2 where 80 % of the published runs on the chip took within 20 % of the expected.
    """

    name: str
    as_of: str
    source: str
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kind of work of the step on the busiest stage: a local matmul, or a collective.

    Args:
        network_bytes: received by one chip, in all occurrences.
        time_s: at peak rates, of all `count` occurrences together.
        math_s, hbm_s: the two sides of a matmul's roofline.
        hidden: the strategy runs most of it beside other work.
        joined_bytes: of a collective, in all occurrences: the array summed over the shards that it
            joins (V of the book); of a permute, what a chip sends.
        axes: of the mesh, over which a collective runs.
        computed_flops: as the chip's kernels compute them: of attention more than `flops`, which is
            what MFU counts.
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
    """Why the plan is this one: a constraint, and how far it is (above 1: met).

    The numbers behind it are fields of its subclasses, one for each constraint.
    """

    constraint: str
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What another strategy or deployment loses on.

    Args:
        kind: "memory", "time", "batch", "dtype", or "none" where both are alike.
        part: of the step or pass, that takes longer.
        amount: seconds more in that part; of memory, the need over what a chip has.
        remat: of the other strategy, where it is not that of the plan.
    """

    kind: Literal["memory", "time", "batch", "dtype", "none"]
    part: str = ""
    amount: float = 0.0
    remat: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaFlag:
    """An option of XLA's compiler that the program of a plan is compiled with, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """A plan of any kind: `save` writes it, and `shardwise.load(path)` reads an equal value."""

    schema: str = SCHEMA
    model: PlannedModel
    hardware: PlannedHardware

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write plan.json.

        Raises:
            BadFile: the file cannot be written.
        """
        write(self, path)
