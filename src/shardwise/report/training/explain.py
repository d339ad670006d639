"""An explanation of a training plan: its bound, the runner-up, sensitivities and thresholds."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.hardware import show_value
from shardwise.plan.decisions import Decision
from shardwise.plan.training.crossovers import Crossover
from shardwise.plan.training.explain import Explanation, Outcome, WhatIf
from shardwise.report.style import Block, label_first, labelled, quiet, strong, table
from shardwise.report.tables import DASH
from shardwise.report.training.decisions import decision_text
from shardwise.report.training.reasons import loss_text, reason_text, run_lines
from shardwise.report.words import bound_name, duration, mesh_text
from shardwise.search.training.sensitivity import HARDWARE, BreakEven, Searched, Sensitivity

# Step of a decision -> what it decides, in the line of the path.
QUESTIONS = {
    "chip": "fits one chip",
    "node": "fits one node",
    "slice": "fits one slice",
    "sequences": "a sequence per chip",
    "data": "FSDP hides",
    "tensor": "tensor hides",
    "pipe": "bubble is small",
    "context": "a ring hides",
    "expert": "experts hide",
    "memory": "it fits",
}
SMALL_SIDE = 0.02  # of the longest bound; shorter ones appear only in the JSON document
SMALL_PART = 0.002  # of the step; parts that are shorter in both splits are not compared


def blocks(explanation: Explanation, *, verbose: bool = False) -> Iterator[Block]:
    """The whole answer.

    Args:
        verbose: add every decision, the thresholds of unused kinds of parallelism, and the splits
            that are faster beyond a break-even.
    """
    if explanation.what_if:
        yield strong(_what_if(explanation, explanation.what_if))
    yield strong(_binding(explanation))
    yield labelled([*_runner_up(explanation), *run_lines(explanation.why)])
    if explanation.runner_up:
        yield _parts(explanation.plan, explanation.runner_up)
    yield _numbers(explanation)
    yield labelled(_other_splits(explanation, verbose))
    crossovers = [row for row in explanation.crossovers if verbose or row.used]
    if explanation.crossovers and (verbose or not explanation.what_if):
        headers = ["split", "pays where", ">threshold", ">this plan", ""]
        yield table(headers, map(_crossover, crossovers))
    if verbose:
        yield ""
        yield strong("Decisions that lead to this split, in the order of the book")
        yield labelled((decision.step, decision_text(decision)) for decision in explanation.path)
        yield labelled(label_first("why", map(reason_text, explanation.why)))
    else:
        yield quiet('type  -v for every decision  ·  --what-if "ici x0.5" for another machine')


def _binding(explanation: Explanation) -> str:
    """The bound of the step: `Compute-bound by ×1.5 (compute 1.2 s, data 0.8 s at peak rates).`"""
    sides = sorted(explanation.sides.items(), key=lambda item: -item[1])
    threshold_s = SMALL_SIDE * max(explanation.sides.values())
    times = [f"{name} {duration(seconds)}" for name, seconds in sides if seconds > threshold_s]
    margin = ""
    if explanation.margin:
        margin = f" by ×{explanation.margin:.2f}"
    plan = explanation.plan
    return (
        f"{bound_name(explanation.bound)}-bound{margin} ({', '.join(times)} at peak rates). "
        f"{mesh_text(plan.mesh)} on {explanation.hardware} takes {duration(plan.step_s.expected)}."
    )


def _change(before: float, after: float) -> str:
    """A relative change in percent: `+1.3 %`."""
    return f"{(after / before - 1) * 100:+.1f} %"


def _what_if(explanation: Explanation, what_if: WhatIf) -> str:
    factors = ", ".join(f"{name} ×{factor:g}" for name, factor in what_if.factors.items())
    same = what_if.same
    change = _change(explanation.plan.step_s.expected, same.step_s.expected)
    text = f"{factors}: this split takes {duration(same.step_s.expected)} ({change})"
    if not same.fits:
        text += " and does not fit"
    still_or_now = "still" if same.bound == explanation.bound else "now"
    text += f", {still_or_now} {same.bound}-bound. "
    if what_if.best is None:
        return text + "No split fits."
    best_step = duration(what_if.best.step_s.expected)
    if what_if.stays:
        return text + f"The best split stays ({best_step})."
    return text + f"The best is then {mesh_text(what_if.best.mesh)}: {best_step}."


def _runner_up(explanation: Explanation) -> Iterator[tuple[str, str]]:
    other = explanation.runner_up
    if other is None:
        yield "runner-up", "there is no other split"
    else:
        step_s = explanation.plan.step_s.expected
        other_s = other.step_s.expected
        label = "runner-up"
        loss = ""
        if explanation.loses_on:
            loss = loss_text(explanation.loses_on)
        if other_s < step_s:
            label = "better"
            loss = f"although it has {loss}"
        text = f"{mesh_text(other.mesh)}: {duration(other_s)} ({_change(step_s, other_s)}), {loss}"
        yield label, text
    yield "path", " · ".join(_step(decision) for decision in explanation.path)


def _step(decision: Decision) -> str:
    """A decision in a few words, with the plan's degree: `FSDP hides: no (data 8)`."""
    answer = "yes" if decision.met else "no"
    text = f"{QUESTIONS[decision.step]}: {answer}"
    degree = decision.degree or 1
    if degree > 1 and decision.step != "sequences":
        text += f" ({decision.step} {degree:,})"
    return text


