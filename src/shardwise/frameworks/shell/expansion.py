"""Words of a script with the values of its variables put in.

https://www.gnu.org/software/bash/manual/html_node/Shell-Expansions.html
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from shardwise.frameworks.shell import arithmetic
from shardwise.frameworks.shell.syntax import BRACES, BRACKETS, QUOTED

LONGEST = 16_384  # characters of a value
MOST_NUMBERS = 1_000  # of `{1..N}` and `seq N`
MOST = 1 << 20  # characters of a word after expansion
DEEPEST = 20  # values in values
Value: TypeAlias = str | list[str] | dict[str, str]

# What a launcher sets for each process. Other variables that nobody sets are empty.
_OF_LAUNCHERS = re.compile(r"(SLURM|OMPI|PMI|KUBERNETES|CUDA|NVIDIA|HOST)\w*|\w*RANK|WORLD_SIZE")
_DOLLAR = rf"""\$\(\((?P<sum>{BRACKETS})\)\) | (?P<command>\$\({BRACKETS}\)|`[^`]*`)
    | \$\{{(?P<braced>{BRACES})\}} | \$(?P<name>\w+|[@*\#?!$-])"""
_PART = re.compile(
    rf"""\\(?P<escaped>.) | '(?P<plain>[^']*)' | {_DOLLAR}
    | "(?P<quoted>{QUOTED})" | (?P<text>[^\\'"$`]+|.)""",
    re.S | re.X,
)
_QUOTED_PART = re.compile(
    rf"""\\(?P<escaped>[$`"\\\n]) | {_DOLLAR} | (?P<text>[^\\$`]+|.)""", re.S | re.X
)
# NAME or NAME[KEY], and what is done with its value.
_BRACED = re.compile(
    r"(?P<length>\#?)(?P<name>\w+|[@*\#])(?:\[(?P<key>[^\]]*)\])?"
    r"(?:(?P<default>:?[-=+?])|(?P<cut>%%?|\#\#?)|(?P<by>//?)|(?P<case>\^\^?|,,?))?(?P<word>.*)",
    re.S,
)
_EXPR = re.compile(r"(?:\$\(|`)\s*expr\s+(.*?)[)`]", re.S)
_SEQUENCE = re.compile(r"\$\(\s*seq((?:\s+[^\s)]+){1,3})\s*\)")
_RANGE = re.compile(r"([^\s'\"{}$]*)\{(-?\d{1,6})\.\.(-?\d{1,6})\}([^\s'\"]*)")
_ARGUMENT = re.compile(r"\$\{?\d+\}?")
_COMMAND = re.compile(r"\$\([^)]*\)|`[^`]*`", re.S)  # whose output only a shell knows
_LISTS = ("@", "*")
_OF_LIST = re.compile(r"\$@|\$\{@|\[@\]")


@dataclass(slots=True)
class Segment:
    """A part of a word after expansion.

    Args:
        is_split: whether spaces in it part words.
        is_end: whether the word ends with it.
    """

    text: str
    is_split: bool = False
    is_end: bool = False


@dataclass(slots=True)
class Scope:
    """The variables of a script.

    Args:
        values: those that it sets.
        arguments: of the function that is run; a script itself has none.
        empty: whether a variable that nobody sets is empty; else it stays as it is.
        is_known: whether all that was put in is known.
        used: names of variables whose value was put in somewhere, set or not.
        output: what the commands of `$(...)` write; None if only a shell knows.
    """

    values: dict[str, Value] = field(default_factory=dict)
    arguments: list[str] | None = None
    empty: bool = False
    is_known: bool = True
    used: set[str] = field(default_factory=set)
    output: Callable[[str], str | None] = field(default=lambda _: None, repr=False)

    def text(self, word: str) -> str:
        """A word as one text, as the value of an assignment."""
        return "".join(
            segment.text + (" " if segment.is_end else "") for segment in self._segments(word)
        )

    def quoted(self, text: str) -> str:
        """A text as if it stood in double quotes, in which quotes are characters."""
        return "".join(segment.text for segment in self._segments(text, is_quoted=True))

    def known(self, word: str) -> str | None:
        """A word of a condition; None if it has parts that only a shell knows."""
        self.empty, self.is_known = True, True
        text = self.text(word)
        self.empty = False
        return text if self.is_known and not {"$", "`"} & set(text) else None

    def fields(self, word: str) -> list[str]:
        """The words that a word of a command becomes."""
        if counted := _RANGE.fullmatch(word):
            before, first, last, after = counted.groups()
            numbers = _sequence(int(first), 1 if int(first) <= int(last) else -1, int(last))
            return [field for n in numbers for field in self.fields(f"{before}{n}{after}")]
        words: list[str] = []
        current: str | None = None
        for segment in self._segments(word):
            parts = re.split(r"(\s+)", segment.text) if segment.is_split else [segment.text]
            for part in parts:
                if segment.is_split and (not part or part.isspace()):
                    if part and current is not None:
                        words.append(current)
                        current = None
                else:
                    current = (current or "") + part
            if segment.is_end:
                if current is not None:
                    words.append(current)
                current = None
        return words if current is None else [*words, current]

    def set(self, name: str, value: Value) -> None:
        """Set a variable; one that grows without bound stays as it was."""
        texts = [value] if isinstance(value, str) else list(value)
        if len(texts) + sum(map(len, texts)) <= LONGEST:
            self.values[name] = value

    def get(self, name: str) -> Value | None:
        """The value that the script, its caller or the environment gives to a variable."""
        if name in self.values:
            return self.values[name]
        arguments = self.arguments or []
        if name in _LISTS:
            return arguments
        if name == "#":
            return str(len(arguments))
        if name.isdecimal():
            index = int(name) - 1
            return arguments[index] if 0 <= index < len(arguments) else None
        return os.environ.get(name)

    def forget(self, name: str) -> None:
        """Leave the value of a variable to the environment: of the script only a shell knows it."""
        self.values[name] = os.environ.get(name, f"${{{name}}}")

    def number(self, terms: str, depth: int = 0) -> int | None:
        """The value of an expression; None if it is no known number."""
        if len(terms) > arithmetic.LONGEST:
            return None
        return arithmetic.value(self._terms(terms, depth))

    def _terms(self, terms: str, depth: int = 0) -> str:
        """An expression with the numbers of its variables put in, as far as they are known."""

        def of_name(match: re.Match[str]) -> str:
            self.used.add(match[0])
            value = self.get(match[0])
            if not isinstance(value, str) or depth >= DEEPEST:
                return match[0]
            inner = self.number(value, depth + 1)
            return match[0] if inner is None else str(inner)

        return re.sub(r"[A-Za-z_]\w*", of_name, self.text(terms))

    def _segments(self, word: str, *, is_quoted: bool = False) -> Iterator[Segment]:
        """The parts of a word after expansion, as far as they are no longer than `MOST`."""
        length = 0
        for segment in self._expanded(word, is_quoted=is_quoted):
            length += len(segment.text)
            if length > MOST:
                return
            yield segment

    def _expanded(self, word: str, *, is_quoted: bool) -> Iterator[Segment]:
        for match in (_QUOTED_PART if is_quoted else _PART).finditer(word):
            kind = match.lastgroup
            if kind == "quoted":
                if not _OF_LIST.search(match["quoted"]):
                    yield Segment("")  # an empty word is one; a list may have no words
                yield from self._segments(match["quoted"], is_quoted=True)
            elif kind == "sum":
                yield Segment(self._of_sum(match["sum"]))
            elif kind == "command":
                output = self._of_command(match[0])
                yield Segment(
                    match[0] if output is None else output,
                    is_split=output is not None and not is_quoted,
                )
            elif kind == "braced":
                value = self._braced(match["braced"], match[0])
                if is_quoted and isinstance(value, list) and match["braced"].endswith("[*]"):
                    value = " ".join(value)
                yield from self._of_value(value, is_quoted)
            elif kind == "name":
                yield from self._of_value(self._named(match["name"], match[0]), is_quoted)
            else:
                yield Segment(match[kind] if kind else "")

    def _of_value(self, value: Value, is_quoted: bool) -> Iterator[Segment]:
        if isinstance(value, str):
            yield Segment(value, is_split=not is_quoted and not _COMMAND.fullmatch(value))
            return
        items = list(value.values()) if isinstance(value, dict) else value
        for i, item in enumerate(items):
            yield Segment(item, is_split=not is_quoted, is_end=i < len(items) - 1)

    def _named(self, name: str, whole: str) -> Value:
        self.used.add(name)
        value = self.get(name)
        if isinstance(value, list) and name not in _LISTS:
            return value[0] if value else ""
        return self._unset(name, whole) if value is None else value

    def _unset(self, name: str, whole: str) -> str:
        if name.isdecimal() and self.arguments is not None:
            return ""  # the function has fewer
        if self.empty:
            self.is_known &= not _OF_LAUNCHERS.fullmatch(name)
            return ""
        return whole

    def _of_sum(self, terms: str) -> str:
        number = self.number(terms)
        if number is not None:
            return str(number)
        shown = terms if len(terms) > arithmetic.LONGEST else self._terms(terms)
        return f"$(({''.join(shown.split())}))"

    def _of_command(self, whole: str) -> str | None:
        """What a command in a word writes, without the ends of its last lines."""
        if expr := _EXPR.fullmatch(whole):
            number = self.number(expr[1].replace("\\", ""))
            return None if number is None else str(number)
        if sequence := _SEQUENCE.fullmatch(whole):
            terms = [self.number(term) for term in sequence[1].split()]
            known = [number for number in terms if number is not None]
            if len(known) < len(terms):
                return None
            first = known[0] if len(known) > 1 else 1
            step = known[1] if len(known) > 2 else 1
            return "\n".join(map(str, _sequence(first, step, known[-1])))
        output = self.output(whole[2:-1] if whole[0] == "$" else whole[1:-1].replace("\\", ""))
        return None if output is None else output.rstrip("\n")

    def _braced(self, text: str, whole: str) -> Value:
        """`${NAME...}`; it stays as it is where only a shell knows it."""
        match = _BRACED.fullmatch(text)
        if not match or text[0] == "!":
            return whole
        name, key, argument = match["name"], match["key"], match["word"]
        self.used.add(name)
        value = self.get(name)
        if key is not None and value is not None:
            value = self._item(value, key)
        elif isinstance(value, list) and name not in _LISTS:
            value = value[0] if value else ""
        if match["length"]:
            return "0" if value is None else str(len(value))
        if match["default"]:
            return self._with_default(name, value, match["default"], argument, whole)
        if value is None:
            return self._unset(name, whole) if not key else ("" if self.empty else whole)
        if not isinstance(value, str):
            return value
        if match["cut"]:
            return _cut(value, match["cut"], self.text(argument))
        if match["by"]:
            old, _, new = argument.partition("/")
            count = -1 if match["by"] == "//" else 1
            return value.replace(self.text(old), self.text(new), count) if old else value
        if match["case"]:
            change = str.upper if match["case"][0] == "^" else str.lower
            return change(value) if len(match["case"]) == 2 else change(value[:1]) + value[1:]
        if argument.startswith(":"):
            start, _, length = argument[1:].partition(":")
            first, count_of = self.number(start), self.number(length) if length else len(value)
            if first is not None and count_of is not None and first >= 0 <= count_of:
                return value[first : first + count_of]
        return whole if argument else value

    def _item(self, value: Value, key: str) -> Value | None:
        if key in _LISTS:
            return [value] if isinstance(value, str) else value
        if isinstance(value, dict):
            name = self.text(key)
            return value.get(name, None if "$" in name else "")
        items = [value] if isinstance(value, str) else value
        index = self.number(key)
        if index is None:
            return None
        return items[index] if index < len(items) else ""

    def _with_default(
        self, name: str, value: Value | None, operator: str, word: str, whole: str
    ) -> Value:
        if isinstance(value, str) and _ARGUMENT.fullmatch(value):  # TP=$1, without arguments
            value = ""
        is_set = value is not None and (value != "" or ":" not in operator)
        if operator.endswith("+"):
            return self.text(word) if is_set else ""
        if is_set and value is not None:
            return value
        if operator.endswith("?"):
            return self._unset(name, whole)
        default = self.text(word)
        if operator.endswith("="):
            self.set(name, default)
        return default


def _sequence(first: int, step: int, last: int) -> range:
    """The numbers from the first to the last, as many as are read."""
    if not step:
        return range(0)
    return range(first, last + (1 if step > 0 else -1), step)[:MOST_NUMBERS]


def _cut(value: str, operator: str, pattern: str) -> str:
    """A value without what begins (`#`) or ends (`%`) it, the shortest or the longest of these."""
    ends = range(len(value) + 1)
    if operator[0] == "%":
        for start in ends if len(operator) == 2 else reversed(ends):
            if fnmatch.fnmatchcase(value[start:], pattern):
                return value[:start]
    else:
        for end in reversed(ends) if len(operator) == 2 else ends:
            if fnmatch.fnmatchcase(value[:end], pattern):
                return value[end:]
    return value
