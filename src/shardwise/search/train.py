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
from shardwise.search.legal import divisors, legal_meshes
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.rules import TRAIN, only
from shardwise.workload import Train

SHOWN = 8  # strategies ranked in full: the reasons and alternatives are taken from them

# What fits comes first: by expected time, then by the upper bound. What does not: by memory.
Score = tuple[bool, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One strategy with its cost."""

    mesh: Mesh
    placement: Placement
    remat: str
    n_microbatches: int
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


def microbatch_counts(job: Train, mesh: Mesh) -> list[int]:
    """Into how many microbatches a mesh can cut the batch: whole sequences on every shard."""
    return divisors(job.batch // (mesh.data * mesh.fsdp))


def evaluate(
    config: ModelConfig,
    job: Train,
    system: System,
    mesh: Mesh,
    placement: Placement,
    remat: str,
    n_microbatches: int = 1,
) -> Candidate:
    """One strategy, its program written with the axes that it really uses."""
    rules = only(TRAIN, mesh.sizes)
    step = training_step(config, job.batch // n_microbatches, job.seq, rules, remat=remat)
    cost = step_cost(
        config,
        job,
        step,
        rules,
        system.chip,
        mesh.sizes,
        Prices([placement]),
        remat=remat,
        n_microbatches=n_microbatches,
    )
    return Candidate(
        mesh=mesh,
        placement=placement,
        remat=remat,
        n_microbatches=n_microbatches,
        cost=cost,
        step=step,
    )


def rank(
    config: ModelConfig,
    job: Train,
    system: System,
    fixed: Mapping[str, int] | None = None,
    keep: int = SHOWN,
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
    prices = Prices([p for _, p in pairs])
    scored = []
    for remat in remat_policies(job):
        scored += _order(config, job, system, pairs, prices, remat)
    scored.sort(key=lambda row: row[0])
    best: dict[Mesh, Candidate] = {}
    widths: set[int] = set()
    for _, i, n, remat in scored:
        mesh, placement = pairs[i]
        if mesh not in best and (len(best) < keep or mesh.tensor not in widths):
            best[mesh] = evaluate(config, job, system, mesh, placement, remat, n)
            widths.add(mesh.tensor)
    return sorted(best.values(), key=lambda c: c.rank)


def _score(fits: bool, expected: float, upper: float, n_bytes: float) -> Score:
    """Times that differ by the order of their sums alone are equal."""
    if not fits:
        return (True, float(n_bytes), 0.0)
    return (False, float(f"{expected:.9e}"), float(f"{upper:.9e}"))


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
    prices: Prices,
    remat: str,
) -> list[tuple[Score, int, int, str]]:
    """(score, index, microbatches, remat) of every pair with the fewest microbatches that fit.

    More microbatches never make a step faster, they only hold less at a time: pairs that fit are
    done, the others are evaluated again, together, with the next count that divides their batch.
    """
    counts = [microbatch_counts(job, mesh) for mesh, _ in pairs]
    found: dict[int, tuple[Score, int, int, str]] = {}
    left = list(range(len(pairs)))
    for n in sorted({n for c in counts for n in c}):
        rows = [i for i in left if n in counts[i]]
        if not rows:
            continue
        meshes = [pairs[i][0] for i in rows]
        scores = _scores(config, job, system, meshes, prices.take(rows), remat, n)
        found |= {i: (s, i, n, remat) for i, s in zip(rows, scores, strict=True)}
        left = [i for i in left if i not in found or found[i][0][0]]
    return list(found.values())


def _scores(
    config: ModelConfig,
    job: Train,
    system: System,
    meshes: Sequence[Mesh],
    prices: Prices,
    remat: str,
    n: int,
) -> list[Score]:
    """The scores of many meshes at one count of microbatches, from one evaluation on arrays."""
    import numpy as np

    step = training_step(config, job.batch // n, job.seq, TRAIN, remat=remat)
    mesh = mesh_arrays([m.sizes for m in meshes])
    cost = step_cost(
        config, job, step, TRAIN, system.chip, mesh, prices, remat=remat, n_microbatches=n
    )
    numbers = (cost.memory.fits, cost.expected, cost.upper, cost.memory.total)
    columns = [np.broadcast_to(c, (len(meshes),)).tolist() for c in numbers]
    return [_score(*row) for row in zip(*columns, strict=True)]
