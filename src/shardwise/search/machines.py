"""The machines that can be built from one type of chip, smallest first."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.hardware import Chip, Switched, System, domain_size, legal_slices

MAX_CHIPS = 2**17  # GPU counts are tried up to this one


def machines_of(chip: Chip) -> Iterator[System]:
    """Every legal slice of a TPU, or numbers of GPUs whose links have a figure.

    GPUs: 1, 2, 4 ... up to a full node, then 2, 3 ... 8 nodes, then repeated doubling up to
    `MAX_CHIPS`. Without a figure for the network of nodes, one node is the largest machine; without
    one for the links of a node, one GPU.
    """
    if chip.ici:
        for torus in legal_slices(chip):
            yield System(name=f"{chip.spelling}:{torus}", chip=chip, topology=torus)
        return
    node_gpus = 1
    if chip.node and chip.node.bytes_per_s_per_gpu_one_way:
        node_gpus = chip.node.n_gpus
    max_chips = node_gpus
    if chip.scale_out and chip.scale_out.bytes_per_s_per_gpu_one_way:
        max_chips = MAX_CHIPS
    n_chips = 1
    while n_chips <= max_chips:
        topology = Switched(n_gpus=n_chips, domain=node_gpus)
        yield System(name=f"{chip.spelling}:{n_chips}", chip=chip, topology=topology)
        if n_chips < node_gpus:
            n_chips = min(2 * n_chips, node_gpus)
        elif n_chips < 8 * node_gpus:
            n_chips += node_gpus
        else:
            n_chips *= 2


def machines_between(smaller: System, larger: System) -> Iterator[System]:
    """Machines of the same GPUs with more whole nodes than one and fewer than another.

    At most seven, in equal steps. None for TPUs, all of whose slices `machines_of` names.
    """
    topology = smaller.topology
    if not isinstance(topology, Switched) or smaller.n_chips % topology.domain:
        return
    step = topology.domain * max(1, (larger.n_chips - smaller.n_chips) // (8 * topology.domain))
    for n_chips in range(smaller.n_chips + step, larger.n_chips, step):
        yield System(
            name=f"{smaller.chip.spelling}:{n_chips}",
            chip=smaller.chip,
            topology=Switched(n_gpus=n_chips, domain=topology.domain),
        )


def doubling_machines(chip: Chip, max_chips: int) -> Iterator[System]:
    """Machines of `chip`, each with at least twice the chips of the one before, smallest first.

    Of the slices of a TPU with equal numbers of chips, the most compact one. Racks whose GPUs are
    no power of two are also used in part: few batches and experts divide among 9 x 2^n GPUs.
    """
    least_chips = 1
    systems = sorted(machines_of(chip), key=lambda system: (system.n_chips, _longest(system)))
    for system in systems:
        if least_chips <= system.n_chips <= max_chips:
            yield system
            least_chips = 2 * system.n_chips
    rack = chip.node.n_gpus if chip.node and not chip.ici else 1
    if rack & (rack - 1):
        yield from _partial_racks(chip, rack, min(max_chips, systems[-1].n_chips))


def _partial_racks(chip: Chip, rack: int, max_chips: int) -> Iterator[System]:
    """Machines of 2, 4, 8 ... GPUs that are more than a rack."""
    n_chips = 1 << rack.bit_length()
    while n_chips <= max_chips:
        topology = Switched(n_gpus=n_chips, domain=domain_size(chip, n_chips))
        yield System(name=f"{chip.spelling}:{n_chips}", chip=chip, topology=topology)
        n_chips *= 2


def _longest(system: System) -> int:
    """Chips along the longest axis of a torus; 0 without one."""
    topology = system.topology
    return 0 if isinstance(topology, Switched) else max(topology.shape)
