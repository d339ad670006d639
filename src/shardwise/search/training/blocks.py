"""Blocks of cells that a training search evaluates, with lower bounds on their strategies."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.estimate.calibration import Calibration
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.framework_profiles import profile_of
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.given import Fixed
from shardwise.search.training import bound, practice
from shardwise.search.training.best import groups
from shardwise.search.training.cells import cells
from shardwise.search.training.evaluate import Block
from shardwise.search.training.forms import framework_forms
from shardwise.workload import Train

Bounds = tuple[Num, Num]  # see `bound.bound`


def searched_blocks(
    config: ModelConfig, system: System, job: Train, cal: Calibration, fixed: Fixed
) -> Iterator[tuple[Block, Bounds]]:
    """The blocks of a search with their bounds, of which one within practice takes its cells."""
    everything = replace(fixed, in_practice=None, limit_s=math.inf)
    bounded = _bounded_blocks(config, system, job, cal, everything)
    if fixed.in_practice is None:
        yield from bounded
        return
    for block, (too_large, least_s) in bounded:
        usual = practice.is_in_practice(config, system, job, block.cells.sizes)
        rows = usual.nonzero()[0]
        if len(rows):
            yield block.take(rows, fixed=fixed), (too_large[rows], least_s[rows])


@functools.lru_cache(maxsize=1)  # a search within practice follows the one that it limits
def _bounded_blocks(
    config: ModelConfig, system: System, job: Train, cal: Calibration, fixed: Fixed
) -> tuple[tuple[Block, Bounds], ...]:
    """Every block of `all_blocks`, with the lower bounds of its cells."""
    blocks = []
    for block in all_blocks(config, system, job, cal, fixed):
        bounds = bound.bound(block)
        block.least_s = bounds[1]
        blocks.append((block, bounds))
    return tuple(blocks)


def all_blocks(
    config: ModelConfig,
    system: System,
    job: Train,
    cal: Calibration,
    fixed: Fixed,
) -> Iterator[Block]:
    """All cells, in one block for each group of cells to which the same forms apply.

    Raises:
        NoStrategy: no mesh is legal.
    """
    all_cells = cells(config, system, job, fixed.numbers, dict(fixed.max_sizes))
    if all_cells is None:
        raise NoStrategy(f"no split of {system.n_chips:,} chips is legal.")
    rates = Rates(chip=system.chip, job=job, calibration=cal, fusion=profile_of(job, system.chip))
    roots: dict[tuple[bool, bool], Block] = {}  # of groups with the same sharding rules
    for group, rows in groups(all_cells, job.seq):
        if not framework_forms(group, config, job, fixed):
            continue
        key = (group.weights_sharded, group.sequence_parallel)
        if key not in roots:
            roots[key] = Block(config, job, group, all_cells, rates, fixed)
        block = roots[key].take(rows, group=group)
        searched = block.rows_to_search()
        if len(searched) == len(rows):
            yield block
        elif len(searched):
            yield roots[key].take(rows[searched], group=group)
