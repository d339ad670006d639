"""Conditions of a shell script, as far as the script's own variables decide them.

https://www.gnu.org/software/bash/manual/html_node/Bash-Conditional-Expressions.html
"""

from __future__ import annotations

import fnmatch
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping

from shardwise.frameworks.shell_variables import expanded

_OPENING = ("[", "[[", "test")
_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt,
    "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
# What a launcher sets for each process. Other variables that nobody sets are empty.
_OF_LAUNCHERS = re.compile(r"(SLURM|OMPI|PMI|KUBERNETES|CUDA|NVIDIA|HOST)\w*|\w*RANK|WORLD_SIZE")
_UNSET = re.compile(r"\$(\{)?([\w@*#]+)(?(1)\})")
_ARITHMETIC = re.compile(r"\(\((.*)\)\)", re.S)


def holds(condition: str, variables: Mapping[str, str]) -> bool | None:
    """Whether a condition holds in a script without arguments; None if its variables do not say.

    >>> holds('[ "$TP" -gt 4 ] && [ -n "$FP8" ]', {"TP": "8", "FP8": "1"})
    True
    >>> holds("[ -f engine ]", {}) is None
    True
    """
    arithmetic = _ARITHMETIC.fullmatch(condition.strip())
    if arithmetic:
        return _compared(re.sub(r"(?<![\w$])([A-Za-z_]\w*)", r"$\1", arithmetic[1]), variables)
    try:
        words = shlex.split(condition)
    except ValueError:
        return None
    return _any(
        _all(_test(test, variables) for test in _split(either, ("&&", "-a")))
        for either in _split(words, ("||", "-o"))
    )


def matches(word: str, patterns: str, variables: Mapping[str, str]) -> bool | None:
    """Whether the word of a `case` has one of its patterns `a|b*`; None if it is not known."""
    value = _value(word.strip("\"' "), variables)
    if value is None:
        return None
    return any(fnmatch.fnmatchcase(value, pattern.strip("\"' ")) for pattern in patterns.split("|"))


def _test(words: list[str], variables: Mapping[str, str]) -> bool | None:
    is_test = bool(words) and words[0] in _OPENING
    words = [word for word in words if word not in (*_OPENING, "]", "]]")]
    if words[:1] == ["!"]:
        is_met = _test(["test", *words[1:]] if is_test else words[1:], variables)
        return None if is_met is None else not is_met
    values = [_value(word, variables) for word in words]
    match values:
        case ["true" | "false" | ":"]:
            return values != ["false"]
        case [str(value)] if is_test:
            return value != ""
        case ["-z" | "-n", str(value)]:
            return (values[0] == "-n") == (value != "")
        case [str(left), "=" | "==" | "!=", str(right)]:
            return fnmatch.fnmatchcase(left, right) == (values[1] != "!=")
        case [str(left), str(name), str(right)] if name in _NUMBERS and is_test:
            return _of_numbers(left, name, right)
    return None


def _compared(terms: str, variables: Mapping[str, str]) -> bool | None:
    """Whether `2 * $TP > $GPUS`."""
    parts = re.split(r"(==|!=|<=|>=|<|>)", terms)
    if len(parts) != 3:
        return None
    left, right = (expanded(f"$(({part.strip()}))", variables) for part in parts[::2])
    return _of_numbers(left, parts[1], right)


def _of_numbers(left: str, name: str, right: str) -> bool | None:
    try:
        return _NUMBERS[name](float(left), float(right))
    except ValueError:
        return None


def _value(word: str, variables: Mapping[str, str]) -> str | None:
    """A word with its variables put in; None if it has parts that only a shell knows."""
    is_known = True

    def of_unset(match: re.Match[str]) -> str:
        nonlocal is_known
        if match[2] == "#":
            return "0"
        is_known &= not _OF_LAUNCHERS.fullmatch(match[2])
        return ""

    value = _UNSET.sub(of_unset, expanded(word, variables))
    return value if is_known and "$" not in value and "`" not in value else None


def _split(words: list[str], separators: tuple[str, ...]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word in separators:
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _any(values: Iterator[bool | None]) -> bool | None:
    known = list(values)
    return True if True in known else None if None in known else False


def _all(values: Iterator[bool | None]) -> bool | None:
    known = list(values)
    return False if False in known else None if None in known else True
