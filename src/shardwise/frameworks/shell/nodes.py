"""The parts of a script: commands, lists, branches, loops, functions.

https://www.gnu.org/software/bash/manual/html_node/Shell-Commands.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(slots=True)
class Command:
    """A command.

    Args:
        words: as they are written, with their quotes.
        is_redirected: whether what it writes goes elsewhere: `echo WARNING >&2`.
    """

    words: list[str]
    is_redirected: bool = False


@dataclass(slots=True)
class Chain:
    """Commands with `&&`, `||` or `|` between them."""

    first: Node
    following: list[tuple[str, Node]]


@dataclass(slots=True)
class If:
    """`if`, or `while` or `until`, whose body runs once: conditions and what follows each."""

    branches: list[tuple[list[Node], list[Node]]]
    otherwise: list[Node] = field(default_factory=list)
    keyword: str = "if"


@dataclass(slots=True)
class Case:
    """`case`: the word, and for each branch its patterns and commands."""

    word: str
    branches: list[tuple[list[str], list[Node]]] = field(default_factory=list)


@dataclass(slots=True)
class For:
    """`for`: its variable, its words as they are written, and its body."""

    variable: str
    words: list[str]
    body: list[Node]


@dataclass(slots=True)
class Function:
    """The definition of a function."""

    name: str
    body: list[Node]


@dataclass(slots=True)
class Group:
    """Commands in brackets."""

    body: list[Node]


Node: TypeAlias = Command | Chain | If | Case | For | Function | Group


def as_written(node: Node) -> str:
    """A command, or those inside it, as it is written; a line each."""
    return "\n".join(" ".join(command.words) for command in commands_of(node))


def words_of(node: Node) -> list[str]:
    return [word for command in commands_of(node) for word in command.words]


def commands_of(node: Node) -> Iterator[Command]:
    match node:
        case Command():
            yield node
        case Chain(first, following):
            for part in [first, *(other for _, other in following)]:
                yield from commands_of(part)
        case If(branches, otherwise):
            for condition, body in branches:
                for part in [*condition, *body]:
                    yield from commands_of(part)
            for part in otherwise:
                yield from commands_of(part)
        case Case(_, branches):
            for _, body in branches:
                for part in body:
                    yield from commands_of(part)
        case For(_, _, body) | Function(_, body) | Group(body):
            for part in body:
                yield from commands_of(part)
