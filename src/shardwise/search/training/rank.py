"""Search of training strategies: evaluates every legal one and ranks the best."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shardwise.errors import NoStrategy
from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.chip_memory import Memory, capacity_bytes
from shardwise.estimate.training.framework_profiles import profile_of
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.memory.framework import planned_framework
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.step import StepTime
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.ops.program import Step
from shardwise.search.given import NOTHING_FIXED, Fixed
from shardwise.search.training import bound, practice
from shardwise.search.training.best import Best
from shardwise.search.training.blocks import all_blocks, searched_blocks
from shardwise.search.training.evaluate import Block
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.workload import Train

# Minimum number of meshes that a ranking has; a plan takes its reasons and alternatives from them.
RANKED = 8
LOSS_CHUNKS = (4, 16)  # numbers of loss chunks to try if nothing fits with the loss in one chunk
CACHED_SEARCHES = 32  # number of cached results, so that explaining a plan does not search again

# Sort key of candidates, the best first: (False, expected step seconds, upper bound of the seconds)
# if the candidate fits in memory, (True, bytes of memory, 0) if not.
Score = tuple[bool, float, float]
Problem = tuple[ModelConfig, System, Train, Calibration]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One strategy with its step time and memory.

    Args:
        program: the matmuls and collectives of one microbatch.
        peak: the layout at peak rates, to price the items of the roofline.
        time: step time at the rates of the calibration.
        roofline: step time at peak rates.
    """

    layout: Layout
    placement: Placement
    program: Step
    peak: PricedLayout
    time: StepTime
    roofline: StepTime
    memory: Memory

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    @property
    def fits(self) -> bool:
        return bool(self.memory.fits)

    @property
    def rank(self) -> Score:
        """Sort key of the candidate: see `Score`."""
        return score(self.fits, self.time.step_s, self.time.upper_s, self.memory.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The result of a search.

    Args:
        candidates: the best strategies, best first.
        n_strategies: number of legal strategies that were evaluated.
        n_fitting: number of those that fit in memory.
        front: the Pareto front of step time and memory, fastest first; empty unless requested.
        rival: if the first candidate is within practice, the faster strategy that is not and over
            which it was taken; if it is not, the best one within practice. None if there is none.
    """

    candidates: list[Candidate]
    n_strategies: int
    n_fitting: int
    front: list[Candidate] = field(default_factory=list)
    rival: Candidate | None = None


def score(fits: bool, expected: float, upper: float, n_bytes: float) -> Score:
    """Sort key of a strategy; times are rounded so that equal sums in another order stay equal.

    Args:
        expected: expected step seconds.
        upper: upper bound of the step seconds.
        n_bytes: peak memory of a chip.
    """
    if not fits:
        return (True, float(n_bytes), 0.0)
    return (False, float(f"{expected:.9e}"), float(f"{upper:.9e}"))


def evaluate(
    config: ModelConfig,
    system: System,
    job: Train,
    layout: Layout,
    cal: Calibration,
    placement: Placement | None = None,
) -> Candidate:
    """Evaluate one strategy, on the given placement or on its fastest one."""
    profile = profile_of(job, system.chip)
    if placement:
        step = LayoutStep(config, system, job, layout, placement)
    else:
        options = place(system, layout.sizes, best=True)
        steps = [LayoutStep(config, system, job, layout, option) for option in options]
        step = min(steps, key=lambda step: float(step.time(cal, profile).step_s))
    return Candidate(
        layout=layout,
        placement=step.placement,
        program=step.program,
        peak=step.priced(fusion=profile.at_peak),
        time=step.time(cal, profile),
        roofline=step.time(fusion=profile.at_peak),
        memory=memory_of(step),
    )


def memory_of(step: LayoutStep) -> Memory:
    """Peak memory of a chip in a step, as the planner's framework holds it."""
    chip = step.system.chip
    framework = planned_framework(chip.kind)
    return step_memory(
        step.config, step.job, step.program, step.layout, capacity_bytes(chip), framework
    )


def rank(
    config: ModelConfig,
    system: System,
    job: Train,
    cal: Calibration,
    fixed: Fixed = NOTHING_FIXED,
    keep: int = RANKED,
    exhaustive: bool = False,
    front: bool = False,
) -> Ranking:
    """Rank meshes by their best strategy, best first.

    The best strategy is the fastest one, unless one within practice (`practice`) takes hardly
    longer. Strategies that are faster than the best one are left out of the candidates then.

    Cells (mesh, placement, microbatch size) are evaluated in the order of a lower bound of their
    step time. Cells whose bound is worse than the best strategies so far are skipped. If nothing
    fits and the user did not fix the number of loss chunks, the search is repeated with each of
    `LOSS_CHUNKS` until a strategy fits. If neither the runtime nor the framework of the job runs a
    strategy with the settings that the user fixed, all strategies with these settings are searched.

    Args:
        cal: the rates that the chip is expected to reach.
        fixed: settings that the user fixed, and largest sizes.
        keep: number of meshes to rank, raised to `RANKED` unless it is 1. Unless it is 1, the best
            strategy of every other `tensor` size is added if it is at most `MAX_SLOWDOWN` times
            slower than the best.
        exhaustive: whether to evaluate also the cells that the bound excludes.
        front: whether to find the Pareto front of step time and memory too, for which every cell
            is evaluated.

    Raises:
        NoStrategy: no strategy is legal.
    """
    problem = (config, system, job, cal)
    ranking = _fastest(problem, fixed, keep, exhaustive, front)
    fastest = ranking.candidates[0]
    if front or not fastest.fits or not practice.is_known(system, cal):
        return ranking
    if practice.layout_in_practice(config, system, job, fastest.layout):
        return ranking
    if not practice.may_be_in_practice(config, system, job, fixed.sizes):
        return ranking
    schedules = practice.schedules_in_practice(config, system)
    limit_s = practice.limit_s(fixed.limit_s)
    limited = replace(fixed, in_practice=schedules, limit_s=limit_s)
    try:
        usual = _fastest(problem, limited, 1, exhaustive, False).candidates[0]
    except NoStrategy:
        return ranking
    if not usual.fits:
        return ranking
    usual_s = float(usual.time.step_s)
    if usual_s > practice.limit_s(float(fastest.time.step_s)):
        return replace(ranking, rival=usual)
    slower = [c for c in ranking.candidates if c.mesh != usual.mesh and c.rank >= usual.rank]
    return replace(ranking, candidates=[usual, *slower], rival=fastest)


def _fastest(problem: Problem, fixed: Fixed, keep: int, exhaustive: bool, front: bool) -> Ranking:
    """Rank meshes by the time of their strategies, within practice or not; see `rank`."""
    try:
        ranking = _rank(*problem, fixed, keep, exhaustive, front)
    except NoStrategy:
        if fixed.any_layout or not fixed:
            raise
        fixed = replace(fixed, any_layout=True)
        ranking = _rank(*problem, fixed, keep, exhaustive, front)
    if "loss_chunks" not in fixed:
        for n_chunks in LOSS_CHUNKS:
            if ranking.candidates[0].fits:
                break
            with_chunks = fixed.change(loss_chunks=n_chunks)
            if _may_fit(all_blocks(*problem, with_chunks)):
                chunked_ranking = _rank(*problem, with_chunks, keep, exhaustive, front)
                if chunked_ranking.candidates[0].fits:
                    ranking = chunked_ranking
    return replace(ranking, candidates=[*ranking.candidates], front=[*ranking.front])


def best_of_any_layout(
    config: ModelConfig, system: System, job: Train, fixed: Fixed
) -> Candidate | None:
    """The best strategy at peak rates, run by the runtime or not; None if none is legal or fits."""
    free = replace(fixed, any_layout=True)
    try:
        if not _may_fit(all_blocks(config, system, job, PEAK, free)):
            return None
        best = rank(config, system, job, PEAK, free, keep=1).candidates[0]
    except NoStrategy:
        return None
    return best if best.fits else None


def has_strategy(config: ModelConfig, system: System, job: Train) -> bool:
    """Whether a search on the machine finds a strategy, which need not fit in memory."""
    try:
        return any(True for _ in all_blocks(config, system, job, PEAK, NOTHING_FIXED))
    except NoStrategy:
        return False


def most_left_bytes(config: ModelConfig, system: System, job: Train) -> float:
    """Bytes that the roomiest strategy leaves on its fullest chip, beside what is kept free.

    Negative if no strategy fits, minus infinity if none is legal.
    """
    most = -math.inf
    for n_chunks in (1, *LOSS_CHUNKS):
        fixed = NOTHING_FIXED.change(loss_chunks=n_chunks)
        try:
            blocks = list(all_blocks(config, system, job, PEAK, fixed))
        except NoStrategy:
            return -math.inf
        most = max([most, *(bound.most_left_bytes(block) for block in blocks)])
        if most >= 0:
            break
    return most


def _may_fit(blocks: Iterable[Block]) -> bool:
    """Whether any cell may fit in memory, judged by its lower bound."""
    return any(bound.may_fit(block).any() for block in blocks)


def _n_meshes(keep: int) -> int:
    """Number of meshes in a ranking that keeps `keep` of them."""
    if keep == 1:
        return 1
    return max(keep, RANKED)


@functools.lru_cache(maxsize=CACHED_SEARCHES)
def _rank(
    config: ModelConfig,
    system: System,
    job: Train,
    cal: Calibration,
    fixed: Fixed,
    keep: int,
    exhaustive: bool,
    front: bool,
) -> Ranking:
    """Rank strategies with one number of loss chunks; the arguments are those of `rank`."""
    best = Best(_n_meshes(keep), [] if front else None, exhaustive, fixed.limit_s)
    batches = []
    for block, bounds in searched_blocks(config, system, job, cal, fixed):
        # For a single mesh, strategies without a pipeline come first: they exclude most pipelines,
        # which are many, at once.
        is_late = best.n_meshes == 1 and block.group.pipelined
        for (none_fits, least_s), rows in block.batches(*bounds):
            batches.append(((none_fits, is_late, least_s), block, rows, bounds))
    for _, block, rows, (too_large, seconds) in sorted(batches, key=lambda batch: batch[0]):
        rows = rows[best.may_improve(block.cells.take(rows), too_large[rows], seconds[rows])]
        if len(rows):
            block.take(rows).run(best)
    if not best.n_strategies:
        raise NoStrategy("no schedule, microbatch and mesh go together.")

    def candidates(layouts: Iterable[tuple[Layout, Placement]]) -> list[Candidate]:
        return [
            evaluate(config, system, job, layout, cal, placement) for layout, placement in layouts
        ]

    return Ranking(
        candidates=sorted(candidates(best.layouts()), key=lambda candidate: candidate.rank),
        n_strategies=best.n_strategies,
        n_fitting=best.n_fitting,
        front=candidates(best.front_layouts()),
    )
