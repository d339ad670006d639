"""Branches of a shell script: those that its variables choose, when it runs without arguments.

A branch whose condition only the shell can know is read, as are all others beside it.
https://www.gnu.org/software/bash/manual/html_node/Conditional-Constructs.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from shardwise.frameworks.shell_conditions import holds, matches
from shardwise.frameworks.shell_variables import assigned, expanded

_QUOTED = r"\"(?:\\.|[^\"\\])*\"|'[^']*'|\(\([^\n]{0,400}?\)\)|\\."
_TOKEN = re.compile(rf"{_QUOTED}|(?<!\S)#[^\n]*|;;|;", re.S)
_KEYWORD = re.compile(
    r"\s*(if|elif|then|else|fi|while|until|for|do|done|case|esac)(?![\w=.-])(.*)", re.S
)
_PATTERN = re.compile(r"\s*\(?([^()]*)\)(.*)", re.S)
_CASE = re.compile(r"\s*(.*?)\s+in\b(.*)", re.S)
_LOOP = re.compile(r"\s*(\w+)\s+in\s+(.*)", re.S)
_SHORT = re.compile(r"\s*(\[\[? .*? \]\]?|\(\(.*?\)\))\s*(&&|\|\|)\s*(?!\[)(.*)", re.S)
# Options, and the variable that a command sets.
_SETTING = re.compile(r"(?<![\w-])--[a-zA-Z][\w-]*|^\s*(?:export\s+)?(\w+)\+?=", re.M)


@dataclass(slots=True)
class Branches:
    """A script with the branches that its variables choose.

    Args:
        text: the lines that are read, one statement each.
        skipped: options and variables of lines that are not.
        unknown: conditions that only the shell can know.
        doubtful: options and variables of their branches, which are read.
        loops: variables of loops with several turns, of which the first is read, and its value.
    """

    text: str = ""
    skipped: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    loops: list[tuple[str, str]] = field(default_factory=list)


def followed(text: str) -> Branches:
    """A script, without its continued lines, with the branches that its variables choose.

    >>> followed('FP8=0\\nif [ $FP8 = 1 ]; then\\n A="--fp8"\\nelse\\n A=""\\nfi').text.split()
    ['FP8=0', 'A=""']
    """
    reader = _Reader()
    for statement in _statements(text):
        reader.read(statement)
    reader.branches.text = "".join(f"{line}\n" for line in reader.lines)
    return reader.branches


def _statements(text: str) -> list[str]:
    """The statements of a script: its lines, and what follows a semicolon on one."""

    def separated(match: re.Match[str]) -> str:
        token = match[0]
        if token.startswith("#"):
            return ""
        return {";": "\n", ";;": "\n;;\n"}.get(token, token.replace("\n", "\x01"))

    lines = _TOKEN.sub(separated, text).split("\n")
    return [line.replace("\x01", "\n") for line in lines]


@dataclass(slots=True)
class _Block:
    """An `if`, a `case` or a loop that is open; the script itself.

    Args:
        is_reached: whether the lines around it are read.
        is_certain: whether the conditions around it are known.
        is_read: whether its present lines are read.
        is_taken: whether one of its branches surely holds, so that the others do not.
        is_known: whether its conditions so far are.
        condition: lines before `then` or `do`.
        word: of a `case`.
        has_pattern_next: whether the next line of a `case` begins a branch.
    """

    keyword: str = ""
    is_reached: bool = True
    is_certain: bool = True
    is_read: bool = True
    is_taken: bool = False
    is_known: bool = True
    condition: list[str] = field(default_factory=list)
    word: str = ""
    has_pattern_next: bool = False


class _Reader:
    """Reads a script statement by statement."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.branches = Branches()
        self._blocks = [_Block()]
        self._variables: dict[str, str] = {}
        self._n_assigned = 0  # lines whose assignments are in the variables

    def read(self, statement: str) -> None:
        """Read a statement."""
        block = self._blocks[-1]
        if block.keyword == "case" and statement.strip() == ";;":
            block.is_read = False
            block.has_pattern_next = True
        elif block.has_pattern_next and (pattern := _PATTERN.fullmatch(statement)):
            self._at_pattern(block, pattern[1])
            self.read(pattern[2])
        elif keyword := _KEYWORD.fullmatch(statement):
            self._at_keyword(block, keyword[1], keyword[2])
        elif block.condition:
            block.condition.append(statement)
        else:
            self._at_command(block, statement)

    def _at_command(self, block: _Block, command: str) -> None:
        settings = [match[1] or match[0] for match in _SETTING.finditer(command)]
        is_read = block.is_reached and block.is_read
        is_certain = block.is_certain and block.is_known
        short = _SHORT.fullmatch(command) if is_read else None
        if short:
            is_met = holds(short[1], self._known())
            is_read = is_met is None or is_met == (short[2] == "&&")
            is_certain = is_certain and is_met is not None
            command = short[3]
            if is_met is None:
                self.branches.unknown.append(short[1])
        if not is_read:
            self.branches.skipped += settings
            return
        if not is_certain:
            self.branches.doubtful += settings
        self.lines.append(command)

    def _at_keyword(self, block: _Block, keyword: str, rest: str) -> None:
        case = _CASE.fullmatch(rest) if keyword == "case" else None
        if keyword in ("if", "while", "until"):
            self._open(keyword).condition = [rest]
        elif keyword == "for":
            self._open(keyword)
            self._first_turn(rest)
        elif case:
            inner = self._open(keyword)
            inner.word = case[1]
            inner.is_read = False
            inner.has_pattern_next = True
            self.read(case[2])
        elif not block.keyword or keyword == "case":
            self._at_command(block, f"{keyword}{rest}")
        elif keyword in ("fi", "done", "esac"):
            self._blocks.pop()
        elif keyword == "elif":
            block.condition = [rest]
        elif keyword == "else":
            block.is_read = not block.is_taken
            self.read(rest)
        else:  # then, do
            if block.condition:
                self._decide(block)
            self.read(rest)

    def _open(self, keyword: str) -> _Block:
        around = self._blocks[-1]
        block = _Block(
            keyword,
            is_reached=around.is_reached and around.is_read,
            is_certain=around.is_certain and around.is_known,
        )
        self._blocks.append(block)
        return block

    def _decide(self, block: _Block) -> None:
        """At the `then` of a condition, or the `do` of one."""
        condition = "\n".join(block.condition).strip()
        block.condition = []
        if block.is_taken or not block.is_reached:
            block.is_read = False
            return
        is_met = holds(condition, self._known())
        if block.keyword == "until" and is_met is not None:
            is_met = not is_met
        self._take(block, is_met, condition)

    def _at_pattern(self, block: _Block, pattern: str) -> None:
        """At the `a|b)` of a `case`."""
        block.has_pattern_next = False
        if not block.is_taken and block.is_reached:
            is_met = matches(block.word, pattern, self._known())
            self._take(block, is_met, f"case {block.word} in {pattern.strip()})")

    def _take(self, block: _Block, is_met: bool | None, condition: str) -> None:
        block.is_read = is_met is not False
        block.is_taken = is_met is True and block.is_known
        if is_met is None:
            block.is_known = False
            self.branches.unknown.append(condition)

    def _first_turn(self, loop: str) -> None:
        """Set the variable of a loop over words to the first of them."""
        match = _LOOP.fullmatch(loop)
        turns = expanded(match[2], self._known()).split() if match else []
        is_word = bool(turns) and not set("${`") & set(turns[0])
        if match and is_word and self._blocks[-1].is_reached:
            self.lines.append(f"{match[1]}={turns[0]}")
            if len(turns) > 1:
                self.branches.loops.append((match[1], turns[0]))

    def _known(self) -> dict[str, str]:
        """The variables that the lines so far set."""
        new = "\n".join(self.lines[self._n_assigned :])
        self._variables = assigned(new, self._variables)
        self._n_assigned = len(self.lines)
        return self._variables
