"""A walk through a script: the commands that it runs, with their words, and what it passes over.

Nothing is run. Where only a shell knows whether a condition holds (`-f FILE`, a command), all its
branches are read, in order, and their settings are doubtful.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from shardwise.errors import BadFile
from shardwise.frameworks.shell import conditions, nodes, syntax
from shardwise.frameworks.shell.assignments import ASSIGNMENT, assign, calculate
from shardwise.frameworks.shell.conditions import all_of, any_of, negated
from shardwise.frameworks.shell.expansion import Scope, Value
from shardwise.frameworks.shell.launchers import scripts_of, started, variables_of
from shardwise.frameworks.shell.nodes import Node, as_written
from shardwise.frameworks.shell.result import Run, settings_of
from shardwise.frameworks.shell.writers import written

# The text of a file that another one names, or None where there is none.
Beside = Callable[[str], str | None]

MOST_STEPS = 20_000  # commands and loops of a script, each time that they are met
DEEPEST = 20  # calls of functions, and files, in one another
_OVERRIDE = re.compile(r"[a-z]+_[a-z_]+=")
_DECLARATIONS = ("export", "local", "readonly", "declare", "typeset")
_OF_FUNCTIONS = ("local", "declare", "typeset")
_NAME = re.compile(r"[A-Za-z_]\w*")
_LEAVING = ("continue", "break")  # of the innermost loop
_WRITERS = ("echo", "printf", "cat")  # their words are no options
_SUM = re.compile(r"\(\((.*)\)\)", re.S)
# The folder of a script, which is where the names in it begin: "$(dirname "$0")/", "${HERE}/".
_FOLDER = re.compile(r"^(?:.*[)}\"]|\$\w+)/", re.S)


def run(
    text: str,
    name: str,
    beside: Beside = lambda name: None,
    variables: Mapping[str, str] | None = None,
) -> Run:
    """Walk through a script without arguments.

    Args:
        name: of the file, for errors.
        beside: reads the files that it runs by `source`.
        variables: those that are set before it.

    Raises:
        BadFile: its quotes do not match, or it takes too many steps.
    """
    shell = _Shell(name, beside)
    shell.result.scope.values.update(variables or {})
    shell.text(text)
    return shell.result


class _Branch(NamedTuple):
    """A branch of an `if` or a `case`: whether it holds, as it is written, and its commands."""

    decide: Callable[[], bool | None]
    condition: str
    body: list[Node]


class _Shell:
    """Walks through the commands of a script."""

    def __init__(self, name: str, beside: Beside) -> None:
        self.result = Run()
        self._name = name
        self._beside = beside
        self._functions: dict[str, list[Node]] = {}
        self._steps = 0
        self._depth = 0
        self._is_doubtful = False
        self._output: list[str] | None = None  # what is written inside `$(...)`
        self._locals: list[dict[str, Value | None]] = []  # of each function: their outer values
        self._is_returning = False
        self._leaves = ""  # "continue" or "break", to the end of a turn
        self._scope.output = self._output_of

    @property
    def _scope(self) -> Scope:
        return self.result.scope

    def text(self, text: str) -> None:
        """Walk through the commands of a text."""
        try:
            body = syntax.parse(text)
        except ValueError as error:
            raise BadFile(f"{self._name} is no script of a shell: {error}.") from None
        self._walk_all(body)

    def _walk_all(self, body: list[Node]) -> bool | None:
        status: bool | None = True
        for node in body:
            if self._is_returning or self._leaves:
                break
            status = self._walk(node)
        return status

    def _walk(self, node: Node) -> bool | None:
        """Walk through a command; return whether it succeeds, None if that is not known."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise BadFile(f"{self._name} takes more than {MOST_STEPS:,} steps.")
        match node:
            case nodes.Command(words, is_redirected):
                output = self._output
                self._output = None if is_redirected else output
                status = self._command(words)
                self._output = output
                return status
            case nodes.Chain(first, following):
                return self._chain(first, following)
            case nodes.If():
                self._if(node)
            case nodes.Case():
                self._case(node)
            case nodes.For():
                self._for(node)
            case nodes.Function(name, body):
                self._functions[name] = body
            case nodes.Group(body):
                return self._walk_all(body)
        return None

    def _command(self, words: list[str]) -> bool | None:
        if words and words[0] == "!":
            return negated(self._command(words[1:]))
        if words and words[0] in conditions.TESTS:
            return conditions.holds(words, self._scope)
        if self._is_doubtful:
            self.result.doubtful += settings_of(" ".join(words))
        if len(words) == 1 and (arithmetic := _SUM.fullmatch(words[0])):
            return calculate(self._scope, arithmetic[1])
        assigned = list(takewhile(ASSIGNMENT.fullmatch, words))
        named = words[len(assigned) :]
        if not named:
            for word in assigned:
                assign(self._scope, word)
            # Perhaps the overrides of a command: `per_device_batch_size=2` on a line of its own.
            if len(assigned) > 1 or (assigned and _OVERRIDE.match(assigned[0])):
                self.result.commands.append([self._scope.text(word) for word in assigned])
            return True
        if named[0] in _DECLARATIONS or named[0] in ("eval", "let", ":"):
            return self._builtin(named[0], named[1:])
        before = [self._scope.text(word) for word in assigned]
        fields = [field for word in named for field in self._scope.fields(word)]
        return self._with(variables_of(before), partial(self._call, before, fields))

    def _with(self, variables: Mapping[str, str], walk: Callable[[], bool | None]) -> bool | None:
        """Walk through a command that has variables of its own."""
        outer = {name: self._scope.values.get(name) for name in variables}
        for name, value in variables.items():
            self._scope.set(name, value)
        status = walk()
        self._restore(outer)
        return status

    def _restore(self, variables: Mapping[str, Value | None]) -> None:
        """Give variables the values that they had; None if they had none."""
        for name, value in variables.items():
            if value is None:
                self._scope.values.pop(name, None)
            else:
                self._scope.values[name] = value

    def _builtin(self, name: str, words: list[str]) -> bool | None:
        if name == "eval":
            self._inside(partial(self.text, " ".join(map(self._scope.text, words))))
            return None
        is_local = self._locals and name in _OF_FUNCTIONS and "-g" not in words
        for word in words:
            if is_local and (variable := _NAME.match(word)):
                old = self._scope.values.get(variable[0])
                self._locals[-1].setdefault(variable[0], old)
            if name == "let":
                calculate(self._scope, self._scope.text(word))
            elif name == ":":
                self._scope.text(word)  # ${TP:=8} sets a variable
            else:
                assign(self._scope, word)
        return True

    def _call(self, before: list[str], fields: list[str]) -> bool | None:
        name, arguments = (fields[0], fields[1:]) if fields else ("", [])
        if name in conditions.TRUTHS:
            return name == "true"
        if name == "read":
            self._read(arguments)
            return None
        if name in ("source", ".") and arguments:
            return self._source(arguments[0])
        if name == "shift":
            n_left_out = int(arguments[0]) if arguments and arguments[0].isdecimal() else 1
            self._scope.arguments = (self._scope.arguments or [])[n_left_out:]
            return True
        if name in self._functions and self._depth < DEEPEST:
            self._function(self._functions[name], arguments)
            return None
        if name in _LEAVING:
            self._leaves = "" if self._is_doubtful else name
            return None
        if name == "return" and self._locals:
            self._is_returning = not self._is_doubtful
            return None
        if launched := started(fields):
            if launched.launcher:
                self.result.commands.append([*before, *launched.launcher])
            self._inside(
                partial(self._with, launched.variables, partial(self._call, [], launched.command))
            )
            return None
        if fields[:2] == ["printf", "-v"] and len(fields) > 3:
            self._scope.set(fields[2], written(["printf", *fields[3:]]) or f"$({' '.join(fields)})")
        elif name in _WRITERS and self._output is not None:
            self._write(fields)
        if fields and name not in _WRITERS:
            command = [*before, *fields]
            self.result.commands.append(command)
            for word, script in scripts_of(fields):
                command.remove(word)
                self._inside(partial(self.text, script))
        return None

    def _read(self, arguments: list[str]) -> None:
        """`read NAME ...`, of lines that only a shell knows."""
        for name in filter(_NAME.fullmatch, arguments):
            self._scope.forget(name)

    def _function(self, body: list[Node], arguments: list[str]) -> None:
        """Walk through a function, with arguments and local variables of its own."""
        outer, self._scope.arguments = self._scope.arguments, arguments
        self._locals.append({})
        self._inside(partial(self._walk_all, body))
        self._restore(self._locals.pop())
        self._scope.arguments = outer
        self._is_returning = False

    def _output_of(self, text: str) -> str | None:
        """What the commands of `$(...)` write; None if one of them is not known here."""
        outer = self.result, self._output, self._is_doubtful
        scope = replace(self._scope, values=dict(self._scope.values), empty=False)
        self.result, self._output, self._is_doubtful = Run(scope=scope), [], False
        try:
            self._inside(partial(self._walk_all, syntax.parse(text)))
            output = "".join(self._output)
            is_unknown = self.result.commands or self.result.unknown or re.search(r"\$\(|`", output)
            return None if is_unknown else output or None
        except ValueError:
            return None
        finally:
            self.result, self._output, self._is_doubtful = outer

    def _write(self, fields: list[str]) -> None:
        text = written(fields, self._beside)
        if text is None:
            self.result.unknown.append(" ".join(fields))
        elif self._output is not None:
            self._output.append(self._scope.quoted(text) if fields[0] == "cat" else text)

    def _inside(self, walk: Callable[[], object]) -> None:
        self._depth += 1
        if self._depth <= DEEPEST:
            walk()
        self._depth -= 1

    def _source(self, name: str) -> bool | None:
        content = self._beside(name)
        if content is None:
            content = self._beside(_FOLDER.sub("", name))
        if content is None:
            self.result.missing.append(name)
        else:
            self._inside(partial(self.text, content))
        return None

    def _chain(self, first: Node, following: list[tuple[str, Node]]) -> bool | None:
        """Commands with `&&` and `||`. A command whose success is not known succeeds."""
        status = self._walk(first)
        is_condition = conditions.is_test(first)
        for operator, node in following:
            if operator in ("|", "|&"):
                status = self._walk(node)
            elif conditions.is_test(node):
                statuses = (status, self._walk(node))
                status = all_of(statuses) if operator == "&&" else any_of(statuses)
            elif status is None and is_condition:
                self.result.unknown.append(as_written(first))
                self._doubtfully([node])
            elif (status is not False) == (operator == "&&"):
                self._walk(node)
            else:
                self._skip([node])
        return status

    def _doubtfully(self, body: list[Node]) -> None:
        before = self._is_doubtful
        self._is_doubtful = True
        self._walk_all(body)
        self._is_doubtful = before

    def _if(self, node: nodes.If) -> None:
        before = dict(self._scope.values)
        n_unknown = len(self.result.unknown)
        if node.keyword != "if":
            self._note_loop()
        branches = [
            _Branch(
                decide=partial(self._condition, node.keyword, condition),
                condition="; ".join(map(as_written, condition)),
                body=body,
            )
            for condition, body in node.branches
        ]
        self._choose(branches, node.otherwise)
        if node.keyword != "if":
            self._leaves = ""
        if node.keyword != "if" and len(self.result.unknown) > n_unknown:
            for name, value in self._scope.values.items():
                if value != before.get(name) and isinstance(value, str):
                    self._scope.forget(name)  # turns of the loop are not counted

    def _note_loop(self) -> None:
        """A loop of which one turn is read: what it writes is not known."""
        if self._output is not None:
            self.result.unknown.append("loop")

    def _condition(self, keyword: str, condition: list[Node]) -> bool | None:
        status = self._walk_all(condition)
        return negated(status) if keyword == "until" else status

    def _case(self, node: nodes.Case) -> None:
        branches = [
            _Branch(
                decide=partial(conditions.matches, node.word, patterns, self._scope),
                condition=f"case {node.word} in {'|'.join(patterns)})",
                body=body,
            )
            for patterns, body in node.branches
        ]
        self._choose(branches, [])

    def _choose(self, branches: list[_Branch], otherwise: list[Node]) -> None:
        """Walk through the first branch that holds, or all from one that only the shell knows."""
        is_taken, is_known = False, True
        for branch in branches:
            status = False if is_taken else branch.decide()
            if status is False:
                self._skip(branch.body)
            elif status is True and is_known:
                is_taken = True
                self._walk_all(branch.body)
            else:
                if status is None:
                    is_known = False
                    self.result.unknown.append(branch.condition)
                self._doubtfully(branch.body)
        if is_taken:
            self._skip(otherwise)
        elif is_known:
            self._walk_all(otherwise)
        else:
            self._doubtfully(otherwise)

    def _for(self, node: nodes.For) -> None:
        """A loop: all turns set variables; commands are those of the first turn that has any."""
        turns = [field for word in node.words for field in self._scope.fields(word)]
        if node.variable.startswith("(("):
            turns = [""]
            self._note_loop()
        if not turns:
            self._skip(node.body)
        first: str | None = None
        for turn in turns:
            n_before = len(self.result.commands)
            self._scope.set(node.variable, turn)
            self._walk_all(node.body)
            leaves, self._leaves = self._leaves, ""
            if first is None and len(self.result.commands) > n_before:
                first = turn
            elif first is not None:
                del self.result.commands[n_before:]
            if leaves == "break":
                break
        if first is not None and len(turns) > 1:
            self.result.loops.append((node.variable, first))

    def _skip(self, body: list[Node]) -> None:
        for node in body:
            self.result.skipped += settings_of(as_written(node))
