"""Parse the text of a compiled, scheduled program.

What makes it less than regular: an instruction may span lines (the kernels of Pallas carry their
own text), a line in the middle of one may start with `}}`, shapes of tuples nest and have comments
in them, and tiles put parentheses into shapes. So instructions are joined first, then read by
matching brackets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shardwise.check.hlo.shape import Shape, shapes
from shardwise.errors import BadInput

_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_END = re.compile(r"^\}(?:, execution_thread=\"(.*)\")?\s*$")
_COMMENT = re.compile(r"/\*index=\d+\*/")
_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation|select|scatter"
    r"|async_computation|called_computations|branch_computations)=(%[^\s,{}]+|\{[^{}]*\})"
)
_CONFIG = re.compile(r",? ?backend_config=")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One line: `%name = shapes opcode(operands), attributes`.

    Args:
        shapes: the arrays of the result; more than one where it is a tuple, nested ones in a row.
        literal: what stands between the parentheses of a parameter or a constant.
        attributes: the rest of the line without the backend's configuration.
        op_name: the path of names under which the traced program wrote it.
        backend: the backend's configuration.
        called: computations that it names.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str
    root: bool
    op_name: str
    backend: dict[str, Any] = field(hash=False)
    called: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Of all arrays of the result, without padding."""
        return sum(shape.bytes for shape in self.shapes)

    def word(self, key: str) -> str:
        """The value of an attribute that is one word (`kind=kLoop`), without quotes and %."""
        found = re.search(rf'(?:^|[\s,{{]){key}=(?:"([^"]*)"|%?([^\s,{{}}]+))', self.attributes)
        return (found[1] or found[2] or "") if found else ""

    def numbers(self, key: str) -> tuple[int, ...]:
        """The numbers of an attribute: `dimensions={0,1}` or `index=2`."""
        found = re.search(rf"\b{key}=(\{{[^}}]*\}}|\d+)", self.attributes)
        return tuple(int(n) for n in re.findall(r"\d+", found[1])) if found else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """Instructions in the order in which they are scheduled; `thread` is "" for the main one."""

    name: str
    instructions: dict[str, Instruction]
    root: str
    thread: str = ""

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """In the order of their numbers."""
        found = [one for one in self.instructions.values() if one.opcode == "parameter"]
        return tuple(sorted(found, key=lambda one: int(one.literal)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A compiled program.

    Args:
        entry: the computation that runs first.
        aliases: (element of the result, number of the parameter whose memory it takes over).
        tiled: arrays lie in tiles, as on a TPU; there memory space 1 is VMEM.
    """

    name: str
    entry: str
    computations: dict[str, Computation]
    aliases: tuple[tuple[int, int], ...]
    n_partitions: int
    tiled: bool

    @property
    def main(self) -> Computation:
        return self.computations[self.entry]


def parse(text: str) -> Module:
    """The module that `compiled.as_text()` prints.

    Raises:
        BadInput: when it is not the text of a compiled program.
    """
    header = next((line for line in text.splitlines() if line.startswith("HloModule ")), "")
    if not header:
        raise BadInput('the text of a compiled program starts with "HloModule"; this does not.')
    computations = {}
    entry = ""
    for name, is_entry, lines, thread in _blocks(text):
        found = [_instruction(line) for line in lines]
        root = next((one.name for one in found if one.root), found[-1].name if found else "")
        computations[name] = Computation(
            name=name, instructions={one.name: one for one in found}, root=root, thread=thread
        )
        entry = name if is_entry else entry
    if not entry:
        raise BadInput("the text of the compiled program has no ENTRY computation.")
    partitions = re.search(r"\bnum_partitions=(\d+)", header)
    return Module(
        name=header.split()[1].rstrip(","),
        entry=entry,
        computations=computations,
        aliases=_aliases(header),
        n_partitions=int(partitions[1]) if partitions else 1,
        tiled=":T(" in header or ":T(" in text,
    )


def _aliases(header: str) -> tuple[tuple[int, int], ...]:
    start = header.find("input_output_alias={")
    if start < 0:
        return ()
    begin = header.index("{", start)
    inside = header[begin + 1 : _matching(header, begin)]
    return tuple(
        (int(output.split(",")[0] or 0), int(parameter))
        for output, parameter in _ALIAS.findall(inside)
    )


def _blocks(text: str) -> Iterator[tuple[str, bool, list[str], str]]:
    """Name, whether it is the entry, whole instructions, and thread of each computation."""
    name, is_entry = "", False
    lines: list[str] = []
    for line in text.splitlines():
        if name and (end := _END.match(line)):
            yield name, is_entry, lines, end[1] or ""
            name = ""
        elif name and _INSTRUCTION.match(line):
            lines.append(line)
        elif name and lines:
            lines[-1] += "\n" + line
        elif not line.startswith((" ", "HloModule ")) and (match := _COMPUTATION.match(line)):
            name, is_entry, lines = match[2], bool(match[1]), []


def _instruction(line: str) -> Instruction:
    head = _INSTRUCTION.match(line)
    if head is None:
        raise BadInput(f"this line of the compiled program cannot be read: {line[:200]}")
    cut = _CONFIG.search(line)
    config = _config(line, cut.end()) if cut else None
    if cut and config:
        line = line[: cut.start()] + line[config[1] :]
    start = head.end()
    end = _matching(line, start) + 1 if line[start] == "(" else start
    while line[end] not in " \n":
        end = _matching(line, end) + 1 if line[end] in _OPENING else end + 1
    opening = line.index("(", end)
    closing = _matching(line, opening)
    opcode, inside = line[end:opening].strip(), line[opening + 1 : closing]
    attributes = line[closing + 1 :].removeprefix(", ")
    op_name = _OP_NAME.search(attributes)
    plain = opcode in ("parameter", "constant")
    return Instruction(
        name=head[2],
        opcode=opcode,
        shapes=shapes(_COMMENT.sub("", line[start:end])),
        operands=() if plain else tuple(re.findall(r"%([^\s,()]+)", inside)),
        literal=inside.strip() if plain else "",
        attributes=attributes,
        root=bool(head[1]),
        op_name=re.sub(r"\\(.)", r"\1", op_name[1]) if op_name else "",
        backend=config[0] if config else {},
        called=tuple(n for group in _CALLED.findall(attributes) for n in _names(group)),
    )


def _names(text: str) -> list[str]:
    return [part.strip().lstrip("%") for part in text.strip("{}").split(",") if part.strip()]


def _config(line: str, start: int) -> tuple[dict[str, Any], int] | None:
    """The backend's configuration and where it ends; opaque bytes of a kernel count as none."""
    try:
        found, end = json.JSONDecoder(strict=False).raw_decode(line, start)
        if isinstance(found, str) and found.startswith("{"):
            found = json.loads(found)
    except json.JSONDecodeError:
        return None
    return (found, end) if isinstance(found, dict) else ({}, end)


def _matching(text: str, start: int) -> int:
    """Where the bracket at `start` closes; brackets in quotes do not count."""
    depth = 0
    quoted = False
    at = start
    while at < len(text):
        letter = text[at]
        if quoted:
            at += letter == "\\"
            quoted = letter != '"'
        elif letter == '"':
            quoted = True
        elif letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise BadInput(f"brackets that do not close in the compiled program: {text[start:][:200]}")
