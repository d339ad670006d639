"""Sweeps of training and of serving: the combinations of options, and their table of rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from shardwise.errors import BadInput, UnknownName
from shardwise.hardware import Chip, System
from shardwise.strategy.mesh import INSIDE_OUT

MAX_POINTS = 1000  # each is a search of up to seconds
HARDWARE = "hardware"
NESTED = ("swept", "step_s", "mesh", "prefill_mesh", "problem")  # fields that a flat row spreads

Machine = TypeVar("Machine", bound=System | Chip)
Values = dict[str, tuple[Any, ...]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """All rows of a sweep, in the order of the options.

    Args:
        options: values of each option by its name.
    """

    model: str
    options: dict[str, tuple[Any, ...]]
    rows: tuple[Any, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat dict a row, for pandas or polars: options first, then the numbers.

        Times are in seconds, memory in bytes per chip, the mesh has one column a role.
        """
        return [_flat(row) for row in self.rows]


def _flat(row: Any) -> dict[str, Any]:
    columns = dict(row.swept)
    for bound in ("expected", "lower", "upper"):
        name = "step_s" if bound == "expected" else f"step_{bound}_s"
        columns[name] = getattr(row.step_s, bound, None)
    for field in fields(row):
        if field.name not in NESTED and field.name not in row.swept:
            columns[field.name] = getattr(row, field.name)
    mesh = row.mesh or {}
    columns |= {f"mesh_{role}": mesh.get(role) for role in INSIDE_OUT}
    columns["problem"] = row.problem
    return columns


def values_of(options: Mapping[str, Any], names: Iterable[str], sweep: str) -> Values:
    """Each option with the tuple of its values; a single value becomes a tuple of one.

    Args:
        names: the options that exist.
        sweep: the kind of sweep, for messages: "a sweep".

    Raises:
        UnknownName: an unknown option. BadInput: an option without values.
    """
    values: Values = {}
    for name, option in options.items():
        if name not in names:
            raise UnknownName(f"option of {sweep}", name, names)
        if isinstance(option, str) or not isinstance(option, Iterable):
            values[name] = (option,)
        else:
            values[name] = tuple(option)
        if not values[name]:
            raise BadInput(f"{name} has no values to sweep.")
    return values


def selected(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The options with these names."""
    return {name: value for name, value in options.items() if name in names}


def combinations(
    machines: Sequence[Machine], values: Values, results: str, progress: Progress | None
) -> Iterator[tuple[Machine, dict[str, Any], dict[str, Any]]]:
    """(machine, all options, options that differ between rows) of each combination.

    Args:
        results: what a combination leads to, for messages: "plans".
        progress: called before each combination with its index and the number of all.

    Raises:
        BadInput: no machine, or over 1,000 combinations.
    """
    if not machines:
        raise BadInput("hardware has no values to sweep.")
    n_points = len(machines) * math.prod(len(choices) for choices in values.values())
    if n_points > MAX_POINTS:
        counts = " x ".join(f"{len(choices):,} {name}" for name, choices in values.items())
        raise BadInput(
            f"{counts or 'the sweep'} on {len(machines):,} machines is {n_points:,} {results}; at "
            f"most {MAX_POINTS:,} are searched. Take fewer values."
        )
    points = itertools.product(machines, *values.values())
    for index, (machine, *choices) in enumerate(points):
        if progress:
            progress(index, n_points)
        options = dict(zip(values, choices, strict=True))
        swept = {name: value for name, value in options.items() if len(values[name]) > 1}
        if len(machines) > 1:
            swept = {HARDWARE: machine.name, **swept}
        yield machine, options, swept
