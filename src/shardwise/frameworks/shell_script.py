"""Launch scripts of a shell: the flags of one command, written one a line and read back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.frameworks.shell.result import Run

PROGRAM = "$"  # the key of the command before its flags
# A script that torchrun starts, or a subcommand as tyro names them: never the value of a flag.
_PROGRAM_OR_SUBCOMMAND = re.compile(r"[\w./-]+\.py|[a-z-]+:[a-z-]+")
# A variable that holds further options, and that the script does not set: `${EXTRA_ARGS}`.
OPTIONS_ELSEWHERE = re.compile(r"\$\{?(?!XLA_FLAGS|LIBTPU)\w*(ARG|OPT|FLAG|CONF)\w*\}?")

OUTPUT = re.compile(r"\$\(.*\)|`.*`", re.S)  # of a command

_END_OF_LINE = "\x00"  # a word for the end of a command, which ends the values of a flag
# Begin of a command that starts a server.
_SERVER = re.compile(
    r"\bvllm serve\b|\bvllm\.entrypoints\.|\bsglang\.launch_server\b|\btrtllm-serve\b"
    r"|\bdynamo\.(?:vllm|sglang|trtllm)\b"
)
_VARIABLE = re.compile(r"\$\{?\w+\}?")


def write(settings: Mapping[str, Any]) -> str:
    """A command and its flags as a script, one a line: `settings["$"]` is the command.

    A flag is written without a value for True, and left out for False and None. A name without
    dashes is written `name=value`, for True alone.

    >>> " ".join(write({"$": "torchrun train.py", "--bf16": True, "--tp": 8, "a.b": 1}).split())
    'torchrun train.py \\\\ --bf16 \\\\ --tp 8 \\\\ a.b=1'
    """
    words = [str(settings[PROGRAM])]
    for name, value in settings.items():
        if name == PROGRAM or value is None:
            continue
        if not name.startswith("-") and value is True:
            words.append(name)
            continue
        if not name.startswith("-"):
            words.append(f"{name}={shlex.quote(str(value))}")
            continue
        if value is False:
            continue
        if value is True:
            words.append(name)
        elif isinstance(value, list | tuple):
            words.append(" ".join([name, *(shlex.quote(str(item)) for item in value)]))
        else:
            words.append(f"{name} {shlex.quote(str(value))}".rstrip())
    return " \\\n  ".join(words) + "\n"


def settings(script: Run) -> dict[str, Any]:
    """The flags of the commands that a script runs: `{"--tp": 8, "--bf16": True}`.

    Words that are no flags and no values of flags are the list `$`; `name=value` is kept under its
    name. A variable that neither the script nor the environment sets stays as it is.
    """
    values: dict[str, Any] = {PROGRAM: []}
    flag = ""
    for word in _words(script):
        if word == _END_OF_LINE:
            flag = ""
        elif re.match(r"--?[A-Za-z$`]", word):
            flag, equals, value = word.partition("=")
            values[flag] = number_or_text(value) if equals else True
            flag = "" if equals else flag
        elif re.match(r"[A-Za-z_][\w.]*=", word) and (not flag or values[flag] is not True):
            setting, _, value = word.partition("=")
            values[setting] = number_or_text(value)
        elif not flag or _ends_values(word, values[flag]):
            values[PROGRAM].append(word)
        elif values[flag] is True:
            values[flag] = number_or_text(word)
            flag = "" if flag == "-m" else flag  # the module; words of its own follow
        elif isinstance(values[flag], list):
            values[flag].append(number_or_text(word))
        else:
            values[flag] = [values[flag], number_or_text(word)]
    return values


def _ends_values(word: str, value: Any) -> bool:
    """Whether a word after a flag with a value is no further value of it."""
    has_value = value is not True
    return bool(
        _PROGRAM_OR_SUBCOMMAND.fullmatch(word)
        or OPTIONS_ELSEWHERE.fullmatch(word)
        or (has_value and (_VARIABLE.fullmatch(word) or OUTPUT.fullmatch(word)))
    )


def servers(script: Run) -> list[list[str]]:
    """The commands that start a server of a model, each once."""
    started: list[list[str]] = []
    for command in script.commands:
        if command not in started and _SERVER.search(" ".join(command)):
            started.append(command)
    return started


def _without_later_servers(script: Run) -> list[list[str]]:
    """The commands, of several servers that of the first: their options are not of one engine."""
    later = servers(script)[1:]
    return [command for command in script.commands if command not in later]


def _words(script: Run) -> Iterator[str]:
    """The words of all commands, and `_END_OF_LINE` after each.

    Flags that are quoted as one word (`"--fp8-format hybrid"`) are split.
    """
    for command in _without_later_servers(script):
        for word in command:
            if re.match(r"--?\w\S*\s", word):
                yield from word.split()
            elif "[@]" not in word and word not in ("$@", "$*"):
                yield word
        yield _END_OF_LINE


def number_or_text(word: str) -> int | float | str | bool:
    """A word as a number or truth value, if it is one."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """The words of a script that are neither flags nor their values; none of another file."""
    words = settings.get(PROGRAM)
    return list(words) if isinstance(words, list) else []


def torchrun_chips(settings: Mapping[str, Any]) -> int | None:
    """GPUs that a script's torchrun starts; None if it leaves one of its numbers open."""
    numbers = []
    for name in ("nnodes", "nproc-per-node"):
        value = settings.get(f"--{name}", settings.get(f"--{name.replace('-', '_')}", 1))
        if not isinstance(value, int):
            return None
        numbers.append(value)
    if numbers == [1, 1]:
        return None
    return numbers[0] * numbers[1]
