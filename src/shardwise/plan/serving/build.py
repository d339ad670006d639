"""Make a serving plan: search the deployments and write down everything about the one to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwise.errors import BadInput, NotDivisible, raise_all
from shardwise.estimate.serving.load import decoding, prompts
from shardwise.estimate.serving.steady_state import at_once, in_flight
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig
from shardwise.plan.machine import planned_hardware
from shardwise.plan.schema import serving
from shardwise.plan.schema.architecture import planned_model
from shardwise.plan.serving import reasons, refusals
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.estimate import estimate, usd
from shardwise.plan.serving.operations import operations
from shardwise.plan.serving.time_parts import mesh_of
from shardwise.plan.serving.traffic_search import STARTS, under_traffic
from shardwise.search.given import Choices
from shardwise.search.serving import rank
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.layouts import problems, read_fixed
from shardwise.strategy.serving_layout import serve_rules
from shardwise.workload import Serve


def plan(
    model: ModelConfig,
    where: System | Chip,
    job: Serve | Sequence[Serve],
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
    disaggregate: bool | None = None,
    arrivals: Arrivals | None = None,
    largest: bool = False,
) -> serving.ServingPlan:
    """The deployment to take.

    Args:
        model: the architecture.
        where: a machine, or a chip whose machines are searched.
        job: the requests, with their bounds; several for several dtypes.
        fixed: what is given of a layout: sizes of mesh roles, `expert_tensor`, and the words
            `weights` and `kv`.
        most: largest sizes of mesh roles.
        peak: expect the chip's peaks and no software, as the book does.
        disaggregate: True for engines of their own for prompts, False for none, None for what is
            better, looked at where a rate or a bound is given.
        arrivals: requests that are simulated, so that the bounds hold for a share of them and not
            for their means; None for the means alone.
        largest: also find the largest rate that keeps the bounds.

    Raises:
        UnknownName: a role or word that is none. NotDivisible: a fixed size that divides nothing.
        NoStrategy: no legal engine, or none within the bounds; the message says what comes nearest.
        DoesNotFit: no engine holds the model and one sequence.
        UnknownFigure: a figure that the chip's file does not have.
    """
    return search(
        model,
        where,
        job,
        fixed,
        1,
        most=most,
        peak=peak,
        disaggregate=disaggregate,
        arrivals=arrivals,
        largest=largest,
    )[0]


def search(
    model: ModelConfig,
    where: System | Chip,
    job: Serve | Sequence[Serve],
    fixed: Choices | None = None,
    n: int = 5,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
    disaggregate: bool | None = None,
    arrivals: Arrivals | None = None,
    largest: bool = False,
) -> list[serving.ServingPlan]:
    """The `n` best deployments of different engines, best first. Raises as `plan` does.

    Only the first one is simulated.
    """
    jobs: Serve | Sequence[Serve] = job
    if arrivals:
        given = (job,) if isinstance(job, Serve) else tuple(job)
        jobs = tuple(arrivals.asked_of(j) for j in given)
    asked = request(model, where, jobs, fixed, most=most, peak=peak, disaggregate=disaggregate)
    keep = max(n, rank.SHOWN)
    every = max(keep, STARTS) if arrivals else keep
    found = refusals.ranked(asked, every, each_reader=arrivals is not None)
    told = None
    if arrivals:
        found, told = under_traffic(asked, found, arrivals, largest=largest)
    found = replace(found, candidates=found.candidates[: keep + 1])
    first, *others = found.candidates
    rest = [c for c in others if c != first]
    plans = [
        _write(asked, replace(found, candidates=[c, *(o for o in found.candidates if o is not c)]))
        for c in [first, *rest][:n]
    ]
    best = plans[0]
    return [replace(best, estimate=replace(best.estimate, traffic=told)), *plans[1:]]


def request(
    model: ModelConfig,
    where: System | Chip,
    job: Serve | Sequence[Serve],
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
    disaggregate: bool | None = None,
) -> rank.Request:
    """What is searched, after its mistakes are told. Arguments as in `plan`.

    Raises:
        BadInput, BadShape, UnknownName, NotDivisible: see `plan`.
    """
    jobs = (job,) if isinstance(job, Serve) else tuple(job)
    _check(model, where, jobs, disaggregate)
    given = read_fixed(fixed, most)
    system = where if isinstance(where, System) else None
    raise_all(NotDivisible, problems(model, system, given))
    return rank.Request(
        config=model,
        where=where,
        jobs=jobs,
        fixed=given,
        peak=peak,
        disaggregate=disaggregate,
    )


def _check(
    model: ModelConfig, where: System | Chip, jobs: Sequence[Serve], disaggregate: bool | None
) -> None:
    """Names are read by `sw.model` and `sw.hardware`; a plan takes what they return."""
    found = []
    if not isinstance(model, ModelConfig):
        found.append(f"{model!r} is not what sw.model(...) returns.")
    if not isinstance(where, System | Chip):
        found.append(f"{where!r} is not what sw.hardware(...) or sw.chip(...) returns.")
    found += [f"{j!r} is not what sw.Serve(...) returns." for j in jobs if not isinstance(j, Serve)]
    if not jobs:
        found.append("no work is given.")
    elif jobs[0].output is None and (jobs[0].rate or disaggregate):
        what = "a rate needs" if jobs[0].rate else "engines of their own for prompts need"
        found.append(f"{what} the length of prompts and of answers: prompt and output.")
    raise_all(BadInput, found)


def _write(asked: rank.Request, found: rank.Ranking) -> serving.ServingPlan:
    chosen = found.candidates[0]
    job, server = chosen.job, chosen.server
    told = estimate(asked.config, chosen)
    peak = server.ideal
    here = in_flight(peak, chosen.batch)
    load = decoding(here, job.mean_context, 1 + job.drafted)
    reader = chosen.reader or server
    known = job.prompt_tokens - job.fresh_tokens
    first = prompts(at_once(reader.ideal), job.prompt_tokens, known)
    return serving.ServingPlan(
        model=planned_model(asked.config),
        hardware=planned_hardware(server.system),
        workload=serving.ServedWork(
            kind="serve",
            context=job.context,
            prompt=job.prompt,
            output=job.output,
            batch=job.batch,
            rate=job.rate,
            ttft_s=job.ttft_s,
            tpot_s=job.tpot_s,
            cached=job.cached,
            drafted=job.drafted,
            acceptance=job.acceptance,
            draft_cost=job.draft_cost,
        ),
        strategy=serving.ServingStrategy(
            mesh=mesh_of(server),
            precision={"weights": job.weights, "kv": job.kv, "compute": job.compute},
            servers=_servers(server),
            prefill=_servers(chosen.reader) if chosen.reader else None,
            disaggregated=chosen.reader is not None,
            n_chips=chosen.chips,
            searched="machine" if asked.sized else "chip",
            rule=found.rule,
            fixed=dict(asked.fixed),
            most=dict(asked.fixed.max_sizes),
        ),
        estimate=told,
        operations=(*operations(peak, load, "decode"), *operations(reader.ideal, first, "prefill")),
        why=reasons.reasons(asked, found, told),
        alternatives=tuple(_point(c, chosen) for c in found.candidates[1:]),
        pareto=tuple(_point(c, chosen) for c in found.front),
    )


def _servers(server: Server) -> serving.PlannedEngines:
    layout, mesh = server.layout, mesh_of(server)
    return serving.PlannedEngines(
        mesh=mesh,
        placement={r: server.placement.describe(r) for r, n in mesh.items() if n > 1},
        rules=dict(serve_rules(layout)),
        weights=layout.weights,
        kv=layout.kv,
        expert_tensor=layout.expert_tensor,
        hardware=server.system.name,
        count=server.count,
        n_chips=server.n_chips,
    )


def _point(other: Candidate, chosen: Candidate) -> serving.ServingPoint:
    server, reader = other.server, other.reader
    hourly = server.rates.chip.usd_per_chip_hour
    return serving.ServingPoint(
        hardware=server.system.name,
        mesh=mesh_of(server),
        weights=server.layout.weights,
        kv=server.layout.kv,
        expert_tensor=server.layout.expert_tensor,
        dtype=other.job.weights,
        batch=other.batch,
        engines=server.count,
        prefill_mesh=mesh_of(reader) if reader else None,
        prefill_engines=reader.count if reader else 0,
        n_chips=other.chips,
        tpot_s=other.tpot_s,
        ttft_s=other.ttft_s,
        tokens_per_s=other.tokens_per_s,
        tokens_per_s_per_chip=other.tokens_per_s / other.chips,
        usd_per_million_output_tokens=usd(other, hourly).output if hourly else None,
        memory_bytes_per_chip=float(server.memory(other.batch).total),
        loses_on=reasons.loses_on(other, chosen),
    )
