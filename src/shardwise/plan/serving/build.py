"""Make serving plans: search the deployments, and record the best one with its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from shardwise import units
from shardwise.errors import BadInput, NotDivisible, raise_all
from shardwise.estimate.serving.overhead import engine_problems
from shardwise.hardware import Chip, System, chip_of
from shardwise.models import ModelConfig
from shardwise.plan.arguments import check_types
from shardwise.plan.machine import describe_links, planned_hardware
from shardwise.plan.schema import serving
from shardwise.plan.schema.architecture import planned_model
from shardwise.plan.schema.common import Operation
from shardwise.plan.serving import reasons
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.attempts import searched
from shardwise.plan.serving.estimate import estimate, output_usd, with_traffic
from shardwise.plan.serving.operations import operations
from shardwise.plan.serving.time_parts import mesh_of
from shardwise.search.given import Choices
from shardwise.search.serving import rank
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.layouts import problems, read_fixed
from shardwise.strategy.serving_layout import serve_rules
from shardwise.workload import Serve


def plan(
    model: ModelConfig,
    machine_or_chip: System | Chip,
    job: Serve | Sequence[Serve],
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
    disaggregate: bool | None = None,
    arrivals: Arrivals | None = None,
    largest: bool = False,
) -> serving.ServingPlan:
    """Search the best deployment. Other arguments and errors are those of `plan.api.plan`.

    Args:
        machine_or_chip: the machine; or a chip, one of whose machines the search then chooses.
        job: the requests with their bounds; several jobs compare the same requests in several
            dtypes.
        arrivals: requests to simulate, so that a share of them meets the bounds; without them, the
            means meet the bounds.
        largest: also find the highest request rate that meets the bounds.
    """
    return search(
        model,
        machine_or_chip,
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
    machine_or_chip: System | Chip,
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
    """Search the `n` best deployments with different engines, best first.

    With `arrivals`, only the best one is simulated. Arguments and errors are those of `plan`.
    """
    jobs = _as_jobs(job)
    if arrivals:
        jobs = tuple(arrivals.mean_job(j) for j in jobs)
    request = search_request(
        model, machine_or_chip, jobs, fixed, most=most, peak=peak, disaggregate=disaggregate
    )
    n_candidates = max(n, rank.SHOWN)
    request, ranking, traffic = searched(request, n_candidates, arrivals, largest=largest)
    candidates = ranking.candidates[: n_candidates + 1]
    best, *runners_up = candidates
    plans = []
    for chosen in [best, *(candidate for candidate in runners_up if candidate != best)][:n]:
        reordered = [chosen, *(candidate for candidate in candidates if candidate is not chosen)]
        plans.append(_record_plan(request, replace(ranking, candidates=reordered)))
    if traffic:
        plans[0] = replace(plans[0], estimate=with_traffic(plans[0].estimate, best, traffic))
    return plans


def best_deployment(
    model: ModelConfig,
    machine_or_chip: System | Chip,
    job: Serve,
    fixed: Choices | None = None,
    *,
    peak: bool = False,
    disaggregate: bool | None = None,
) -> Candidate:
    """The deployment that `plan` chooses, without its reasons and alternatives.

    A curve along a slider has dozens, of which it shows a few numbers each. Arguments and errors
    are those of `plan`.
    """
    request = search_request(
        model, machine_or_chip, job, fixed, peak=peak, disaggregate=disaggregate
    )
    _, ranking, _ = searched(request, rank.SHOWN, None, largest=False)
    return ranking.candidates[0]


def _as_jobs(job: Serve | Sequence[Serve]) -> tuple[Serve, ...]:
    return (job,) if isinstance(job, Serve) else tuple(job)


def search_request(
    model: ModelConfig,
    machine_or_chip: System | Chip,
    job: Serve | Sequence[Serve],
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
    disaggregate: bool | None = None,
) -> rank.Request:
    """Make the request for a search, and check it. Arguments are those of `plan`.

    Raises:
        BadInput, BadShape, UnknownName, NotDivisible: an argument is wrong; the error lists all
            problems of its kind.
    """
    jobs = _as_jobs(job)
    _check_arguments(model, machine_or_chip, jobs, disaggregate)
    choices = read_fixed(fixed, most)
    system = machine_or_chip if isinstance(machine_or_chip, System) else None
    raise_all(NotDivisible, problems(model, system, choices))
    return rank.Request(
        config=model,
        hardware=machine_or_chip,
        jobs=jobs,
        fixed=choices,
        peak=peak,
        disaggregate=disaggregate,
    )


def _check_arguments(
    model: ModelConfig,
    machine_or_chip: System | Chip,
    jobs: Sequence[Serve],
    disaggregate: bool | None,
) -> None:
    check_types(
        [
            (model, ModelConfig, "sw.model(...)"),
            (machine_or_chip, (System, Chip), "sw.hardware(...) or sw.chip(...)"),
            *((job, Serve, "sw.Serve(...)") for job in jobs),
        ]
    )
    if not jobs:
        raise BadInput("pass a workload: sw.Serve(...).")
    chip = chip_of(machine_or_chip)
    raise_all(BadInput, engine_problems(jobs[0].engine, chip))
    for job in jobs:
        if units.bytes_per_element(job.compute) != 2:  # every chip has products of 16 bits
            chip.peak(job.compute)
    if jobs[0].output is None and (jobs[0].states_load or disaggregate):
        option = "separate prefill engines need"
        if jobs[0].states_load:
            option = "users need" if jobs[0].users else "a rate needs"
        raise BadInput(f"{option} the lengths of requests: prompt and output.")


def _record_plan(request: rank.Request, ranking: rank.Ranking) -> serving.ServingPlan:
    chosen = ranking.candidates[0]
    job = chosen.job
    server = chosen.server
    planned_estimate = estimate(request.config, chosen)
    workload = {
        field.name: getattr(job, field.name)
        for field in fields(serving.ServedWork)
        if field.name != "kind"
    }
    return serving.ServingPlan(
        model=planned_model(request.config),
        hardware=planned_hardware(server.system),
        workload=serving.ServedWork(kind="serve", **workload),
        strategy=serving.ServingStrategy(
            mesh=mesh_of(server),
            precision={"weights": job.weights, "kv": job.kv, "compute": job.compute},
            servers=_planned_engines(server),
            prefill=_planned_engines(chosen.prefill_server) if chosen.prefill_server else None,
            disaggregated=chosen.prefill_server is not None,
            n_chips=chosen.chips,
            searched="machine" if request.machine_is_given else "chip",
            rule=ranking.rule,
            fixed=dict(request.fixed),
            most=dict(request.fixed.max_sizes),
        ),
        estimate=planned_estimate,
        operations=_operations(chosen),
        why=reasons.reasons(request, ranking, planned_estimate),
        alternatives=tuple(_other_point(c, chosen) for c in ranking.candidates[1:]),
        pareto=tuple(_other_point(c, chosen) for c in ranking.front),
    )


def _operations(chosen: Candidate) -> tuple[Operation, ...]:
    """The operations of a decoding pass and of a prefill pass."""
    prefill_server = chosen.prefill_server or chosen.server
    decode_pass = chosen.server.decode_load(chosen.batch)
    return (
        *operations(chosen.server.ideal, decode_pass, "decode"),
        *operations(prefill_server.ideal, prefill_server.prefill_load, "prefill"),
    )


def _planned_engines(server: Server) -> serving.PlannedEngines:
    layout = server.layout
    mesh = mesh_of(server)
    return serving.PlannedEngines(
        mesh=mesh,
        placement=describe_links(server.placement, mesh),
        rules=dict(serve_rules(layout)),
        weights=layout.weights,
        kv=layout.kv,
        expert_tensor=layout.expert_tensor,
        hardware=server.system.name,
        count=server.count,
        n_chips=server.n_chips,
    )


def _other_point(other: Candidate, chosen: Candidate) -> serving.ServingPoint:
    server = other.server
    return serving.ServingPoint(
        hardware=server.system.name,
        mesh=mesh_of(server),
        weights=server.layout.weights,
        kv=server.layout.kv,
        expert_tensor=server.layout.expert_tensor,
        dtype=other.job.weights,
        batch=other.batch,
        engines=server.count,
        prefill_mesh=mesh_of(other.prefill_server) if other.prefill_server else None,
        prefill_engines=other.n_prefill,
        n_chips=other.chips,
        tpot_s=other.tpot_s,
        ttft_s=other.ttft_s,
        tokens_per_s=other.tokens_per_s,
        tokens_per_s_per_chip=other.tokens_per_s / other.chips,
        usd_per_million_output_tokens=output_usd(other),
        memory_bytes_per_chip=float(server.memory(other.batch).total),
        loses_on=reasons.loses_on(other, chosen),
    )
