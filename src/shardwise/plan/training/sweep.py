"""Sweep: the best plan for every combination of some options, one row each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.plan.schema.common import Range
from shardwise.plan.schema.training import Plan
from shardwise.plan.sweep_grid import HARDWARE, combinations, values_of
from shardwise.plan.training import build
from shardwise.search.training.forms import names
from shardwise.strategy.mesh import INSIDE_OUT
from shardwise.workload import Train, held_in

JOB = tuple(field.name for field in dataclasses.fields(Train))
STRATEGY = names()
DTYPE = "dtype"  # of the arithmetic, with weights and gradients held in it or in 16 bits
OPTIONS = (DTYPE, *JOB, *STRATEGY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One combination and its best plan; only `swept` and `problem` where there is none.

    Args:
        swept: the options of this row.
        problem: why there is no plan.
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
class Sweep:
    """Every row, in the order of the options."""

    model: str
    options: dict[str, tuple[Any, ...]]
    rows: tuple[Row, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat dict a row, for pandas or polars: options first, then the plan's numbers.

        Times are in seconds, memory in bytes per chip, the mesh is one column a role.
        """
        return [_flat(row) for row in self.rows]


def sweep(
    model: ModelConfig,
    system: System | Sequence[System],
    job: Train,
    *,
    peak: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Sweep:
    """The best plan for every combination of the options.

    Args:
        model: the architecture.
        system: the machine, or several to compare.
        job: the work, of which options may replace any field: `batch=[512, 1024]`.
        peak: expect peak rates.
        progress: called before each row with its number from 0 and the number of rows.
        options: fields of `Train`, roles of the mesh and words of a strategy, each with its values:
            `tensor=[1, 2, 4]`, `schedule=["1f1b", "interleaved"]`, `remat=["none", "full"]`; and
            `dtype`, of the arithmetic, which also sets weights (16 bits at least), with fp32
            gradients and an fp32 master of narrower weights.
            One value, not in a list, holds for all rows.

    Raises:
        UnknownName: an option that is none. BadInput: one without values, or over 1,000 rows.
    """
    systems = [system] if isinstance(system, System) else list(system)
    values = values_of(options, OPTIONS, "a sweep")
    rows = [
        _row(model, machine, job, given, told, peak=peak)
        for machine, given, told in combinations(systems, values, "plans", progress)
    ]
    every = {HARDWARE: tuple(s.name for s in systems), **values}
    return Sweep(model=model.name, options=every, rows=tuple(rows))


def _row(
    model: ModelConfig,
    system: System,
    job: Train,
    given: Mapping[str, Any],
    told: dict[str, Any],
    *,
    peak: bool,
) -> Row:
    """The plan of one combination, or why there is none."""
    # `remat` is a word of both; as part of the work it may be "auto".
    work = {name: value for name, value in given.items() if name in JOB}
    fixed = {name: v for name, v in given.items() if name in STRATEGY and name not in JOB}
    empty = Row(swept=told, hardware=system.name, n_chips=system.n_chips)
    try:
        if DTYPE in given:
            work = {**_mixed(given[DTYPE]), **work}
        best = build.plan(model, system, dataclasses.replace(job, **work), fixed, peak=peak)
    except ShardwiseError as error:
        return dataclasses.replace(empty, problem=error.problems[0])
    return _filled(empty, best)


def _mixed(dtype: str) -> dict[str, str]:
    """Fields of `Train` under arithmetic in `dtype`."""
    return {"compute": dtype, "weights": held_in(dtype), "gradients": "fp32", "master": "auto"}


def _filled(row: Row, plan: Plan) -> Row:
    estimate, strategy = plan.estimate, plan.strategy
    return dataclasses.replace(
        row,
        step_s=estimate.step_s,
        tokens_per_s=estimate.tokens_per_s,
        tokens_per_s_per_chip=estimate.tokens_per_s_per_chip,
        mfu=estimate.mfu,
        memory_bytes=plan.memory.total,
        bound=estimate.bound,
        mesh=strategy.mesh,
        schedule=strategy.schedule,
        zero=strategy.zero,
        remat=strategy.remat,
        n_microbatches=strategy.n_microbatches,
        run_s=estimate.run_s,
        usd=estimate.usd,
    )


def _flat(row: Row) -> dict[str, Any]:
    step, mesh = row.step_s, row.mesh or dict.fromkeys(INSIDE_OUT)
    rest = {
        field.name: getattr(row, field.name)
        for field in dataclasses.fields(row)
        if field.name not in ("swept", "step_s", "mesh", "problem")
    }
    return {
        **row.swept,
        "step_s": step.expected if step else None,
        "step_lower_s": step.lower if step else None,
        "step_upper_s": step.upper if step else None,
        **{name: value for name, value in rest.items() if name not in row.swept},
        **{f"mesh_{role}": mesh[role] for role in INSIDE_OUT},
        "problem": row.problem,
    }
