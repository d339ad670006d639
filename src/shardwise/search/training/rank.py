"""Rank training strategies: every legal one, the best first."""

from __future__ import annotations

import functools
from collections.abc import Iterator
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
from shardwise.search.training.cells import cells
from shardwise.search.training.evaluate import Best, Block, groups
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.workload import Train

SHOWN = 8  # strategies ranked in full: the reasons and alternatives are taken from them
LOSS_CHUNKS = (4, 16)  # tried where nothing fits with all logits of a microbatch at once
REMEMBERED = 32  # searches: who explains a plan or asks twice does not wait twice

# What fits comes first: by expected time, then by the upper bound. What does not: by memory.
Score = tuple[bool, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One strategy with its cost.

    Args:
        time: at the rates of the calibration.
        roofline: at the peaks, products only.
        program: of one microbatch.
        peak: what the items of the roofline are priced by.
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
    """What a search found.

    Args:
        candidates: the best, best first.
        n_strategies: legal strategies that were evaluated.
        n_fitting: those that fit into memory.
        front: strategies than which none is both faster and smaller, fastest first, if asked for.
    """

    candidates: list[Candidate]
    n_strategies: int
    n_fitting: int
    front: list[Candidate] = field(default_factory=list)


def score(fits: bool, expected: float, upper: float, n_bytes: float) -> Score:
    """Times that differ by the order of their sums alone are equal."""
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
    """One strategy; on the placement where it is fastest when none is given."""
    if placement is None:
        ways = place(system, layout.sizes, best=True)
        steps = [LayoutStep(config, system, job, layout, way) for way in ways]
        one = min(steps, key=lambda step: float(step.time(cal, FusionProfile()).step_s))
    else:
        one = LayoutStep(config, system, job, layout, placement)
    capacity = system.chip.need("hbm_bytes")
    return Candidate(
        layout=layout,
        placement=one.placement,
        program=one.program,
        peak=one.priced(),
        time=one.time(cal, FusionProfile()),
        roofline=one.time(),
        memory=step_memory(
            config, job, one.program, layout, capacity, planned_framework(system.chip.kind)
        ),
    )


def rank(
    config: ModelConfig,
    system: System,
    job: Train,
    cal: Calibration,
    fixed: Fixed = NOTHING,
    keep: int = SHOWN,
    exhaustive: bool = False,
    front: bool = False,
) -> Ranking:
    """The best meshes, each under its best form, best first.

    Where nothing fits, and chunks of the loss are not given, the few numbers of `LOSS_CHUNKS` are
    tried, the smallest first. Cells are taken in the order of a bound below all their strategies;
    those whose bound lies above what has been found are left out.

    Args:
        cal: what the chip reaches of its rates.
        fixed: sizes and words that are fixed, and largest sizes.
        keep: how many of the best to return, `SHOWN` at least, and the best of every tensor size
            that is no more than `FAR` times slower. With 1 the best alone is looked for.
        exhaustive: evaluate every strategy, also those that the bound excludes.
        front: find the front of step time against memory too, which takes all strategies.

    Raises:
        NoStrategy: when no strategy is legal.
    """
    asked = (config, system, job, cal)
    found = _rank(*asked, fixed, keep, exhaustive, front)
    for n in LOSS_CHUNKS if "loss_chunks" not in fixed else ():
        if found.candidates[0].fits:
            break
        smaller = fixed.change(loss_chunks=n)
        # A bound below the memory of all strategies.
        if any(not block.bound()[0].all() for block in _blocks(*asked, smaller)):
            chunked = _rank(*asked, smaller, keep, exhaustive, front)
            found = chunked if chunked.candidates[0].fits else found
    return replace(found, candidates=[*found.candidates], front=[*found.front])


@functools.lru_cache(maxsize=REMEMBERED)
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
    best = Best(max(keep, SHOWN) if keep > 1 else 1, [] if front else None)
    parts = []
    for block in _blocks(config, system, job, cal, fixed):
        bounds = block.bound()
        parts += [(least, block, rows, bounds) for least, rows in block.parts(*bounds)]
    for _, block, rows, bounds in sorted(parts, key=lambda part: part[0]):
        if not exhaustive:
            too_large, seconds = (bound[rows] for bound in bounds)
            rows = rows[best.worth(block.cells.take(rows), too_large, seconds)]
        if len(rows):
            block.take(rows).run(best)
    if not best.n_strategies:
        raise NoStrategy("no schedule, microbatch and mesh go together.")
    chosen = [
        evaluate(config, system, job, layout, cal, placement) for layout, placement in best.first()
    ]
    return Ranking(
        candidates=sorted(chosen, key=lambda c: c.rank),
        n_strategies=best.n_strategies,
        n_fitting=best.n_fitting,
        front=[
            evaluate(config, system, job, block.layout(i, n), cal, block.cells.placements[i])
            for _, _, block, i, n in best.front or ()
        ],
    )


def _blocks(
    config: ModelConfig,
    system: System,
    job: Train,
    cal: Calibration,
    fixed: Fixed,
) -> Iterator[Block]:
    """All cells, in groups that share their words.

    Raises:
        NoStrategy: there are none.
    """
    every = cells(config, system, job, fixed.numbers, dict(fixed.max_sizes))
    if every is None:
        raise NoStrategy(f"no split of {system.n_chips:,} chips is legal.")
    rates = Rates(chip=system.chip, job=job, calibration=cal, fusion=FusionProfile())
    for group, some in groups(every, job.seq):
        yield Block(config, job, group, some, rates, fixed)
