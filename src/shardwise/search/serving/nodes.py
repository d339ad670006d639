"""What a deployment has of the nodes of its machine: the chips it occupies, the links between them.

GPUs of a node that are too few for another engine serve nobody else: they count as occupied.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.arrays import Num
from shardwise.hardware import Chip, Switched, System


def occupied(system: System, chips: Num, engine_chips: Num) -> Num:
    """Number of chips of a machine that each deployment occupies.

    Args:
        chips: chips of all engines of each deployment.
        engine_chips: chips of one of its engines that decode.
    """
    import numpy as np

    if not isinstance(system.topology, Switched):
        return chips
    rest = -chips % system.topology.gpus_per_node
    return np.where(rest < engine_chips, chips + rest, chips)


def cache_link(chip: Chip, systems: Sequence[System], chips: Num, *, machine_is_given: bool) -> Num:
    """Bytes per second at which one chip sends KV caches from engine to engine, per deployment.

    TPU engines on a given machine of one slice use its ICI, others DCN. GPU engines use the
    switches of their node if the whole deployment fits in one, otherwise the scale-out network.

    Args:
        chips: number of chips of each deployment.

    Raises:
        UnknownFigure: the chip's file does not state the bandwidth.
    """
    import numpy as np

    if chip.ici:
        bandwidth_name = "dcn.bandwidth"
        if machine_is_given and systems[0].n_slices == 1:
            bandwidth_name = "ici.link"
        return np.full_like(chips, chip.need(bandwidth_name))
    topology = systems[0].topology
    node_gpus = 1
    if isinstance(topology, Switched):
        node_gpus = topology.domain
    in_node = chips <= node_gpus
    node_rate = 0.0
    network_rate = 0.0
    if in_node.any():
        node_rate = chip.need("node.egress")
    if not in_node.all():
        network_rate = chip.need("scale_out.egress")
    return np.where(in_node, node_rate, network_rate)
