"""The plan as a value. Field names are the keys of its JSON (schema "shardwise.plan/2")."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from shardwise import units
from shardwise.plan.schema.common import (
    Loss,
    MemoryBytes,
    Operation,
    PlanDocument,
    Range,
    RatesUsed,
    Reason,
    XlaFlag,
)
from shardwise.strategy.layout import Form, Layout
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import CHOSEN_OFFLOADS, CHOSEN_OVERLAPS
from shardwise.workload import Train

PRECISION = ("weights", "compute", "gradients", "reduce", "moments", "master")  # of a job
LAYOUT_WORDS = tuple(field.name for field in fields(Layout) if field.name != "mesh")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWork:
    """The work; `remat` as it was asked for, "auto" where the search took its choice."""

    kind: str
    batch: int
    seq: int
    tokens: float | None
    tokens_per_step: int
    optimizer: str
    remat: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStrategy(Form):
    """A layout, where its axes lie, its sharding table, and what was chosen beside it.

    Args:
        virtual, micro_batch, n_microbatches: as in `Layout`.
        remat: the policy of `recomputed` by its name, or the parts.
        precision: dtypes by what is held or computed in them.
        fixed, most: what the search was given; nothing where one layout was evaluated.
    """

    mesh: dict[str, int]
    placement: dict[str, str]
    rules: dict[str, tuple[str, ...]]
    virtual: int
    micro_batch: int
    n_microbatches: int
    remat: str
    precision: dict[str, str | None]
    fixed: dict[str, int | str]
    most: dict[str, int]

    @property
    def layout(self) -> Layout:
        """The layout as a value.

        Raises:
            BadShape: there is no such layout.
        """
        words = {name: getattr(self, name) for name in LAYOUT_WORDS}
        return Layout(mesh=Mesh(**self.mesh), **words)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMfu:
    """The run at a model-FLOPs utilisation that was given, not predicted."""

    mfu: float
    step_s: float
    run_s: float | None
    chip_hours: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGoodput:
    """The run with failures, at the checkpoint interval of the highest goodput.

    Args:
        mtbf_s: seconds between failures of one chip; `mtbf_of_run_s` of all.
        checkpoint_bytes, storage_bytes_per_s: what is written, and by all hosts together.
        goodput: share of the wall time that new steps get; `writing`, `redone` and `restarting` are
            the others.
        run_s, usd: of the whole run with them, where its tokens are given.
    """

    mtbf_s: float
    mtbf_of_run_s: float
    restart_s: float
    checkpoint_bytes: float
    storage_bytes_per_s: float
    n_hosts: int
    write_s: float
    interval_s: float
    goodput: float
    writing: float
    redone: float
    restarting: float
    run_s: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Every number that the plan predicts. MFU, run and money are at the expected step time.

    Args:
        compute_s, hbm_s, comm_s: the roofline at peak rates, nothing hidden: FLOPs over the peak,
            bytes of products over the HBM bandwidth, collectives by role.
        expected_s: the expected step by what spends it; the sum is `step_s.expected`.
        goodput: where failures were asked for.
        joules: of the whole run at the chips' stated power, an upper bound for the chips alone.
    """

    step_s: Range
    bound: str
    compute_s: float
    hbm_s: float
    comm_s: dict[str, float]
    exposed_comm_s: float
    expected_s: dict[str, float]
    rates: RatesUsed
    bubble_fraction: float
    mfu: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    memory_bytes_per_chip: MemoryBytes
    run_s: float | None
    chip_hours: float | None
    usd: float | None
    joules: float | None
    at_mfu: AtMfu
    goodput: PlannedGoodput | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another strategy, and what it loses on."""

    mesh: dict[str, int]
    schedule: str
    zero: int
    remat: str
    n_microbatches: int
    step_s: Range
    memory_bytes_per_chip: float
    fits: bool
    loses_on: Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PlanDocument):
    """A strategy for a model, on a machine, for some work, with its prediction and reasons.

    `plan.estimate` holds the numbers; `plan.step`, `plan.memory` and `plan.cost` are short ways
    to its parts. `shardwise.load(path)` gives back an equal value.
    """

    workload: PlannedWork
    strategy: PlannedStrategy
    estimate: Estimate
    operations: tuple[Operation, ...]
    why: tuple[Reason, ...]
    alternatives: tuple[Alternative, ...]
    xla_flags: tuple[XlaFlag, ...] = ()

    @property
    def layout(self) -> Layout:
        """The layout that the plan takes."""
        return self.strategy.layout

    @property
    def job(self) -> Train:
        """The work that it was planned for."""
        work, strategy = self.workload, self.strategy
        held = strategy.precision
        dtypes: dict[str, Any] = {name: held[name] for name in PRECISION if held.get(name)}
        dtypes["master"] = held.get("master")
        if held.get("reduce") == held.get("gradients"):
            dtypes.pop("reduce", None)
        return Train(
            batch=work.batch,
            seq=work.seq,
            tokens=work.tokens,
            optimizer=work.optimizer,
            remat=work.remat,
            overlap=tuple(word for word in strategy.overlap if word in CHOSEN_OVERLAPS),
            offload=tuple(word for word in strategy.offload if word in CHOSEN_OFFLOADS),
            **dtypes,
        )

    @property
    def step(self) -> Range:
        """Seconds of a step."""
        return self.estimate.step_s

    @property
    def memory(self) -> MemoryBytes:
        """Bytes per chip."""
        return self.estimate.memory_bytes_per_chip

    @property
    def cost(self) -> Estimate:
        """Where `usd`, `run_s` and `chip_hours` stand."""
        return self.estimate

    def __str__(self) -> str:
        mesh = " x ".join(f"{r} {n}" for r, n in self.strategy.mesh.items() if n > 1) or "one chip"
        step = self.step
        return (
            f"{self.model.name} on {self.hardware.name}: {mesh}, {self.estimate.bound}-bound, "
            f"{units.show_seconds(step.lower)} to {units.show_seconds(step.upper)} a step"
        )
