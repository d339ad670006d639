"""The best training strategies that a search has seen, and its grouping of cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardwise.arrays import Num
from shardwise.search.training.cells import Cells
from shardwise.search.training.forms import Group
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh, Placement

# Step time relative to the best one, above which the best strategy of another `tensor` size is not
# an alternative.
MAX_SLOWDOWN = 2.0


class ScoredCells(Protocol):
    """Cells that each have a score and a best form; implemented by `evaluate.Block`."""

    cells: Cells
    forms: list[Any]
    score: Num

    def legal_rows(self) -> Num:
        """Indices of the cells that have a legal form."""

    def layout(self, row: int, form_index: int | None = None) -> Layout:
        """The layout of a cell under its best form, or under the form at `form_index`."""


def groups(cells: Cells, seq: int) -> Iterator[tuple[Group, Num]]:
    """Divide cells into groups to which the same forms apply: yields the indices of their cells.

    Cells with `context` but without `fsdp` are in two groups: their weights may be sharded over
    `context`, or replicated.

    Args:
        seq: tokens of a sequence.
    """
    sizes = cells.sizes
    context_parallel = sizes["context"] > 1
    fsdp = sizes["fsdp"] > 1
    traits = {
        "pipelined": sizes["pipe"] > 1,
        "context_parallel": context_parallel,
        "replicated": sizes["data"] * sizes["context"] * sizes["expert"] > 1,
        "sequence_parallel": seq % (sizes["tensor"] * sizes["context"]) == 0,
    }
    for weights_sharded, *values in itertools.product((False, True), repeat=1 + len(traits)):
        mask = ~fsdp
        if weights_sharded:
            mask = fsdp | context_parallel
        for trait, value in zip(traits.values(), values, strict=True):
            mask = mask & (trait == value)
        if mask.any():
            group = Group(weights_sharded, **dict(zip(traits, values, strict=True)))
            yield group, mask.nonzero()[0]


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A strategy on the Pareto front of step time and memory.

    Args:
        seconds: step time.
        n_bytes: peak memory of a chip.
        block: the block that evaluated it.
        row: index of its cell in the block.
        form_index: index of its form in the block.
    """

    seconds: float
    n_bytes: float
    block: ScoredCells
    row: int
    form_index: int


