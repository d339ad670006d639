"""Machines with some rates or capacities multiplied, to see how a plan depends on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from shardwise.errors import BadInput, UnknownName, raise_all
from shardwise.hardware.chip import Chip, get, with_values
from shardwise.hardware.system import OVERRIDES, System

PEAKS = "flops"  # stands for the dense peaks of the chip at all dtypes
SCALABLE = (PEAKS, *OVERRIDES)


def scaled(system: System, factors: Mapping[str, float]) -> System:
    """A copy of a machine with some of its chip's numbers multiplied.

    The copy keeps the name of the machine; `chip.figures` records the change.

    Args:
        factors: name in `SCALABLE` -> factor, as `{"ici": 0.5, "flops": 2}`.

    Raises:
        UnknownName: a name is not in `SCALABLE`.
        BadInput: a factor is not above 0, or the chip's number is unknown.
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
    """The figures that a name in `SCALABLE` stands for."""
    if name == PEAKS:
        return [f"peak.{dtype}" for dtype in chip.peak_flops_per_s]
    if name == "hbm":  # the usable capacity grows with the documented one
        return ["hbm.capacity", "hbm.usable"]
    return [OVERRIDES[name]]
