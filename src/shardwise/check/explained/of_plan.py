"""The program of a plan, compiled as by `check`, and read from its cache if it is there."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.check import serving, training
from shardwise.check.compiled_costs import device_places
from shardwise.check.compiling.job import Job
from shardwise.check.compiling.process import compile_job
from shardwise.check.compiling.result import Compiled, OutOfMemory
from shardwise.check.explained.program import Program
from shardwise.check.hlo.text import parse
from shardwise.check.notes import compile_error, first_line
from shardwise.check.options import CompileOptions
from shardwise.check.timeline.network import Network
from shardwise.errors import NoAnswer
from shardwise.hardware import System
from shardwise.plan.schema.common import Operation
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.rebuild import rebuild


def program_of_plan(plan: Plan | ServingPlan, step: str, options: CompileOptions) -> Program:
    """Compile one step of a plan.

    Args:
        step: `decode` or `prefill` of a serving plan, `train` of a training plan.

    Raises:
        BadInput: the runtime does not support the plan.
        NoAnswer: the compiler failed, or exceeded a limit.
        MissingExtra: no compiler is installed.
    """
    if isinstance(plan, ServingPlan):
        system = serving.step_systems(plan)[step]
        job = serving.step_job(plan, step, system, options)
        planned = tuple(op for op in plan.operations if op.phase == step)
        return _program(plan.model.name, step, job, system, planned, {}, options)
    case = rebuild(plan)
    job = training.step_job(plan, case, options)
    runs = training.branch_runs(case)
    return _program(plan.model.name, step, job, case.system, plan.operations, runs, options)


def _program(
    model: str,
    step: str,
    job: Job,
    system: System,
    operations: tuple[Operation, ...],
    branch_runs: Mapping[str, tuple[int, ...]],
    options: CompileOptions,
) -> Program:
    result = compile_job(job, limits=options.limits, on_stage=options.on_stage)
    if isinstance(result, OutOfMemory):
        if result.program is None:
            raise NoAnswer(
                f"the {step} step of {model} does not fit, so that there is no program: "
                f"{first_line(result)}"
            )
        result = result.program
    if not isinstance(result, Compiled):
        raise compile_error(result)
    network = None
    if job.target.platform != "cpu":
        network = Network(system, device_places(result, system))
    return Program(
        name=f"the {step} step of {model} on {system.name}",
        module=parse(result.hlo),
        mesh=result.mesh,
        chip=system.chip,
        network=network,
        operations=operations,
        branch_runs=branch_runs,
    )
