"""Every combination of some options and machines: what sweeps of training and of serving walk."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from shardwise.errors import BadInput, UnknownName
from shardwise.hardware import Chip, System

MOST_POINTS = 1000  # each is a search of up to seconds
HARDWARE = "hardware"

Machine = TypeVar("Machine", bound=System | Chip)
Values = dict[str, tuple[Any, ...]]
Progress = Callable[[int, int], None]


def values_of(options: Mapping[str, Any], known: Iterable[str], what: str) -> Values:
    """Each option with its values; one value, not in a list, is one.

    Args:
        what: they are options of: "a sweep".

    Raises:
        UnknownName: an option that is not known. BadInput: one without values.
    """
    found: Values = {}
    for name, given in options.items():
        if name not in known:
            raise UnknownName(f"option of {what}", name, known)
        one = isinstance(given, str) or not isinstance(given, Iterable)
        found[name] = (given,) if one else tuple(given)
        if not found[name]:
            raise BadInput(f"{name} has no values to sweep.")
    return found


def combinations(
    machines: Sequence[Machine], values: Values, what: str, progress: Progress | None
) -> Iterator[tuple[Machine, dict[str, Any], dict[str, Any]]]:
    """(machine, every option, those that differ between rows) of each combination.

    Args:
        what: each is: "plans".
        progress: called before each with its number from 0 and the number of all.

    Raises:
        BadInput: no machine, or over 1,000 combinations.
    """
    if not machines:
        raise BadInput("hardware has no values to sweep.")
    n = len(machines) * math.prod(len(some) for some in values.values())
    if n > MOST_POINTS:
        counts = " x ".join(f"{len(some):,} {name}" for name, some in values.items())
        raise BadInput(
            f"{counts or 'the sweep'} on {len(machines):,} machines is {n:,} {what}; at most "
            f"{MOST_POINTS:,} are searched. Take fewer values."
        )
    for i, (machine, *chosen) in enumerate(itertools.product(machines, *values.values())):
        if progress:
            progress(i, n)
        given = dict(zip(values, chosen, strict=True))
        told = {name: value for name, value in given.items() if len(values[name]) > 1}
        yield machine, given, {HARDWARE: machine.name, **told} if len(machines) > 1 else told
