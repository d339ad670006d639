"""An explanation on one screen: what binds, the runner-up, what would change it, thresholds."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.hardware import show_value
from shardwise.plan.crossovers import Crossover
from shardwise.plan.explain import Explanation, Outcome, WhatIf
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import mesh_text
from shardwise.search.sensitivity import BreakEven, Searched, Sensitivity

ms = units.show_seconds
SMALL = 0.002  # parts of both steps below this share are left out of the comparison


def blocks(told: Explanation, *, verbose: bool = False) -> Iterator[Block]:
    """The whole answer; `verbose` adds the path in sentences and what wins beyond a break-even."""
    if told.what_if:
        yield strong(_what_if(told, told.what_if))
    yield strong(_binding(told))
    yield labelled(_runner_up(told))
    if told.runner_up:
        yield _parts(told.plan, told.runner_up)
    yield table(
        ["number", ">now", ">step per +1 %", "beyond this the answer changes"],
        [_sensitivity(s, verbose) for s in told.sensitivities.values()],
    )
    if told.crossovers and (verbose or not told.what_if):
        yield table(
            ["split", "pays where", ">threshold", ">here", ""],
            [_crossover(row) for row in told.crossovers],
        )
    if verbose:
        yield ""
        yield strong("The way to this split, in the order of the book")
        yield labelled((decision.step, decision.text) for decision in told.path)
        yield labelled(("why" if i == 0 else "", r.text) for i, r in enumerate(told.why))
    else:
        yield quiet('type  -v tells the way there  ·  --what-if "ici x0.5" asks another machine')


def _binding(told: Explanation) -> str:
    """`Compute-bound ×1.5 over data: ...`."""
    sides = dict(sorted(told.sides.items(), key=lambda side: -side[1]))
    listed = ", ".join(f"{name} {ms(t)}" for name, t in sides.items() if t > 0)
    bound = {"hbm": "HBM"}.get(told.bound, told.bound.capitalize())
    over = f" by ×{told.margin:.2f}" if told.margin < float("inf") else ""
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
        yield (
            "runner-up",
            f"{mesh_text(other.mesh)}: {ms(then)} ({_change(now, then)}), {told.loses}",
        )
    yield (
        "path",
        " · ".join(
            f"{d.step} {'yes' if d.met else 'no'}{f' → {d.degree:,}' if d.degree else ''}"
            for d in told.path
        ),
    )


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


def _sensitivity(s: Sensitivity, verbose: bool) -> list[str]:
    slope = "" if s.elasticity is None else f"{s.elasticity:+.2f} %"
    value = f"{s.value:,.0f}" if s.name in ("batch", "seq") else show_value(s.value, s.unit)
    return [f"  {s.name}", value, slope, "; ".join(_break_evens(s, verbose)) or "–"]


def _break_evens(s: Sensitivity, verbose: bool) -> Iterator[str]:
    if s.binds:
        name = "communication-bound" if s.binds.to == "communication" else "bound on the chip"
        yield f"{name} {_at(s.binds)}"
    if s.overtaken:
        other = s.overtaken.to.replace(" x ", " × ") if verbose else "another split"
        yield f"{other} {_at(s.overtaken)}"
    if s.fits:
        yield f"{s.fits.to} {_at(s.fits)}"
    for found in s.searched:
        yield _searched(found, verbose)


def _at(even: BreakEven) -> str:
    """`from ×1.5`, `below ×0.97`."""
    side = "from" if even.factor > 1 else "below"
    return f"{side} ×{units.significant(even.factor)}"


def _searched(found: Searched, verbose: bool) -> str:
    at = f"×{found.factor:g}"
    if found.step_s is None or found.mesh is None:
        return f"{at} {found.problem if verbose else 'no split'}"
    if found.same:
        return f"{at} same split {ms(found.step_s)}"
    return f"{at} {mesh_text(found.mesh) if verbose else 'other split'} {ms(found.step_s)}"


def _crossover(row: Crossover) -> list[str]:
    named = f"  {row.split}" + (f" {row.degree:,}" if row.degree else "")
    side = "≥" if row.least else "≤"
    limit = (
        f"{side} {row.threshold:,.0f}"
        if row.threshold >= 100
        else (f"{side} {units.significant(row.threshold)}")
    )
    state = ("pays" if row.met else "costs") if row.used else "not used"
    return [named, row.quantity, limit, f"{row.own:,.0f}", state]
