"""Places of devices without a compiler that says them."""

from __future__ import annotations

import numpy as np

from shardwise.check.timeline.places import DevicePlaces
from shardwise.hardware import System, Torus


def row_major_places(system: System, devices_per_chip: int = 1) -> DevicePlaces:
    """Places of devices in XLA's usual order: cores vary fastest, then the last torus axis, ...

    Slices (or nodes) vary slowest.
    """
    chips_per_slice = system.chips_per_slice
    numbers = np.arange(chips_per_slice * devices_per_chip * system.n_slices)
    chip = numbers // devices_per_chip
    cores = numbers % devices_per_chip
    if isinstance(system.topology, Torus):
        coordinates = np.unravel_index(chip % chips_per_slice, system.topology.shape)
        slices = chip // chips_per_slice
        return DevicePlaces(chips=np.stack(coordinates, axis=1), domains=slices, cores=cores)
    domain = system.topology.domain
    return DevicePlaces(chips=(chip % domain)[:, None], domains=chip // domain, cores=cores)
