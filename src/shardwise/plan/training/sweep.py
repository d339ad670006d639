"""Sweep of training: the best plan for every combination of some options, one row each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.plan.schema.common import Range
from shardwise.plan.sweep_grid import (
    HARDWARE,
    Progress,
    SweepTable,
    combinations,
    selected,
    values_of,
)
from shardwise.plan.training import build
from shardwise.search.training.forms import names
from shardwise.workload import Train, held_in

JOB_OPTIONS = tuple(field.name for field in dataclasses.fields(Train))
STRATEGY_OPTIONS = tuple(name for name in names() if name not in JOB_OPTIONS)
DTYPE = "dtype"  # of the arithmetic; also sets weights, gradients and master
OPTIONS = (DTYPE, *JOB_OPTIONS, *STRATEGY_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One combination of options and its best plan, or the problem that leaves it without one.

    Args:
        swept: the options that differ between rows.
        problem: the reason why there is no plan; the numbers are then None.
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
    """All rows of a sweep of training, in the order of the options."""

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
    """The best plan for every combination; arguments and errors as in `plan.api.sweep`."""
    systems = [system] if isinstance(system, System) else list(system)
    values = values_of(options, OPTIONS, "a sweep")
    rows = [
        _row(model, machine, job, choices, swept, peak=peak)
        for machine, choices, swept in combinations(systems, values, "plans", progress)
    ]
    all_options = {HARDWARE: tuple(machine.name for machine in systems), **values}
    return Sweep(model=model.name, options=all_options, rows=tuple(rows))


def _row(
    model: ModelConfig,
    system: System,
    job: Train,
    choices: Mapping[str, Any],
    swept: dict[str, Any],
    *,
    peak: bool,
) -> Row:
    """The plan of one combination, or the reason why there is none."""
    row = Row(swept=swept, hardware=system.name, n_chips=system.n_chips)
    # `remat` is an option of both; as part of the job it may be "auto".
    job_fields = selected(choices, JOB_OPTIONS)
    fixed = selected(choices, STRATEGY_OPTIONS)
    try:
        if DTYPE in choices:
            job_fields = {**_mixed_precision(choices[DTYPE]), **job_fields}
        plan = build.plan(model, system, dataclasses.replace(job, **job_fields), fixed, peak=peak)
    except ShardwiseError as error:
        return dataclasses.replace(row, problem=error.problems[0])
    estimate = plan.estimate
    return dataclasses.replace(
        row,
        step_s=estimate.step_s,
        tokens_per_s=estimate.tokens_per_s,
        tokens_per_s_per_chip=estimate.tokens_per_s_per_chip,
        mfu=estimate.mfu,
        memory_bytes=plan.memory.total,
        bound=estimate.bound,
        mesh=plan.strategy.mesh,
        schedule=plan.strategy.schedule,
        zero=plan.strategy.zero,
        remat=plan.strategy.remat,
        n_microbatches=plan.strategy.n_microbatches,
        run_s=estimate.run_s,
        usd=estimate.usd,
    )


def _mixed_precision(dtype: str) -> dict[str, str]:
    """Fields of `Train` for arithmetic in `dtype`."""
    return {"compute": dtype, "weights": held_in(dtype), "gradients": "fp32", "master": "auto"}
