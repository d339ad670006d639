"""Switched topologies: GPUs in NVLink domains, and the fat tree between the domains.

Book, "How to Think About GPUs", sections on networking inside and beyond the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadShape
from shardwise.hardware.chip import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """Topology of GPUs behind switches: NVLink domains of equal size, joined by a network.

    Any two GPUs of a domain have full bandwidth. A domain is a node, or a rack such as NVL72.

    Args:
        n_gpus: total number of GPUs.
        domain: number of GPUs in one domain.
    """

    n_gpus: int
    domain: int

    def __post_init__(self) -> None:
        if self.n_gpus < 1 or self.domain < 1:
            raise BadShape(
                f"{self.n_gpus} GPUs in domains of {self.domain}: both must be at least 1."
            )
        if self.n_gpus > self.domain and self.n_gpus % self.domain:
            remainder = self.n_gpus % self.domain
            below = self.n_gpus - remainder
            raise BadShape(
                f"{self.n_gpus} GPUs do not fill domains of {self.domain}: the last one would hold "
                f"{remainder}. Nearest: {below}, {below + self.domain}."
            )

    def __str__(self) -> str:
        return str(self.n_gpus)

    @property
    def n_chips(self) -> int:
        """Total number of GPUs."""
        return self.n_gpus

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one domain that are used: all, unless there are fewer in total."""
        return min(self.domain, self.n_gpus)

    @property
    def n_nodes(self) -> int:
        """Number of domains; one that is only partly used counts as one."""
        return -(-self.n_gpus // self.domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class FatTree:
    """Switches and bandwidth of the network between nodes, by level.

    Args:
        n_nodes: number of nodes.
        n_units: number of scalable units (sets of nodes under the same leaf switches).
        n_node_switches: number of switches inside the nodes.
        n_leaves: number of leaf switches.
        n_spines: number of spine switches.
        n_cores: number of core switches, the third level; 0 if two levels are enough.
        node_bytes_per_s: bandwidth out of one node, B/s one way.
        unit_bytes_per_s: bandwidth from the nodes of one unit into its leaf switches, B/s one way;
            that from its leaf switches to the spine switches is the same.
        spine_bytes_per_s: bandwidth into all spine switches together, B/s one way.
    """

    n_nodes: int
    n_units: int
    n_node_switches: int
    n_leaves: int
    n_spines: int
    n_cores: int
    node_bytes_per_s: float
    unit_bytes_per_s: float
    spine_bytes_per_s: float

    @property
    def n_switches(self) -> int:
        """Number of switches on all levels together."""
        return self.n_node_switches + self.n_leaves + self.n_spines + self.n_cores


def fat_tree(chip: Chip, n_gpus: int) -> FatTree:
    """Count the switches of a fat tree with full bandwidth at every level.

    The number of nodes is rounded up to whole units. Half of the p ports of a leaf switch go down
    to nodes and half up to spine switches. Two levels are enough for p leaf switches, since each
    spine switch connects to every one; with more, half of the ports of each spine switch go up to
    core switches. Book, GPU chapter, question 3.

    Raises:
        UnknownFigure: the chip's file does not describe the network between nodes.
        BadShape: `n_gpus` is not a multiple of the GPUs of a node.
    """
    gpus_per_node = int(chip.need("node.gpus"))
    n_nodes = Switched(n_gpus=n_gpus, domain=gpus_per_node).n_nodes
    ports = int(chip.need("scale_out.switch_ports"))
    nodes_per_unit = int(chip.need("scale_out.unit_nodes"))
    n_units = -(-n_nodes // nodes_per_unit)
    n_leaves = n_units * int(chip.need("scale_out.unit_leaves"))
    uplinks = n_leaves * (ports // 2)
    n_spines = -(-uplinks // ports)
    n_cores = 0
    if n_leaves > ports:
        n_cores = n_spines
        n_spines = -(-uplinks // (ports // 2))
    node_bytes_per_s = gpus_per_node * chip.need("scale_out.egress")
    return FatTree(
        n_nodes=n_nodes,
        n_units=n_units,
        n_node_switches=n_nodes * int(chip.need("node.switches")),
        n_leaves=n_leaves,
        n_spines=n_spines,
        n_cores=n_cores,
        node_bytes_per_s=node_bytes_per_s,
        unit_bytes_per_s=node_bytes_per_s * nodes_per_unit,
        spine_bytes_per_s=uplinks * chip.need("scale_out.egress"),
    )
