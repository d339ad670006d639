"""A machine with some of its numbers multiplied."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from shardwise.errors import BadInput, UnknownName, raise_all
from shardwise.hardware.chip import Chip, get, with_values
from shardwise.hardware.system import OVERRIDES, System

PEAKS = "flops"  # every dense peak of the chip together
SCALABLE = (PEAKS, *OVERRIDES)


def scaled(system: System, factors: Mapping[str, float]) -> System:
    """The machine with numbers multiplied; its name stays, its figures say what was changed.

    Args:
        system: the machine.
        factors: name of `SCALABLE` -> factor: `{"ici": 0.5, "flops": 2}`. `flops` are the dense
            peaks at all dtypes.

    Raises:
        UnknownName: another name. BadInput: a factor that is not above 0, or a number that the
            chip does not have.
    """
    problems = []
    values: dict[str, float | None] = {}
    for name, factor in factors.items():
        if name not in SCALABLE:
            raise UnknownName("number of the hardware", name, SCALABLE)
        if not 0 < factor < math.inf:
            problems.append(f"{name} x{factor:g}: a factor is above 0.")
            continue
        found = {path: get(system.chip, path) for path in _paths(system.chip, name)}
        there = {path: v for path, v in found.items() if isinstance(v, int | float)}
        if not there:
            problems.append(f"{name}: {system.chip.name} has no figure for it to multiply.")
        values.update({path: factor * v for path, v in there.items()})
    raise_all(BadInput, problems)
    return replace(system, chip=with_values(system.chip, values))


def _paths(chip: Chip, name: str) -> list[str]:
    """The figures that go by one name."""
    if name == PEAKS:
        return [f"peak.{dtype}" for dtype in chip.peak_flops_per_s]
    if name == "hbm":  # what a driver leaves of it grows along
        return ["hbm.capacity", "hbm.usable"]
    return [OVERRIDES[name]]
