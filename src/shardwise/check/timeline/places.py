"""Where the devices of a program are: chips on a torus or in nodes, slices, cores of a chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.errors import BadInput
from shardwise.hardware import System, Torus

Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Where each device of a program is, in the order in which the program numbers them.

    Args:
        chips: [device, torus axis], the coordinates of its chip in its slice; on switches
            [device, 1], the place in its node.
        domains: [device], the slice, or the node where chips are switched.
        cores: [device], which device of its chip.
    """

    chips: Array
    domains: Array
    cores: Array

    @property
    def per_chip(self) -> int:
        """Devices that share the links of one chip."""
        return int(self.cores.max()) + 1 if self.cores.size else 1


def devices_in_order(system: System, per_chip: int = 1) -> Devices:
    """Devices numbered along the last torus axis first, then the slices: the usual order.

    Args:
        per_chip: devices of one chip, which are numbered first.
    """
    here = system.chips_per_slice
    n = here * per_chip * system.n_slices
    number = np.arange(n)
    chip, cores = number // per_chip, number % per_chip
    if isinstance(system.topology, Torus):
        shape = system.topology.shape
        inside = np.stack(np.unravel_index(chip % here, shape), axis=1)
        return Devices(chips=inside, domains=chip // here, cores=cores)
    domain = system.topology.domain
    return Devices(chips=(chip % domain)[:, None], domains=chip // domain, cores=cores)


def devices_at(
    system: System, coords: Sequence[tuple[int, ...]], cores: Sequence[int], slices: Sequence[int]
) -> Devices:
    """Devices where the compiler says that they are.

    Args:
        coords: of each device the chip on its torus; on switches its domain, host and chip.
        cores: of each device its number in its chip.
        slices: of each device its slice.

    Raises:
        BadInput: when coordinates are missing.
    """
    if not coords or not all(coords):
        raise BadInput(f"nothing says where on {system.name} the devices of the program are.")
    place = np.array(coords, dtype=np.int64)
    if isinstance(system.topology, Torus):
        n_axes = len(system.topology.shape)
        chips, domains = place[:, :n_axes], np.array(slices, dtype=np.int64)
    else:
        in_host = int(place[:, 2].max()) + 1
        chips, domains = (place[:, 1] * in_host + place[:, 2])[:, None], place[:, 0]
    return Devices(chips=chips, domains=domains, cores=np.array(cores, dtype=np.int64))
