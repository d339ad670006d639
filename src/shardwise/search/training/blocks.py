"""Blocks of cells that a training search evaluates, with lower bounds on their strategies."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.estimate.calibration import Calibration
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.framework_profiles import profile_of
from shardwise.estimate.training.microbatch import MatmulSeconds
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.given import Fixed
from shardwise.search.training import bound, practice
from shardwise.search.training.best import groups
from shardwise.search.training.cells import Cells, cells
from shardwise.search.training.chip_work import ChipWork
from shardwise.search.training.evaluate import Block
from shardwise.search.training.forms import Group, framework_forms
from shardwise.workload import Train

Bounds = tuple[Num, Num]  # see `bound.bound`
Masks = dict[Group, Num]  # group -> whether each cell is in it


def searched_blocks(
    config: ModelConfig, system: System, job: Train, cal: Calibration, fixed: Fixed
) -> Iterator[tuple[Block, Bounds]]:
    """The blocks of a search with their bounds, of which one within practice takes its cells."""
    limit_s = fixed.limit_s
    if fixed.in_practice is None:
        limit_s = practice.limit_s(limit_s)  # that of the search within practice, if one follows
    everything = replace(fixed, in_practice=None, limit_s=limit_s)
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

    Cells whose compute alone takes the limit of the search are left out, before they are placed.

    Raises:
        NoStrategy: no mesh is legal.
    """
    unplaced = cells(config, system.n_chips, job, fixed.numbers, dict(fixed.max_sizes))
    if unplaced is None:
        raise _no_legal_split(system)
    rates = Rates(chip=system.chip, job=job, calibration=cal, fusion=profile_of(job, system.chip))
    unlimited = replace(fixed, limit_s=math.inf)
    roots = _Roots(config=config, job=job, rates=rates, fixed=unlimited, cells=unplaced)
    masks = roots.searched(groups(unplaced, job.seq))
    rows, masks = _of_any_group(unplaced, masks)
    roots = replace(roots, cells=unplaced.take(rows))
    if fixed.limit_s < math.inf:
        masks = roots.below(fixed.limit_s, masks)
    rows, masks = _of_any_group(roots.cells, masks)
    placed, index = roots.cells.take(rows).placed(system)
    if not len(placed) and not unplaced.can_be_placed(system):
        raise _no_legal_split(system)
    placed_roots = replace(roots, cells=placed, parent=(roots, rows[index]))
    for group, mask in masks.items():
        if mask[index].any():
            yield placed_roots.block(group, mask[index])


def _of_any_group(all_cells: Cells, masks: Masks) -> tuple[Num, Masks]:
    """(indices of the cells that are in any group, the masks of these cells)."""
    import numpy as np

    in_any = np.zeros(len(all_cells), bool)
    for mask in masks.values():
        in_any = in_any | mask
    rows = in_any.nonzero()[0]
    return rows, {group: mask[rows] for group, mask in masks.items()}


def _no_legal_split(system: System) -> NoStrategy:
    return NoStrategy(f"no split of {system.n_chips:,} chips is legal.")


@dataclass(frozen=True, kw_only=True)
class _Roots:
    """Blocks of all cells, one for each set of sharding rules; those of groups take their cells.

    Groups with the same rules share what they compute, and all groups the times of matmuls that
    every rule shards alike.

    Args:
        cells: the cells, placed or not.
        parent: roots with the cells before they were placed, and each cell's row there.
    """

    config: ModelConfig
    job: Train
    rates: Rates
    fixed: Fixed
    cells: Cells
    parent: tuple[_Roots, Num] | None = None
    _blocks: dict[tuple[bool, bool], Block] = field(default_factory=dict, init=False)
    _matmul_s: MatmulSeconds = field(default_factory=dict, init=False)

    def block(self, group: Group, mask: Num) -> Block:
        """The block of a group with the cells where `mask` is true."""
        return self._root(group).take(mask.nonzero()[0], group=group)

    def searched(self, rows_of_groups: Iterable[tuple[Group, Num]]) -> Masks:
        """Whether each group that has forms searches each cell."""
        import numpy as np

        masks = {}
        for group, rows in rows_of_groups:
            if framework_forms(group, self.config, self.job, self.fixed):
                mask = np.zeros(len(self.cells), bool)
                mask[rows] = True
                masks[group] = mask
                mask[rows] = self.block(group, mask).is_searched()
        return masks

    def below(self, limit_s: float, masks: Masks) -> Masks:
        """The masks without the cells whose compute alone takes `limit_s`, or longer."""
        import numpy as np

        masks_below = {}
        for group, mask in masks.items():
            masks_below[group] = np.zeros(len(mask), bool)
            if mask.any():
                seconds = bound.least_compute_seconds(self.block(group, mask))
                masks_below[group][mask] = seconds < limit_s
        return masks_below

    def _root(self, group: Group) -> Block:
        """The block of all cells with the sharding rules of a group."""
        key = (group.weights_sharded, group.sequence_parallel)
        if key not in self._blocks:
            self._blocks[key] = Block(
                self.config,
                self.job,
                group,
                self.cells,
                self.rates,
                self.fixed,
                work=self._work(group),
            )
        return self._blocks[key]

    def _work(self, group: Group) -> tuple[ChipWork, Num]:
        """Work under the rules of a group that has all cells, and the row of each cell."""
        import numpy as np

        if self.parent:
            parent, rows = self.parent
            root = parent._root(group)
            return root.work, root.work_rows[rows]
        work = ChipWork(self.config, self.job, self.rates, self.cells, matmul_s=self._matmul_s)
        return work, np.arange(len(self.cells))
