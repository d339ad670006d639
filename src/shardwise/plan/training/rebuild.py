"""The inputs behind a plan, from the plan alone: so that it can be evaluated or searched again."""

from __future__ import annotations

from dataclasses import replace

from shardwise.errors import BadFile, ShardwiseError
from shardwise.estimate.calibration import PEAK, calibration
from shardwise.hardware import System, parse_system
from shardwise.hardware.chip import get, with_values
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.training import Plan, PlannedHardware
from shardwise.search.training.problem import Case
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.workload import CHOSEN_OVERLAPS, OFFLOADED, Train


def rebuild(plan: Plan) -> Case:
    """The inputs behind a plan; evaluated again they give its numbers.

    The plan's own figures of the chip count where the catalog has others today.

    Raises:
        BadFile: the plan's parts are no model, machine, work or layout; says which.
    """
    try:
        layout = _layout(plan)
        system = system_of(plan.hardware)
        return Case(
            model=model_of(plan.model.architecture),
            system=system,
            job=job_of(plan),
            layout=layout,
            placement=_placement(plan, system, layout),
            cal=PEAK if plan.estimate.rates.name == "peak" else calibration(system.chip.name),
            fixed=plan.strategy.fixed,
            most=plan.strategy.most,
        )
    except BadFile:
        raise
    except ShardwiseError as error:
        raise BadFile(*(f"the plan cannot be read again: {p}" for p in error.problems)) from None


def system_of(planned: PlannedHardware) -> System:
    """The machine of the plan's name with the figures that the plan was made with."""
    system = parse_system(planned.name)
    now = {
        path: float(figure.value)
        for path, figure in system.chip.figures.items()
        if isinstance(figure.value, int | float)
    }
    then = planned.figures
    changed = {path: then.get(path) for path in {*now, *then} if now.get(path) != then.get(path)}
    if not changed:
        return system
    whole = {path: _like(get(system.chip, path), value) for path, value in changed.items()}
    return replace(system, chip=with_values(system.chip, whole))


def _like(now: object, value: float | None) -> float | int | None:
    """Counts stay whole numbers."""
    return int(value) if isinstance(now, int) and value is not None else value


def job_of(plan: Plan) -> Train:
    """The step that a plan is of."""
    work, strategy = plan.workload, plan.strategy
    held = strategy.precision
    asked = [word for word in strategy.overlap if word in CHOSEN_OVERLAPS]
    return Train(
        batch=work.batch,
        seq=work.seq,
        tokens=work.tokens,
        weights=held["weights"] or "bf16",
        compute=held["compute"] or "bf16",
        gradients=held["gradients"] or "bf16",
        reduce=None if held["reduce"] == held["gradients"] else held["reduce"],
        moments=held["moments"] or "fp32",
        master=held["master"],
        optimizer=work.optimizer,
        remat=work.remat,
        overlap=tuple(asked),
        offload=tuple(word for word in strategy.offload if word in OFFLOADED),
    )


def _layout(plan: Plan) -> Layout:
    strategy = plan.strategy
    return Layout(
        mesh=Mesh(**strategy.mesh),
        micro_batch=strategy.micro_batch,
        n_microbatches=strategy.n_microbatches,
        virtual=strategy.virtual,
        zero=strategy.zero,
        schedule=strategy.schedule,
        remat="selective" if strategy.recomputed else strategy.remat,
        remat_layers=strategy.remat_layers,
        recomputed=strategy.recomputed,
        sequence_parallel=strategy.sequence_parallel,
        context_kind=strategy.context_kind,
        expert_tensor=strategy.expert_tensor,
        offload=strategy.offload,
        offload_layers=strategy.offload_layers,
        overlap=strategy.overlap,
        loss_chunks=strategy.loss_chunks,
    )


def _placement(plan: Plan, system: System, layout: Layout) -> Placement:
    """The placement that the plan describes, among all of its mesh."""
    told = plan.strategy.placement
    every = place(system, layout.sizes)
    for placement in every:
        if all(placement.describe(role) == where for role, where in told.items()):
            return placement
    raise BadFile(
        f"the plan's placement is none of {layout.mesh} on {system.name}: "
        f"{', '.join(f'{role} {where}' for role, where in told.items())}."
    )
