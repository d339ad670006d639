"""The fixed part of a strategy in a search: sizes, options and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.errors import BadShape, UnknownName, raise_all
from shardwise.strategy.mesh import INSIDE_OUT

Value = int | str
Choices = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Fixed(Mapping[str, Value]):
    """Fixed sizes of mesh roles, fixed options, and largest sizes; hashable.

    Args:
        chosen: (name, value), in the order of the input.
        max_sizes: (mesh role, largest size).
    """

    chosen: tuple[tuple[str, Value], ...] = ()
    max_sizes: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> Value:
        return dict(self.chosen)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def numbers(self) -> dict[str, int]:
        """The fixed sizes and numeric options."""
        return {name: n for name, n in self.chosen if isinstance(n, int)}

    @property
    def sizes(self) -> dict[str, int]:
        """The fixed sizes of mesh roles."""
        return {name: n for name, n in self.numbers.items() if name in INSIDE_OUT}

    @property
    def names(self) -> list[str]:
        """Names of all fixed values and limits."""
        return [*self, *dict(self.max_sizes)]

    def change(self, **chosen: Value) -> Fixed:
        """Add or replace some fixed values."""
        return fixed_of({**self, **chosen}, dict(self.max_sizes))

    def only(self, **chosen: Value) -> Fixed:
        """Replace all fixed values; the largest sizes stay."""
        return fixed_of(chosen, dict(self.max_sizes))

    def __str__(self) -> str:
        """A suffix for messages: `, tensor 8, pipe at most 4`."""
        parts = [f", {name} {value}" for name, value in self.chosen]
        parts += [f", {role} at most {size}" for role, size in self.max_sizes]
        return "".join(parts)


NOTHING = Fixed()


def fixed_of(chosen: Choices, max_sizes: Mapping[str, int] | None = None) -> Fixed:
    """Build a `Fixed` from two mappings."""
    return Fixed(tuple(chosen.items()), tuple((max_sizes or {}).items()))


def checked(
    chosen: Choices | None,
    max_sizes: Mapping[str, int] | None,
    words: Mapping[str, tuple[str, ...]],
    numbers: tuple[str, ...],
) -> Fixed:
    """Build a `Fixed` from two mappings and check its names and values.

    Args:
        words: name of a word option -> its legal values.
        numbers: names of numeric options other than mesh roles.

    Raises:
        UnknownName: a name, or the value of a word option, does not exist.
        BadShape: a size is not a positive integer.
    """
    fixed = fixed_of(chosen or {}, max_sizes)
    problems: list[str] = []
    for name, value in fixed.items():
        if name in words:
            if value not in words[name]:
                raise UnknownName(name, str(value), words[name])
        elif name not in (*INSIDE_OUT, *numbers):
            raise UnknownName("mesh role", name, (*INSIDE_OUT, *numbers, *words))
        else:
            problems += _bad_size(name, value)
    for name, limit in fixed.max_sizes:
        if name not in INSIDE_OUT:
            raise UnknownName("mesh role", name, INSIDE_OUT)
        problems += _bad_size(name, limit)
    raise_all(BadShape, problems)
    return fixed


def _bad_size(name: str, value: Value) -> list[str]:
    if not isinstance(value, int):
        return [f"{name} {value!r} is not a whole number."]
    minimum = 1
    if name == "zero":
        minimum = 0
    if value < minimum:
        return [f"{name} {value} is below {minimum}."]
    return []
