"""Sweep of serving: the best deployment for every combination of some options, one row each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.errors import DoesNotFit, ShardwiseError
from shardwise.estimate.serving.steady_state import in_flight
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig
from shardwise.plan.schema.common import Range
from shardwise.plan.serving.build import request
from shardwise.plan.serving.estimate import usd
from shardwise.plan.serving.refusals import shortage
from shardwise.plan.serving.time_parts import (
    critical_batch,
    decode_range,
    mesh_of,
    sides,
    usual_compute,
)
from shardwise.plan.sweep_grid import HARDWARE, combinations, values_of
from shardwise.search.serving.candidate import Candidate
from shardwise.search.serving.layouts import NUMBERS, WORDS
from shardwise.search.serving.rank import rank
from shardwise.strategy.mesh import INSIDE_OUT
from shardwise.workload import Serve

DTYPES = ("dtype", "kv_dtype", "compute")  # of weights; of caches, products where they differ
# `weights` and `kv` are words of a layout here; `context` is the length of sequences, no axis.
JOB = tuple(
    field.name for field in dataclasses.fields(Serve) if field.name not in ("weights", "kv")
)
LAYOUT = (*(role for role in INSIDE_OUT if role != "context"), *NUMBERS, *WORDS)
OPTIONS = (*DTYPES, *(name for name in JOB if name not in DTYPES), *LAYOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """One combination and its best deployment; only `swept` and `problem` where there is none.

    Args:
        swept: the options of this row.
        step_s: a decoding pass; `lower` is the roofline with all communication hidden.
        batch: sequences of one engine, of which there are `engines`.
        roofline_tokens_per_s_per_chip: of passes that take `step_s.lower`.
        bound, share: what takes longest of a pass (weights, kv, flops, network, software), and
            its share of it.
        usd_per_million_input_tokens, usd_per_million_output_tokens: None without a public price.
        prefill_mesh: of engines that only read prompts, where there are any.
        problem: why there is no deployment.
    """

    swept: dict[str, Any]
    hardware: str
    n_chips: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    batch: int | None = None
    engines: int | None = None
    step_s: Range | None = None
    tpot_s: float | None = None
    ttft_s: float | None = None
    prefill_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_chip: float | None = None
    roofline_tokens_per_s_per_chip: float | None = None
    requests_per_s: float | None = None
    requests_per_s_per_chip: float | None = None
    memory_bytes: float | None = None
    max_batch: int | None = None
    bound: str | None = None
    share: float | None = None
    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    mesh: dict[str, int] | None = None
    weights: str | None = None
    kv: str | None = None
    prefill_mesh: dict[str, int] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSweep:
    """Every row, in the order of the options."""

    model: str
    options: dict[str, tuple[Any, ...]]
    rows: tuple[ServedRow, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat dict a row, for pandas or polars: options first, then the numbers.

        Times are in seconds, memory in bytes per chip, the mesh is one column a role.
        """
        return [_flat(row) for row in self.rows]


def sweep(
    model: ModelConfig,
    where: System | Chip | Sequence[System | Chip],
    job: Serve,
    *,
    peak: bool = False,
    disaggregate: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Iterable[Any],
) -> ServingSweep:
    """The best deployment for every combination of the options.

    Args:
        model: the architecture.
        where: a machine, or a chip whose machines are searched; or several.
        job: the requests, of which options may replace any field: `batch=[1, 8, 32]`.
        peak: expect peak rates.
        disaggregate: as in `shardwise.plan`.
        progress: called before each row with its number from 0 and the number of rows.
        options: `dtype` (of weights, caches and, where the chip has it, products), `kv_dtype`,
            `compute`; `batch`, `context`, `prompt`, `output`, `rate` and the other fields of
            `Serve`; roles of the mesh (`data` counts engines) and the words `weights` and `kv` of
            a layout; each with its values. One value, not in a list, holds for all rows.

    Raises:
        UnknownName: an option that is none. BadInput: one without values, or over 1,000 rows.
    """
    machines = [where] if isinstance(where, System | Chip) else list(where)
    values = values_of(options, OPTIONS, "a sweep of serving")
    rows = [
        _row(model, machine, job, given, told, peak, disaggregate)
        for machine, given, told in combinations(machines, values, "deployments", progress)
    ]
    every = {HARDWARE: tuple(m.name for m in machines), **values}
    return ServingSweep(model=model.name, options=every, rows=tuple(rows))


