"""Variables of a shell script: the values that it gives them, and its arithmetic.

https://www.gnu.org/software/bash/manual/html_node/Shell-Parameter-Expansion.html
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Mapping

_ASSIGNED = re.compile(
    r"""^\s*(?:(?:export|local|readonly|declare(?:\s+-\w+)?)\s+)?(\w+)(\+?)=
    (?:"([^"]*)"|'([^']*)'|(\$\{[^{}]*\}|\$\(\(.*?\)\)|[^\s"'(]*))\s*(?:;|\#.*)?$""",
    re.M | re.X,
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


def assigned(text: str, before: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that a script sets: `TP=8`, `TP=${TP:-8}`, `: "${TP:=8}"`.

    Args:
        before: those that are set before the text.
    """
    values = dict(before or {})
    for name, adds, *quoted in _ASSIGNED.findall(text):
        value = "".join(quoted)
        old = values.get(name, "")
        if adds and len(old) < _LONGEST_VALUE:  # ARGS+=" --bf16"
            value = old + value
        elif name in values and len(old) < _LONGEST_VALUE:  # ARGS="$ARGS --bf16"
            value = old.join(re.split(rf"\$(?:{name}\b|\{{{name}\}})", value))
        values[name] = value
    return dict(_DEFAULT.findall(text)) | values


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A text with variables put in, and its arithmetic worked out.

    A variable that the script does not set, and the own variable of a value, as `TP=${TP:-8}`, has
    the value of the environment, else the one that the text gives it, else it stays as it is.
    """
    return _computed(_with_values(text, variables), variables)


def _with_values(text: str, variables: Mapping[str, str]) -> str:
    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name in variables:
            others = {key: value for key, value in variables.items() if key != name}
            return _with_values(variables[name], others)
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
        return expanded(variables[name], others)

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
