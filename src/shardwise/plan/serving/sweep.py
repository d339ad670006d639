"""Serving sweeps: the best deployment for every combination of the options, one row each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.errors import DoesNotFit, ShardwiseError
from shardwise.hardware import Chip, System, chip_of
from shardwise.models import ModelConfig
from shardwise.plan.schema.common import Range
from shardwise.plan.serving.arrivals import CLOSED_LOOP, Arrivals
from shardwise.plan.serving.attempts import searched
from shardwise.plan.serving.build import search_request
from shardwise.plan.serving.estimate import usd_per_million
from shardwise.plan.serving.refusals import shortage
from shardwise.plan.serving.time_parts import (
    decode_range,
    decode_sides,
    largest,
    mesh_of,
    usual_cache,
    usual_compute,
)
from shardwise.plan.sweep_grid import (
    HARDWARE,
    Progress,
    SweepTable,
    combinations,
    option_values,
    raise_if_all_bad,
    select_options,
)
from shardwise.search.serving.candidate import Candidate
from shardwise.search.serving.layouts import NUMBER_OPTIONS, WORD_OPTIONS
from shardwise.strategy.mesh import INSIDE_OUT
from shardwise.workload import Serve

# `dtype` is that of weights, KV caches and matmuls; the other two override it.
DTYPES = ("dtype", "kv_dtype", "compute")
# The options `weights` and `kv` are layouts, not the dtypes in the fields of `Serve`; `context` is
# the length of sequences, not the mesh role.
JOB_OPTIONS = tuple(
    field.name for field in dataclasses.fields(Serve) if field.name not in ("weights", "kv")
)
LAYOUT_OPTIONS = (
    *(role for role in INSIDE_OUT if role != "context"),
    *NUMBER_OPTIONS,
    *WORD_OPTIONS,
)
OPTIONS = (*DTYPES, *(name for name in JOB_OPTIONS if name not in DTYPES), *LAYOUT_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """One combination of options, with its best deployment or the reason why there is none.

    Args:
        swept: name -> value of the options that differ between rows.
        n_chips: chips of all engines.
        batch: sequences of one engine.
        engines: number of decode engines.
        step_s: seconds of a decoding pass.
        tpot_s, ttft_s: under a rate medians of simulated requests, otherwise means.
        prefill_s: seconds of a prefill pass.
        roofline_tokens_per_s_per_chip: throughput if passes took `step_s.lower`.
        memory_bytes: bytes per chip of the decode engines.
        max_batch: sequences that fit in one engine.
        bound, share: what takes longest of a pass (weights, kv, flops, network, software), and
            its share of the pass.
        usd_per_million_input_tokens, usd_per_million_output_tokens: None if the chip has no public
            price.
        mesh: size of each mesh role in one decode engine, except `data`: the number of engines.
        weights, kv: layouts of the weights and of the KV cache.
        prefill_mesh: mesh of separate prefill engines, if there are any.
        problem: why there is no deployment; the numbers are then None.
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
class ServingSweep(SweepTable):
    """All rows of a serving sweep, in the order of the options."""

    rows: tuple[ServedRow, ...]


def sweep(
    model: ModelConfig,
    machines_or_chips: System | Chip | Sequence[System | Chip],
    job: Serve,
    *,
    peak: bool = False,
    disaggregate: bool | None = None,
    progress: Progress | None = None,
    **options: Iterable[Any],
) -> ServingSweep:
    """Find the best deployment for every combination of options.

    Other arguments are those of `plan.api.sweep`.

    Args:
        machines_or_chips: one or several machines or chips; of a chip, the best machine is
            searched.
        disaggregate: as in `shardwise.plan`.
        options: name -> values to combine; a single value holds for all rows. Names are: `dtype`
            (of weights, KV caches and, if the chip supports it, matmuls), `kv_dtype`, `compute`;
            `batch`, `context`, `prompt`, `output`, `rate` and the other fields of `Serve`; the mesh
            roles, of which `data` counts engines; and `weights` and `kv`, the layouts of weights
            and of the KV cache.

    Raises:
        UnknownName: unknown option.
        BadInput: an option has no values, there are more than 1,000 rows, or no combination of the
            options is a possible input.
    """
    machines: list[System | Chip]
    if isinstance(machines_or_chips, System | Chip):
        machines = [machines_or_chips]
    else:
        machines = list(machines_or_chips)
    values = option_values(options, OPTIONS, "a sweep of serving")
    rows = [
        _row(model, machine, job, choices, swept, peak=peak, disaggregate=disaggregate)
        for machine, choices, swept in combinations(machines, values, "deployments", progress)
    ]
    raise_if_all_bad([error for _, error in rows])
    all_options = {HARDWARE: tuple(machine.name for machine in machines), **values}
    return ServingSweep(model=model.name, options=all_options, rows=tuple(row for row, _ in rows))


