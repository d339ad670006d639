"""YAML as launch configurations have it, without a library: nested mappings of scalars and lists.

Written files have one key a line, and strings in double quotes where they could be read as
something else. The reader takes block and flow mappings and lists, quoted and plain scalars, block
scalars (`|`), wrapped plain scalars and comments. It refuses anchors, tags, merge keys and several
documents, and names the line. https://yaml.org/spec/1.2.2
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import BadFile

_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?(\.\d*)?([eE][-+]?\d+)?")
_PLAIN = re.compile(r"[A-Za-z_./][\w ./@+=,-]*")  # strings that need no quotes, unless a word below
_WORDS = {"true": True, "false": False, "null": None, "~": None, "yes": True, "no": False}
_WORDS |= {"on": True, "off": False}
_KEY = re.compile(
    r"(\"[^\"]*\"|'[^']*'|[^\s#:\[\]{},&*!|>'\"-][^:#]*?|-[^\s:#][^:#]*?)\s*:(?=\s|$)"
)
MAX_DEPTH = 40
_BLOCKS = ("|", "|-", "|+", ">", ">-", ">+")


def write(value: Mapping[str, Any]) -> str:
    """A mapping as YAML text.

    >>> print(write({"model": {"name": "llama3-70b", "steps": 10}, "ports": [1, 2]}), end="")
    model:
      name: llama3-70b
      steps: 10
    ports:
    - 1
    - 2
    """
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: Any, depth: int) -> list[str]:
    pad = "  " * depth
    lines: list[str] = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, str) and "\n" in item:
                lines.append(f"{pad}{_scalar(key)}: |")
                lines += [f"{pad}  {line}".rstrip() for line in item.rstrip("\n").split("\n")]
            elif isinstance(item, Mapping | list | tuple) and item:
                lines.append(f"{pad}{_scalar(key)}:")
                lines += _lines(item, depth + isinstance(item, Mapping))
            else:
                lines.append(f"{pad}{_scalar(key)}: {_scalar(item)}")
        return lines
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *others = _lines(item, depth + 1)
            lines += [f"{pad}- {first.strip()}", *others]
        else:
            lines.append(f"{pad}- {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return json.dumps(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS and text == text.strip():
        return text
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def read(text: str, name: str) -> Any:
    """The value of a YAML text.

    >>> read("a: 1 # one\\nb: [x, 'y']\\nc:\\n- d: 2.5", "f.yml")
    {'a': 1, 'b': ['x', 'y'], 'c': [{'d': 2.5}]}

    Raises:
        BadFile: the text has something that this reader does not take.
    """
    parts = documents(text)
    if len(parts) > 1:
        places = ", ".join(f"{part.title} (line {part.line})" for part in parts)
        raise BadFile(
            f"{name} has {len(parts)} YAML documents: {places}. A launch configuration is one: "
            "save the document with the options as a file."
        )
    return _Reader(text, name).document()


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a YAML file, with the number of its first line."""

    line: int
    text: str

    @property
    def title(self) -> str:
        """Its `kind`, or its first key."""
        kind = re.search(r"^kind:\s*(\w+)", self.text, re.M)
        first = re.search(r"^[^\s#:][^:\n]*", self.text, re.M)
        return kind[1] if kind else first[0] if first else "empty"


def documents(text: str) -> list[Document]:
    """The documents of a file that are not empty; each but the first begins after a line `---`."""
    lines = text.splitlines(keepends=True)
    marks = [i for i, line in enumerate(lines) if re.fullmatch(r"---(\s.*)?", line.rstrip())]
    starts = [0, *(i + 1 for i in marks)]
    ends = [*marks, len(lines)]
    parts = [
        Document(start + 1, "".join(lines[start:end]))
        for start, end in zip(starts, ends, strict=True)
    ]
    return [part for part in parts if re.search(r"^\s*[^\s#%.]", part.text, re.M)]


