"""Physical positions of the devices of a program: chips on a torus or in nodes, slices, cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.errors import BadInput
from shardwise.hardware import System, Torus

Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlaces:
    """Physical position of each device of a program, in the program's numbering.

    Args:
        chips: [device, torus axis], coordinates of its chip in the slice; on machines with switches
            [device, 1], index of its chip in the node.
        domains: [device], index of its slice; on machines with switches, of its node.
        cores: [device], index of the device on its chip.
    """

    chips: Array
    domains: Array
    cores: Array

    @property
    def devices_per_chip(self) -> int:
        """Devices that share the links of one chip."""
        return int(self.cores.max()) + 1 if self.cores.size else 1


def compiler_places(
    system: System, coords: Sequence[tuple[int, ...]], cores: Sequence[int], slices: Sequence[int]
) -> DevicePlaces:
    """Places of devices at the coordinates that the compiler's device objects have.

    Args:
        coords: for each device its torus coordinates, or on machines with switches
            (node, host in the node, chip in the host).
        cores: for each device its index on its chip.
        slices: for each device its slice.

    Raises:
        BadInput: coordinates are missing.
    """
    if not coords or not all(coords):
        raise BadInput(f"the compiler gives no coordinates for the devices of {system.name}.")
    coordinates = np.array(coords, dtype=np.int64)
    if isinstance(system.topology, Torus):
        chips = coordinates[:, : len(system.topology.shape)]
        domains = np.array(slices, dtype=np.int64)
    else:
        chips_per_host = int(coordinates[:, 2].max()) + 1
        chips = (coordinates[:, 1] * chips_per_host + coordinates[:, 2])[:, None]
        domains = coordinates[:, 0]
    return DevicePlaces(chips=chips, domains=domains, cores=np.array(cores, dtype=np.int64))
