"""Exceptions of Shardwise and their exit codes.

    ShardwiseError
    ├── BadInput        exit 2   the input cannot be understood or is not possible
    │   ├── UnknownName          no chip, model, case, role or option has this name
    │   ├── BadUnit              a quantity without a unit, or with a wrong unit
    │   ├── BadShape             a slice, batch, mesh or array shape that cannot exist
    │   ├── NotDivisible         a dim that its mesh axes do not divide
    │   ├── BadSharding          an impossible sharding (an axis used twice, ...)
    │   ├── BadFile              a file that is missing, unreadable or invalid
    │   └── UnknownFigure        a number that the answer needs and no public source gives
    ├── NoPlan          exit 3   understood, but nothing satisfies it
    │   ├── DoesNotFit           memory
    │   └── NoStrategy           no legal split
    │       ├── NoLegalEngine    no engine is legal
    │       └── TooManyChips     a request rate for which no machine is large enough
    ├── CheckFailed     exit 4   a requested check failed: what was checked does not hold
    ├── NoAnswer        exit 5   a requested check has no answer: it was cut short, or broke down
    └── MissingExtra    exit 2   an optional dependency is not installed

A message states the input, the number that is wrong, the limit and its source, and the nearest
choices that work. An exception may report several problems.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

LONGEST_NAME = 80  # characters of an unknown name that a message repeats


class ShardwiseError(Exception):
    """Base class of all expected errors; `problems` has one text per problem."""

    exit_code = 1

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems: tuple[str, ...] = problems


class BadInput(ShardwiseError):
    exit_code = 2


class UnknownName(BadInput):
    """A name that is not among the known ones; the message suggests similar names.

    Args:
        what: kind of the name, such as "chip".
        name: the unknown name.
        known: all known names.
        hint: a sentence to add to the message.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        shown = name
        if len(name) > LONGEST_NAME:
            shown = f"{name[: LONGEST_NAME - 3]}..."
        problem = f'unknown {what} "{shown}". {nearest(name, known)} {hint}'
        super().__init__(problem.rstrip())


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
    """No serving engine divides both the model and the machine."""


class TooManyChips(NoStrategy):
    """A request rate needs more chips than machines have."""


class CheckFailed(ShardwiseError):
    exit_code = 4


class NoAnswer(ShardwiseError):
    exit_code = 5


class MissingExtra(ShardwiseError):
    exit_code = 2


class IgnoredKey(UserWarning):
    """A key of a file that is not read; the command line shows it as a note."""


def file_error(path: str | os.PathLike[str], error: OSError, result: str = "") -> BadFile:
    """The error of a file that the operating system refuses.

    Args:
        result: a sentence about what that leads to, such as "Nothing was saved."
    """
    name = os.fspath(path)
    shown = name if name.strip() else f'"{name}"'
    if error.errno == errno.EISDIR:
        return BadFile(f"{shown} is a folder, and not a file. {result}".rstrip())
    return BadFile(f"{shown}: {error.strerror or error}. {result}".rstrip())


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests known names for an unknown one.

    Names are quoted, since one of them may be "none".

    >>> nearest("nine", ["full", "none"]), nearest("x", ["full", "none"])
    ('Close: "none".', 'Known: "full", "none".')
    """
    choices = sorted(set(known))
    close = close_names(name, choices)
    if close:
        return f"Close: {_quoted(close)}."
    if len(choices) > 12:
        return f"Known: {_quoted(choices[:12])}, ..."
    return f"Known: {_quoted(choices)}."


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to four known names that resemble `name`.

    First those that begin with `name` or with which `name` begins, then similarly spelled ones.
    """
    choices = sorted(set(known))
    lower = name.lower()
    close = []
    for choice in choices:
        if lower and (choice.lower().startswith(lower) or lower.startswith(choice.lower())):
            close.append(choice)
    for choice in difflib.get_close_matches(lower, choices, 4, 0.5):
        if choice not in close:
            close.append(choice)
    return close[:4]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def raise_all(error: type[ShardwiseError], problems: Sequence[str]) -> None:
    """Raise `error` with all `problems`, if there are any."""
    if problems:
        raise error(*problems)


class Problems:
    """Collects the problems of several inputs, which `done` raises together."""

    def __init__(self) -> None:
        self._errors: list[ShardwiseError] = []

    def read(self, parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The value of `parse(...)`, or None after a problem.

        The type does not admit the None: `done` raises before the value is used.
        """
        try:
            return parse(*args, **kwargs)
        except ShardwiseError as error:
            self._errors.append(error)
            return None  # type: ignore[return-value]

    def refuse(self, problem: str) -> None:
        """Add a problem, such as two options that do not go together."""
        self._errors.append(BadInput(problem))

    def done(self) -> None:
        """Raise the collected problems: a single one as its own error, several as one BadInput."""
        if len(self._errors) == 1:
            raise self._errors[0]
        problems: list[str] = []
        for error in self._errors:
            problems += error.problems
        raise_all(BadInput, problems)