@dataclass
class Best:
    """The best strategies seen so far in a search.

    Args:
        n_meshes: number of meshes to find. With 1, alternatives with other `tensor` sizes are not
            searched.
        front: Pareto front of step time and memory; None if it is not wanted.
        exhaustive: whether to evaluate also what cannot be among the best.
        limit_s: step seconds from which strategies are of no interest.
        blocks: the blocks of cells evaluated so far.
        n_strategies: number of legal strategies evaluated so far.
        n_fitting: number of those that fit in memory.
        step_s: mesh -> its best step time among strategies that fit in memory.
        fastest_s: the best step time among strategies that fit in memory.
    """

    n_meshes: int
    front: list[FrontPoint] | None
    exhaustive: bool = False
    limit_s: float = math.inf
    blocks: list[ScoredCells] = field(default_factory=list)
    n_strategies: int = 0
    n_fitting: int = 0
    step_s: dict[Mesh, float] = field(default_factory=dict)
    fastest_s: float = math.inf

    @property
    def keeps_all(self) -> bool:
        """Whether every legal strategy is of interest, not only the fastest."""
        return self.exhaustive or self.front is not None

    def may_improve(self, cells: Cells, too_large: Num, seconds: Num) -> Num:
        """Whether each cell may still be among the best, judged by its lower bounds.

        Cells that fit in memory under no form are excluded once any strategy fits.

        Args:
            too_large: whether each cell fits under no form.
            seconds: lower bound of each cell's step time.
        """
        import numpy as np

        if self.keeps_all:
            return np.ones(len(cells), bool)
        if not self.step_s:
            return seconds < self.limit_s
        return ~too_large & (seconds < self._limits(cells))

    @property
    def slowest_s(self) -> float:
        """Step seconds from which no strategy is of interest any more.

        Only a search for a single mesh has such a limit. A longer list also names the best
        strategy of other `tensor` sizes, however slow it is.
        """
        if self.n_meshes > 1 or self.keeps_all:
            return math.inf
        return min(self.fastest_s, self.limit_s)

    def _limits(self, cells: Cells) -> Num:
        """Step seconds below which a strategy of each cell would be among the best so far."""
        import numpy as np

        times = sorted(self.step_s.values())
        last_time = np.inf
        if len(times) >= self.n_meshes:
            last_time = times[self.n_meshes - 1]
        best_of_tensor: dict[int, float] = {}
        for mesh, time in self.step_s.items():
            best_of_tensor[mesh.tensor] = min(time, best_of_tensor.get(mesh.tensor, np.inf))
        slowest_alternative = 0.0
        if self.n_meshes > 1:
            slowest_alternative = MAX_SLOWDOWN * times[0]
        tensor_sizes, index = np.unique(cells.sizes["tensor"], return_inverse=True)
        limits = []
        for tensor in tensor_sizes:
            of_tensor = best_of_tensor.get(int(tensor), np.inf)
            limit = max(last_time, min(of_tensor, slowest_alternative))
            limits.append(min(limit, self.limit_s))
        return np.array(limits)[index]

    def add(self, block: ScoredCells) -> None:
        """Add the results of an evaluated block."""
        self.blocks.append(block)
        too_large, seconds = block.score
        rows = block.legal_rows()
        for row in _best_of_each_mesh(block, rows[too_large[rows] == 0]):
            mesh = block.cells.meshes[row]
            self.step_s[mesh] = min(float(seconds[row]), self.step_s.get(mesh, float("inf")))

    def add_to_front(self, block: ScoredCells, seconds: Num, n_bytes: Num, rows: Num) -> None:
        """Merge strategies of the form that a block is evaluating into the Pareto front.

        Args:
            seconds: step time of every cell of the block.
            n_bytes: memory of every cell.
            rows: indices of the cells where the form is legal and fits.
        """
        import numpy as np

        if self.front is None or not len(rows):
            return
        order = np.lexsort((n_bytes[rows], seconds[rows]))
        least = np.minimum.accumulate(n_bytes[rows][order])
        smaller = np.r_[True, least[1:] < least[:-1]]
        points = [*self.front]
        for row in rows[order[smaller]]:
            point = FrontPoint(
                float(seconds[row]), float(n_bytes[row]), block, int(row), len(block.forms)
            )
            points.append(point)
        self.front = []
        for point in sorted(points, key=lambda point: (point.seconds, point.n_bytes)):
            if not self.front or point.n_bytes < self.front[-1].n_bytes:
                self.front.append(point)

    def layouts(self) -> list[tuple[Layout, Placement]]:
        """The best layouts of `n_meshes` meshes, and the best of every other tensor size."""
        scores = []
        for block in self.blocks:
            for row in _best_of_each_mesh(block, block.legal_rows()):
                scores.append((tuple(block.score[:, row]), block, int(row)))
        layouts: dict[Mesh, tuple[Layout, Placement]] = {}
        tensor_sizes: set[int] = set()
        for _, block, row in sorted(scores, key=lambda score: score[0]):
            mesh = block.cells.meshes[row]
            is_alternative = self.n_meshes > 1 and mesh.tensor not in tensor_sizes
            if mesh not in layouts and (len(layouts) < self.n_meshes or is_alternative):
                layouts[mesh] = (block.layout(row), block.cells.placements[row])
                tensor_sizes.add(mesh.tensor)
        return list(layouts.values())

    def front_layouts(self) -> list[tuple[Layout, Placement]]:
        """The layouts of the Pareto front, fastest first."""
        layouts = []
        for point in self.front or ():
            layout = point.block.layout(point.row, point.form_index)
            layouts.append((layout, point.block.cells.placements[point.row]))
        return layouts


def _best_of_each_mesh(block: ScoredCells, rows: Num) -> Num:
    """Of some cells of a block, the best of each mesh; the first one among equals."""
    import numpy as np

    too_large, value = block.score[:, rows]
    order = np.lexsort((rows, value, too_large))
    _, first = np.unique(block.cells.mesh_index[rows[order]], return_index=True)
    return rows[order[np.sort(first)]]
