"""The machine of a plan: its figures, the memory of a chip, and where the axes of a mesh lie on it.

`planned_hardware` records a machine in a plan; `system_of` reads it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace

from shardwise.errors import BadFile, ShardwiseError
from shardwise.estimate.chip_memory import Memory
from shardwise.hardware import Chip, System, Torus, parse_system
from shardwise.hardware.chip import get, with_values
from shardwise.plan.schema.common import MemoryBytes, PlannedHardware
from shardwise.strategy.mesh import Mesh, Placement


def planned_hardware(system: System) -> PlannedHardware:
    """The record of a machine in a plan."""
    return PlannedHardware(
        name=system.name,
        chip=system.chip.name,
        topology=topology_text(system),
        slices=system.n_slices,
        n_chips=system.n_chips,
        as_of=system.chip.as_of,
        figures=_figures(system.chip),
    )


def topology_text(system: System) -> str:
    """`torus 16x20x28, all axes wrap` or `2,048 nodes of 8`."""
    topology = system.topology
    if not isinstance(topology, Torus):
        return f"{topology.n_nodes:,} nodes of {min(topology.domain, topology.n_gpus)}"
    wrapped = [axis for axis, wraps in zip("xyzw", topology.wrapped, strict=False) if wraps]
    if not wrapped:
        return f"torus {topology}, no axis wraps"
    if len(wrapped) == topology.n_axes:
        return f"torus {topology}, all axes wrap"
    return f"torus {topology}, {', '.join(wrapped)} wraps"


def system_of(hardware: PlannedHardware) -> System:
    """The machine of a plan, with the chip's figures that the plan was made with."""
    system = parse_system(hardware.name)
    chip = system.chip
    catalog = _figures(chip)
    changed: dict[str, float | None] = {}
    for path in {*catalog, *hardware.figures}:
        planned = hardware.figures.get(path)
        if planned == catalog.get(path):
            continue
        if planned is not None and isinstance(get(chip, path), int):
            planned = int(planned)  # counts stay integers
        changed[path] = planned
    if not changed:
        return system
    return replace(system, chip=with_values(chip, changed))


def _figures(chip: Chip) -> dict[str, float]:
    """Every numeric figure of a chip's file by its path."""
    return {
        path: float(figure.value)
        for path, figure in chip.figures.items()
        if isinstance(figure.value, int | float)
    }


def memory_bytes(memory: Memory) -> MemoryBytes:
    """The memory of a chip as a plan lists it, bytes."""
    return MemoryBytes(**{f.name: float(getattr(memory, f.name)) for f in fields(MemoryBytes)})


@contextmanager
def refuse_unreadable() -> Iterator[None]:
    """Report every error while a plan is rebuilt as `BadFile`."""
    try:
        yield
    except BadFile:
        raise
    except ShardwiseError as error:
        problems = [f"the plan cannot be rebuilt: {problem}" for problem in error.problems]
        raise BadFile(*problems) from None


def links_of(placement: Placement, sizes: Mapping[str, int]) -> dict[str, str]:
    """The links under each axis longer than 1, as a plan describes them."""
    return {role: placement.describe(role) for role, size in sizes.items() if size > 1}


def placement_of(
    descriptions: Mapping[str, str], placements: Iterable[Placement], mesh: Mesh, system: System
) -> Placement:
    """The placement that a plan describes, among all that `mesh` has on `system`.

    Args:
        descriptions: role -> links under its axis, as `Placement.describe` returns them.

    Raises:
        BadFile: no placement has these descriptions.
    """
    for placement in placements:
        if all(placement.describe(role) == links for role, links in descriptions.items()):
            return placement
    listed = ", ".join(f"{role} {links}" for role, links in descriptions.items())
    raise BadFile(f"{system.name} has no placement of {mesh} with {listed}.")
