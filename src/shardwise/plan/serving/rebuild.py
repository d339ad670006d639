"""The inputs behind a serving plan, from the plan alone: to evaluate, to search, or to simulate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shardwise.errors import BadFile, ShardwiseError
from shardwise.hardware import Chip, Switched, System, Torus
from shardwise.hardware.shape import parse_shape
from shardwise.hardware.torus import make_slice
from shardwise.models import ModelConfig
from shardwise.plan.machine import placement_of, system_of
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.serving import PlannedEngines, ServingPlan
from shardwise.search.given import fixed_of
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.layouts import on, side_by_side
from shardwise.search.serving.rank import Request
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve


def rebuild(plan: ServingPlan) -> tuple[Request, Candidate]:
    """What was searched, and the deployment that was taken; evaluated again it gives the numbers.

    The plan's own figures of the chip count where the catalog has others today.

    Raises:
        BadFile: the plan's parts are no model, machine, work or layout; says which.
    """
    try:
        return _rebuilt(plan)
    except BadFile:
        raise
    except ShardwiseError as error:
        raise BadFile(*(f"the plan cannot be read again: {p}" for p in error.problems)) from None


def _rebuilt(plan: ServingPlan) -> tuple[Request, Candidate]:
    model, system = model_of(plan.model.architecture), system_of(plan.hardware)
    strategy, told = plan.strategy, plan.estimate
    job = _job(plan)
    asked = Request(
        config=model,
        where=system if strategy.searched == "machine" else system.chip,
        jobs=(job,),
        fixed=fixed_of(strategy.fixed, strategy.most),
        peak=told.rates.name == "peak",
        disaggregate=strategy.disaggregated,
    )
    reader = _server(asked, model, job, system, strategy.prefill) if strategy.prefill else None
    chosen = Candidate(
        server=_server(asked, model, job, system, strategy.servers),
        batch=told.decode.batch,
        reader=reader,
        busy=told.prefill.busy if reader else 0.0,
        chips=strategy.n_chips,
        transfer_s=told.prefill.transfer_s,
    )
    return asked, chosen


def _job(plan: ServingPlan) -> Serve:
    held = plan.strategy.precision
    work = {f.name: getattr(plan.workload, f.name) for f in dataclasses.fields(plan.workload)}
    del work["kind"]
    return Serve(weights=held["weights"], kv=held["kv"], compute=held["compute"], **work)


def _server(
    asked: Request, model: ModelConfig, job: Serve, system: System, told: PlannedEngines
) -> Server:
    here = system if told.hardware == system.name else _machine(system.chip, told.hardware)
    room = side_by_side(system, told.n_chips) if asked.sized else 1
    layout = ServeLayout(
        mesh=Mesh(**{**told.mesh, "data": room}),
        weights=told.weights,
        kv=told.kv,
        expert_tensor=told.expert_tensor,
    )
    return Server(
        config=model,
        job=job,
        system=here,
        layout=layout,
        placement=engine_placement(here, layout.mesh, told.placement),
        rates=asked.rates(job),
        count=told.count,
    )


def _machine(chip: Chip, name: str) -> System:
    """Another machine of the same chip."""
    shape = parse_shape(name.rpartition(":")[2].partition(",")[0], "size")
    topology: Torus | Switched
    if chip.ici:
        topology = make_slice(chip, shape)
    else:
        topology = Switched(n_gpus=shape[0], domain=chip.node.n_gpus if chip.node else shape[0])
    return System(name=name, chip=chip, topology=topology)


def engine_placement(system: System, mesh: Mesh, descriptions: Mapping[str, str]) -> Placement:
    """The placement of one engine that a plan describes; `data` counts engines and has no links.

    Raises:
        BadFile: no placement of `mesh` on `system` has these descriptions.
    """
    links = {role: text for role, text in descriptions.items() if role != "data"}
    return placement_of(links, place(*on(system, mesh)), mesh, system)