def _parts(plan: Outcome, other: Outcome) -> Block:
    """A table of the parts of the expected step, a row each for the plan and the runner-up."""
    names = []
    for name in plan.parts | other.parts:
        longer_s = max(plan.parts.get(name, 0.0), other.parts.get(name, 0.0))
        if longer_s > SMALL_PART * plan.step_s.expected:
            names.append(name)
    rows = []
    for label, outcome in (("  this plan", plan), ("  runner-up", other)):
        row = [label]
        for name in names:
            row.append(duration(outcome.parts[name]) if name in outcome.parts else DASH)
        rows.append(row)
    return table(["expected step", *(f">{name}" for name in names)], rows)


def _numbers(explanation: Explanation) -> Block:
    """A table of sensitivities: the change of the step per +1 % of a number, and break-evens.

    The header of a column of break-evens says what holds beyond them.
    """
    sensitivities = explanation.sensitivities.values()
    outcomes = set()
    for row in sensitivities:
        for break_even in (row.binds, row.fits):
            if break_even:
                outcomes.add(break_even.to)
    binds = "on chip" if "chip" in outcomes else "network"
    fits = "fits" if "fits" in outcomes else "too large"
    headers = ["!number", ">now", ">per +1 %", f">{binds}", ">other split", f">{fits}"]
    rows = []
    for row in sensitivities:
        break_evens = map(_break_even, (row.binds, row.overtaken, row.fits))
        rows.append([f"  {row.name}", _value(row), _slope(row), *break_evens])
    return table(headers, rows)


def _value(row: Sensitivity) -> str:
    if row.name not in HARDWARE:
        return f"{row.value:,.0f}"
    if row.unit == "B":
        return show_value(row.value, "B")
    return units.show_rate(row.value, row.unit)


def _slope(row: Sensitivity) -> str:
    """Percent by which the step changes if the number grows by 1 %."""
    if row.elasticity is None:
        return DASH
    return f"{round(row.elasticity, 2) + 0.0:+.2f} %"


def _break_even(break_even: BreakEven | None) -> str:
    """The factor at which something changes: `≥ ×1.5`, `≤ ×0.97`, or a dash if nothing does."""
    if break_even is None:
        return DASH
    relation = "≥" if break_even.factor > 1 else "≤"
    return f"{relation} ×{break_even.factor:.3g}"


def _other_splits(explanation: Explanation, verbose: bool) -> Iterator[tuple[str, str]]:
    """The best splits at other batches and lengths; `verbose` adds splits beyond break-evens."""
    for row in explanation.sensitivities.values():
        splits = "; ".join(_searched(searched, verbose) for searched in row.searched)
        if splits:
            yield row.name, splits
        break_even = row.overtaken
        if verbose and break_even and not isinstance(break_even.to, str):
            yield row.name, f"{_break_even(break_even)}: {mesh_text(break_even.to)} is faster"


def _searched(searched: Searched, verbose: bool) -> str:
    """The best split at a multiple of the batch or length: `×2 same split, 1.2 s`."""
    factor = f"×{searched.factor:g}"
    if searched.step_s is None or searched.mesh is None:
        problem = "no split"
        if verbose and searched.problem:
            problem = searched.problem
        return f"{factor} {problem}"
    split = "another split"
    if searched.same:
        split = "same split"
    elif verbose:
        split = mesh_text(searched.mesh)
    return f"{factor} {split}, {duration(searched.step_s)}"


def _crossover(row: Crossover) -> list[str]:
    split = f"  {row.split}"
    if row.degree:
        split += f" {row.degree:,}"
    relation = "≥" if row.least else "≤"
    threshold = f"{row.threshold:.3g}"
    if row.threshold >= 100:
        threshold = f"{row.threshold:,.0f}"
    verdict = "not used"
    if row.used:
        verdict = "pays" if row.met else "costs"
    return [split, row.quantity, f"{relation} {threshold}", f"{row.own:,.0f}", verdict]
