"""Training sweeps: the best plan for every combination of the options, one row each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.plan.schema.common import Range
from shardwise.plan.schema.training import Plan
from shardwise.plan.sweep_grid import (
    HARDWARE,
    Progress,
    SweepTable,
    combinations,
    option_values,
    raise_if_all_bad,
    select_options,
)
from shardwise.plan.training import build
from shardwise.search.training.forms import names
from shardwise.workload import Train, state_dtypes

JOB_OPTIONS = tuple(field.name for field in dataclasses.fields(Train))
STRATEGY_OPTIONS = tuple(name for name in names() if name not in JOB_OPTIONS)
DTYPE_OPTION = "dtype"  # of matmuls; unless `precision` says otherwise, of the state too
PRECISION_OPTION = "precision"  # a word for the dtypes of the training state
OPTIONS = (DTYPE_OPTION, PRECISION_OPTION, *JOB_OPTIONS, *STRATEGY_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One combination of options, with its best plan or the reason why there is no plan.

    Args:
        swept: name -> value of the options that differ between rows.
        memory_bytes: bytes per chip.
        bound: what sets the lower bound of the step: "compute", "hbm" or "communication".
        problem: why there is no plan; the numbers are then None.
    """

    swept: dict[str, Any]
    hardware: str
    n_chips: int
    step_s: Range | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_chip: float | None = None
    mfu: float | None = None
    memory_bytes: float | None = None
    bound: str | None = None
    mesh: dict[str, int] | None = None
    schedule: str | None = None
    zero: int | None = None
    remat: str | None = None
    n_microbatches: int | None = None
    run_s: float | None = None
    usd: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(SweepTable):
    """All rows of a training sweep, in the order of the options."""

    rows: tuple[Row, ...]


def sweep(
    model: ModelConfig,
    system: System | Sequence[System],
    job: Train,
    *,
    peak: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep:
    """Find the best plan for every combination of options.

    Arguments and errors are those of `plan.api.sweep`.
    """
    systems = [system] if isinstance(system, System) else list(system)
    values = option_values(options, OPTIONS, "a sweep")
    rows = [
        _row(model, machine, job, choices, swept, peak=peak)
        for machine, choices, swept in combinations(systems, values, "plans", progress)
    ]
    raise_if_all_bad([error for _, error in rows])
    all_options = {HARDWARE: tuple(machine.name for machine in systems), **values}
    return Sweep(model=model.name, options=all_options, rows=tuple(row for row, _ in rows))


def _row(
    model: ModelConfig,
    system: System,
    job: Train,
    choices: Mapping[str, Any],
    swept: dict[str, Any],
    *,
    peak: bool,
) -> tuple[Row, ShardwiseError | None]:
    """Plan one combination; the row has the reason, and the error stands beside it, if there is
    no plan."""
    row = Row(swept=swept, hardware=system.name, n_chips=system.n_chips)
    # `remat` is a field of the job and a choice of the strategy; only the job accepts "auto".
    job_fields = select_options(choices, JOB_OPTIONS)
    fixed = select_options(choices, STRATEGY_OPTIONS)
    try:
        if {DTYPE_OPTION, PRECISION_OPTION} & {*choices}:
            compute = choices.get(DTYPE_OPTION, job.compute)
            dtypes = state_dtypes(choices.get(PRECISION_OPTION, ""), compute)
            job_fields = {"compute": compute, **dtypes, **job_fields}
        plan = build.plan(model, system, dataclasses.replace(job, **job_fields), fixed, peak=peak)
    except ShardwiseError as error:
        return dataclasses.replace(row, problem=error.problems[0]), error
    estimate = plan.estimate
    row = dataclasses.replace(
        row,
        **plan_fields(plan),
        tokens_per_s=estimate.tokens_per_s,
        bound=estimate.bound,
        run_s=estimate.run_s,
        usd=estimate.usd,
    )
    return row, None


def plan_fields(plan: Plan) -> dict[str, Any]:
    """Numbers and strategy of a plan, as the fields that rows of sweeps and of fronts share."""
    strategy = plan.strategy
    return {
        "step_s": plan.step,
        "memory_bytes": plan.memory.total,
        "mfu": plan.estimate.mfu,
        "tokens_per_s_per_chip": plan.estimate.tokens_per_s_per_chip,
        "mesh": strategy.mesh,
        "schedule": strategy.schedule,
        "zero": strategy.zero,
        "remat": strategy.remat,
        "n_microbatches": strategy.n_microbatches,
    }
