"""Rebuild the inputs of a training plan, to evaluate its layout or search again."""

from __future__ import annotations

from shardwise.errors import BadFile
from shardwise.estimate.calibration import PEAK
from shardwise.plan.machine import errors_at, find_placement, rates_of, system_of
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.training import Plan
from shardwise.search.given import fixed_of
from shardwise.search.training.problem import Case
from shardwise.strategy.mesh import place
from shardwise.workload import Train


def rebuild(plan: Plan) -> Case:
    """Rebuild the inputs of a plan. Evaluating them gives the numbers of the plan again.

    The chip has the numbers recorded in the plan, even if the catalog has changed since.

    Raises:
        BadFile: a part of the plan is not a valid model, machine, workload or layout.
    """
    strategy = plan.strategy
    with errors_at("$.model.architecture"):
        model = model_of(plan.model.architecture)
    with errors_at("$.hardware"):
        system = system_of(plan.hardware)
    with errors_at("$.workload.framework"):
        Train(batch=1, seq=1, framework=plan.workload.framework)
    with errors_at("$.workload.kernels"):
        Train(batch=1, seq=1, kernels=plan.workload.kernels)
    with errors_at("$.workload.mtp_layers"):
        Train(batch=1, seq=1, mtp_layers=plan.workload.mtp_layers)
    with errors_at("$.workload or $.strategy.precision"):
        job = plan.job
    with errors_at("$.strategy"):
        layout = plan.layout
        if layout.policy != strategy.remat:
            raise BadFile(
                f"remat is {strategy.remat}, but its recomputed parts are those of "
                f"{layout.policy}. Change both, or plan again with --remat."
            )
    with errors_at("$.strategy.placement of $.strategy.mesh"):
        placements = place(system, layout.sizes)
        placement = find_placement(strategy.placement, placements, layout.mesh, system)
    return Case(
        model=model,
        system=system,
        job=job,
        layout=layout,
        placement=placement,
        cal=rates_of(system, job, peak=plan.estimate.rates.name == PEAK.name),
        fixed=fixed_of(strategy.fixed, strategy.most, any_layout=strategy.any_layout),
    )