class _Reader:
    """Reads one document, line by line."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._raw = text.splitlines()
        self._lines = _joined_lines(self._raw)
        self._at = 0

    def document(self) -> Any:
        if not self._lines:
            return {}
        value = self._block(self._lines[0].indent, 0)
        if self._at < len(self._lines):
            raise self._error(self._lines[self._at], "is indented differently from its neighbours")
        return value

    def _error(self, line: _Line, problem: str) -> BadFile:
        return BadFile(f'{self._name}: line {line.number}, "{line.text[:40]}", {problem}.')

    def _peek(self) -> _Line | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _block(self, indent: int, depth: int) -> Any:
        line = self._lines[self._at]
        if depth > MAX_DEPTH:
            raise self._error(line, f"is nested more than {MAX_DEPTH} levels deep")
        if line.text == "-" or line.text.startswith("- "):
            return self._list(indent, depth)
        if _KEY.match(line.text):
            return self._mapping(indent, depth)
        self._at += 1
        return self._value(line.text, line)

    def _list(self, indent: int, depth: int) -> list[Any]:
        items: list[Any] = []
        while (line := self._peek()) and line.indent == indent and line.text[:2] in ("-", "- "):
            rest = line.text[1:].lstrip()
            if rest in _BLOCKS:
                self._at += 1
                items.append(self._literal(line, folded=rest[0] == ">"))
            elif not rest:
                self._at += 1
                items.append(self._below(indent, depth))
            elif _KEY.match(rest):
                inner = indent + len(line.text) - len(rest)
                self._lines[self._at] = _Line(line.number, inner, rest)
                items.append(self._mapping(inner, depth + 1))
            else:
                self._at += 1
                items.append(self._value(self._wrapped(rest, indent), line))
        return items

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while (line := self._peek()) and line.indent == indent:
            match = _KEY.match(line.text)
            if not match:
                raise self._error(line, "is no key: value")
            key = str(self._value(match[1], line))
            if key in mapping:
                raise self._error(line, f'gives the key "{key}" again')
            rest = line.text[match.end() :].strip()
            self._at += 1
            if rest in _BLOCKS:
                mapping[key] = self._literal(line, folded=rest[0] == ">")
            elif rest:
                mapping[key] = self._value(self._wrapped(rest, indent), line)
            else:
                mapping[key] = self._below(indent, depth, lists=True)
        return mapping

    def _below(self, indent: int, depth: int, *, lists: bool = False) -> Any:
        """The block below a key or a dash: deeper, or a list at the same depth as its key."""
        line = self._peek()
        is_list = lists and line and line.indent == indent and line.text[:2] in ("-", "- ")
        if line and (line.indent > indent or is_list):
            return self._block(line.indent, depth + 1)
        return None

    def _wrapped(self, text: str, indent: int) -> str:
        """A plain scalar with the lines that continue it, which are deeper and no key."""
        while text[0] not in "[{\"'&*!" and (line := self._peek()) and line.indent > indent:
            if _KEY.match(line.text):
                break
            text = f"{text} {line.text}"
            self._at += 1
        return text

    def _literal(self, key: _Line, *, folded: bool) -> str:
        """The lines below a `|` or `>`, comments included."""
        start = key.number
        end = start
        while end < len(self._raw) and (
            not self._raw[end].strip()
            or len(self._raw[end]) - len(self._raw[end].lstrip()) > key.indent
        ):
            end += 1
        lines = self._raw[start:end]
        filled = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
        body = [line[min(filled, default=0) :] for line in lines]
        while (line := self._peek()) and line.number <= end:
            self._at += 1
        return (" " if folded else "\n").join(body).rstrip() + "\n"

    def _value(self, text: str, line: _Line) -> Any:
        """A scalar, or a list or mapping in brackets."""
        if text[0] in "[{":
            value, rest = self._flow(text, line, 0)
            if rest.strip():
                raise self._error(line, "goes on after its last bracket")
            return value
        if text[0] in "&*!|>%@`":
            raise self._error(line, f'begins with "{text[0]}", which is not read')
        return _plain(text)

    def _flow(self, text: str, line: _Line, depth: int) -> tuple[Any, str]:
        """The value at the beginning of `text`, and the text after it."""
        text = text.lstrip()
        if depth > MAX_DEPTH:
            raise self._error(line, f"is nested more than {MAX_DEPTH} levels deep")
        if text[:1] == "[":
            return self._flow_items(text[1:], "]", line, depth)
        if text[:1] == "{":
            return self._flow_items(text[1:], "}", line, depth)
        match = re.match(
            r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'|[^,\[\]{}:]+(?::(?!\s)[^,\[\]{}:]+)*', text
        )
        if not match:
            raise self._error(line, "has brackets that do not match")
        return _plain(match[0].strip()), text[match.end() :]

    def _flow_items(self, text: str, end: str, line: _Line, depth: int) -> tuple[Any, str]:
        items: list[Any] = []
        mapping: dict[str, Any] = {}
        text = text.lstrip()
        while text[:1] != end:
            item, text = self._flow(text, line, depth + 1)
            text = text.lstrip()
            if end == "}":
                if text[:1] != ":":
                    raise self._error(line, "has a key without a value")
                value, text = self._flow(text[1:], line, depth + 1)
                mapping[str(item)] = value
                text = text.lstrip()
            else:
                items.append(item)
            if text[:1] == ",":
                text = text[1:].lstrip()
            elif text[:1] != end:
                raise self._error(line, "has brackets that do not match")
        return (mapping if end == "}" else items), text[1:]


def _joined_lines(raw: Sequence[str]) -> list[_Line]:
    """The lines with contents, those of one list in brackets as one line."""
    lines: list[_Line] = []
    is_open = False
    literal_indent = -1  # of the key or dash of a block scalar, whose lines stay as they are
    for number, line in enumerate(raw, 1):
        body = _without_comment(line).strip()
        if not body or body in ("---", "..."):
            continue
        indent = len(line) - len(line.lstrip(" "))
        in_literal = -1 < literal_indent < indent
        if is_open and not in_literal:
            last = lines[-1]
            lines[-1] = _Line(last.number, last.indent, f"{last.text} {body}")
        else:
            lines.append(_Line(number, indent, body))
        if in_literal:
            continue
        is_open = _opens(lines[-1].text)
        literal_indent = -1
        if re.search(r"(^-|:)\s+[|>][-+]?$", lines[-1].text):
            literal_indent = indent + (len(body) - len(body.lstrip("- ")) if ":" in body else 0)
    return lines


def _opens(text: str) -> bool:
    """Whether the value of a line is in brackets or quotes that are not closed yet."""
    key = _KEY.match(text.removeprefix("- "))
    value = text.removeprefix("- ")[key.end() if key else 0 :].strip()
    if value[:1] in ('"', "'"):
        return not re.match(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'', value)
    if value[:1] not in ("[", "{"):
        return False
    outside = re.sub(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'", "", value)
    return sum(map(outside.count, "[{")) > sum(map(outside.count, "]}"))


def _without_comment(line: str) -> str:
    """A line without the comment at its end; a # in quotes is none."""
    quote = ""
    for i, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and (i == 0 or line[i - 1] in " [{,:-"):
            quote = character
        elif character == "#" and (i == 0 or line[i - 1] in " \t"):
            return line[:i]
    return line


def _plain(text: str) -> Any:
    """The value of a scalar without brackets."""
    if text[0] == '"' and text[-1] == '"' and len(text) > 1:
        try:
            return json.loads(text)
        except ValueError:
            return text[1:-1]
    if text[0] == "'" and text[-1] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.fullmatch(text) and any(character.isdigit() for character in text):
        try:
            return int(text.replace("_", ""))
        except ValueError:
            return float(text)
    return text
