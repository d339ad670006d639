"""The plan as a value. Field names are the keys of its JSON (schema "shardwise.plan/2")."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from shardwise import units
from shardwise.strategy.layout import Form, Layout
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import CHOSEN_OFFLOADS, CHOSEN_OVERLAPS
from shardwise.workload import Train

SCHEMA = "shardwise.plan/2"
PRECISION = ("weights", "compute", "gradients", "reduce", "moments", "master")  # of a job
LAYOUT_WORDS = tuple(field.name for field in fields(Layout) if field.name != "mesh")


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
class Estimate:
    """Every number that the plan predicts. MFU, run and money are at the expected step time.

    Args:
        compute_s, hbm_s, comm_s: the roofline at peak rates, nothing hidden: FLOPs over the peak,
            bytes of products over the HBM bandwidth, collectives by role.
        expected_s: the expected step by what spends it; the sum is `step_s.expected`.
        state_bytes_per_parameter: weights, gradients, master and moments of a matrix's parameter.
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
    state_bytes_per_parameter: float
    run_s: float | None
    chip_hours: float | None
    usd: float | None
    joules: float | None
    at_mfu: AtMfu
    goodput: PlannedGoodput | None = None


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
class XlaFlag:
    """An option of XLA's compiler that the program of a plan is compiled with, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A strategy for a model, on a machine, for some work, with its prediction and reasons.

    `plan.estimate` holds the numbers; `plan.step`, `plan.memory` and `plan.cost` are short ways
    to its parts. `shardwise.load(path)` gives back an equal value.
    """

    schema: str = SCHEMA
    model: PlannedModel
    hardware: PlannedHardware
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

    def save(self, path: str) -> None:
        """Write plan.json.

        Raises:
            BadFile: when it cannot be written.
        """
        from shardwise.plan.schema.json_io import write

        write(self, path)

    def __str__(self) -> str:
        mesh = " x ".join(f"{r} {n}" for r, n in self.strategy.mesh.items() if n > 1) or "one chip"
        step = self.step
        return (
            f"{self.model.name} on {self.hardware.name}: {mesh}, {self.estimate.bound}-bound, "
            f"{units.show_seconds(step.lower)} to {units.show_seconds(step.upper)} a step"
        )
