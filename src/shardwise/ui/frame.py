"""A frame: everything that the page shows of one plan, as JSON data."""

from __future__ import annotations

import functools
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import msgspec

from shardwise.estimate.calibration import PEAK
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.strategy.mesh import ROLES
from shardwise.ui import charts
from shardwise.ui.answer import answer
from shardwise.ui.mesh_picture import mesh_picture
from shardwise.ui.numbers import numbers
from shardwise.ui.question import Inputs, LocalNames, Question, read
from shardwise.ui.sentences import headline, sentences
from shardwise.ui.sliders import sliders

SCHEMA = "shardwise.frame/1"


def frame(question: Question, local: LocalNames) -> dict[str, Any]:
    """The frame that answers a question.

    Raises:
        ShardwiseError: the question has no answer; the message says why.
    """
    inputs = read(question, local)
    return _frame(question, inputs, answer(inputs))


def frame_of_plan(plan: AnyPlan) -> tuple[dict[str, Any], Question, LocalNames]:
    """The frame of a saved plan; the question behind it, and what the question names.

    Raises:
        BadFile: the inputs of the plan cannot be rebuilt.
    """
    question, inputs, local = question_of(plan)
    return _frame(question, inputs, plan), question, local


def question_of(plan: AnyPlan) -> tuple[Question, Inputs, LocalNames]:
    """The question that a saved plan answers: its model, machine, job and strategy."""
    if isinstance(plan, Plan):
        question, local = _trained(plan)
    else:
        question, local = _served(plan)
    return question, read(question, local), local


def _trained(plan: Plan) -> tuple[Question, LocalNames]:
    from shardwise.plan.training.rebuild import rebuild

    case = rebuild(plan)
    fixed = plan.strategy.fixed
    question = Question(
        model=plan.model.name,
        hardware=plan.hardware.name,
        batch=plan.workload.batch,
        seq=plan.workload.seq,
        tokens=plan.workload.tokens,
        dtype=str(plan.strategy.precision["compute"]),
        optimizer=plan.workload.optimizer,
        strategy=dict(plan.strategy.mesh),
        words={name: value for name, value in fixed.items() if name not in ROLES},
        job=plan.model.name,
        peak=plan.estimate.rates.name == PEAK.name,
    )
    local = LocalNames(
        models={question.model: case.model},
        systems={question.hardware: case.system},
        jobs={question.job: case.job},
    )
    return question, local


def _served(plan: ServingPlan) -> tuple[Question, LocalNames]:
    from shardwise.plan.serving.rebuild import rebuild

    request, candidate = rebuild(plan)
    job = request.jobs[0]
    system = candidate.server.system
    question = Question(
        model=plan.model.name,
        hardware=system.name,
        kind="serve",
        batch=candidate.batch * candidate.server.layout.mesh.data
        if request.machine_is_given
        else None,
        prompt=job.prompt_tokens,
        output=job.output or 1,
        dtype=job.weights,
        rate=candidate.requests_per_s if job.states_load else None,
        tpot_s=job.tpot_s,
        ttft_s=job.ttft_s,
        strategy=_strategy(plan),
        peak=request.peak,
    )
    local = LocalNames(models={question.model: request.config}, systems={question.hardware: system})
    return question, local


@functools.cache
def _version() -> str:
    """The package's version, which takes a file to read."""
    return version("shardwise")


def _frame(question: Question, inputs: Inputs, plan: AnyPlan) -> dict[str, Any]:
    settled = msgspec.structs.replace(question, strategy=_strategy(plan))
    settled_inputs = replace(inputs, strategy=tuple(sorted((settled.strategy or {}).items())))
    return {
        "schema": SCHEMA,
        "version": _version(),
        "question": msgspec.to_builtins(settled),
        "searched": question.strategy is None,
        "headline": headline(plan),
        "bound": plan.estimate.bound,
        "fits": plan.memory.left >= 0,
        "summary": summary(plan),
        "why": sentences(plan),
        "rates": msgspec.to_builtins(plan.estimate.rates),
        "numbers": msgspec.to_builtins(numbers(plan)),
        "sliders": msgspec.to_builtins(sliders(settled, settled_inputs, plan)),
        "mesh": mesh_picture(plan, inputs.system),
        "roofline": charts.roofline(plan, inputs.system),
        "memory": charts.memory(plan),
        "timeline": charts.timeline(plan),
        "pareto": charts.pareto(plan),
        "strategies": charts.strategies(plan),
        "topology": plan.hardware.topology,
    }


def summary(plan: AnyPlan) -> dict[str, Any]:
    """The numbers of a plan that the page compares with those of another."""
    seconds = plan.estimate.expected_s if isinstance(plan, Plan) else plan.estimate.decode.parts
    return {
        "name": str(plan),
        "unit": "step" if isinstance(plan, Plan) else "pass",
        "seconds": dict(seconds),
        "total": plan.step.expected,
        "lower": plan.step.lower,
        "upper": plan.step.upper,
        "memory": plan.memory.total,
        "tokens_per_s_per_chip": plan.estimate.tokens_per_s_per_chip,
    }


def _strategy(plan: AnyPlan) -> dict[str, int]:
    sizes = dict(plan.strategy.mesh)
    if not isinstance(plan, Plan):
        sizes.pop("data", None)
    return sizes
