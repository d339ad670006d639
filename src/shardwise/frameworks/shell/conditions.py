"""Conditions, as far as the script's own variables decide them.

https://www.gnu.org/software/bash/manual/html_node/Bash-Conditional-Expressions.html
"""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Iterable, Iterator

from shardwise.frameworks.shell.expansion import Scope
from shardwise.frameworks.shell.nodes import Command, Node

TESTS = ("[", "[[", "test")
TRUTHS = ("true", "false")
_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt,
    "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge,
}  # fmt: skip


def holds(words: list[str], scope: Scope) -> bool | None:
    """Whether the words of a command `[ ... ]` hold; None if the script's variables do not say.

    >>> holds(["[", "$TP", "-gt", "4", "]"], Scope({"TP": "8"}))
    True
    >>> holds(["[", "-f", "engine", "]"], Scope()) is None
    True
    """
    terms = [word for word in words[1:] if word not in ("]", "]]")]
    return any_of(
        all_of(_test(test, scope) for test in _parted(either, ("&&", "-a")))
        for either in _parted(terms, ("||", "-o"))
    )


def matches(word: str, patterns: Iterable[str], scope: Scope) -> bool | None:
    """Whether the word of a `case` has one of some patterns; None if it is not known."""
    value = scope.known(word)
    if value is None:
        return None
    return any(fnmatch.fnmatchcase(value, scope.text(pattern)) for pattern in patterns)


def is_test(node: Node) -> bool:
    """Whether a command is nothing but a condition."""
    return isinstance(node, Command) and node.words[:1] in ([word] for word in (*TESTS, *TRUTHS))


def negated(value: bool | None) -> bool | None:
    """The opposite of what is known."""
    return None if value is None else not value


def any_of(values: Iterable[bool | None]) -> bool | None:
    """Whether one of some values is true; None if that is not known."""
    known = list(values)
    return True if True in known else None if None in known else False


def all_of(values: Iterable[bool | None]) -> bool | None:
    """Whether all of some values are true; None if that is not known."""
    known = list(values)
    return False if False in known else None if None in known else True


def _test(words: list[str], scope: Scope) -> bool | None:
    if words[:1] == ["!"]:
        return negated(_test(words[1:], scope))
    values = [scope.known(word) for word in words]
    match values:
        case [str(value)]:
            return value != ""
        case ["-z" | "-n", str(value)]:
            return (values[0] == "-n") == (value != "")
        case [str(left), "=" | "==" | "!=", str(right)]:
            return fnmatch.fnmatchcase(left, right) == (values[1] != "!=")
        case [str(left), str(name), str(right)] if name in _NUMBERS:
            try:
                return _NUMBERS[name](float(left), float(right))
            except ValueError:
                return None
    return None


def _parted(words: list[str], separators: tuple[str, ...]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word in separators:
            yield part
            part = []
        else:
            part.append(word)
    yield part
