"""The machine in a plan: its chip's numbers, its memory, and the links of a mesh on it.

`planned_hardware` makes the entry of a machine in a plan; `system_of` reads it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace

from shardwise.errors import BadFile, BadInput, ShardwiseError
from shardwise.estimate.calibration import (
    MEASURED,
    PEAK,
    AchievedShares,
    Calibration,
    calibration,
    own_factor,
)
from shardwise.estimate.chip_memory import Memory
from shardwise.estimate.training.framework_profiles import framework_of
from shardwise.estimate.training.measured_rates import is_measured
from shardwise.hardware import Chip, System, Torus, parse_system
from shardwise.hardware.chip import get, with_values
from shardwise.plan.schema.common import MemoryBytes, PlannedHardware, RatesUsed
from shardwise.strategy.mesh import Mesh, Placement
from shardwise.workload import Train


def planned_hardware(system: System) -> PlannedHardware:
    """Make the entry of a machine in a plan."""
    topology = system.topology
    gpus_per_node = None
    if not isinstance(topology, Torus):
        gpus_per_node = topology.gpus_per_node
    return PlannedHardware(
        name=system.name,
        chip=system.chip.name,
        topology=topology_text(system),
        slices=system.n_slices,
        n_chips=system.n_chips,
        gpus_per_node=gpus_per_node,
        as_of=system.chip.as_of,
        figures=figures_of(system.chip),
        measured_devices=_measured_devices(system),
    )


def _measured_devices(system: System) -> int | None:
    """Devices that a CPU was measured as, if they are more than those of the machine."""
    node = system.chip.node
    if not system.chip.shares_host or node is None or node.n_gpus <= system.n_chips:
        return None
    return node.n_gpus


def topology_text(system: System) -> str:
    """Describe a topology: `torus 16x20x28, all axes wrap` or `2,048 nodes of 8`."""
    topology = system.topology
    if not isinstance(topology, Torus):
        text = f"{topology.n_nodes:,} nodes of {topology.gpus_per_node}"
        node = system.chip.node
        if node and topology.n_nodes > 1 and topology.domain < node.n_gpus:
            text += f" of {node.n_gpus}"
        return text
    wrapped = [axis for axis, wraps in zip("xyzw", topology.wrapped, strict=False) if wraps]
    if not wrapped:
        return f"torus {topology}, no axis wraps"
    if len(wrapped) == topology.n_axes:
        return f"torus {topology}, all axes wrap"
    return f"torus {topology}, {', '.join(wrapped)} wraps"


def system_of(hardware: PlannedHardware) -> System:
    """Rebuild the machine of a plan, with the chip's numbers that the plan was made with.

    The catalog may have other numbers for the chip today; those of the plan replace them.
    """
    system = parse_system(hardware.name)
    chip = system.chip
    catalog = figures_of(chip)
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


def figures_of(chip: Chip) -> dict[str, float]:
    """Path in a chip's file -> value, for every number in the file."""
    return {
        path: float(figure.value)
        for path, figure in chip.figures.items()
        if isinstance(figure.value, int | float)
    }


def memory_bytes(memory: Memory) -> MemoryBytes:
    """Convert the estimated memory of a chip to the entry in a plan."""
    return MemoryBytes(**{f.name: float(getattr(memory, f.name)) for f in fields(MemoryBytes)})


def rates_of(system: System, job: Train, *, peak: bool) -> Calibration:
    """The measured rates of the machine's chip, those of a job's framework on it, or peak rates.

    Own runs on the chip correct its calibrated rates; the file of a measured machine has them
    corrected already.

    Raises:
        BadInput: peak rates of a framework.
    """
    if peak and job.framework:
        raise BadInput(
            f"peak rates are those of the chip, whatever the framework: {job.framework} does not "
            "reach them. Leave out the framework, or --peak."
        )
    if peak:
        return PEAK
    chip = system.chip
    if is_measured(chip):
        return MEASURED
    rates = calibration(chip, framework_of(job, chip))
    if chip.own_step_ratio is None:
        return rates
    factor = own_factor(chip.own_step_ratio, chip.n_own_runs or 1)
    source = f"{rates.source}; corrected by {chip.n_own_runs or 1} own runs"
    return replace(rates.slowed(factor), name=f"{rates.name} and own", source=source)


def rates_used(shares: AchievedShares) -> RatesUsed:
    """Make the entry of the rates in a plan."""
    return RatesUsed(
        name=shares.name, as_of=shares.as_of, source=shares.source, spread=shares.spread
    )


@contextmanager
def errors_at(path: str) -> Iterator[None]:
    """Turn every `ShardwiseError` in the block, which reads a part of a plan, into `BadFile`.

    Args:
        path: the keys of the part, as `$.strategy.mesh`.
    """
    try:
        yield
    except ShardwiseError as error:
        raise BadFile(*(f"{path}: {problem}" for problem in error.problems)) from None


def describe_links(placement: Placement, sizes: Mapping[str, int]) -> dict[str, str]:
    """Role -> links that its mesh axis uses, in words, for each axis longer than 1."""
    return {role: placement.describe(role) for role, size in sizes.items() if size > 1}


def find_placement(
    descriptions: Mapping[str, str], placements: Iterable[Placement], mesh: Mesh, system: System
) -> Placement:
    """Find the placement of `mesh` on `system` that a plan describes.

    Args:
        descriptions: role -> links that its mesh axis uses, as `Placement.describe` returns them.
        placements: the placements to choose from.

    Raises:
        BadFile: none of the placements has these descriptions.
    """
    for placement in placements:
        if all(placement.describe(role) == links for role, links in descriptions.items()):
            return placement
    listed = ", ".join(f"{role} {links}" for role, links in descriptions.items())
    raise BadFile(f"{system.name} has no placement of {mesh} with {listed}.")
