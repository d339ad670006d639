"""Explain a training plan: what binds it, what would change it, and the decisions behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.errors import BadInput, NoStrategy
from shardwise.hardware.scale import scaled
from shardwise.plan.decisions import Decision
from shardwise.plan.schema.common import Loss, Range, Reason
from shardwise.plan.schema.training import Plan
from shardwise.plan.training import reasons
from shardwise.plan.training.crossovers import Crossover, crossovers
from shardwise.plan.training.decisions import decision_path
from shardwise.plan.training.operations import operations
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.training.problem import Case
from shardwise.search.training.rank import Candidate
from shardwise.search.training.sensitivity import Sensitivity, sensitivities


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One strategy on one machine.

    Args:
        bound: what sets its lower bound.
        parts: parts of the expected step, seconds.
        total, room: bytes of a chip that it needs, and that are available.
    """

    mesh: dict[str, int]
    schedule: str
    zero: int
    remat: str
    n_microbatches: int
    step_s: Range
    bound: str
    parts: dict[str, float]
    total: float
    room: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The plan on a machine with some figures multiplied.

    Args:
        factors: name -> factor.
        same: the plan's strategy on that machine.
        best: the best strategy on that machine; None where nothing is legal or fits.
        stays: whether the best strategy has the mesh of the plan.
    """

    factors: dict[str, float]
    same: Outcome
    best: Outcome | None
    stays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a training plan.

    Args:
        margin: seconds of the binding side over those of the next; None where there is no other.
        sides: seconds at peak rates of all that could bind: compute, hbm, each role.
        plan, runner_up: the plan, and the best strategy on another mesh, if any.
        loses_on: disadvantage of the runner-up.
        sensitivities: by name, see `shardwise.sensitivity`.
        path: the decisions in the order of the book.
        crossovers: the table of thresholds.
        why: the reasons of the plan.
        what_if: the plan on a changed machine, if any.
    """

    model: str
    hardware: str
    bound: str
    margin: float | None
    sides: dict[str, float]
    plan: Outcome
    runner_up: Outcome | None
    loses_on: Loss | None
    sensitivities: dict[str, Sensitivity]
    path: tuple[Decision, ...]
    crossovers: tuple[Crossover, ...]
    why: tuple[Reason, ...]
    what_if: WhatIf | None


def explain(
    plan: Plan, what_if: Mapping[str, float] | None = None, *, search: bool = True
) -> Explanation:
    """What binds a training plan and by how much, and the decisions behind it.

    Arguments and errors as in `shardwise.plan.api.explain`.
    """
    case = rebuild(plan)
    changed = _what_if(case, what_if) if what_if else None
    chosen = case.evaluate()
    runners_up = _others(case)
    runner_up = runners_up[0] if runners_up else None
    table = crossovers(case)
    sides = _sides(plan)
    return Explanation(
        model=plan.model.name,
        hardware=plan.hardware.name,
        bound=plan.estimate.bound,
        margin=_margin(plan, sides),
        sides=sides,
        plan=_outcome(chosen),
        runner_up=_outcome(runner_up) if runner_up else None,
        loses_on=reasons.loses_on(runner_up, chosen) if runner_up else None,
        sensitivities=sensitivities(case, runners_up, search=search),
        path=decision_path(case, chosen, table),
        crossovers=table,
        why=plan.why,
        what_if=changed,
    )


def sensitivity(plan: Plan, *, search: bool = True) -> dict[str, Sensitivity]:
    """Relative change of the plan's step with each number of machine and job, and break-evens.

    Keys: `peak_flops`, `hbm_bandwidth`, `hbm_capacity`, `batch`, `seq`, and of `ici_bandwidth`,
    `node_bandwidth`, `scale_out_bandwidth`, `dcn_bandwidth` the links that the machine uses.

    Args:
        plan: from `shardwise.plan`, or loaded.
        search: also search at half and twice the batch and the sequence length, four more searches.

    Raises:
        BadFile: the plan cannot be rebuilt. BadInput: a serving plan.
    """
    if not isinstance(plan, Plan):
        raise BadInput("sensitivity takes training plans; for serving, use sw.explain(plan).")
    case = rebuild(plan)
    return sensitivities(case, _others(case), search=search)


def _others(case: Case) -> list[Candidate]:
    """The ranking without the plan's mesh, best first."""
    try:
        candidates = case.rank().candidates
    except NoStrategy:  # the plan evaluates a layout that no search tries
        return []
    return [candidate for candidate in candidates if candidate.mesh != case.layout.mesh]


def _sides(plan: Plan) -> dict[str, float]:
    """Seconds of all that can set the lower bound: each role's communication overlaps the rest."""
    estimate = plan.estimate
    return {"compute": estimate.compute_s, "hbm": estimate.hbm_s, **estimate.comm_s}


def _margin(plan: Plan, sides: Mapping[str, float]) -> float | None:
    """Seconds of the binding side over the largest of the others."""
    comm_s = max(plan.estimate.comm_s.values(), default=0.0)
    if plan.estimate.bound == "communication":
        return comm_s / max(sides["compute"], sides["hbm"])
    other_s = max(comm_s, min(sides["compute"], sides["hbm"]))
    return sides[plan.estimate.bound] / other_s if other_s else None


def _outcome(candidate: Candidate) -> Outcome:
    memory = candidate.memory
    return Outcome(
        **reasons.strategy_fields(candidate),
        step_s=reasons.step_range(candidate),
        bound=reasons.bound(candidate, operations(candidate)),
        parts=reasons.step_parts(candidate),
        total=float(memory.total),
        room=float(memory.capacity - memory.margin),
        fits=candidate.fits,
    )


def _what_if(case: Case, factors: Mapping[str, float]) -> WhatIf:
    """The same layout, and the search again, on the changed machine."""
    system = scaled(case.system, factors)
    changed = case.with_system(system)
    best = None
    with contextlib.suppress(NoStrategy):
        best = replace(case, system=system).rank(keep=1).candidates[0]
    if best and not best.fits:
        best = None
    return WhatIf(
        factors=dict(factors),
        same=_outcome(changed.evaluate()),
        best=_outcome(best) if best else None,
        stays=best is not None and best.mesh == case.layout.mesh,
    )
