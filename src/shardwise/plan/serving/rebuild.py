"""Rebuild the inputs of a serving plan, to evaluate, search again, or simulate the deployment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shardwise.estimate.serving.overhead import engine_overhead
from shardwise.hardware import Chip, Switched, System, Torus
from shardwise.hardware.shape import parse_shape
from shardwise.hardware.torus import make_slice
from shardwise.plan.machine import errors_at, find_placement, system_of
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.serving import PlannedEngines, ServingPlan
from shardwise.search.given import fixed_of
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.layouts import engine_machine, engines_per_machine
from shardwise.search.serving.rank import Request
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve


def rebuild(plan: ServingPlan) -> tuple[Request, Candidate]:
    """Rebuild the search request of a plan, and the deployment that it chose.

    Evaluating the deployment gives the plan's numbers again. The chip has the numbers recorded in
    the plan, even if the catalog has changed since.

    Raises:
        BadFile: a part of the plan is not a valid model, machine, workload or layout.
    """
    strategy = plan.strategy
    estimate = plan.estimate
    with errors_at("$.model.architecture"):
        model = model_of(plan.model.architecture)
    with errors_at("$.hardware"):
        system = system_of(plan.hardware)
    with errors_at("$.workload or $.strategy.precision"):
        job = _job(plan)
    with errors_at("$.workload.engine"):
        engine_overhead(job.engine)
    request = Request(
        config=model,
        hardware=system if strategy.searched == "machine" else system.chip,
        jobs=(job,),
        fixed=fixed_of(strategy.fixed, strategy.most),
        peak=estimate.rates.name == "peak",
        disaggregate=strategy.disaggregated,
    )
    with errors_at("$.strategy.servers"):
        server = _server(request, system, strategy.servers)
    prefill_server = None
    prefill_busy = 0.0
    if strategy.prefill:
        prefill_busy = estimate.prefill.busy
        with errors_at("$.strategy.prefill"):
            prefill_server = _server(request, system, strategy.prefill)
    return request, Candidate(
        server=server,
        batch=estimate.decode.batch,
        prefill_server=prefill_server,
        prefill_busy=prefill_busy,
        chips=strategy.n_chips,
        transfer_s=estimate.prefill.transfer_s,
        simulated_rate=estimate.requests_per_s if job.users else None,
    )


def _job(plan: ServingPlan) -> Serve:
    workload = {
        field.name: getattr(plan.workload, field.name)
        for field in dataclasses.fields(plan.workload)
        if field.name != "kind"
    }
    for name in ("weights", "kv", "compute"):
        workload[name] = plan.strategy.precision[name]
    return Serve(**workload)


def _server(request: Request, system: System, engines: PlannedEngines) -> Server:
    """Rebuild the decode engines or the prefill engines of a plan.

    Args:
        request: the search request of the plan.
        system: the machine of the plan. The engines may be on another machine of the same chip.
    """
    machine = system
    if engines.hardware != system.name:
        machine = _machine(system.chip, engines.hardware)
    n_engines = engines_per_machine(system, engines.n_chips) if request.machine_is_given else 1
    layout = ServeLayout(
        mesh=Mesh(**{**engines.mesh, "data": n_engines}),
        weights=engines.weights,
        kv=engines.kv,
        expert_tensor=engines.expert_tensor,
    )
    return Server(
        config=request.config,
        job=request.job,
        system=machine,
        layout=layout,
        placement=engine_placement(machine, layout.mesh, engines.placement),
        rates=request.rates(request.job),
        count=engines.count,
    )


def _machine(chip: Chip, name: str) -> System:
    """The machine of `chip` whose size is in `name`: `h100:4`."""
    shape = parse_shape(name.rpartition(":")[2].partition(",")[0], "size")
    topology: Torus | Switched
    if chip.ici:
        topology = make_slice(chip, shape)
    else:
        topology = Switched(n_gpus=shape[0], domain=chip.node.n_gpus if chip.node else shape[0])
    return System(name=name, chip=chip, topology=topology)


def engine_placement(system: System, mesh: Mesh, descriptions: Mapping[str, str]) -> Placement:
    """Find the placement of one engine that a plan describes.

    The role `data` counts engines and uses no links, so its description is ignored.

    Args:
        system: the machine of the engine.
        descriptions: role -> links that its mesh axis uses, in words.

    Raises:
        BadFile: no placement of `mesh` on `system` has these descriptions.
    """
    links = {role: text for role, text in descriptions.items() if role != "data"}
    return find_placement(links, place(*engine_machine(system, mesh)), mesh, system)
