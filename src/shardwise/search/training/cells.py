"""Search cells as arrays: every legal mesh, placement and microbatch size of a training job.

A search places only the meshes whose compute alone does not take too long: a torus has dozens of
placements for one mesh.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.model_sizes import divisors, worth_sharding
from shardwise.search.training.legal import legal_meshes
from shardwise.strategy.layout import Form, Layouts, data_shards
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.workload import Train

CACHED_CELLS = 16  # numbers of chips whose cells are kept: a comparison of machines has as many


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Combinations of mesh, placement and microbatch size, as parallel arrays.

    Args:
        meshes: for each cell, its `Mesh` (array of objects).
        mesh_index: for each cell, a number that only cells of the same mesh share.
        microbatch_index: for each cell, a number that only cells of the same mesh and microbatch
            size share: all of its placements.
        placements: for each cell, its `Placement`, or None before it is placed (array of objects).
        sizes: mesh role -> array of its size in each cell.
        micro_batch: for each cell, the sequences of a microbatch on one data shard.
        n_microbatches: for each cell, the microbatches of a step.
        costs: costs of collectives in each cell.
    """

    meshes: Num
    mesh_index: Num
    microbatch_index: Num
    placements: Num
    sizes: Mapping[str, Num]
    micro_batch: Num
    n_microbatches: Num
    costs: CollectiveCost

    def __len__(self) -> int:
        return len(self.meshes)

    def take(self, rows: Num) -> Cells:
        """The cells at the indices `rows`."""
        return Cells(
            meshes=self.meshes[rows],
            mesh_index=self.mesh_index[rows],
            microbatch_index=self.microbatch_index[rows],
            placements=self.placements[rows],
            sizes={role: size[rows] for role, size in self.sizes.items()},
            micro_batch=self.micro_batch[rows],
            n_microbatches=self.n_microbatches[rows],
            costs=self.costs.take(rows),
        )

    def distinct(self) -> tuple[Cells, Num]:
        """(one cell for all placements of a mesh and microbatch size, each cell's row in it)."""
        import numpy as np

        _, first, rows = np.unique(self.microbatch_index, return_index=True, return_inverse=True)
        return self.take(first), rows

    def priced(self, config: ModelConfig, rates: Rates, form: Form, chunks: Num) -> PricedLayout:
        """The layouts of all cells under a form, with what prices their items."""
        return PricedLayout(
            config=config, layout=self.layouts(form, chunks), rates=rates, costs=self.costs
        )

    def can_be_placed(self, system: System) -> bool:
        """Whether any cell has a placement on a machine."""
        return any(_placements(system, mesh) for mesh in self.meshes)

    def placed(self, system: System) -> tuple[Cells, Num]:
        """(one cell for each useful placement on a machine, the row here of each of them)."""
        import numpy as np

        _, first, mesh_number = np.unique(self.mesh_index, return_index=True, return_inverse=True)
        by_mesh = [_placements(system, mesh) for mesh in self.meshes[first]]
        n_placements = np.array([len(placements) for placements in by_mesh], dtype=int)
        start = np.cumsum(n_placements) - n_placements
        n_cells = n_placements[mesh_number]
        rows = np.repeat(np.arange(len(self)), n_cells)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(n_cells) - n_cells, n_cells)
        index = start[mesh_number[rows]] + within
        placements = _object_array([*itertools.chain(*by_mesh)])
        costs = CollectiveCost(placements).take(index)
        return replace(self.take(rows), placements=placements[index], costs=costs), rows

    def layouts(self, form: Form, chunks: Num = 1) -> Layouts:
        """The layouts of all cells under a form, with `chunks` of layers on each stage."""
        form_fields = {name: getattr(form, name) for name in Form.__dataclass_fields__}
        return Layouts(
            **form_fields,
            sizes=self._plain_sizes,
            micro_batch=self.micro_batch,
            n_microbatches=self.n_microbatches,
            virtual=chunks,
        )

    @functools.cached_property
    def _plain_sizes(self) -> Mapping[str, Num]:
        """`sizes`, with a plain number for a role that has one size in all cells.

        Plain numbers are faster: most searches have roles of one chip, and those of a given mesh
        have no other sizes.
        """
        plain: dict[str, Num] = {}
        for role, size in self.sizes.items():
            is_plain = len(size) > 0 and (size == size[0]).all()
            plain[role] = int(size[0]) if is_plain else size
        return plain


