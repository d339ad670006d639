"""An explanation on one screen: what binds, the runner-up, what would change it, thresholds."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.hardware import show_value
from shardwise.plan.decisions import Decision
from shardwise.plan.training.crossovers import Crossover
from shardwise.plan.training.explain import Explanation, Outcome, WhatIf
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.training.decisions import decision_text
from shardwise.report.training.reasons import loss_text, reason_text
from shardwise.report.words import mesh_text
from shardwise.search.training.sensitivity import HARDWARE, BreakEven, Searched, Sensitivity

ms = units.show_seconds
QUESTIONS = {
    "chip": "one chip holds it",
    "node": "one node holds it",
    "slice": "one slice holds it",
    "sequences": "a sequence for each",
    "data": "FSDP hides",
    "tensor": "tensor hides",
    "pipe": "bubble is small",
    "context": "a ring hides",
    "expert": "experts hide",
    "memory": "it fits",
}
SMALL_SIDE = 0.02  # sides below this share of the longest are left to the document
SMALL = 0.002  # parts of both steps below this share are left out of the comparison


def blocks(told: Explanation, *, verbose: bool = False) -> Iterator[Block]:
    """The whole answer; `verbose` adds splits not used, the path in sentences, what would win."""
    if told.what_if:
        yield strong(_what_if(told, told.what_if))
    yield strong(_binding(told))
    yield labelled(_runner_up(told))
    if told.runner_up:
        yield _parts(told.plan, told.runner_up)
    yield _numbers(told)
    yield labelled(_searches(told, verbose))
    if told.crossovers and (verbose or not told.what_if):
        yield table(
            ["split", "pays where", ">threshold", ">here", ""],
            [_crossover(row) for row in told.crossovers if verbose or row.used],
        )
    if verbose:
        yield ""
        yield strong("The way to this split, in the order of the book")
        yield labelled((decision.step, decision_text(decision)) for decision in told.path)
        yield labelled(("why" if i == 0 else "", reason_text(r)) for i, r in enumerate(told.why))
    else:
        yield quiet('type  -v tells the way there  ·  --what-if "ici x0.5" asks another machine')


def _binding(told: Explanation) -> str:
    """`Compute-bound ×1.5 over data: ...`."""
    sides = dict(sorted(told.sides.items(), key=lambda side: -side[1]))
    least = SMALL_SIDE * max(sides.values())
    listed = ", ".join(f"{name} {ms(t)}" for name, t in sides.items() if t > least)
    bound = {"hbm": "HBM"}.get(told.bound, told.bound.capitalize())
    over = f" by ×{told.margin:.2f}" if told.margin else ""
    return (
        f"{bound}-bound{over} ({listed} at peak rates). {mesh_text(told.plan.mesh)} on "
        f"{told.hardware} takes {ms(told.plan.step_s.expected)}."
    )


def _change(here: float, there: float) -> str:
    """`+1.3 %`."""
    return f"{(there / here - 1) * 100:+.1f} %"


def _what_if(told: Explanation, found: WhatIf) -> str:
    asked = ", ".join(f"{name} ×{factor:g}" for name, factor in found.factors.items())
    now, then = told.plan.step_s.expected, found.same.step_s.expected
    text = f"{asked}: this split takes {ms(then)} ({_change(now, then)})"
    if not found.same.fits:
        text += " and does not fit"
    still = "still" if found.same.bound == told.bound else "now"
    text += f", {still} {found.same.bound}-bound. "
    if found.best is None:
        return text + "No split fits."
    if found.stays:
        return text + f"The best split stays ({ms(found.best.step_s.expected)})."
    best = found.best.step_s.expected
    return text + f"The best is then {mesh_text(found.best.mesh)}: {ms(best)}."


def _runner_up(told: Explanation) -> Iterator[tuple[str, str]]:
    other = told.runner_up
    if other is None:
        yield "runner-up", "there is no other split"
    else:
        now, then = told.plan.step_s.expected, other.step_s.expected
        faster = then < now
        loss = loss_text(told.loses_on) if told.loses_on else ""
        lost = f"although it has {loss}" if faster else loss
        yield (
            "better" if faster else "runner-up",
            f"{mesh_text(other.mesh)}: {ms(then)} ({_change(now, then)}), {lost}",
        )
    yield "path", " · ".join(_step(decision) for decision in told.path)


def _step(decision: Decision) -> str:
    """`FSDP hides no (data 8)`."""
    took = decision.degree or 1
    taken = f" ({decision.step} {took:,})" if took > 1 and decision.step != "sequences" else ""
    return f"{QUESTIONS[decision.step]} {'yes' if decision.met else 'no'}{taken}"


def _parts(plan: Outcome, other: Outcome) -> Block:
    """Where the expected step goes, side by side."""
    names = [
        name
        for name in dict.fromkeys((*plan.parts, *other.parts))
        if max(plan.parts.get(name, 0.0), other.parts.get(name, 0.0)) > SMALL * plan.step_s.expected
    ]
    return table(
        ["expected step", *(f">{name}" for name in names)],
        [
            [label, *(ms(one.parts[name]) if name in one.parts else "–" for name in names)]
            for label, one in (("  here", plan), ("  runner-up", other))
        ],
    )


def _numbers(told: Explanation) -> Block:
    """Slopes and break-evens; the heads say what is beyond them."""
    numbers = told.sensitivities.values()
    beyond = {even.to for s in numbers for even in (s.binds, s.fits) if even}
    binds = "on chip" if "chip" in beyond else "network"
    fits = "fits" if "fits" in beyond else "too large"
    heads = ["!number", ">now", ">per +1 %", f">{binds}", ">other split", f">{fits}"]
    rows = [
        [f"  {s.name}", _now(s), _slope(s), *(_at(e) for e in (s.binds, s.overtaken, s.fits))]
        for s in numbers
    ]
    return table(heads, rows)


def _now(s: Sensitivity) -> str:
    if s.name not in HARDWARE:
        return f"{s.value:,.0f}"
    return show_value(s.value, "B") if s.unit == "B" else units.show_rate(s.value, s.unit)


def _slope(s: Sensitivity) -> str:
    return "–" if s.elasticity is None else f"{round(s.elasticity, 2) + 0.0:+.2f} %"


def _at(even: BreakEven | None) -> str:
    """`≥ ×1.5`, `≤ ×0.97`, or a dash where nothing changes."""
    return f"{'≥' if even.factor > 1 else '≤'} ×{even.factor:.3g}" if even else "–"


def _searches(told: Explanation, verbose: bool) -> Iterator[tuple[str, str]]:
    """The best splits at other sizes; `verbose`: the splits that win beyond the break-evens."""
    for s in told.sensitivities.values():
        found = "; ".join(_searched(one, verbose) for one in s.searched)
        if found:
            yield s.name, found
        if verbose and s.overtaken and not isinstance(s.overtaken.to, str):
            yield s.name, f"{_at(s.overtaken)}: {mesh_text(s.overtaken.to)} is faster"


def _searched(found: Searched, verbose: bool) -> str:
    at = f"×{found.factor:g}"
    if found.step_s is None or found.mesh is None:
        return f"{at} {found.problem if verbose else 'no split'}"
    other = mesh_text(found.mesh) if verbose else "another split"
    split = "same split" if found.same else other
    return f"{at} {split}, {ms(found.step_s)}"


def _crossover(row: Crossover) -> list[str]:
    named = f"  {row.split}" + (f" {row.degree:,}" if row.degree else "")
    side = "≥" if row.least else "≤"
    limit = (
        f"{side} {row.threshold:,.0f}" if row.threshold >= 100 else f"{side} {row.threshold:.3g}"
    )
    state = ("pays" if row.met else "costs") if row.used else "not used"
    return [named, row.quantity, limit, f"{row.own:,.0f}", state]