def _row(
    model: ModelConfig,
    machine_or_chip: System | Chip,
    job: Serve,
    choices: Mapping[str, Any],
    swept: dict[str, Any],
    *,
    peak: bool,
    disaggregate: bool | None,
) -> tuple[ServedRow, ShardwiseError | None]:
    """Search one combination; the row has the reason, and the error stands beside it, if there is
    no deployment."""
    row = ServedRow(swept=swept, hardware=machine_or_chip.name)
    fixed = select_options(choices, LAYOUT_OPTIONS)
    chip = chip_of(machine_or_chip)
    try:
        row_job = _job(job, choices, chip)
        request = search_request(
            model, machine_or_chip, row_job, fixed, peak=peak, disaggregate=disaggregate
        )
        arrivals = Arrivals() if row_job.rate else None
        if row_job.users:
            arrivals = CLOSED_LOOP
        try:
            _, ranking, traffic = searched(request, 1, arrivals, largest=False)
        except DoesNotFit as error:
            return replace(row, problem=shortage(request)[0]), error
    except ShardwiseError as error:
        return replace(row, problem=error.problems[0]), error
    row = _with_numbers(row, ranking.candidates[0])
    if traffic:
        row = replace(row, tpot_s=traffic.tpot_s.p50, ttft_s=traffic.ttft_s.p50)
    return row, None


def _job(job: Serve, choices: Mapping[str, Any], chip: Chip) -> Serve:
    job_fields = select_options(choices, JOB_OPTIONS)
    if "dtype" in choices:
        dtype = choices["dtype"]
        dtypes = {
            "weights": dtype,
            "kv": usual_cache(dtype, chip),
            "compute": usual_compute(dtype, chip),
        }
        job_fields = {**dtypes, **job_fields}
    if "kv_dtype" in choices:
        job_fields["kv"] = choices["kv_dtype"]
    if "prompt" in job_fields or "output" in job_fields:
        job_fields.setdefault("context", 0)
    elif "context" in job_fields:
        job_fields |= {"prompt": None, "output": None}
    return replace(job, **job_fields)


def _with_numbers(row: ServedRow, best: Candidate) -> ServedRow:
    server = best.server
    step_s = decode_range(server, best.batch)
    sides = decode_sides(server, best.batch)
    bound = largest(sides)
    cost: dict[str, Any] = {}
    usd = usd_per_million(best)
    if usd:
        cost["usd_per_million_input_tokens"] = usd.input
        cost["usd_per_million_output_tokens"] = usd.output
    roofline_tokens_per_s = server.count * best.batch / server.per_token(step_s.lower)
    requests_per_s = None
    if best.job.output is not None:
        requests_per_s = best.requests_per_s
    return replace(
        row,
        hardware=server.system.name,
        n_chips=best.chips,
        dtype=best.job.weights,
        kv_dtype=best.job.kv,
        batch=best.batch,
        engines=server.count,
        step_s=step_s,
        tpot_s=best.tpot_s,
        ttft_s=best.ttft_s,
        prefill_s=float((best.prefill_server or server).prefill().step_s),
        tokens_per_s=best.tokens_per_s,
        tokens_per_s_per_chip=best.tokens_per_s / best.chips,
        roofline_tokens_per_s_per_chip=roofline_tokens_per_s / best.chips,
        requests_per_s=requests_per_s,
        requests_per_s_per_chip=requests_per_s and requests_per_s / best.chips,
        memory_bytes=float(server.memory(best.batch).total),
        max_batch=server.max_batch,
        bound=bound,
        share=sides[bound] / sum(sides.values()),
        **cost,
        mesh=mesh_of(server),
        weights=server.layout.weights,
        kv=server.layout.kv,
        prefill_mesh=mesh_of(best.prefill_server) if best.prefill_server else None,
    )
