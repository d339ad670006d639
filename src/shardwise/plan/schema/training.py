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
    """The training job; `remat` is "auto" where the search chose the policy."""

    kind: str
    batch: int
    seq: int
    tokens: float | None
    tokens_per_step: int
    optimizer: str
    remat: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStrategy(Form):
    """A layout, the placement of its axes, its sharding table, and the search that chose it.

    Args:
        placement: role -> the links under its axis.
        rules: dim -> mesh axes.
        virtual, micro_batch, n_microbatches: as in `Layout`.
        remat: name of the policy of `recomputed`, or its parts.
        precision: dtype of weights, compute, gradients, reduce, moments and master.
        fixed, most: choices and largest sizes that the search had to keep; empty where one layout
            was evaluated.
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
            BadShape: the words and sizes do not form a layout.
        """
        words = {name: getattr(self, name) for name in LAYOUT_WORDS}
        return Layout(mesh=Mesh(**self.mesh), **words)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMfu:
    """The run at an assumed model-FLOPs utilisation."""

    mfu: float
    step_s: float
    run_s: float | None
    chip_hours: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGoodput:
    """The run with failures, at the checkpoint interval of the highest goodput.

    Args:
        mtbf_s: mean seconds between failures of one chip; `mtbf_of_run_s` of any chip of the run.
        checkpoint_bytes, storage_bytes_per_s: size of a checkpoint, and bandwidth of all hosts.
        goodput: share of the wall time spent on new steps; `writing` checkpoints, `redone` steps
            and `restarting` take the remainder.
        run_s, usd: the whole run with failures; None without a number of tokens.
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
    """The predicted numbers. MFU, run and cost are at the expected step time.

    Args:
        compute_s, hbm_s, comm_s: the roofline at peak rates without overlap: FLOPs over the peak,
            bytes of matmuls over the HBM bandwidth, collectives by role.
        expected_s: parts of the expected step; their sum is `step_s.expected`.
        state_bytes_per_parameter: bytes of weights, gradients, master and moments of a matrix.
        joules: energy of the whole run at the chips' stated power, an upper bound that leaves out
            hosts and cooling.
        goodput: None unless failures were considered.
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
    state_bytes_per_parameter: float
    run_s: float | None
    chip_hours: float | None
    usd: float | None
    joules: float | None
    at_mfu: AtMfu
    goodput: PlannedGoodput | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another strategy, and its disadvantage against the plan."""

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
    """A strategy to train a model on a machine, with its prediction and reasons.

    `plan.estimate` holds the numbers; `plan.step`, `plan.memory` and `plan.cost` are shortcuts to
    its parts.
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
        """The chosen layout."""
        return self.strategy.layout

    @property
    def job(self) -> Train:
        """The training job of the plan."""
        work = self.workload
        strategy = self.strategy
        dtypes: dict[str, Any] = {
            name: strategy.precision[name] for name in PRECISION if strategy.precision.get(name)
        }
        dtypes["master"] = strategy.precision.get("master")
        if dtypes.get("reduce") == dtypes.get("gradients"):
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
        """The estimate, with `usd`, `run_s` and `chip_hours`."""
        return self.estimate

    def __str__(self) -> str:
        step = self.step
        return (
            f"{self.headline(self.strategy.mesh, self.estimate.bound)}, "
            f"{units.show_seconds(step.lower)} to {units.show_seconds(step.upper)} a step"
        )
