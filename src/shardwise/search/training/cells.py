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
        meshes, placements: of every cell, arrays of objects.
        sizes: role -> chips.
        micro_batch, n_microbatches: sequences of one data shard, and how many such make its batch.
        costs: of collectives.
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
        """Some of the cells."""
        return Cells(
            meshes=self.meshes[rows],
            placements=self.placements[rows],
            sizes={role: n[rows] for role, n in self.sizes.items()},
            micro_batch=self.micro_batch[rows],
            n_microbatches=self.n_microbatches[rows],
            costs=self.costs.take(rows),
        )


def cells(
    config: ModelConfig,
    system: System,
    job: Train,
    fixed: Mapping[str, int],
    most: Mapping[str, int],
) -> Cells | None:
    """All cells, or None when no mesh is legal.

    Args:
        fixed: mesh roles, `micro_batch` or `n_microbatches` whose size is given.
        most: largest sizes of mesh roles.
    """
    import numpy as np

    rows = [row for row in _rows(config, system, job, fixed, most) if row[1] and row[2]]
    if not rows:
        return None
    n_cells = [len(ways) * len(cuts) for _, ways, cuts in rows]
    starts = np.cumsum([0, *(len(ways) for _, ways, _ in rows)])
    index = [
        np.tile(np.arange(start, start + len(ways)), len(cuts))
        for start, (_, ways, cuts) in zip(starts[:-1], rows, strict=True)
    ]
    placements = _column([way for _, ways, _ in rows for way in ways])
    # Whole numbers, as floats: products of absurd sizes grow large and not negative.
    sizes = np.array([tuple(mesh.sizes.values()) for mesh, _, _ in rows], dtype=float)
    cut = np.array([cut for _, ways, cuts in rows for cut in cuts for _ in ways], dtype=float)
    return Cells(
        meshes=np.repeat(_column([mesh for mesh, _, _ in rows]), n_cells),
        placements=placements[np.concatenate(index)],
        sizes={r: np.repeat(sizes[:, i], n_cells) for i, r in enumerate(rows[0][0].sizes)},
        micro_batch=cut[:, 0],
        n_microbatches=cut[:, 1],
        costs=CollectiveCost(placements).take(np.concatenate(index)),
    )


def _column(values: Sequence[object]) -> Num:
    """An array of objects."""
    import numpy as np

    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def microbatches(job: Train, mesh: Mesh) -> list[tuple[int, int]]:
    """(sequences of a microbatch, microbatches) on one data shard, fewest sequences first."""
    each = job.batch // int(data_shards(mesh.sizes))
    return [(b, each // b) for b in divisors(each)]


def _rows(
    config: ModelConfig,
    system: System,
    job: Train,
    fixed: Mapping[str, int],
    most: Mapping[str, int],
) -> Iterator[tuple[Mesh, Sequence[Placement], Sequence[tuple[int, int]]]]:
    """Every mesh with its placements and microbatches."""
    for mesh in legal_meshes(config, system, job, fixed):
        if any(mesh.sizes[role] > n for role, n in most.items()):
            continue
        if "context" not in fixed and not worth_cutting(job.seq, mesh.context):
            continue
        cuts = [
            (b, n)
            for b, n in microbatches(job, mesh)
            if fixed.get("micro_batch", b) == b and fixed.get("n_microbatches", n) == n
        ]
        yield mesh, _placements(system, mesh), cuts


@functools.lru_cache(maxsize=4096)
def _placements(system: System, mesh: Mesh) -> Sequence[Placement]:
    try:
        return place(system, mesh.sizes, best=True)
    except NoStrategy:
        return ()
