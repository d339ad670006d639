"""Rank training strategies: every legal one, the best first."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from shardwise.errors import NoStrategy
from shardwise.estimate.calibration import Calibration
from shardwise.estimate.chip_memory import Memory
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.memory.framework import planned_framework
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.estimate.training.step import StepTime
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.ops.program import Step
from shardwise.search.given import NOTHING, Fixed
from shardwise.search.training.best import Best, groups
from shardwise.search.training.cells import cells
from shardwise.search.training.evaluate import Block
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.workload import Train

RANKED = 8  # strategies evaluated in full, from which reasons and alternatives are taken
LOSS_CHUNKS = (4, 16)  # tried when nothing fits with all logits of a microbatch at once
CACHED_SEARCHES = 32  # so that explaining a plan does not search again

# Sorts candidates: those that fit first, by expected time and then the upper bound; the others by
# memory.
Score = tuple[bool, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One strategy with its cost.

    Args:
        program: the operations of one microbatch.
        peak: the layout at peak rates, which prices the items of the roofline.
        time: the step at the rates of the calibration.
        roofline: the step at peak rates.
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
        """See `Score`."""
        return score(self.fits, self.time.step_s, self.time.upper_s, self.memory.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The result of a search.

    Args:
        candidates: the best strategies, best first.
        n_strategies: number of legal strategies evaluated.
        n_fitting: number of those that fit in memory.
        front: the Pareto front of step time and memory, fastest first, if requested.
    """

    candidates: list[Candidate]
    n_strategies: int
    n_fitting: int
    front: list[Candidate] = field(default_factory=list)


def score(fits: bool, expected: float, upper: float, n_bytes: float) -> Score:
    """Make a sort key; times that differ only by rounding of their sums are equal."""
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
    """Evaluate one strategy, on its fastest placement unless one is given."""
    if placement:
        step = LayoutStep(config, system, job, layout, placement)
    else:
        options = place(system, layout.sizes, best=True)
        steps = [LayoutStep(config, system, job, layout, option) for option in options]
        step = min(steps, key=lambda step: float(step.time(cal, FusionProfile()).step_s))
    capacity = system.chip.need("hbm_bytes")
    return Candidate(
        layout=layout,
        placement=step.placement,
        program=step.program,
        peak=step.priced(),
        time=step.time(cal, FusionProfile()),
        roofline=step.time(),
        memory=step_memory(
            config, job, step.program, layout, capacity, planned_framework(system.chip.kind)
        ),
    )


def rank(
    config: ModelConfig,
    system: System,
    job: Train,
    cal: Calibration,
    fixed: Fixed = NOTHING,
    keep: int = RANKED,
    exhaustive: bool = False,
    front: bool = False,
) -> Ranking:
    """Rank meshes by their best form, best first.

    When nothing fits and the number of loss chunks is free, those of `LOSS_CHUNKS` are tried, the
    smallest first. Cells are evaluated in the order of a lower bound on all their strategies; cells
    whose bound exceeds the best strategies so far are skipped.

    Args:
        cal: the rates that the chip reaches.
        fixed: settings that are fixed, and largest sizes.
        keep: number of strategies to return, at least `RANKED`, beside the best of every tensor
            size that is at most `MAX_SLOWDOWN` times slower. With 1 only the best is looked for.
        exhaustive: evaluate every strategy, also those that the bound excludes.
        front: also find the Pareto front of step time and memory, which evaluates every strategy.

    Raises:
        NoStrategy: when no strategy is legal.
    """
    problem = (config, system, job, cal)
    ranking = _rank(*problem, fixed, keep, exhaustive, front)
    if "loss_chunks" not in fixed:
        for n_chunks in LOSS_CHUNKS:
            if ranking.candidates[0].fits:
                break
            in_chunks = fixed.change(loss_chunks=n_chunks)
            if _may_fit(_blocks(*problem, in_chunks)):
                chunked = _rank(*problem, in_chunks, keep, exhaustive, front)
                if chunked.candidates[0].fits:
                    ranking = chunked
    return replace(ranking, candidates=[*ranking.candidates], front=[*ranking.front])


def _may_fit(blocks: Iterable[Block]) -> bool:
    """Whether the lower bound on memory leaves any strategy that fits."""
    return any(not block.bound()[0].all() for block in blocks)


def _n_meshes(keep: int) -> int:
    """Number of meshes to evaluate in full."""
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
    best = Best(_n_meshes(keep), [] if front else None)
    batches = []
    for block in _blocks(config, system, job, cal, fixed):
        bounds = block.bound()
        for lowest_bound, rows in block.batches(*bounds):
            batches.append((lowest_bound, block, rows, bounds))
    for _, block, rows, (too_large, seconds) in sorted(batches, key=lambda batch: batch[0]):
        if not exhaustive:
            rows = rows[best.may_improve(block.cells.take(rows), too_large[rows], seconds[rows])]
        if len(rows):
            block.take(rows).run(best)
    if not best.n_strategies:
        raise NoStrategy("no schedule, microbatch and mesh go together.")

    def candidates(layouts: Iterable[tuple[Layout, Placement]]) -> list[Candidate]:
        return [evaluate(config, system, job, layout, cal, where) for layout, where in layouts]

    return Ranking(
        candidates=sorted(candidates(best.layouts()), key=lambda candidate: candidate.rank),
        n_strategies=best.n_strategies,
        n_fitting=best.n_fitting,
        front=candidates(best.front_layouts()),
    )


def _blocks(
    config: ModelConfig,
    system: System,
    job: Train,
    cal: Calibration,
    fixed: Fixed,
) -> Iterator[Block]:
    """All cells, in groups to which the same forms apply.

    Raises:
        NoStrategy: no mesh is legal.
    """
    all_cells = cells(config, system, job, fixed.numbers, dict(fixed.max_sizes))
    if all_cells is None:
        raise NoStrategy(f"no split of {system.n_chips:,} chips is legal.")
    rates = Rates(chip=system.chip, job=job, calibration=cal, fusion=FusionProfile())
    for group, group_cells in groups(all_cells, job.seq):
        yield Block(config, job, group, group_cells, rates, fixed)
