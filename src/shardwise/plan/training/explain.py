"""Explain a training plan: what bounds it, what would change it, and the decisions behind it."""

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
    """The predicted numbers of one strategy on one machine.

    Args:
        bound: what sets the lower bound of the step: "compute", "hbm" or "communication".
        parts: part of the step -> its expected seconds.
        total, room: bytes that the strategy needs of a chip, and bytes that are available.
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
    """The plan on a changed machine, some of whose numbers are multiplied by factors.

    Args:
        factors: name of a number of the machine -> its factor.
        same: the plan's strategy on the changed machine.
        best: the best strategy on the changed machine; None if none is legal or fits.
        stays: whether the best strategy has the same mesh as the plan.
    """

    factors: dict[str, float]
    same: Outcome
    best: Outcome | None
    stays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a training plan.

    Args:
        bound: what sets the lower bound of the step: "compute", "hbm" or "communication".
        margin: seconds of the bound over those of the next slower of `sides`; None if the others
            take no time.
        sides: seconds at peak rates of everything that could be the bound: compute, hbm, and the
            collectives of each role.
        plan, runner_up: the plan, and the best strategy on another mesh, if there is one.
        loses_on: why the runner-up is worse than the plan.
        sensitivities: see `shardwise.sensitivity`.
        path: the decisions in the order of the book.
        crossovers: the table of thresholds of each kind of parallelism.
        what_if: the plan on a changed machine, if one was asked for.
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
    """Explain a training plan: what bounds it and by how much, and the decisions behind it.

    Arguments and errors are those of `shardwise.plan.api.explain`.
    """
    case = rebuild(plan)
    changed = _what_if(case, what_if) if what_if else None
    chosen = case.evaluate()
    runners_up = _other_meshes(case)
    runner_up = runners_up[0] if runners_up else None
    table = crossovers(case)
    sides = _seconds_by_bound(plan)
    return Explanation(
        model=plan.model.name,
        hardware=plan.hardware.name,
        bound=plan.estimate.bound,
        margin=_margin(plan, sides),
        sides=sides,
        plan=_outcome(case, chosen),
        runner_up=_outcome(case, runner_up) if runner_up else None,
        loses_on=reasons.loses_on(runner_up, chosen) if runner_up else None,
        sensitivities=sensitivities(case, runners_up, search=search),
        path=decision_path(case, chosen, table),
        crossovers=table,
        why=plan.why,
        what_if=changed,
    )


def sensitivity(plan: Plan, *, search: bool = True) -> dict[str, Sensitivity]:
    """Sensitivity of the plan's step time to numbers of the machine and the job, with break-evens.

    Keys of the result are `peak_flops`, `hbm_bandwidth`, `hbm_capacity`, `batch`, `seq`, and the
    links that the machine has: `ici_bandwidth`, `node_bandwidth`, `scale_out_bandwidth`,
    `dcn_bandwidth`.

    Args:
        plan: from `shardwise.plan`, or loaded from a file.
        search: also search at half and twice the batch, and at half and twice the sequence length.
            False saves these four searches.

    Raises:
        BadFile: the inputs of the plan cannot be rebuilt.
        BadInput: `plan` is a serving plan.
    """
    if not isinstance(plan, Plan):
        raise BadInput("sensitivity takes training plans; for serving, use sw.explain(plan).")
    case = rebuild(plan)
    return sensitivities(case, _other_meshes(case), search=search)


def _other_meshes(case: Case) -> list[Candidate]:
    """The best candidates on other meshes than the plan's, best first."""
    try:
        candidates = case.rank().candidates
    except NoStrategy:  # a given layout may be one that the search never tries
        return []
    return [candidate for candidate in candidates if candidate.mesh != case.layout.mesh]


def _seconds_by_bound(plan: Plan) -> dict[str, float]:
    """Seconds, at peak rates, of everything that could set the lower bound of the step."""
    estimate = plan.estimate
    return {"compute": estimate.compute_s, "hbm": estimate.hbm_s, **estimate.comm_s}


def _margin(plan: Plan, sides: Mapping[str, float]) -> float | None:
    """Seconds of the bound over those of the next slower one; None if the others take no time.

    If communication is the bound, its slowest role is compared with compute and HBM only.
    """
    comm_s = max(plan.estimate.comm_s.values(), default=0.0)
    if plan.estimate.bound == "communication":
        return comm_s / max(sides["compute"], sides["hbm"])
    other_s = max(comm_s, min(sides["compute"], sides["hbm"]))
    return sides[plan.estimate.bound] / other_s if other_s else None


def _outcome(case: Case, candidate: Candidate) -> Outcome:
    memory = candidate.memory
    return Outcome(
        **reasons.strategy_fields(candidate),
        step_s=reasons.step_range(candidate),
        bound=reasons.bound(case.model, candidate, operations(candidate)),
        parts=reasons.step_parts(candidate),
        total=float(memory.total),
        room=float(memory.capacity - memory.margin),
        fits=candidate.fits,
    )


def _what_if(case: Case, factors: Mapping[str, float]) -> WhatIf:
    """Evaluate the plan's layout, and search again, on the changed machine."""
    system = scaled(case.system, factors)
    changed = case.with_system(system)
    best = None
    with contextlib.suppress(NoStrategy):
        best = replace(case, system=system).rank(keep=1).candidates[0]
    if best and not best.fits:
        best = None
    return WhatIf(
        factors=dict(factors),
        same=_outcome(changed, changed.evaluate()),
        best=_outcome(changed, best) if best else None,
        stays=best is not None and best.mesh == case.layout.mesh,
    )
