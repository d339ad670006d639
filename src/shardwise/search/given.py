"""Settings that the user fixes before a search: sizes of mesh roles, options, and largest sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.errors import BadShape, UnknownName, raise_all
from shardwise.strategy.mesh import INSIDE_OUT

Value = int | str
Choices = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Fixed(Mapping[str, Value]):
    """Settings fixed by the user, as a mapping from name to value; hashable.

    Args:
        chosen: (name, value) of each fixed mesh role or option, in the order of the input.
        max_sizes: (mesh role, largest size that the search may try).
        any_layout: whether the search may choose a layout that the runtime does not run.
        in_practice: pipeline schedules of a search that is limited to layouts within practice; None
            to search all.
        limit_s: step seconds from which strategies are of no interest, and may be left out.
    """

    chosen: tuple[tuple[str, Value], ...] = ()
    max_sizes: tuple[tuple[str, int], ...] = ()
    any_layout: bool = False
    in_practice: frozenset[str] | None = None
    limit_s: float = math.inf

    def __getitem__(self, name: str) -> Value:
        return dict(self.chosen)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def numbers(self) -> dict[str, int]:
        """The fixed settings whose values are numbers: sizes of mesh roles and numeric options."""
        return {name: n for name, n in self.chosen if isinstance(n, int)}

    @property
    def sizes(self) -> dict[str, int]:
        """The fixed settings that are sizes of mesh roles."""
        return {name: n for name, n in self.numbers.items() if name in INSIDE_OUT}

    @property
    def names(self) -> list[str]:
        """Names of all settings that are fixed or have a largest size."""
        return [*self, *dict(self.max_sizes)]

    def change(self, **chosen: Value) -> Fixed:
        """A copy with these settings added or replaced."""
        return replace(self, chosen=tuple({**self, **chosen}.items()))

    def only(self, **chosen: Value) -> Fixed:
        """A copy in which these are the only fixed settings; the limits of the search stay."""
        return replace(self, chosen=tuple(chosen.items()))

    def __str__(self) -> str:
        """The settings as a suffix for a message: `, tensor 8, pipe at most 4`."""
        parts = [f", {name} {value}" for name, value in self.chosen]
        parts += [f", {role} at most {size}" for role, size in self.max_sizes]
        return "".join(parts)


NOTHING_FIXED = Fixed()


def fixed_of(
    chosen: Choices, max_sizes: Mapping[str, int] | None = None, *, any_layout: bool = False
) -> Fixed:
    """Make a `Fixed` from a mapping of settings and a mapping of largest sizes, unchecked."""
    return Fixed(tuple(chosen.items()), tuple((max_sizes or {}).items()), any_layout)


def check_fixed(
    chosen: Choices | None,
    max_sizes: Mapping[str, int] | None,
    string_options: Mapping[str, tuple[str, ...]],
    number_options: tuple[str, ...],
) -> Fixed:
    """Make a `Fixed` after checking every name and value.

    Args:
        chosen: name -> value of the settings that the user fixed.
        max_sizes: mesh role -> largest size.
        string_options: option whose value is a string -> its legal values.
        number_options: options whose value is a number, other than mesh roles.

    Raises:
        UnknownName: an unknown setting, or an unknown value of a string option.
        BadShape: a size is not a positive integer.
    """
    fixed = fixed_of(chosen or {}, max_sizes)
    problems: list[str] = []
    for name, value in fixed.items():
        if name in string_options:
            if value not in string_options[name]:
                raise UnknownName(name, str(value), string_options[name])
        elif name not in (*INSIDE_OUT, *number_options):
            raise UnknownName("mesh role", name, (*INSIDE_OUT, *number_options, *string_options))
        else:
            problems += _bad_size(name, value)
    for name, limit in fixed.max_sizes:
        if name not in INSIDE_OUT:
            raise UnknownName("mesh role", name, INSIDE_OUT)
        problems += _bad_size(name, limit)
    raise_all(BadShape, problems)
    return fixed


def _bad_size(name: str, value: Value) -> list[str]:
    """Messages about a size that is not a positive integer (a ZeRO stage may be 0)."""
    if not isinstance(value, int):
        return [f"{name} {value!r} is not a whole number."]
    minimum = 1
    if name == "zero":  # ZeRO stage 0 exists
        minimum = 0
    if value < minimum:
        return [f"{name} {value} is below {minimum}."]
    return []
