"""Launch scripts of a shell: the flags of one command, written one a line and read back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks.shell_branches import Branches, followed
from shardwise.frameworks.shell_variables import assigned, expanded

PROGRAM = "$"  # the key of the command before its flags
# A script that torchrun starts, or a subcommand as tyro names them: never the value of a flag.
_PROGRAM_OR_SUBCOMMAND = re.compile(r"[\w./-]+\.py|[a-z-]+:[a-z-]+")
# A variable that holds further options, and that the script does not set: `${EXTRA_ARGS}`.
OPTIONS_ELSEWHERE = re.compile(r"\$\{?(?!XLA_FLAGS|LIBTPU)\w*(ARG|OPT|FLAG|CONF)\w*\}?")

# Words that end a command, and those that send its output to the next word or to their own end.
_END_OF_COMMAND = ("&", "&&", "|", "||", "|&", ";")
_REDIRECTION = re.compile(r"(?:\d|&)?(?:>>?|<)(&?[^\s(]*)")

_TAKE_A_COMMAND = ("-c", "--command", "--cmd")  # flags of bash, xpk and others
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
    """The flags of the commands that a script runs: `{"--tp": 8, "--bf16": True}`.

    Words that are no flags and no values of flags are the list `$`; `name=value` is kept under its
    name. Variables have the values that the script itself gives them (`TP=8`, `${TP:-8}`,
    `$((2 * TP))`), else those of the environment; one that has no value stays as it is.

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
        _PROGRAM_OR_SUBCOMMAND.fullmatch(word) or (has_value and OPTIONS_ELSEWHERE.fullmatch(word))
    )


def _words(text: str, name: str) -> list[str]:
    """The words of a script with its own variables put in, and `_END_OF_LINE` between lines.

    Arrays (`ARGS=(...)`), in which scripts keep flags, lose their brackets. Commands and flags that
    are quoted as one word (`--command "train.py --lr 1"`) are split.
    """
    script = branches(text).text
    joined = expanded(script, assigned(script))
    joined = re.sub(r"^\s*\w+\+?=\(", " ", joined, flags=re.M)
    joined = re.sub(r"\)\s*&?\s*$", " ", joined, flags=re.M)
    joined = joined.replace("\n", f"\n {_END_OF_LINE} ")
    words: list[str] = []
    try:
        for word in shlex.split(joined, comments=True):
            command = re.fullmatch(r"(?:--command=|--cmd=|(?=--?\w\S*\s))(.+)", word, re.S)
            is_command = command or (words and words[-1] in _TAKE_A_COMMAND and " " in word)
            words += shlex.split(command[1] if command else word) if is_command else [word]
    except ValueError as error:
        raise BadFile(f"{name} is no script of a shell: {error}.") from None
    words = [word for word in words if "[@]" not in word and word not in ("$@", "$*")]
    return list(_without_redirections(words))


def branches(text: str) -> Branches:
    """A script with continued lines in one, and of its branches those that it takes."""
    return followed(re.sub(r"\\\s*\n", " ", text))


def with_variables(text: str, script: str) -> str:
    """A text with the variables that a script sets put in, and its arithmetic worked out."""
    return expanded(text, assigned(branches(script).text))


def _without_redirections(words: Iterable[str]) -> Iterator[str]:
    """The words of commands, without what sends their output elsewhere."""
    is_file = False
    for word in words:
        redirection = _REDIRECTION.fullmatch(word)
        if redirection:
            is_file = not redirection[1]  # "> file", but not "2>&1"
        elif word in _END_OF_COMMAND:
            yield _END_OF_LINE
        elif not is_file:
            yield word
        if not redirection:
            is_file = False


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
    return list(settings.get(PROGRAM) or [])


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
