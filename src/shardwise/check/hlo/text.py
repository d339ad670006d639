"""Parser for the HLO text of a compiled, scheduled program.

Regular expressions are not enough: an instruction may span several lines (Pallas kernels contain
their own text), its later lines may start with `}}`, shapes of tuples nest and contain comments,
and tiles put parentheses into shapes. So the lines of an instruction are joined first, and then
parsed by matching brackets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shardwise.check.hlo.shape import Shape, parse_shapes
from shardwise.check.hlo.source import SourceTable, parse_sources
from shardwise.errors import BadInput

_HEADER = re.compile(r"^HloModule .*$", re.M)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_END = re.compile(r"^\}(?:, execution_thread=\"(.*)\")?\s*$")
_COMMENT = re.compile(r"/\*index=\d+\*/")
_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}")
_CALLEES = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation|select|scatter"
    r"|async_computation|called_computations|branch_computations)=(%[^\s,{}]+|\{[^{}]*\})"
)
_CONFIG = re.compile(r",? ?backend_config=")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_OPENING = "([{"
_CLOSING = ")]}"
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|[()\[\]{}"]', re.S)  # or a quotation


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: `%name = shapes opcode(operands), attributes`.

    Args:
        shapes: shapes of the arrays in the result; a (nested) tuple is flattened.
        operands: names of the instructions whose results it reads.
        literal: the text between the parentheses of a parameter or a constant.
        attributes: the rest of the text, without the backend configuration.
        is_root: whether its result is that of the computation.
        op_name: the path of name scopes under which JAX traced it.
        callees: names of the computations that it calls.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str
    is_root: bool
    op_name: str
    backend_config: dict[str, Any] = field(hash=False)
    callees: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all arrays of the result, without padding."""
        return sum(shape.bytes for shape in self.shapes)

    def attribute(self, key: str) -> str:
        """The value of a one-word attribute (`kind=kLoop`), without quotes or %; "" if absent."""
        match = re.search(rf'(?:^|[\s,{{]){key}=(?:"([^"]*)"|%?([^\s,{{}}]+))', self.attributes)
        if match is None:
            return ""
        return match[1] or match[2] or ""

    def integers(self, key: str) -> tuple[int, ...]:
        """The integers of an attribute such as `dimensions={0,1}` or `index=2`."""
        match = re.search(rf"\b{key}=(\{{[^}}]*\}}|\d+)", self.attributes)
        if match is None:
            return ()
        return tuple(map(int, re.findall(r"\d+", match[1])))

    @property
    def tuple_index(self) -> int:
        """The index of a `get-tuple-element`."""
        return self.integers("index")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A computation of a module.

    Args:
        instructions: name -> instruction, in schedule order.
        root: name of the instruction whose result the computation returns.
        thread: the execution thread; "" for the main one.
    """

    name: str
    instructions: dict[str, Instruction]
    root: str
    thread: str = ""

    @property
    def root_instruction(self) -> Instruction:
        """The instruction whose result the computation returns."""
        return self.instructions[self.root]

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """Parameters in the order of their numbers."""
        parameters = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return tuple(sorted(parameters, key=lambda parameter: int(parameter.literal)))

    def dones(self) -> dict[str, Instruction]:
        """Name of an asynchronous start -> the `-done` instruction that waits for it."""
        dones = {}
        for instruction in self.instructions.values():
            if instruction.opcode.endswith("-done") and instruction.operands:
                dones[instruction.operands[0]] = instruction
        return dones

    def users(self, name: str) -> list[Instruction]:
        """Instructions that read the result of the named instruction."""
        return [user for user in self.instructions.values() if name in user.operands]

    def operand(self, instruction: Instruction, index: int = 0) -> Instruction:
        """The instruction that produces an operand."""
        return self.instructions[instruction.operands[index]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A compiled program.

    Args:
        entry: name of the computation that runs first.
        aliases: pairs (result element, number of the parameter whose memory it reuses).
        n_partitions: number of devices that run the program.
        scheduled: whether its instructions are in the order in which a device runs them, as the
            compiler leaves them; text from before the compiler's passes is not.
        tiled: whether arrays are stored in tiles, as on TPUs, where memory space 1 is VMEM.
        sources: the lines of the traced function that instructions come from.
    """

    name: str
    entry: str
    computations: dict[str, Computation]
    aliases: tuple[tuple[int, int], ...]
    n_partitions: int
    tiled: bool
    sources: SourceTable
    scheduled: bool = True

    @property
    def entry_computation(self) -> Computation:
        """The computation that runs first."""
        return self.computations[self.entry]

    def callee(self, instruction: Instruction) -> Computation:
        """The first computation that an instruction calls, such as the body of a fusion."""
        return self.computations[instruction.callees[0]]

    def loop_body(self, loop: Instruction) -> Computation:
        """The body of a `while`."""
        return self.computations[loop.attribute("body")]


