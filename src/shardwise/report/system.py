"""A machine: its topology, and the sums of its chips' rates, memory and price."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise import units
from shardwise.errors import UnknownFigure
from shardwise.hardware import FatTree, Switched, System, Torus, fat_tree, show_value
from shardwise.report.hardware import wraps
from shardwise.report.style import Block, labelled, quiet, strong
from shardwise.report.words import chips, counted


def document(system: System) -> dict[str, Any]:
    """The topology and totals of a machine; a total is None if the chip's value is not public."""
    topology = system.topology
    chip = system.chip
    n_chips = system.n_chips
    peak_flops_per_s = {}
    for dtype, rate in chip.peak_flops_per_s.items():
        peak_flops_per_s[dtype] = rate * n_chips
    return {
        "name": system.name,
        "chip": chip.name,
        "slices": system.n_slices,
        "n_chips": n_chips,
        "n_hosts": system.n_hosts,
        "n_devices": _total(chip.n_devices, n_chips),
        "topology": _torus(topology) if isinstance(topology, Torus) else _nodes(topology),
        "network": _tree(system),
        "peak_flops_per_s": peak_flops_per_s,
        "hbm_bytes": _total(chip.hbm_bytes, n_chips),
        "hbm_bytes_per_s": _total(chip.hbm_bytes_per_s, n_chips),
        "usd_per_hour": _total(chip.usd_per_chip_hour, n_chips),
    }


def _total(per_chip: float | None, n_chips: int) -> float | None:
    if per_chip is None:
        return None
    return per_chip * n_chips


def _torus(torus: Torus) -> dict[str, Any]:
    return {
        "shape": torus.shape,
        "wrapped": torus.wrapped,
        "farthest_hops": _farthest_hops(torus),
    }


def _farthest_hops(torus: Torus) -> list[int]:
    """Hops to the farthest chip along each axis."""
    return [torus.farthest(axis) for axis in range(torus.n_axes)]


def _nodes(switched: Switched) -> dict[str, Any]:
    return {"n_nodes": switched.n_nodes, "gpus_per_node": switched.gpus_per_node}


def _tree(system: System) -> FatTree | None:
    """The switches between nodes.

    None for a torus, for a single node, or for a chip whose network is not published.
    """
    topology = system.topology
    if isinstance(topology, Torus) or topology.n_nodes == 1:
        return None
    try:
        return fat_tree(system.chip, topology.n_nodes * int(system.chip.need("node.gpus")))
    except UnknownFigure:
        return None


def blocks(system: System) -> Iterator[Block]:
    """The topology of a machine, then its totals."""
    yield strong(f"{system.name}: {chips(system.n_chips)}{_hosts(system)}.")
    yield labelled([*_topology(system), *_totals(system)])
    yield quiet(f"type  shardwise hw {system.chip.name}  shows the figures with their sources")


def _hosts(system: System) -> str:
    text = ""
    if system.n_slices > 1:
        text += f", {system.n_slices} slices over DCN"
    if system.n_hosts is not None:
        text += f", {counted(system.n_hosts, 'host')}"
    devices_per_chip = system.chip.n_devices
    if devices_per_chip is not None and devices_per_chip > 1:
        text += f", {devices_per_chip * system.n_chips:,} JAX devices"
    return text


def _topology(system: System) -> Iterator[tuple[str, str]]:
    topology = system.topology
    chip = system.chip
    if isinstance(topology, Torus):
        hops = _farthest_hops(topology)
        yield "torus", f"{topology}, wraparound: {wraps(topology)}"
        yield "farthest", f"{sum(hops)} hops ({' + '.join(map(str, hops))})"
        if chip.ici and chip.ici.link_bytes_per_s_one_way:
            rate = show_value(chip.ici.link_bytes_per_s_one_way, "B/s")
            yield "link", f"{rate} one way"
        return
    partly = ""
    if chip.node and topology.n_nodes > 1 and topology.domain < chip.node.n_gpus:
        partly = f", of the {chip.node.n_gpus} of each rack"
    yield "nodes", f"{topology.n_nodes:,} of {topology.gpus_per_node}{partly}"
    if chip.node and chip.node.bytes_per_s_per_gpu_one_way:
        rate = show_value(chip.node.bytes_per_s_per_gpu_one_way, "B/s")
        yield "in a node", f"{rate} a GPU, one way"
    if chip.scale_out and chip.scale_out.bytes_per_s_per_gpu_one_way and topology.n_nodes > 1:
        rate = show_value(chip.scale_out.bytes_per_s_per_gpu_one_way, "B/s")
        yield "between", f"{rate} a GPU, one way"
    tree = _tree(system)
    if tree:
        core_switches = f", {tree.n_cores:,} core" if tree.n_cores else ""
        yield (
            "switches",
            f"{tree.n_node_switches:,} in nodes, {tree.n_leaves:,} leaf, {tree.n_spines:,} "
            f"spine{core_switches}; {tree.n_units:,} scalable units",
        )


def _totals(system: System) -> Iterator[tuple[str, str]]:
    chip = system.chip
    n_chips = system.n_chips
    for dtype, rate in chip.peak_flops_per_s.items():
        yield f"peak {dtype}", units.show_rate(rate * n_chips, "FLOP/s")
    if chip.hbm_bytes is not None:
        hbm_bytes = chip.hbm_bytes * n_chips
        yield "HBM", f"{units.show_bytes(hbm_bytes)} = {units.show_gib(hbm_bytes)}"
    if chip.hbm_bytes_per_s is not None:
        yield "bandwidth", units.show_rate(chip.hbm_bytes_per_s * n_chips, "B/s")
    if chip.usd_per_chip_hour is not None:
        yield "price", f"{units.show_dollars(chip.usd_per_chip_hour * n_chips)}/h"
