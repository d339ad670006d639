"""What of a script is not planned, or may not be what it runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from shardwise.frameworks import shell_script
from shardwise.frameworks.exported import Settings
from shardwise.frameworks.shell.result import Run
from shardwise.frameworks.spelling import may_be_option

# Files that a script sources for its programs and their paths alone.
_OF_SHELLS = re.compile(r"activate|conda|bashrc|profile|modules?\b|lmod|setvars|spack|virtualenv")
_HARMLESS = re.compile(
    r"hostname|date|pwd|dirname|basename|scontrol|nproc|nvidia-smi|git|id\b|\(\("
)
MOST_OPTIONS = 6  # of branches, in a note
LONGEST_COMMAND = 60  # characters, in a note
LONGEST_CONDITION = 120  # characters, in a note
_UNNAMED = re.compile(r"--?[\$`]")  # an option of a script whose name is in a variable


def notes(script: Run, settings: Settings, framework: str) -> Iterator[str]:
    """A sentence about each of its parts."""
    started = shell_script.servers(script)
    if len(started) > 1:
        first, other = _told_apart(started[0], started[1])
        yield (
            f"of its {len(started)} servers the first is planned: {first} ... To plan another, as "
            f"{other} ..., save a file with its command alone."
        )
    missing = [name for name in script.missing if not _OF_SHELLS.search(name)]
    if missing:
        yield f"{listed(missing)}: sourced, but not beside the script; what it sets is not known."
    skipped = [
        name
        for name in script.skipped
        if name not in script.scope.values
        and name not in settings
        and _may_matter(name, script, framework)
    ]
    if skipped:
        yield f"not read, as the script takes other branches: {listed(skipped)}."
    # A function with a loop may be called often; the first turn is that of the first call.
    for variable, value in dict(reversed(script.loops)).items():
        yield f"of the loop over {variable} the first turn is planned, {variable}={value}."
    unnamed = [word for command in script.commands for word in command if _UNNAMED.match(word)]
    if unnamed:
        yield (
            f"only a shell knows which options {listed(unnamed)} are, of lines that it reads or a "
            "command that it runs: not read. Write them out to plan them."
        )
    outputs = dict.fromkeys(word for command in script.commands for word in command)
    unknown = [
        word
        for word in outputs
        if shell_script.OUTPUT.fullmatch(word) and not _HARMLESS.search(word)
    ]
    if unknown:
        yield f"{listed(unknown)}: if options are in what a shell puts here, they are not read."
    doubtful = [name for name in script.doubtful if _may_matter(name, script, framework)]
    if doubtful:
        conditions = dict.fromkeys(" ".join(text.split()) for text in script.unknown)
        yield (
            f"read, though only the shell knows whether {'; '.join(conditions)[:LONGEST_CONDITION]}"
            f" holds: {listed(doubtful)}; the last value counts."
        )


def _told_apart(first: list[str], second: list[str]) -> tuple[str, str]:
    """Two commands, shortened; of long ones what follows after words that both begin with."""
    texts = " ".join(first)[:LONGEST_COMMAND], " ".join(second)[:LONGEST_COMMAND]
    if texts[0] != texts[1]:
        return texts
    pairs = zip(first, second, strict=False)
    n_equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    first_tail, second_tail = (
        f"... {' '.join(command[n_equal:])}"[:LONGEST_COMMAND] for command in (first, second)
    )
    return first_tail, second_tail


def _may_matter(name: str, script: Run, framework: str) -> bool:
    """Whether an option or a variable of a branch could change the plan."""
    if name.startswith("-"):
        return may_be_option(name, framework)
    return name in script.scope.used


def listed(options: Iterable[str]) -> str:
    """The first of some options, and how many more there are."""
    names = list(dict.fromkeys(options))
    more = f" and {len(names) - MOST_OPTIONS} more" if len(names) > MOST_OPTIONS else ""
    return f"{', '.join(names[:MOST_OPTIONS])}{more}"
