"""The text of a program: a whole module, or single lines, as a trace viewer shows them."""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from shardwise.check.hlo.groups import replica_groups, source_target_pairs
from shardwise.check.hlo.shape import Shape, parse_shapes
from shardwise.check.hlo.source import parse_sources
from shardwise.check.hlo.text import Computation, Instruction, Module, parse, parse_instruction
from shardwise.errors import BadFile, BadInput, ShardwiseError, UnknownName, file_error

_GZIP = b"\x1f\x8b"
_INSTRUCTION_LINE = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = \(?[a-z][a-z0-9]*\[")
_OPERAND = re.compile(r"([a-z][a-z0-9]*\[[\d,]*\](?:\{[^{}]*\})?) %([^\s,()]+)")
UNKNOWN = "custom-call"  # opcode of what stands for a computation that is not in the text
_WANTED = (
    "Give the text that compiled.as_text() returns, a *.txt of XLA_FLAGS=--xla_dump_to=FOLDER, "
    "or the lines of instructions: `%name = ...`."
)


def read_text(path: str) -> str:
    """Read a file, which may be compressed by gzip.

    Raises:
        BadFile: there is no such file, or it cannot be read.
    """
    try:
        content = Path(path).read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except (EOFError, ValueError, zlib.error) as error:
        raise BadFile(f"{path}: {error}.") from None
    except OSError as error:
        raise file_error(path, error) from None
    return content.decode(errors="replace")


def parse_text(text: str, name: str) -> Module:
    """Parse the text of a whole program, or of single instructions.

    Args:
        name: the name of the text in error messages.

    Raises:
        BadInput: it is neither.
    """
    with malformed(name):
        if re.search(r"^HloModule ", text, re.M):
            module = parse(text)
            _refuse_missing(module)
            return module
        lines = [line for line in text.splitlines() if line.strip()]
        if lines and all(map(_INSTRUCTION_LINE.match, lines)):
            return _module_of_lines(lines)
    if re.search(r"^module @", text, re.M):
        raise BadInput(
            f"{name} is StableHLO, which is not compiled yet: write lowered.compile().as_text() "
            "in place of lowered.as_text()."
        )
    raise BadInput(f"{name} is no HLO text: no line starts with HloModule. {_WANTED}")


@contextlib.contextmanager
def malformed(name: str) -> Iterator[None]:
    """Say of what goes wrong inside that the text `name`, of unknown origin, is malformed.

    Raises:
        BadInput: something did.
    """
    try:
        yield
    except UnknownName:
        raise
    except ShardwiseError as error:
        raise BadInput(*(f"{name}: {problem}" for problem in error.problems)) from None
    except (ValueError, IndexError, KeyError, ArithmeticError) as error:
        raise BadInput(f"{name} is malformed HLO ({error}). {_WANTED}") from None


def _refuse_missing(module: Module) -> None:
    """Refuse a program that is cut off, or lacks lines.

    Raises:
        BadInput: it names an instruction or a computation that it does not have.
    """
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            missing = [
                name for name in instruction.operands if name not in computation.instructions
            ]
            missing += [name for name in instruction.callees if name not in module.computations]
            if missing:
                raise BadInput(
                    f"%{instruction.name} names %{missing[0]}, which the text does not have. Give "
                    "the whole text, or single lines without the line HloModule."
                )


def _module_of_lines(lines: list[str]) -> Module:
    """A program of these instructions; what they read becomes parameters."""
    instructions: dict[str, Instruction] = {}
    shapes: dict[str, tuple[Shape, ...]] = {}
    for line in lines:
        instruction = parse_instruction(f"  {line.strip()}")
        instructions[instruction.name] = replace(instruction, is_root=False)
        for shape, name in _OPERAND.findall(line):
            shapes[name] = parse_shapes(shape)
    parameters: dict[str, Instruction] = {}
    for instruction in instructions.values():
        for name in instruction.operands:
            if name not in instructions and name not in parameters:
                parameters[name] = _parameter(name, len(parameters), shapes.get(name, ()))
    entry = Computation(
        name="", instructions={**parameters, **instructions}, root=next(reversed(instructions))
    )
    computations = {"": entry}
    for instruction in instructions.values():
        for name in instruction.callees:
            computations[name] = _missing(name, instruction, entry.instructions)
    return Module(
        name="",
        entry="",
        computations=computations,
        aliases=(),
        n_partitions=max(1, *map(_n_devices, instructions.values())),
        tiled=any(":T(" in line for line in lines),
        sources=parse_sources(""),
    )


def _parameter(name: str, number: int, shapes: tuple[Shape, ...]) -> Instruction:
    return Instruction(
        name=name,
        opcode="parameter",
        shapes=shapes,
        operands=(),
        literal=str(number),
        attributes="",
        is_root=False,
        op_name="",
        backend_config={},
        callees=(),
    )


def _missing(
    name: str, caller: Instruction, instructions: Mapping[str, Instruction]
) -> Computation:
    """What stands for a computation that is not in the text: one kernel that reads everything."""

    def stand_ins() -> Iterator[Instruction]:
        for number, operand in enumerate(caller.operands):
            yield _parameter(f"operand.{number}", number, instructions[operand].shapes)

    parameters = {instruction.name: instruction for instruction in stand_ins()}
    root = replace(
        _parameter(name, 0, caller.shapes),
        opcode=UNKNOWN,
        operands=tuple(parameters),
        is_root=True,
    )
    return Computation(name=name, instructions={**parameters, name: root}, root=name)


def _n_devices(instruction: Instruction) -> int:
    """The number of devices that the groups of an instruction name."""
    if "replica_groups=" in instruction.attributes:
        return int(replica_groups(instruction.attributes, 1).max()) + 1
    if "source_target_pairs=" in instruction.attributes:
        return int(source_target_pairs(instruction.attributes).max(initial=0)) + 1
    return 1