def _row(
    model: ModelConfig,
    where: System | Chip,
    job: Serve,
    given: Mapping[str, Any],
    told: dict[str, Any],
    peak: bool,
    disaggregate: bool | None,
) -> ServedRow:
    """The deployment of one combination, or why there is none."""
    empty = ServedRow(swept=told, hardware=where.name)
    try:
        work = _job(job, given, where if isinstance(where, Chip) else where.chip)
        fixed = {name: value for name, value in given.items() if name in LAYOUT}
        asked = request(model, where, work, fixed, peak=peak, disaggregate=disaggregate)
        try:
            best = rank(asked, 0).candidates[0]
        except DoesNotFit:
            return replace(empty, problem=shortage(asked)[0])
    except ShardwiseError as error:
        return replace(empty, problem=error.problems[0])
    return _filled(empty, best)


def _job(job: Serve, given: Mapping[str, Any], chip: Chip) -> Serve:
    work = {name: value for name, value in given.items() if name in JOB}
    if "dtype" in given:
        held = given["dtype"]
        work = {"weights": held, "kv": held, "compute": usual_compute(held, chip), **work}
    if "kv_dtype" in given:
        work["kv"] = given["kv_dtype"]
    if "prompt" in work or "output" in work:
        work.setdefault("context", 0)
    elif "context" in work:
        work |= {"prompt": None, "output": None}
    return replace(job, **work)


def _filled(row: ServedRow, best: Candidate) -> ServedRow:
    server, step = best.server, decode_range(best.server, best.batch)
    chip, ends = server.rates.chip, best.job.output is not None
    here = float(in_flight(server.engine, best.batch))
    flops = here > critical_batch(server.config, server)
    spent = sides(server.decode(best.batch), flops=flops)
    bound = max(spent, key=lambda name: spent[name])
    money = usd(best, chip.usd_per_chip_hour) if chip.usd_per_chip_hour else None
    most = server.count * best.batch / server.per_token(step.lower)
    return replace(
        row,
        hardware=server.system.name,
        n_chips=best.chips,
        dtype=best.job.weights,
        kv_dtype=best.job.kv,
        batch=best.batch,
        engines=server.count,
        step_s=step,
        tpot_s=best.tpot_s,
        ttft_s=best.ttft_s,
        prefill_s=float((best.reader or server).prefill().step_s),
        tokens_per_s=best.tokens_per_s,
        tokens_per_s_per_chip=best.tokens_per_s / best.chips,
        roofline_tokens_per_s_per_chip=most / best.chips,
        requests_per_s=best.requests_per_s if ends else None,
        requests_per_s_per_chip=best.requests_per_s / best.chips if ends else None,
        memory_bytes=float(server.memory(best.batch).total),
        max_batch=server.max_batch,
        bound=bound,
        share=spent[bound] / sum(spent.values()),
        usd_per_million_input_tokens=money.input if money else None,
        usd_per_million_output_tokens=money.output if money else None,
        mesh=mesh_of(server),
        weights=server.layout.weights,
        kv=server.layout.kv,
        prefill_mesh=mesh_of(best.reader) if best.reader else None,
    )


def _flat(row: ServedRow) -> dict[str, Any]:
    step, mesh = row.step_s, row.mesh or dict.fromkeys(INSIDE_OUT)
    left_out = ("swept", "step_s", "mesh", "prefill_mesh", "problem")
    rest = {
        field.name: getattr(row, field.name)
        for field in dataclasses.fields(row)
        if field.name not in left_out
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
