"""Everything Shardwise raises on purpose.

    ShardwiseError
    ├── BadInput        exit 2   what was typed cannot be understood or is not possible
    │   ├── UnknownName          no chip, model, case, role or option of that name
    │   ├── BadUnit              a quantity without a unit, or with the wrong one
    │   ├── BadShape             a slice, batch, mesh or array shape that cannot exist
    │   ├── NotDivisible         a dim that its mesh axes do not divide
    │   ├── BadSharding          a sharding that no program can have (an axis used twice, ...)
    │   ├── BadFile              a file that is missing, unreadable, or not what it should be
    │   └── UnknownFigure        a number that the answer needs and no public source gives
    ├── NoPlan          exit 3   understood, but nothing satisfies it
    │   ├── DoesNotFit           memory
    │   └── NoStrategy           no legal split
    │       └── NoLegalEngine    none of serving
    ├── CheckFailed     exit 4   a check that was asked for failed
    └── MissingExtra    exit 2   an optional part is not installed

A message says what was asked, the number that broke it, the limit and where it comes from, and
the nearest choices that work. Several problems found together travel together in `problems`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ShardwiseError(Exception):
    """Base of every expected error. `problems` holds one worded line per problem found."""

    exit_code = 1

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems: tuple[str, ...] = problems


class BadInput(ShardwiseError):
    exit_code = 2


class UnknownName(BadInput):
    """A name that is not in a list, with the close ones."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        super().__init__(f'unknown {what} "{name}". {nearest(name, known)}{hint and " " + hint}')


class BadUnit(BadInput):
    pass


class BadShape(BadInput):
    pass


class NotDivisible(BadInput):
    pass


class BadSharding(BadInput):
    pass


class BadFile(BadInput):
    pass


class UnknownFigure(BadInput):
    pass


class NoPlan(ShardwiseError):
    exit_code = 3


class DoesNotFit(NoPlan):
    pass


class NoStrategy(NoPlan):
    pass


class NoLegalEngine(NoStrategy):
    """No engine of serving divides the model and the machine."""


class CheckFailed(ShardwiseError):
    exit_code = 4


class MissingExtra(ShardwiseError):
    exit_code = 2


def nearest(name: str, known: Iterable[str], n: int = 4) -> str:
    """`Close: a, b.` for the names most like `name`, or `Known: ...` when none is close."""
    choices = sorted(set(known))
    low = name.lower()
    close = [c for c in choices if low and (c.lower().startswith(low) or low.startswith(c.lower()))]
    close += [c for c in difflib.get_close_matches(low, choices, n, 0.5) if c not in close]
    if close:
        return f"Close: {', '.join(close[:n])}."
    return f"Known: {', '.join(choices[:12])}{', ...' if len(choices) > 12 else '.'}"


def raise_all(error: type[ShardwiseError], problems: Sequence[str]) -> None:
    """Raise `error` with every problem found, or return when there is none."""
    if problems:
        raise error(*problems)
