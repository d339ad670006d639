"""Room of legal engines for sequences: what fits on a machine, without any time.

The numbers are plain, so that `fit` loads no NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.arrays import ceil_div
from shardwise.errors import NoStrategy
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.serving.memory import engine_memory, weights_bytes
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.given import NOTHING_FIXED, Fixed
from shardwise.search.serving.layouts import engine_machine, engine_meshes
from shardwise.search.serving.legal import batch_limits, forms, legal
from shardwise.strategy.mesh import Mesh, place
from shardwise.strategy.serving_layout import ServeForm
from shardwise.workload import Serve


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRoom:
    """The room of one kind of engine, of which a machine holds `mesh.data`.

    Args:
        unit: sequences of which every batch of an engine is a multiple.
        limit: sequences of the largest batch of one engine; 0 if not one unit fits.
        ideal: whether only weights and KV cache count.
    """

    config: ModelConfig
    system: System
    job: Serve
    mesh: Mesh
    form: ServeForm
    unit: int
    limit: int
    ideal: bool

    @property
    def sequences(self) -> int:
        """The most sequences on the machine."""
        return self.limit * self.mesh.data

    @property
    def weights_bytes(self) -> float:
        """Bytes of weights on the fullest chip."""
        return float(weights_bytes(self.config, self.form, self.mesh.sizes, self.job))

    @property
    def is_placeable(self) -> bool:
        """Whether the links of the machine have a placement for the engine."""
        try:
            place(*engine_machine(self.system, self.mesh), best=True)
        except NoStrategy:
            return False
        return True

    def holds(self, batch: int | None) -> bool:
        """Whether the machine's engines share a batch evenly and have room for it.

        None is any batch.
        """
        if batch is None:
            return self.limit > 0
        per_engine, remainder = divmod(batch, self.mesh.data)
        return not remainder and per_engine % self.unit == 0 and per_engine <= self.limit

    def left_bytes(self, batch: int) -> float:
        """Bytes that a batch leaves on all chips together, beside what is kept free.

        Negative if the batch does not fit.
        """
        per_engine = max(self.unit, ceil_div(batch, self.mesh.data))
        memory = engine_memory(
            self.config,
            self.form,
            self.mesh.sizes,
            self.job,
            per_engine,
            capacity_bytes(self.system.chip),
            ideal=self.ideal,
        )
        return float(memory.left) * self.mesh.n_chips


def rooms(
    config: ModelConfig,
    systems: Sequence[System],
    job: Serve,
    *,
    fixed: Fixed = NOTHING_FIXED,
    ideal: bool = False,
    fills_machine: bool = False,
) -> Iterator[EngineRoom]:
    """The room of every legal engine that can be placed, those for most sequences first.

    Args:
        ideal: whether only weights and KV cache count.
        fills_machine: whether one engine uses all chips of its machine.
    """
    engine_rooms = []
    for system in systems:
        for mesh in engine_meshes(config, system, job, fixed, fills_machine=fills_machine):
            for form in forms(config, fixed):
                if legal(config, form, mesh.sizes, fixed, job.engine, system.chip):
                    unit, limit = batch_limits(
                        config, form, mesh.sizes, job, system.chip, ideal=ideal
                    )
                    room = EngineRoom(
                        config=config,
                        system=system,
                        job=job,
                        mesh=mesh,
                        form=form,
                        unit=int(unit),
                        limit=int(limit),
                        ideal=ideal,
                    )
                    engine_rooms.append(room)
    engine_rooms.sort(key=lambda room: -room.sequences)
    return (room for room in engine_rooms if room.is_placeable)