def cells(
    config: ModelConfig,
    n_chips: int,
    job: Train,
    fixed: Mapping[str, int],
    max_sizes: Mapping[str, int],
) -> Cells | None:
    """Build all cells without placements: one for each mesh and microbatch size.

    Returns None when no mesh is legal. `Cells.placed` places them.

    Args:
        n_chips: number of chips of a mesh.
        fixed: mesh role, `micro_batch` or `n_microbatches` -> its fixed size.
        max_sizes: mesh role -> largest size.
    """
    return _cells(config, n_chips, job, tuple(fixed.items()), tuple(max_sizes.items()))


@functools.lru_cache(maxsize=CACHED_CELLS)
def _cells(
    config: ModelConfig,
    n_chips: int,
    job: Train,
    fixed: tuple[tuple[str, int], ...],
    max_sizes: tuple[tuple[str, int], ...],
) -> Cells | None:
    """The cells of `cells`; cached, since all chips have the same."""
    import numpy as np

    meshes: list[Mesh] = []
    n_cells: list[int] = []
    batches: list[tuple[int, int]] = []
    for mesh, mesh_batches in _rows(config, n_chips, job, dict(fixed), dict(max_sizes)):
        meshes.append(mesh)
        n_cells.append(len(mesh_batches))
        batches += mesh_batches
    if not batches:
        return None
    # Whole numbers as floats: products of huge sizes would overflow to negative integers.
    sizes = np.array([tuple(mesh.sizes.values()) for mesh in meshes], dtype=float)
    columns = np.array(batches, dtype=float)
    placements = _object_array([None] * len(batches))
    return Cells(
        meshes=np.repeat(_object_array(meshes), n_cells),
        mesh_index=np.repeat(np.arange(len(meshes)), n_cells),
        microbatch_index=np.arange(len(batches)),
        placements=placements,
        sizes={role: np.repeat(sizes[:, i], n_cells) for i, role in enumerate(Mesh().sizes)},
        micro_batch=columns[:, 0],
        n_microbatches=columns[:, 1],
        costs=CollectiveCost(placements),
    )


def _object_array(values: Sequence[object]) -> Num:
    """A 1D array whose elements are the objects."""
    import numpy as np

    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def microbatches(job: Train, mesh: Mesh) -> list[tuple[int, int]]:
    """(sequences per microbatch, number of microbatches) that divide a data shard's batch.

    Fewest sequences per microbatch first.
    """
    sequences = job.batch // int(data_shards(mesh.sizes))
    return [(micro_batch, sequences // micro_batch) for micro_batch in divisors(sequences)]


def _rows(
    config: ModelConfig,
    n_chips: int,
    job: Train,
    fixed: Mapping[str, int],
    max_sizes: Mapping[str, int],
) -> Iterator[tuple[Mesh, Sequence[tuple[int, int]]]]:
    """Every legal mesh with its choices of (micro_batch, n_microbatches)."""
    for mesh in legal_meshes(config, n_chips, job, fixed):
        if max_sizes and any(mesh.sizes[role] > limit for role, limit in max_sizes.items()):
            continue
        if "context" not in fixed and not worth_sharding(job.seq, mesh.context):
            continue
        batches = microbatches(job, mesh)
        for column, name in enumerate(("micro_batch", "n_microbatches")):
            if name in fixed:
                batches = [batch for batch in batches if batch[column] == fixed[name]]
        if batches:
            yield mesh, batches


@functools.lru_cache(maxsize=1 << 15)  # more than the meshes of the largest pods
def _placements(system: System, mesh: Mesh) -> Sequence[Placement]:
    """The useful placements of a mesh on a machine; none if it has no placement."""
    try:
        return place(system, mesh.sizes, best=True)
    except NoStrategy:
        return ()
