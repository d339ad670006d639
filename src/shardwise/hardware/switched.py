"""GPUs in switched domains, and the fat tree that joins the domains.

Book, "How to Think About GPUs", sections on networking inside and beyond the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadShape
from shardwise.hardware.chip import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """GPUs in domains of equal size, in which every GPU reaches every other at full rate.

    Args:
        n_gpus: all GPUs.
        domain: GPUs of one domain (an NVLink node or rack).
    """

    n_gpus: int
    domain: int

    def __post_init__(self) -> None:
        if self.n_gpus < 1 or self.domain < 1:
            raise BadShape(f"{self.n_gpus} GPUs in domains of {self.domain}: both start at 1.")
        if self.n_gpus > self.domain and self.n_gpus % self.domain:
            below = self.n_gpus // self.domain * self.domain
            raise BadShape(
                f"{self.n_gpus} GPUs do not fill domains of {self.domain}: the last one would hold "
                f"{self.n_gpus - below}. Nearest: {below}, {below + self.domain}."
            )

    def __str__(self) -> str:
        return str(self.n_gpus)

    @property
    def n_chips(self) -> int:
        """All GPUs."""
        return self.n_gpus

    @property
    def n_nodes(self) -> int:
        """Domains; one that is not full counts."""
        return -(-self.n_gpus // self.domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class FatTree:
    """Switches and bandwidth of the network between nodes, by level. B/s are one way.

    Args:
        n_nodes: nodes.
        n_units: scalable units (sets of nodes under the same leaf switches).
        n_node_switches: switches inside the nodes.
        n_leaves: leaf switches.
        n_spines: spine switches.
        n_cores: switches of the third level, above 64 leaves of 64 ports.
        node_bytes_per_s: out of one node.
        unit_bytes_per_s: into the leaves of one unit, and out of them upwards.
        spine_bytes_per_s: over all spines.
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
        """Switches of all levels."""
        return self.n_node_switches + self.n_leaves + self.n_spines + self.n_cores


def fat_tree(chip: Chip, n_gpus: int) -> FatTree:
    """The tree over `n_gpus` with full bandwidth at every level, in whole units.

    With p ports, half of a leaf's go down and half up. Two levels reach p leaves (each spine joins
    every leaf); beyond that the spines give half their ports to a core level. Book, GPU chapter,
    question 3.

    Raises:
        UnknownFigure: the chip's file does not describe its network between nodes.
        BadShape: the last node would be partial.
    """
    domain = int(chip.need("node.gpus"))
    n_nodes = Switched(n_gpus=n_gpus, domain=domain).n_nodes
    ports = int(chip.need("scale_out.switch_ports"))
    n_units = -(-n_nodes // int(chip.need("scale_out.unit_nodes")))
    n_leaves = n_units * int(chip.need("scale_out.unit_leaves"))
    uplinks = n_leaves * (ports // 2)
    three_levels = n_leaves > ports
    node = domain * chip.need("scale_out.egress")
    return FatTree(
        n_nodes=n_nodes,
        n_units=n_units,
        n_node_switches=n_nodes * int(chip.need("node.switches")),
        n_leaves=n_leaves,
        n_spines=-(-uplinks // (ports // 2 if three_levels else ports)),
        n_cores=-(-uplinks // ports) if three_levels else 0,
        node_bytes_per_s=node,
        unit_bytes_per_s=node * int(chip.need("scale_out.unit_nodes")),
        spine_bytes_per_s=uplinks * chip.need("scale_out.egress"),
    )
