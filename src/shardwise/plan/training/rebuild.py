"""Rebuild the inputs of a training plan, to evaluate its layout or search again."""

from __future__ import annotations

from shardwise.errors import BadFile
from shardwise.estimate.calibration import PEAK, calibration
from shardwise.plan.machine import errors_as_bad_file, find_placement, system_of
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.training import Plan
from shardwise.search.given import fixed_of
from shardwise.search.training.problem import Case
from shardwise.strategy.mesh import place


def rebuild(plan: Plan) -> Case:
    """Rebuild the inputs of a plan. Evaluating them gives the numbers of the plan again.

    The chip has the numbers recorded in the plan, even if the catalog has changed since.

    Raises:
        BadFile: a part of the plan is not a valid model, machine, workload or layout.
    """
    with errors_as_bad_file():
        layout = plan.layout
        if layout.policy != plan.strategy.remat:
            raise BadFile(
                f"the plan's remat is {plan.strategy.remat}, but its recomputed parts are those of "
                f"{layout.policy}. Change both, or plan again with --remat."
            )
        system = system_of(plan.hardware)
        rates = PEAK if plan.estimate.rates.name == "peak" else calibration(system.chip.name)
        placements = place(system, layout.sizes)
        return Case(
            model=model_of(plan.model.architecture),
            system=system,
            job=plan.job,
            layout=layout,
            placement=find_placement(plan.strategy.placement, placements, layout.mesh, system),
            cal=rates,
            fixed=fixed_of(plan.strategy.fixed, plan.strategy.most),
        )
