"""Launch scripts of a shell: the flags of one command, written one a line and read back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadFile

PROGRAM = "$"  # the key of the command before its flags
# A script that torchrun starts, or a subcommand as tyro names them: never the value of a flag.
_PROGRAM_OR_SUBCOMMAND = re.compile(r"[\w./-]+\.py|[a-z-]+:[a-z-]+")

_END_OF_LINE = "\x00"  # a word for the end of a line, which ends the values of a flag


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


def read(text: str, name: str) -> dict[str, Any]:
    """The flags of all commands of a script: `{"--tp": 8, "--bf16": True}`.

    Words that are no flags and no values of flags are the list `$`; `name=value` is kept under its
    name. Variables are those that the script sets itself (`TP=8`); a value that is made of others
    stays as it is.

    Raises:
        BadFile: the quotes of the script do not match.
    """
    values: dict[str, Any] = {PROGRAM: []}
    flag = ""
    for word in _words(text, name):
        if word == _END_OF_LINE:
            flag = ""
        elif re.match(r"--?[A-Za-z]", word):
            flag, equals, value = word.partition("=")
            values[flag] = number_or_text(value) if equals else True
            flag = "" if equals else flag
        elif re.match(r"[A-Za-z_][\w.]*=", word) and (not flag or values[flag] is not True):
            setting, _, value = word.partition("=")
            values[setting] = number_or_text(value)
        elif not flag or _PROGRAM_OR_SUBCOMMAND.fullmatch(word):
            values[PROGRAM].append(word)
        elif values[flag] is True:
            values[flag] = number_or_text(word)
        elif isinstance(values[flag], list):
            values[flag].append(number_or_text(word))
        else:
            values[flag] = [values[flag], number_or_text(word)]
    return values


def _words(text: str, name: str) -> list[str]:
    """The words of a script with its own variables put in, and `_END_OF_LINE` between lines.

    Arrays (`ARGS=(...)`), in which scripts keep flags, lose their brackets.
    """
    variables = dict(re.findall(r"^\s*(?:export\s+)?(\w+)=[\"']?([\w.-]*)[\"']?\s*$", text, re.M))
    joined = re.sub(r"\\\s*\n", " ", text)
    joined = re.sub(r"^\s*#.*$", "", joined, flags=re.M)
    joined = re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], match[0]), joined)
    joined = re.sub(r"^\s*\w+=\(", " ", joined, flags=re.M)
    joined = re.sub(r"\)\s*$", " ", joined, flags=re.M)
    joined = joined.replace("\n", f"\n {_END_OF_LINE} ")
    try:
        words = shlex.split(joined, comments=True)
    except ValueError as error:
        raise BadFile(f"{name} is no script of a shell: {error}.") from None
    return [word for word in words if "[@]" not in word]


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
