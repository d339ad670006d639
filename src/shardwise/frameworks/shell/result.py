"""What a script does, as far as it is known without running it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardwise.frameworks.shell.expansion import Scope

# Options, and the variable that a command sets, in a command as it is written.
_SETTING = re.compile(r"(?<![\w-])--?[a-zA-Z]{2}[\w-]*|^\s*(?:export\s+)?(\w+)\+?=", re.M)


@dataclass(slots=True)
class Run:
    """What a script does.

    Args:
        commands: the words of each command.
        scope: the variables at its end.
        skipped: options and variables of branches that are not taken.
        unknown: conditions that only the shell can know.
        doubtful: options and variables of their branches, which are read.
        missing: files that it sources, and that are not beside it.
        loops: variables of loops whose body has commands, and their value in the first turn, which
            is read, where there are more.
    """

    commands: list[list[str]] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)
    skipped: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    loops: list[tuple[str, str]] = field(default_factory=list)


def settings_of(command: str) -> Iterator[str]:
    """The options of a command, and the variable that it sets."""
    for match in _SETTING.finditer(command):
        yield match[1] or match[0]
