"""Machines with some of their figures multiplied, for sensitivities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from shardwise.errors import BadInput, UnknownName, raise_all
from shardwise.hardware.chip import Chip, get, with_values
from shardwise.hardware.system import OVERRIDES, System

PEAKS = "flops"  # all dense peaks of the chip
SCALABLE = (PEAKS, *OVERRIDES)


def scaled(system: System, factors: Mapping[str, float]) -> System:
    """The machine with some figures multiplied; it keeps its name, its figures record the change.

    Args:
        system: the machine.
        factors: factor by name of `SCALABLE`, as `{"ici": 0.5, "flops": 2}`. `flops` means the
            dense peaks at all dtypes.

    Raises:
        UnknownName: a name is not in `SCALABLE`.
        BadInput: a factor is not above 0, or the chip has no such figure.
    """
    problems = []
    values: dict[str, float | None] = {}
    for name, factor in factors.items():
        if name not in SCALABLE:
            raise UnknownName("number of the hardware", name, SCALABLE)
        if not 0 < factor < math.inf:
            problems.append(f"{name} x{factor:g}: a factor is above 0.")
            continue
        scaled_values = {}
        for path in _paths(system.chip, name):
            value = get(system.chip, path)
            if isinstance(value, int | float):
                scaled_values[path] = factor * value
        if not scaled_values:
            problems.append(f"{name}: {system.chip.name} has no figure for it to multiply.")
        values.update(scaled_values)
    raise_all(BadInput, problems)
    return replace(system, chip=with_values(system.chip, values))


def _paths(chip: Chip, name: str) -> list[str]:
    """Names of the figures that one name of `SCALABLE` stands for."""
    if name == PEAKS:
        return [f"peak.{dtype}" for dtype in chip.peak_flops_per_s]
    if name == "hbm":  # the usable part grows with the capacity
        return ["hbm.capacity", "hbm.usable"]
    return [OVERRIDES[name]]
