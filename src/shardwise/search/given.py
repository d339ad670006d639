"""What a search is given of a strategy: made once, and handed on as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.errors import BadShape, UnknownName, raise_all
from shardwise.strategy.mesh import INSIDE_OUT

Value = int | str
Choices = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Fixed(Mapping[str, Value]):
    """Sizes of mesh roles, numbers and words that are fixed, and largest sizes; hashable.

    Args:
        chosen: names with their values, in the order in which they were given.
        max_sizes: mesh roles with their largest sizes.
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
        """The fixed sizes and numbers, without the words."""
        return {name: n for name, n in self.chosen if isinstance(n, int)}

    @property
    def sizes(self) -> dict[str, int]:
        """The fixed sizes of mesh roles."""
        return {name: n for name, n in self.numbers.items() if name in INSIDE_OUT}

    @property
    def names(self) -> list[str]:
        """Everything that is fixed or bounded."""
        return [*self, *dict(self.max_sizes)]

    def change(self, **chosen: Value) -> Fixed:
        """The same with some values more, or others."""
        return fixed_of({**self, **chosen}, dict(self.max_sizes))

    def only(self, **chosen: Value) -> Fixed:
        """These values in place of all others, under the same largest sizes."""
        return fixed_of(chosen, dict(self.max_sizes))

    def __str__(self) -> str:
        """`, tensor 8, pipe at most 4`."""
        parts = [f", {name} {value}" for name, value in self.chosen]
        parts += [f", {name} at most {n}" for name, n in self.max_sizes]
        return "".join(parts)


NOTHING = Fixed()


def fixed_of(chosen: Choices, max_sizes: Mapping[str, int] | None = None) -> Fixed:
    """The value of two mappings."""
    return Fixed(tuple(chosen.items()), tuple((max_sizes or {}).items()))


def checked(
    chosen: Choices | None,
    max_sizes: Mapping[str, int] | None,
    words: Mapping[str, tuple[str, ...]],
    numbers: tuple[str, ...],
) -> Fixed:
    """The value of two mappings, after names and values that no strategy has are refused.

    Args:
        words: names of words -> what each may be.
        numbers: names of numbers that are no mesh role.

    Raises:
        UnknownName: a name or a word that is none. BadShape: a size that is no whole number from 1.
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
    least = 0 if name == "zero" else 1
    return [f"{name} {value} is below 1."] if value < least else []
