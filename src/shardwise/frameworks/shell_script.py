"""Launch scripts of a shell: the flags of one command, written one a line and read back."""

from __future__ import annotations

import ast
import operator
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from shardwise.errors import BadFile

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
    """The flags of all commands of a script: `{"--tp": 8, "--bf16": True}`.

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
    joined = _joined(text)
    variables = _variables(joined)
    joined = _computed(_expanded(joined, variables), variables)
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


def _joined(text: str) -> str:
    """A script with continued lines in one, and without lines that are comments."""
    joined = re.sub(r"\\\s*\n", " ", text)
    return re.sub(r"^\s*#.*$", "", joined, flags=re.M)


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


_ASSIGNED = re.compile(
    r"""^\s*(?:export\s+)?(\w+)=(?:"([^"]*)"|'([^']*)'|(\$\{[^{}]*\}|\$\(\(.*?\)\)|[^\s"'(]*))\s*(?:;|\#.*)?$""",
    re.M,
)
_DEFAULT = re.compile(r"^\s*:\s*\"?\$\{(\w+):?=([^{}]*)\}", re.M)
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
_LONGEST_ARITHMETIC = 200  # characters
_LONGEST_VALUE = 4096  # characters, of a variable that is put into its own next value
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # of whole numbers, as in a shell
    ast.Mod: operator.mod,
}
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^{}]*))?\}|\$(\w+)")


def _variables(text: str) -> dict[str, str]:
    """The variables that a script sets: `TP=8`, `TP=${TP:-8}`, `: "${TP:=8}"`."""
    values: dict[str, str] = {}
    for name, *quoted in _ASSIGNED.findall(text):
        value = "".join(quoted)
        if name in values and len(values[name]) < _LONGEST_VALUE:  # ARGS="$ARGS --bf16"
            value = values[name].join(re.split(rf"\$(?:{name}\b|\{{{name}\}})", value))
        values[name] = value
    return dict(_DEFAULT.findall(text)) | values


def expanded(text: str, script: str) -> str:
    """A text with the variables that a script sets put in, and its arithmetic worked out."""
    variables = _variables(_joined(script))
    return _computed(_expanded(text, variables), variables)


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """A text with the variables put in, or the values that it gives to those that are not set.

    What the script does not set, and the own variable of a value, as `TP=${TP:-8}`, is that of the
    environment, if it is set there.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name in variables:
            others = {key: value for key, value in variables.items() if key != name}
            return _expanded(variables[name], others)
        if name in os.environ:
            return os.environ[name]
        return match[0] if match[2] is None else match[2].strip("\"'")

    return _VARIABLE.sub(value_of, text)


def _computed(text: str, variables: Mapping[str, str]) -> str:
    """A text with the arithmetic of known whole numbers worked out: `$((2 * NODES))`.

    Names in it are variables with or without a dollar sign. What has other parts stays as it is.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in variables:
            return match[0]
        others = {key: value for key, value in variables.items() if key != name}
        return _computed(_expanded(variables[name], others), others)

    def result(match: re.Match[str]) -> str:
        whole = "".join(match[0].split())  # one word
        terms = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", value_of, match[1]).strip()
        if len(terms) > _LONGEST_ARITHMETIC or not re.fullmatch(r"[\d\s+\-*/%()]+", terms):
            return whole
        try:
            return str(_integer(ast.parse(terms, mode="eval").body))
        except (SyntaxError, KeyError, ValueError, ZeroDivisionError):
            return whole

    return _ARITHMETIC.sub(result, text)


def _integer(node: ast.expr) -> int:
    """The value of an expression of whole numbers.

    Raises:
        KeyError: it has another operator.
        ValueError: it has another kind of term.
    """
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_integer(left), _integer(right))
    raise ValueError(ast.dump(node))


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
