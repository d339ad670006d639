"""The deployment behind a serving plan, from the plan alone: to evaluate it with other numbers."""

from __future__ import annotations

from dataclasses import replace

from shardwise.errors import BadFile, ShardwiseError
from shardwise.estimate.engine.rates import ServeRates
from shardwise.estimate.engine.shares import shares
from shardwise.estimate.engine.software import USUAL
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.plan.rebuild import model_of, system_of
from shardwise.plan.serve_value import Servers, ServingPlan
from shardwise.search.serve_candidate import Candidate, Server
from shardwise.search.serve_layouts import on, side_by_side
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.serving import ServeLayout
from shardwise.workload import Serve


def rebuild(plan: ServingPlan) -> Candidate:
    """The deployment of a plan; evaluated again it gives the plan's numbers.

    The plan's own figures of the chip count where the catalog has others today.

    Raises:
        BadFile: the plan's parts are no model, machine, work or layout; says which.
    """
    try:
        config, job = model_of(plan.model.architecture), _job(plan)
        strategy, told = plan.strategy, plan.estimate
        return Candidate(
            server=_server(plan, config, job, strategy.servers),
            batch=told.decode.batch,
            reader=_server(plan, config, job, strategy.prefill) if strategy.prefill else None,
            busy=told.prefill.busy if strategy.prefill else 0.0,
            chips=strategy.n_chips,
            transfer_s=told.prefill.transfer_s,
        )
    except BadFile:
        raise
    except ShardwiseError as error:
        raise BadFile(*(f"the plan cannot be read again: {p}" for p in error.problems)) from None
    except (KeyError, TypeError) as error:
        raise BadFile(f"the plan cannot be read again: {error!r}.") from None


def _job(plan: ServingPlan) -> Serve:
    work, held = plan.workload, plan.strategy.precision
    return Serve(
        context=work.context,
        prompt=work.prompt,
        output=work.output,
        batch=work.batch,
        weights=held["weights"],
        kv=held["kv"],
        compute=held["compute"],
        rate=work.rate,
        ttft_s=work.ttft_s,
        tpot_s=work.tpot_s,
        cached=work.cached,
        drafted=work.drafted,
        acceptance=work.acceptance,
        draft_cost=work.draft_cost,
    )


def _server(plan: ServingPlan, config: ModelConfig, job: Serve, these: Servers) -> Server:
    system = system_of(these.hardware, plan.hardware.figures)
    # A machine may have room for more engines than the plan takes.
    mesh = replace(Mesh(**these.mesh), data=side_by_side(system, these.n_chips))
    chip = system.chip
    rates = ServeRates(chip=chip, job=job)
    if plan.estimate.rates.name != "peak":
        rates = replace(rates, shares=shares(chip.name, chip.kind), engine=USUAL)
    return Server(
        config=config,
        job=job,
        system=system,
        layout=ServeLayout(
            weights=these.weights, kv=these.kv, expert_tensor=these.expert_tensor, mesh=mesh
        ),
        placement=_placement(these, system, mesh),
        rates=rates,
        count=these.count,
    )


def _placement(these: Servers, system: System, mesh: Mesh) -> Placement:
    """The placement that the plan describes, among all of its mesh."""
    told = {role: where for role, where in these.placement.items() if role != "data"}
    for placement in place(*on(system, mesh)):
        if all(placement.describe(role) == where for role, where in told.items()):
            return placement
    raise BadFile(
        f"the plan's placement is none of {mesh} on {system.name}: "
        f"{', '.join(f'{role} {where}' for role, where in told.items())}."
    )
