"""Explain a plan: what binds, what would change it, and which way led to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.errors import BadInput, NoStrategy
from shardwise.hardware.scale import scaled
from shardwise.plan.decisions import Decision
from shardwise.plan.schema.common import Loss, Range, Reason
from shardwise.plan.schema.training import Plan
from shardwise.plan.training import reasons as why
from shardwise.plan.training.crossovers import Crossover, crossovers
from shardwise.plan.training.decisions import path
from shardwise.plan.training.operations import operations
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.training.problem import Case
from shardwise.search.training.rank import Candidate
from shardwise.search.training.sensitivity import Sensitivity, sensitivities


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One strategy on one machine.

    Args:
        bound: what its lower bound is made of.
        parts: the expected step by what spends it, seconds.
        total, room: bytes of a chip that it needs, and that there are.
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
    """The plan on a machine with some numbers multiplied.

    Args:
        factors: name -> factor.
        same: the plan's own strategy there.
        best: what the search finds there, None where nothing is legal or fits.
        stays: the best has the mesh of the plan.
    """

    factors: dict[str, float]
    same: Outcome
    best: Outcome | None
    stays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a plan is as it is.

    Args:
        margin: how often the next side goes into the one that binds: 1 where two bind alike, None
            where there is no other.
        sides: seconds at peak rates of everything that could bind: compute, hbm, each role.
        plan, runner_up: the plan, and the best strategy on another mesh (None: there is no other).
        loses_on: what the runner-up spends more of.
        sensitivities: by name, see `shardwise.sensitivity`.
        path: the decisions in the order of the book.
        crossovers: the table of thresholds.
        why: the reasons of the plan.
        what_if: the changed machine, where one was asked for.
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
    """What binds a training plan and by how much, and the path that leads to it.

    Arguments and errors as in `shardwise.plan.api.explain`.
    """
    case = rebuild(plan)
    changed = what_if and _what_if(case, what_if)
    chosen = case.evaluate()
    others = _others(case)
    table = crossovers(case)
    sides = _sides(plan)
    return Explanation(
        model=plan.model.name,
        hardware=plan.hardware.name,
        bound=plan.estimate.bound,
        margin=_margin(plan, sides),
        sides=sides,
        plan=_outcome(case, chosen),
        runner_up=_outcome(case, others[0]) if others else None,
        loses_on=why.loses_on(others[0], chosen) if others else None,
        sensitivities=sensitivities(case, others, search=search),
        path=path(case, chosen, table),
        crossovers=table,
        why=plan.why,
        what_if=changed or None,
    )


def sensitivity(plan: Plan, *, search: bool = True) -> dict[str, Sensitivity]:
    """How the plan's step answers to each number of the machine and the work, and break-evens.

    Keys: `peak_flops`, `hbm_bandwidth`, `hbm_capacity`, `batch`, `seq`, and of `ici_bandwidth`,
    `node_bandwidth`, `scale_out_bandwidth`, `dcn_bandwidth` the links that the machine uses.

    Args:
        plan: from `shardwise.plan`, or loaded.
        search: also search at half and twice the batch and the length: four more searches.

    Raises:
        BadFile: a plan that cannot be read again. BadInput: a plan of serving.
    """
    if not isinstance(plan, Plan):
        raise BadInput("sensitivity is of training plans; sw.explain(plan) tells what buys what.")
    case = rebuild(plan)
    return sensitivities(case, _others(case), search=search)


def _others(case: Case) -> list[Candidate]:
    """The ranking without the plan's own mesh, best first."""
    try:
        ranked = case.rank().candidates
    except NoStrategy:  # one layout was evaluated that no search tries
        return []
    return [c for c in ranked if c.mesh != case.layout.mesh]


def _sides(plan: Plan) -> dict[str, float]:
    """All that can bind the lower bound: communication of each role hides beside the rest."""
    estimate = plan.estimate
    return {"compute": estimate.compute_s, "hbm": estimate.hbm_s, **estimate.comm_s}


def _margin(plan: Plan, sides: Mapping[str, float]) -> float | None:
    """The side that binds over the largest of the others."""
    comm = max(plan.estimate.comm_s.values(), default=0.0)
    if plan.estimate.bound == "communication":
        other = max(sides["compute"], sides["hbm"])
        return comm / other
    mine = sides[plan.estimate.bound]
    other = max(comm, min(sides["compute"], sides["hbm"]))
    return mine / other if other else None


def _outcome(case: Case, candidate: Candidate) -> Outcome:
    layout, memory = candidate.layout, candidate.memory
    works = operations(candidate)
    return Outcome(
        mesh=candidate.mesh.sizes,
        schedule=layout.schedule,
        zero=layout.zero,
        remat=layout.policy,
        n_microbatches=layout.n_microbatches,
        step_s=why.step_range(candidate),
        bound=why.bound(candidate, works),
        parts=why.parts_of(candidate),
        total=float(memory.total),
        room=float(memory.capacity - memory.margin),
        fits=candidate.fits,
    )


def _what_if(case: Case, factors: Mapping[str, float]) -> WhatIf:
    """The same layout, and the search again, on the changed machine."""
    system = scaled(case.system, factors)
    there = case.on(system)
    best = None
    try:
        first = replace(case, system=system).rank(keep=1).candidates[0]
        best = first if first.fits else None
    except NoStrategy:
        pass
    return WhatIf(
        factors=dict(factors),
        same=_outcome(there, there.evaluate()),
        best=_outcome(there, best) if best else None,
        stays=bool(best and best.mesh == case.layout.mesh),
    )
