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
    def rank(self) -> tuple[bool, float, float, int]:
        """What fits first, then what is expected fastest, then the safer, then the simpler."""
        roles = sum(n > 1 for n in self.mesh.sizes.values())
        return (not self.fits, float(self.cost.expected), float(self.cost.upper), roles)


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
    keep: int = 64,
) -> list[Candidate]:
    """The best placement and remat policy of every legal mesh, best first.

    Args:
        fixed: roles whose size is given.
        keep: how many to evaluate in full.

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
    for _, mesh, placement, remat in scored:
        if mesh not in best:
            best[mesh] = evaluate(config, job, system, mesh, placement, remat)
            if len(best) == keep:
                break
    return sorted(best.values(), key=lambda c: c.rank)


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
) -> list[tuple[int, tuple[bool, float, float]]]:
    """(index, score) of every pair under one remat policy, from one evaluation on arrays."""
    import numpy as np

    step = training_step(config, job.batch, job.seq, TRAIN, remat=remat)
    mesh = mesh_arrays([m.sizes for m, _ in pairs])
    prices = Prices([p for _, p in pairs])
    cost = step_cost(config, job, step, TRAIN, system.chip, mesh, prices, remat=remat)
    shape = (len(pairs),)
    fits = np.broadcast_to(cost.memory.fits, shape)
    expected = np.broadcast_to(cost.expected, shape)
    upper = np.broadcast_to(cost.upper, shape)
    return [(i, (not fits[i], float(expected[i]), float(upper[i]))) for i in range(len(pairs))]
