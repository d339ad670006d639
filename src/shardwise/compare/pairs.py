"""Two plans or two runs: what differs, and what makes one slower."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from shardwise.compare import groups
from shardwise.compare.causes import plan_causes
from shardwise.compare.inputs import RunLog
from shardwise.compare.measured import steps_of_run
from shardwise.compare.planned import PlannedStep, planned_step
from shardwise.compare.result import Cause, PairComparison, PairRow, Setting
from shardwise.errors import BadInput
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import LAYOUT_FIELDS, Plan

GREW = "grew"  # seconds of a group, or of an operation, of the first and of the second
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache", "other")
LAST_STEPS = 10  # whose mean is the loss of a run


def compare_plans(first: AnyPlan, second: AnyPlan, names: tuple[str, str]) -> PairComparison:
    """Two plans for training, or two for serving.

    Raises:
        BadInput: one is for training, the other for serving.
    """
    if isinstance(first, ServingPlan) != isinstance(second, ServingPlan):
        raise BadInput(
            f"{names[0]} and {names[1]}: a plan for training and one for serving have no step in "
            "common."
        )
    steps = (planned_step(first), planned_step(second))
    rows = pair_rows(steps[0].seconds, steps[1].seconds)
    explanations = [*_of_slower((first, second), steps), *_grown(rows)]
    explanations.sort(key=lambda cause: -cause.seconds)
    memory = (first.memory, second.memory)
    figures = []
    for part in MEMORY_PARTS:
        row = pair_row(part, getattr(memory[0], part), getattr(memory[1], part))
        if row.first or row.second:
            figures.append(row)
    figures.append(pair_row("memory", memory[0].total, memory[1].total))
    rates = (first.estimate.tokens_per_s_per_chip, second.estimate.tokens_per_s_per_chip)
    figures.append(pair_row("tokens/s/chip", *rates))
    if isinstance(first, ServingPlan) and isinstance(second, ServingPlan):
        figures.append(pair_row("ttft", _latency(first, "ttft_s"), _latency(second, "ttft_s")))
        figures.append(pair_row("tpot", _latency(first, "tpot_s"), _latency(second, "tpot_s")))
    return PairComparison(
        kind="plans",
        first=names[0],
        second=names[1],
        settings=tuple(settings_that_differ(_choices(first), _choices(second))),
        rows=(*rows, pair_row(groups.STEP, steps[0].step_s, steps[1].step_s)),
        figures=tuple(figures),
        causes=tuple(explanations),
    )


def _of_slower(
    plans: tuple[AnyPlan, AnyPlan], steps: tuple[PlannedStep, PlannedStep]
) -> Iterator[Cause]:
    """What makes the slower plan longer than it has to be, and does not concern the faster one."""
    slower = 0 if steps[0].step_s > steps[1].step_s else 1
    faster_kinds = {cause.kind for cause in plan_causes(plans[1 - slower], steps[1 - slower])}
    for cause in plan_causes(plans[slower], steps[slower]):
        if cause.kind not in faster_kinds:
            yield cause


def compare_runs(first: RunLog, second: RunLog) -> PairComparison:
    """Two training runs: step time with its spread, tokens/s, memory, and loss at the same step."""
    steps = (steps_of_run(first.records), steps_of_run(second.records))
    common = {record.step for record in first.records} & {record.step for record in second.records}
    figures = []
    if common:
        last = sorted(common)[-LAST_STEPS:]
        figures.append(pair_row("loss", _mean_loss(first, last), _mean_loss(second, last)))
    tokens = (_tokens_per_step(first), _tokens_per_step(second))
    rates = (tokens[0] / steps[0].typical_s, tokens[1] / steps[1].typical_s)
    figures.append(pair_row("tokens/s", *rates))
    sizes = (first.memory_bytes, second.memory_bytes)
    if sizes[0] and sizes[1]:
        figures.append(pair_row("memory", sizes[0], sizes[1]))
    settings: list[Setting] = []
    if first.plan and second.plan:
        settings = list(settings_that_differ(_choices(first.plan), _choices(second.plan)))
    return PairComparison(
        kind="runs",
        first=first.path,
        second=second.path,
        settings=tuple(settings),
        rows=(pair_row(groups.STEP, steps[0].typical_s, steps[1].typical_s),),
        figures=tuple(figure for figure in figures if _is_known(figure)),
        noise=max(steps[0].noise, steps[1].noise),
    )


def _is_known(row: PairRow) -> bool:
    """Whether both runs log a quantity."""
    return not math.isnan(row.first + row.second)


def _choices(plan: AnyPlan) -> dict[str, str]:
    """What was chosen for a plan, as text by name."""
    strategy = plan.strategy
    choices = {"model": plan.model.name, "hardware": plan.hardware.name}
    choices |= {role: str(size) for role, size in strategy.mesh.items()}
    choices |= {f"{name} dtype": str(dtype) for name, dtype in strategy.precision.items()}
    if isinstance(plan, Plan):
        choices |= {"batch": str(plan.workload.batch), "seq": str(plan.workload.seq)}
        names = [name for name in LAYOUT_FIELDS if name != "recomputed"]
        choices |= {name: _show(getattr(plan.strategy, name)) for name in names}
        choices["remat"] = plan.strategy.remat
    else:
        decode = plan.estimate.decode
        choices |= {"batch": str(decode.batch), "context": str(plan.workload.context)}
        choices |= {"weights": plan.strategy.servers.weights, "KV split": plan.strategy.servers.kv}
        prefill = plan.strategy.prefill
        if prefill:
            choices["prefill engines"] = f"{prefill.count} × {prefill.hardware}"
    return choices


def _latency(plan: ServingPlan, name: str) -> float:
    """The median of the simulated requests if there are some, else the mean."""
    traffic = plan.estimate.traffic
    if traffic is None:
        return float(getattr(plan.estimate, name))
    return float(getattr(traffic, name).p50)


def _show(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def settings_that_differ(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Setting]:
    """Choices by name that are not the same."""
    for name in dict.fromkeys([*first, *second]):
        if first.get(name) != second.get(name):
            yield Setting(name=name, first=first.get(name, ""), second=second.get(name, ""))


def pair_rows(first: Mapping[str, float], second: Mapping[str, float]) -> list[PairRow]:
    """The quantities of both, what changes most first."""
    names = dict.fromkeys([*first, *second])
    rows = [pair_row(name, first.get(name, 0.0), second.get(name, 0.0)) for name in names]
    return sorted(rows, key=lambda row: -abs(row.change))


def _grown(rows: list[PairRow]) -> Iterator[Cause]:
    """The rows that take longer in the slower of the two, the largest first."""
    direction = 1 if sum(row.change for row in rows) >= 0 else -1
    for row in rows:
        if direction * row.change > 0:
            yield Cause(
                kind=GREW,
                seconds=abs(row.change),
                group=row.group,
                planned=row.first,
                measured=row.second,
            )


def pair_row(group: str, first: float, second: float) -> PairRow:
    """A quantity of both."""
    return PairRow(group=group, first=first, second=second)


def _mean_loss(run: RunLog, steps: list[int]) -> float:
    losses = [record.loss for record in run.records if record.step in steps]
    return sum(losses) / len(losses)


def _tokens_per_step(run: RunLog) -> float:
    record = run.records[-1]
    return record.tokens_per_s * record.step_s
