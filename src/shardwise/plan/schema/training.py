"""The dataclasses of a training plan; field names are the JSON keys (schema "shardwise.plan/2")."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

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
from shardwise.vocabulary import OPTIONAL_OFFLOADS, OPTIONAL_OVERLAPS
from shardwise.workload import Train

DTYPE_FIELDS = ("weights", "compute", "gradients", "reduce", "moments", "master")  # of `Train`
Bound = Literal["compute", "hbm", "communication"]  # of a step
LAYOUT_FIELDS = tuple(field.name for field in fields(Layout) if field.name != "mesh")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWork:
    """The training job, with fields of `shardwise.Train`.

    Args:
        remat: the requested policy; "auto" if the search chose it.
        framework: the requested framework; "" if none was named.
        kernels: the requested settings of its kernels.
        mtp_layers: layers of multi-token prediction.
    """

    kind: Literal["train"]
    batch: int
    seq: int
    tokens: float | None
    tokens_per_step: int
    optimizer: str
    remat: str = "auto"
    framework: str = ""
    kernels: tuple[str, ...] = ()
    mtp_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPlacement:
    """The fastest placement of a plan's mesh that is slower than the plan's.

    Args:
        placement: as in `PlannedStrategy`.
        step_s: expected seconds of a step on it.
    """

    placement: dict[str, str]
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStrategy(Form):
    """A layout, the links and sharding rules of its mesh, and the search that chose it.

    Args:
        mesh: role -> size of its mesh axis.
        placement: role -> the links that its mesh axis uses, in words.
        rules: dim -> the mesh axes that shard it.
        virtual, micro_batch, n_microbatches: as in `Layout`.
        remat: name of the policy that recomputes the parts `recomputed`, or these parts.
        precision: dtypes of weights, compute, gradients, reduce, moments and master.
        fixed: choices that the search had to keep, by name; empty if a given layout was evaluated
            without a search.
        most: largest sizes of mesh roles that the search had to keep.
        any_layout: whether the search could choose layouts that the trainer does not run.
        next_placement: the next best placement; None if no other takes longer.
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
    any_layout: bool = False
    next_placement: NextPlacement | None = None

    @property
    def layout(self) -> Layout:
        """The layout.

        Raises:
            BadShape: the choices and sizes do not form a layout.
        """
        choices = {name: getattr(self, name) for name in LAYOUT_FIELDS}
        return Layout(mesh=Mesh(**self.mesh), **choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMfu:
    """Time and price at an assumed model-FLOPs utilisation (MFU).

    Args:
        run_s, chip_hours, usd: of the whole run; None if its number of tokens is not given, `usd`
            also if the chip has no public price.
    """

    mfu: float
    step_s: float
    run_s: float | None
    chip_hours: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGoodput:
    """The run with failures, at the checkpoint interval that gives the highest goodput.

    Args:
        mtbf_s: mean seconds between two failures of one chip.
        mtbf_of_run_s: mean seconds between two failures of any chip of the run.
        restart_s: seconds from a failure to the next new step.
        checkpoint_bytes: size of a checkpoint.
        storage_bytes_per_s: bandwidth at which all hosts together write a checkpoint.
        write_s: seconds to write a checkpoint.
        interval_s: seconds between two checkpoints.
        goodput: share of the wall time that is spent on new steps.
        writing, redone, restarting: shares of the wall time spent on writing checkpoints, on
            repeating lost steps, and on restarts. With `goodput` they add up to 1.
        run_s, usd: time and price of the run with failures; None if its number of tokens is not
            given.
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
    """The predicted numbers. MFU, run and cost follow from the expected step time.

    Args:
        bound: what sets the lower bound of the step: "compute", "hbm" or "communication".
        compute_s: seconds of a step's FLOPs at the peak rate, on the pipeline stage with most.
        hbm_s: seconds in which matmuls read and write HBM at its full bandwidth, likewise.
        comm_s: role -> seconds of its collectives at peak rates.
        exposed_comm_s: expected seconds of communication that does not overlap with compute.
        expected_s: part of the step -> its expected seconds; their sum is `step_s.expected`.
        bubble_fraction: share of the expected step that chips idle in the pipeline bubble.
        state_bytes_per_parameter: bytes of weights, gradients, master copy and moments, for each
            parameter of a matrix.
        run_s, chip_hours, usd: of the whole run; None if its number of tokens is not given, `usd`
            also if the chip has no public price.
        joules: energy of the run's chips at their stated power, an upper bound. Hosts and cooling
            are not included.
        goodput: the run with failures; None if failures were not considered.
    """

    step_s: Range
    bound: Bound
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
    """Another strategy, and why it is worse than the plan."""

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
class RivalLayout:
    """A layout between which and the plan's published runs decide: see `Practice`.

    Args:
        virtual: chunks of layers on a stage.
        step_s: expected seconds of a step.
    """

    mesh: dict[str, int]
    schedule: str
    virtual: int
    zero: int
    remat: str
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """Whether published runs of a similar size shard a model as the plan does.

    Args:
        within: whether they do.
        min_chips, max_chips: sizes of machines that count as similar.
        rival: if they do, a layout that they do not use and that is faster by less than predictions
            can tell; if they do not, the fastest layout that they use. None if there is none.
    """

    within: bool
    min_chips: int
    max_chips: int
    rival: RivalLayout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PlanDocument):
    """A strategy to train a model on a machine, with its predicted numbers and its reasons.

    `plan.estimate` holds the numbers; `plan.step`, `plan.memory` and `plan.cost` are shortcuts into
    it. `practice` is None for a layout that was given, and where no published run can be compared.
    """

    workload: PlannedWork
    strategy: PlannedStrategy
    estimate: Estimate
    operations: tuple[Operation, ...]
    why: tuple[Reason, ...]
    alternatives: tuple[Alternative, ...]
    xla_flags: tuple[XlaFlag, ...] = ()
    practice: Practice | None = None

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
            name: strategy.precision[name] for name in DTYPE_FIELDS if strategy.precision.get(name)
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
            framework=work.framework,
            kernels=work.kernels,
            mtp_layers=work.mtp_layers,
            overlap=tuple(word for word in strategy.overlap if word in OPTIONAL_OVERLAPS),
            offload=tuple(word for word in strategy.offload if word in OPTIONAL_OFFLOADS),
            **dtypes,
        )

    @property
    def step(self) -> Range:
        """Seconds of a step: lower, expected, upper."""
        return self.estimate.step_s

    @property
    def memory(self) -> MemoryBytes:
        """Memory in bytes per chip."""
        return self.estimate.memory_bytes_per_chip

    @property
    def cost(self) -> Estimate:
        """The estimate, which holds `usd`, `run_s` and `chip_hours`."""
        return self.estimate

    def __str__(self) -> str:
        step = self.step
        return (
            f"{self.headline(self.strategy.mesh, self.estimate.bound)}, "
            f"{units.show_seconds(step.lower)} to {units.show_seconds(step.upper)} a step"
        )
