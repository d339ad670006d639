"""Common to training and serving sweeps: combinations of options, and the table of results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from shardwise.errors import BadInput, ShardwiseError, UnknownName, raise_all
from shardwise.hardware import Chip, System
from shardwise.strategy.mesh import INSIDE_OUT

MAX_COMBINATIONS = 1000  # each needs a search, which may take seconds
MAX_PROBLEMS = 6  # of bad combinations that an error lists
HARDWARE = "hardware"
# Fields of a row that become several columns, or a column in another place.
NESTED_FIELDS = ("swept", "step_s", "mesh", "prefill_mesh", "problem")

Machine = TypeVar("Machine", bound=System | Chip)
Values = dict[str, tuple[Any, ...]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """All rows of a sweep, in the order of the options.

    Args:
        options: name of each option -> its values.
    """

    model: str
    options: dict[str, tuple[Any, ...]]
    rows: tuple[Any, ...]

    @property
    def planned(self) -> list[Any]:
        """The rows that have a plan."""
        return [row for row in self.rows if row.step_s]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Convert each row to a flat dict, for pandas or polars: options first, then the numbers.

        Times are in seconds, memory in bytes per chip; each mesh role has a column.
        """
        return [_flat_row(row) for row in self.rows]


def _flat_row(row: Any) -> dict[str, Any]:
    columns = dict(row.swept)
    for bound in ("expected", "lower", "upper"):
        name = "step_s" if bound == "expected" else f"step_{bound}_s"
        columns[name] = getattr(row.step_s, bound, None)
    for field in fields(row):
        if field.name not in NESTED_FIELDS and field.name not in row.swept:
            columns[field.name] = getattr(row, field.name)
    mesh = row.mesh or {}
    columns |= {f"mesh_{role}": mesh.get(role) for role in INSIDE_OUT}
    columns["problem"] = row.problem
    return columns


def option_values(options: Mapping[str, Any], names: Iterable[str], sweep: str) -> Values:
    """Name of each option -> tuple of its values; a single value becomes a tuple of one.

    Args:
        options: the options as the user passed them.
        names: names of the options that exist.
        sweep: the kind of sweep in error messages: "a sweep".

    Raises:
        UnknownName: unknown option.
        BadInput: an option has no values.
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


def raise_if_all_bad(errors: Sequence[ShardwiseError | None]) -> None:
    """Raise the problems of a sweep all of whose combinations are bad input, each problem once.

    Args:
        errors: the error of each combination; None for one that has a plan.
    """
    problems: list[str] = []
    for error in errors:
        if not isinstance(error, BadInput):  # none, or understood but without a plan
            return
        problems += [problem for problem in error.problems if problem not in problems]
    if len(problems) > MAX_PROBLEMS:
        problems = [*problems[:MAX_PROBLEMS], f"And {len(problems) - MAX_PROBLEMS:,} more."]
    raise_all(BadInput, problems)


def select_options(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of the options whose names are in `names`."""
    return {name: value for name, value in options.items() if name in names}


def combinations(
    machines: Sequence[Machine], values: Values, results: str, progress: Progress | None
) -> Iterator[tuple[Machine, dict[str, Any], dict[str, Any]]]:
    """Yield (machine, all options, the options that differ between rows) for each combination.

    Args:
        machines: the machines, or chips, to combine with the options.
        values: name of each option -> its values.
        results: what a combination yields, in error messages: "plans".
        progress: called before each combination with its index and the number of combinations.

    Raises:
        BadInput: no machine, or more than 1,000 combinations.
    """
    if not machines:
        raise BadInput("hardware has no values to sweep.")
    n_combinations = len(machines) * math.prod(len(choices) for choices in values.values())
    if n_combinations > MAX_COMBINATIONS:
        counts = " x ".join(f"{len(choices):,} {name}" for name, choices in values.items())
        raise BadInput(
            f"{counts or 'the sweep'} on {len(machines):,} machines is {n_combinations:,} "
            f"{results}; at most {MAX_COMBINATIONS:,} are searched. Take fewer values."
        )
    grid = itertools.product(machines, *values.values())
    for index, (machine, *choices) in enumerate(grid):
        if progress:
            progress(index, n_combinations)
        options = dict(zip(values, choices, strict=True))
        swept = {name: value for name, value in options.items() if len(values[name]) > 1}
        if len(machines) > 1:
            swept = {HARDWARE: machine.name, **swept}
        yield machine, options, swept