def parse(text: str) -> Module:
    """Parse the text that `compiled.as_text()` returns.

    Raises:
        BadInput: the text is not that of a compiled program.
    """
    header_match = _HEADER.search(text)
    if header_match is None:
        raise BadInput('the text of a compiled program starts with "HloModule"; this one does not.')
    header = header_match[0]
    computations = {}
    entry = ""
    for name, is_entry, lines, thread in _computation_blocks(text):
        instructions = {}
        root = ""
        for line in lines:
            instruction = parse_instruction(line)
            instructions[instruction.name] = instruction
            if instruction.is_root:
                root = root or instruction.name
        root = root or next(reversed(instructions), "")
        computations[name] = Computation(
            name=name, instructions=instructions, root=root, thread=thread
        )
        if is_entry:
            entry = name
    if not entry:
        raise BadInput("the text of the compiled program has no ENTRY computation.")
    return Module(
        name=header.split()[1].rstrip(","),
        entry=entry,
        computations=computations,
        aliases=tuple(_parse_aliases(header)),
        n_partitions=math.prod(map(int, _DEVICES.findall(header))),
        tiled=":T(" in text,
        scheduled="is_scheduled=true" in header,
        sources=parse_sources(text),
    )


def _parse_aliases(header: str) -> Iterator[tuple[int, int]]:
    start = header.find("input_output_alias={")
    if start < 0:
        return
    opening = header.index("{", start)
    inside = header[opening + 1 : _matching_bracket(header, opening)]
    for output, parameter in _ALIAS.findall(inside):
        yield int(output.split(",")[0] or 0), int(parameter)


def _computation_blocks(text: str) -> Iterator[tuple[str, bool, list[str], str]]:
    """Yield (name, is_entry, texts of its instructions, thread) of each computation."""
    name = ""
    is_entry = False
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
            name = match[2]
            is_entry = bool(match[1])
            lines = []


def parse_instruction(line: str) -> Instruction:
    """Parse the text of one instruction, which starts with a blank.

    Raises:
        BadInput: it is none.
    """
    head = _INSTRUCTION.match(line)
    if head is None:
        raise BadInput(f"this line of the compiled program cannot be parsed: {line[:200]}")
    line, backend_config = _without_config(line)
    shapes_end = _shapes_end(line, head.end())
    opening = line.index("(", shapes_end)
    closing = _matching_bracket(line, opening)
    opcode = line[shapes_end:opening].strip()
    inside = line[opening + 1 : closing]
    attributes = line[closing + 1 :].removeprefix(", ")
    op_name = _OP_NAME.search(attributes)
    operands = re.findall(r"%([^\s,()]+)", inside)
    literal = ""
    if opcode in ("parameter", "constant"):
        operands = []
        literal = inside.strip()
    callees = []
    for names in _CALLEES.findall(attributes):
        callees += re.findall(r"%?([^\s,{}]+)", names)
    return Instruction(
        name=head[2],
        opcode=opcode,
        shapes=parse_shapes(_COMMENT.sub("", line[head.end() : shapes_end])),
        operands=tuple(operands),
        literal=literal,
        attributes=attributes,
        is_root=bool(head[1]),
        op_name=re.sub(r"\\(.)", r"\1", op_name[1]) if op_name else "",
        backend_config=backend_config,
        callees=tuple(callees),
    )


def _shapes_end(line: str, start: int) -> int:
    """The index of the first character after the shapes that begin at `start`."""
    index = start
    if line[start] == "(":
        index = _matching_bracket(line, start) + 1
    while line[index] not in " \n":
        if line[index] in _OPENING:
            index = _matching_bracket(line, index)
        index += 1
    return index


def _without_config(line: str) -> tuple[str, dict[str, Any]]:
    """The line without its backend configuration, and the configuration.

    The configuration is {} if there is none, or if it is not JSON but the opaque bytes of a kernel.
    """
    key = _CONFIG.search(line)
    if key is None:
        return line, {}
    try:
        config, end = json.JSONDecoder(strict=False).raw_decode(line, key.end())
        if isinstance(config, str) and config.startswith("{"):
            config = json.loads(config)
    except json.JSONDecodeError:
        return line, {}
    return line[: key.start()] + line[end:], config if isinstance(config, dict) else {}


def _matching_bracket(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`, ignoring brackets in quotes."""
    depth = 0
    for match in _BRACKET.finditer(text, start):
        letter = match[0]
        if letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
            if depth == 0:
                return match.start()
        elif letter == '"':  # of a quotation that does not end
            break
    raise BadInput(f"unbalanced brackets in the compiled program: {text[start:][:200]}")
