"""Rank training strategies: all legal meshes on all their placements, evaluated as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.errors import NoStrategy
from shardwise.estimate.prices import Prices, mesh_arrays
from shardwise.estimate.training import StepCost, step_cost
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.ops.program import Step, training_step
from shardwise.search.legal import legal_meshes
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.rules import TRAIN, only
from shardwise.workload import Train

# What fits comes first: by expected time, then by the upper bound. What does not: by memory.
Score = tuple[bool, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One strategy with its cost."""

    mesh: Mesh
    placement: Placement
    remat: str
    cost: StepCost
    step: Step

    @property
    def fits(self) -> bool:
        return bool(self.cost.memory.fits)

    @property
    def rank(self) -> Score:
        """See `Score`."""
        cost = self.cost
        return _score(self.fits, cost.expected, cost.upper, cost.memory.total)


def remat_policies(job: Train) -> tuple[str, ...]:
    """The policies to try: the one asked for, or all."""
    return ("none", "full") if job.remat == "auto" else (job.remat,)


def evaluate(
    config: ModelConfig, job: Train, system: System, mesh: Mesh, placement: Placement, remat: str
) -> Candidate:
    """One strategy, its program written with the axes that it really uses."""
    rules = only(TRAIN, mesh.sizes)
    step = training_step(config, job.batch, job.seq, rules, remat=remat)
    cost = step_cost(
        config, job, step, rules, system.chip, mesh.sizes, Prices([placement]), remat=remat
    )
    return Candidate(mesh=mesh, placement=placement, remat=remat, cost=cost, step=step)


def rank(
    config: ModelConfig,
    job: Train,
    system: System,
    fixed: Mapping[str, int] | None = None,
    keep: int = 8,
) -> list[Candidate]:
    """The best meshes on their best placement and remat policy, best first.

    Args:
        fixed: roles whose size is given.
        keep: how many of the best to return; the best of every tensor size is always there.

    Raises:
        NoStrategy: when no mesh is legal.
    """
    pairs = [
        (mesh, placement)
        for mesh in legal_meshes(config, job, system, fixed or {})
        for placement in _placements(system, mesh)
    ]
    if not pairs:
        raise NoStrategy(f"no split of {system.n_chips:,} chips is legal.")
    scored = []
    for remat in remat_policies(job):
        order = _order(config, job, system, pairs, remat)
        scored += [(score, *pairs[i], remat) for i, score in order]
    scored.sort(key=lambda row: row[0])
    best: dict[Mesh, Candidate] = {}
    widths: set[int] = set()
    for _, mesh, placement, remat in scored:
        if mesh not in best and (len(best) < keep or mesh.tensor not in widths):
            best[mesh] = evaluate(config, job, system, mesh, placement, remat)
            widths.add(mesh.tensor)
    return sorted(best.values(), key=lambda c: c.rank)


def _score(fits: bool, expected: float, upper: float, n_bytes: float) -> Score:
    return (False, float(expected), float(upper)) if fits else (True, float(n_bytes), 0.0)


def _placements(system: System, mesh: Mesh) -> Sequence[Placement]:
    try:
        return place(system, mesh.sizes)
    except NoStrategy:
        return ()


def _order(
    config: ModelConfig,
    job: Train,
    system: System,
    pairs: Sequence[tuple[Mesh, Placement]],
    remat: str,
) -> list[tuple[int, Score]]:
    """(index, score) of every pair under one remat policy, from one evaluation on arrays."""
    import numpy as np

    step = training_step(config, job.batch, job.seq, TRAIN, remat=remat)
    mesh = mesh_arrays([m.sizes for m, _ in pairs])
    prices = Prices([p for _, p in pairs])
    cost = step_cost(config, job, step, TRAIN, system.chip, mesh, prices, remat=remat)
    numbers = (cost.memory.fits, cost.expected, cost.upper, cost.memory.total)
    columns = [np.broadcast_to(n, (len(pairs),)).tolist() for n in numbers]
    return [(i, _score(*row)) for i, row in enumerate(zip(*columns, strict=True))]
