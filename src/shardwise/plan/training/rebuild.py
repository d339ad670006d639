"""The inputs behind a plan, from the plan alone: so that it can be evaluated or searched again."""

from __future__ import annotations

from shardwise.errors import BadFile, ShardwiseError
from shardwise.estimate.calibration import PEAK, calibration
from shardwise.plan.machine import placement_of, system_of
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.training import Plan
from shardwise.search.given import fixed_of
from shardwise.search.training.problem import Case
from shardwise.strategy.mesh import place


def rebuild(plan: Plan) -> Case:
    """The inputs behind a plan; evaluated again they give its numbers.

    The plan's own figures of the chip count where the catalog has others today.

    Raises:
        BadFile: the plan's parts are no model, machine, work or layout; says which.
    """
    try:
        layout = plan.layout
        if layout.policy != plan.strategy.remat:
            raise BadFile(
                f"the plan's remat {plan.strategy.remat} is not what its recomputed parts are: "
                f"{layout.policy}. Change both, or plan again with --remat."
            )
        system = system_of(plan.hardware)
        return Case(
            model=model_of(plan.model.architecture),
            system=system,
            job=plan.job,
            layout=layout,
            placement=placement_of(
                plan.strategy.placement, place(system, layout.sizes), layout.mesh, system
            ),
            cal=PEAK if plan.estimate.rates.name == "peak" else calibration(system.chip.name),
            fixed=fixed_of(plan.strategy.fixed, plan.strategy.most),
        )
    except BadFile:
        raise
    except ShardwiseError as error:
        raise BadFile(*(f"the plan cannot be read again: {p}" for p in error.problems)) from None
