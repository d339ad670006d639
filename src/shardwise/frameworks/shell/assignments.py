"""Assignments: `TP=8`, `ARGS+=(--bf16)`, `let N=2`.

https://www.gnu.org/software/bash/manual/html_node/Shell-Parameters.html
"""

from __future__ import annotations

import re

from shardwise.frameworks.shell import syntax
from shardwise.frameworks.shell.expansion import Scope
from shardwise.frameworks.shell.nodes import words_of

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)", re.S)
# A command or a sum that stays as it is written, since it is not known here: `$(nvidia-smi -L)`.
_ONLY_A_SHELL_KNOWS = re.compile(r"\$\(.*\)|`.*`", re.S)
_SUM_ASSIGNED = re.compile(r"\s*(\w+)\s*([-+*/%]?)=(?!=)(.*)", re.S)


def assign(scope: Scope, word: str) -> None:
    """Carry out `NAME=value`, `NAME+=value`, `NAME[key]=value` or `NAME=(words)`."""
    match = ASSIGNMENT.fullmatch(word)
    if not match:  # a name that is declared
        return
    name, key, adds, value = match.groups()
    old = scope.get(name)
    if value.startswith("(") and value.endswith(")"):
        _assign_array(scope, name, value[1:-1].strip(), old if adds else None)
        return
    if old is None:  # OPTS="$OPTS --bf16" where nothing is set
        value = re.sub(rf"\$(?:{name}\b|\{{{name}\}})", "", value)
    text = scope.text(value)
    if key is not None:
        items = dict(old) if isinstance(old, dict) else {}
        scope.set(name, {**items, scope.text(key): text})
    elif not adds and _ONLY_A_SHELL_KNOWS.fullmatch(text):
        scope.forget(name)
    elif not adds:
        scope.set(name, text)
    elif isinstance(old, list):
        scope.set(name, [(old[0] if old else "") + text, *old[1:]])
    else:
        scope.set(name, (old if isinstance(old, str) else "") + text)


def _assign_array(scope: Scope, name: str, words: str, old: object) -> None:
    parts = [word for node in syntax.parse(words) for word in words_of(node)]
    keyed = [re.fullmatch(r"\[([^\]]*)\]=(.*)", part, re.S) for part in parts]
    if parts and all(keyed):
        items = dict(old) if isinstance(old, dict) else {}
        for match in keyed:
            if match:
                items[scope.text(match[1])] = scope.text(match[2])
        scope.set(name, items)
        return
    before = [old] if isinstance(old, str) else list(old) if isinstance(old, list) else []
    fields = [field for part in parts for field in scope.fields(part)]
    scope.set(name, [*before, *fields])


def calculate(scope: Scope, terms: str) -> bool | None:
    """`let` and `((...))`: an assignment, or a condition."""
    assigned = _SUM_ASSIGNED.fullmatch(terms)
    if not assigned:
        number = scope.number(terms)
        return None if number is None else number != 0
    name, operator, value = assigned.groups()
    terms = f"{name} {operator} ({value})" if operator else value
    number = scope.number(terms)
    if number is None:
        scope.forget(name)
    else:
        scope.set(name, str(number))
    return None
