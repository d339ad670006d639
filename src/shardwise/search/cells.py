"""Every legal mesh on every useful placement with every size of microbatch, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.estimate.prices import Prices
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.legal import divisors, legal_meshes, worth_cutting
from shardwise.strategy.layout import data_shards
from shardwise.strategy.mesh import INSIDE_OUT, Mesh, Placement, place
from shardwise.workload import Train


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Meshes on placements, cut into microbatches: one element each.

    Args:
        meshes, placements: of every cell.
        sizes: role -> chips.
        micro_batch, n_microbatches: sequences of one data shard, and how many such make its batch.
        prices: of collectives.
    """

    meshes: Sequence[Mesh]
    placements: Sequence[Placement]
    sizes: Mapping[str, Num]
    micro_batch: Num
    n_microbatches: Num
    prices: Prices

    def __len__(self) -> int:
        return len(self.meshes)

    def take(self, rows: Num) -> Cells:
        """Some of the cells."""
        return Cells(
            meshes=[self.meshes[i] for i in rows],
            placements=[self.placements[i] for i in rows],
            sizes={role: n[rows] for role, n in self.sizes.items()},
            micro_batch=self.micro_batch[rows],
            n_microbatches=self.n_microbatches[rows],
            prices=self.prices.take(rows),
        )


def cells(
    config: ModelConfig,
    job: Train,
    system: System,
    fixed: Mapping[str, int],
    most: Mapping[str, int],
) -> Cells | None:
    """All cells, or None when no mesh is legal.

    Args:
        fixed: mesh roles, `micro_batch` or `n_microbatches` whose size is given.
        most: largest sizes of mesh roles.
    """
    import numpy as np

    rows = list(_rows(config, job, system, fixed, most))
    if not rows:
        return None
    # Whole numbers, as floats: products of absurd sizes grow large and not negative.
    table = np.array([(*mesh.sizes.values(), b, n) for mesh, _, b, n in rows], dtype=float)
    roles = rows[0][0].sizes
    distinct: dict[Placement, int] = {}
    index = [distinct.setdefault(placement, len(distinct)) for _, placement, _, _ in rows]
    return Cells(
        meshes=[row[0] for row in rows],
        placements=[row[1] for row in rows],
        sizes={role: table[:, i] for i, role in enumerate(roles)},
        micro_batch=table[:, -2],
        n_microbatches=table[:, -1],
        prices=Prices(list(distinct)).take(np.array(index)),
    )


def microbatches(job: Train, mesh: Mesh) -> list[tuple[int, int]]:
    """(sequences of a microbatch, microbatches) on one data shard, fewest sequences first."""
    each = job.batch // int(data_shards(mesh.sizes))
    return [(b, each // b) for b in divisors(each)]


def _rows(
    config: ModelConfig,
    job: Train,
    system: System,
    fixed: Mapping[str, int],
    most: Mapping[str, int],
) -> Iterator[tuple[Mesh, Placement, int, int]]:
    known: dict[tuple[int, ...], Sequence[Placement]] = {}
    for mesh in legal_meshes(config, job, system, fixed):
        if any(mesh.sizes[role] > n for role, n in most.items()):
            continue
        if "context" not in fixed and not worth_cutting(job.seq, mesh.context):
            continue
        key = tuple(mesh.sizes[role] for role in INSIDE_OUT)
        if key not in known:
            known[key] = _placements(system, mesh)
        for b, n in microbatches(job, mesh):
            if fixed.get("micro_batch", b) == b and fixed.get("n_microbatches", n) == n:
                for placement in known[key]:
                    yield mesh, placement, b, n


def _placements(system: System, mesh: Mesh) -> Sequence[Placement]:
    try:
        return place(system, mesh.sizes, best=True)
    except NoStrategy:
        return ()
