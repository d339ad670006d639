"""Every legal mesh on every useful placement with every size of microbatch, as arrays."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.model_sizes import divisors, worth_cutting
from shardwise.search.training.legal import legal_meshes
from shardwise.strategy.layout import data_shards
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.workload import Train


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Meshes on placements, cut into microbatches: one element each.

    Args:
        meshes, placements: arrays of objects, one for each cell.
        sizes: mesh role -> chips.
        micro_batch: sequences of a microbatch on one data shard.
        n_microbatches: microbatches of a step.
        costs: costs of collectives on the placements.
    """

    meshes: Num
    placements: Num
    sizes: Mapping[str, Num]
    micro_batch: Num
    n_microbatches: Num
    costs: CollectiveCost

    def __len__(self) -> int:
        return len(self.meshes)

    def take(self, rows: Num) -> Cells:
        """Select the cells of these rows."""
        return Cells(
            meshes=self.meshes[rows],
            placements=self.placements[rows],
            sizes={role: size[rows] for role, size in self.sizes.items()},
            micro_batch=self.micro_batch[rows],
            n_microbatches=self.n_microbatches[rows],
            costs=self.costs.take(rows),
        )


def cells(
    config: ModelConfig,
    system: System,
    job: Train,
    fixed: Mapping[str, int],
    max_sizes: Mapping[str, int],
) -> Cells | None:
    """Build all cells, or None when no mesh is legal.

    Args:
        fixed: mesh roles, `micro_batch` or `n_microbatches` whose size is given.
        max_sizes: largest sizes of mesh roles.
    """
    import numpy as np

    meshes: list[Mesh] = []
    placements: list[Placement] = []
    n_cells: list[int] = []
    placement_index: list[int] = []
    batches: list[tuple[int, int]] = []
    for mesh, mesh_placements, mesh_batches in _rows(config, system, job, fixed, max_sizes):
        first = len(placements)
        placements += mesh_placements
        for batch in mesh_batches:
            placement_index += range(first, len(placements))
            batches += [batch] * len(mesh_placements)
        meshes.append(mesh)
        n_cells.append(len(mesh_placements) * len(mesh_batches))
    if not batches:
        return None
    # Whole numbers held as floats: products of absurd sizes become large, not negative.
    sizes = np.array([tuple(mesh.sizes.values()) for mesh in meshes], dtype=float)
    columns = np.array(batches, dtype=float)
    index = np.array(placement_index)
    return Cells(
        meshes=np.repeat(_column(meshes), n_cells),
        placements=_column(placements)[index],
        sizes={role: np.repeat(sizes[:, i], n_cells) for i, role in enumerate(Mesh().sizes)},
        micro_batch=columns[:, 0],
        n_microbatches=columns[:, 1],
        costs=CollectiveCost(_column(placements)).take(index),
    )


def _column(values: Sequence[object]) -> Num:
    """Make an array of objects."""
    import numpy as np

    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def microbatches(job: Train, mesh: Mesh) -> list[tuple[int, int]]:
    """(sequences of a microbatch, microbatches) on one data shard, fewest sequences first."""
    sequences = job.batch // int(data_shards(mesh.sizes))
    return [(micro_batch, sequences // micro_batch) for micro_batch in divisors(sequences)]


def _rows(
    config: ModelConfig,
    system: System,
    job: Train,
    fixed: Mapping[str, int],
    max_sizes: Mapping[str, int],
) -> Iterator[tuple[Mesh, Sequence[Placement], Sequence[tuple[int, int]]]]:
    """Every mesh with its placements and its (micro_batch, n_microbatches)."""
    for mesh in legal_meshes(config, system, job, fixed):
        if any(mesh.sizes[role] > limit for role, limit in max_sizes.items()):
            continue
        if "context" not in fixed and not worth_cutting(job.seq, mesh.context):
            continue
        batches = microbatches(job, mesh)
        for column, name in enumerate(("micro_batch", "n_microbatches")):
            if name in fixed:
                batches = [batch for batch in batches if batch[column] == fixed[name]]
        placements = _placements(system, mesh)
        if placements and batches:
            yield mesh, placements, batches


@functools.lru_cache(maxsize=4096)
def _placements(system: System, mesh: Mesh) -> Sequence[Placement]:
    try:
        return place(system, mesh.sizes, best=True)
    except NoStrategy:
        return ()
