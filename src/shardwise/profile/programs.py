"""The compiled programs that a trace holds: what each of their operations is made of.

A trace keeps programs in the plane `/host:metadata`, as protocol buffers of HLO, which the reader
of JAX does not show. A trace without them, or a machine without the library of protocol buffers,
still has the names of operations.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from shardwise.check.hlo.scopes import model_operation
from shardwise.profile.library_calls import calls_of
from shardwise.profile.loop_arrays import loop_arrays
from shardwise.profile.messages import message_types
from shardwise.profile.names import has_name, primitive, stacked
from shardwise.profile.neighbours import neighbours

PLANE = "/host:metadata"
_NUMBER = re.compile(r"\(\d+\)$")
_NOT_IN_KERNELS = re.compile(r"[^A-Za-z0-9_]")  # of the name of an operation
MAX_DEPTH = 8  # of computations that call each other
PRODUCTS = frozenset({"dot", "convolution"})
NO_WORK = ("bitcast", "get-tuple-element", "tuple")  # other names of a result


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOperation:
    """One operation of a compiled program.

    Args:
        opcode: of the instruction itself: `fusion`, `dot`, `all-reduce`.
        opcodes: opcodes of all that it computes, those inside a fusion too.
        target: the kernel that a custom call calls, else empty.
        op_name: the path of name scopes under which JAX traced it; empty if it has none.
        source: its file and line, if the program has them.
        neighbour: the nearest operation with a name, for one without.
        readers: the operations that read its result.
    """

    opcode: str
    opcodes: frozenset[str]
    target: str
    op_name: str
    source: str = ""
    neighbour: ProgramOperation | None = None
    readers: tuple[str, ...] = ()

    @property
    def operation(self) -> tuple[str, str]:
        """The operation of the model that it belongs to, "" if there is none; and its pass."""
        name, phase = model_operation(self.op_name)
        name = stacked(self.op_name) or name or self._primitive
        if name or self.neighbour is None:
            return name, phase
        if PRODUCTS & self.opcodes and not self.neighbour.is_named:
            return "", ""  # a primitive beside it is not what multiplies
        near, near_phase = self.neighbour.operation
        return near, phase if "jvp(" in self.op_name else near_phase

    @property
    def is_named(self) -> bool:
        """Whether the model names it: it, or what it belongs to, is in a name scope or stacked."""
        if stacked(self.op_name) or model_operation(self.op_name)[0]:
            return True
        return not self._primitive and self.neighbour is not None and self.neighbour.is_named

    @property
    def _primitive(self) -> str:
        """The primitive with its line in the source; empty if JAX has not traced it."""
        name = primitive(self.op_name)
        if name and "dot" in self.opcodes:
            name = "dot_general"  # a compiler may keep the metadata of its transpose
        return f"{name} {self.source}".strip() if name else ""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled program.

    Args:
        operations: by their names, which are unique in a program.
        content: the protocol buffer HloProto.
        calls: (operation, target) of its custom calls in the order in which they run; none if this
            is not known.
    """

    operations: dict[str, ProgramOperation]
    content: bytes
    calls: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def by_kernel(self) -> dict[str, str]:
        """Kernel of a GPU -> the operation that it is called after."""
        return {_NOT_IN_KERNELS.sub("_", name): name for name in self.operations}


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of a trace: name -> programs of that name.

    Events of CPUs number the programs in another way than the trace does, so names have to do.
    """

    by_name: dict[str, list[Program]]

    def named(self, module: str) -> list[Program]:
        """The programs of a name, `jit_step` or `jit_step(12)`."""
        return self.by_name.get(module) or self.by_name.get(_NUMBER.sub("", module), [])

    def find(self, module: str, name: str) -> ProgramOperation | None:
        """An operation of a program; None if it is not there."""
        for program in self.named(module):
            if name in program.operations:
                return program.operations[name]
        return None

    def of_kernel(self, module: str, kernel: str) -> str:
        """The operation that a kernel of a GPU is called after; the kernel itself if there is none.

        Operations that are alike share the kernel of one of them.
        """
        for program in self.named(module):
            if kernel in program.by_kernel:
                return program.by_kernel[kernel]
        return kernel

    def executed(self, module: str, names: Iterable[str]) -> Program | None:
        """The program of a name that has most of these operations; None if it is not the only one.

        Some kernels of a GPU are no operations: the driver's, and helpers of libraries.
        """
        having = self.candidates(module, names)
        return having[0] if len(having) == 1 else None

    def candidates(self, module: str, names: Iterable[str]) -> list[Program]:
        """The programs of a name that have most of these operations, at least one of them."""
        wanted = set(names)
        if not wanted:
            return self.named(module)
        shared = [(len(wanted & p.operations.keys()), p) for p in self.named(module)]
        most = max((n for n, _ in shared), default=0)
        return [program for n, program in shared if n == most > 0]

    def numbered_name(self, module: str, names: Iterable[str]) -> str:
        """The numbered name of the only program of a name with most of these operations.

        The name itself if there are several such programs, or none.
        """
        program = self.executed(module, names)
        for name, programs in self.by_name.items():
            if len(programs) == 1 and programs[0] is program:
                return name
        return module

    def has(self, modules: Iterable[str]) -> bool:
        """Whether one of the named programs is in the trace."""
        return any(_NUMBER.sub("", module) in self.by_name for module in modules)


def programs(content: bytes) -> Programs:
    """The programs in the bytes of a trace; none of a trace without, or without the library."""
    by_name: dict[str, list[Program]] = defaultdict(list)
    try:
        space_type = message_types()["XSpace"]
    except ImportError:
        return Programs({})
    for plane in space_type.FromString(content).planes:
        if plane.name != PLANE:
            continue
        for entry in plane.event_metadata:
            for stat in entry.value.stats:
                if stat.bytes_value:
                    program = parse_program(stat.bytes_value)
                    for name in {entry.value.name, _NUMBER.sub("", entry.value.name)}:
                        by_name[name].append(program)
    return Programs(dict(by_name))


def parse_program(content: bytes) -> Program:
    """The program in the bytes of an HloProto."""
    module = message_types()["HloProto"].FromString(content).hlo_module
    computations = {computation.id: computation for computation in module.computations}
    sources = _source_lines(module)
    inside: dict[int, list[Any]] = {}
    metadata: dict[int, Any] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            inside[instruction.id] = list(_inner(instruction, computations))
            metadata[instruction.id] = _metadata(instruction, inside[instruction.id])
    names = {number: str(description.op_name) for number, description in metadata.items()}
    operations: dict[str, ProgramOperation] = {}
    near_call: dict[int, ProgramOperation | None] = {}  # computation -> that of its call
    for computation in reversed(module.computations):  # callers first
        op_names = {
            instruction.id: names[instruction.id] for instruction in computation.instructions
        }
        for number, op_name in loop_arrays(computation, computations, names).items():
            if not has_name(op_names[number]):
                op_names[number] = op_name
        near = neighbours(computation.instructions, op_names)
        readers = _readers(computation.instructions)
        nodes = {
            instruction.id: ProgramOperation(
                opcode=instruction.opcode,
                opcodes=frozenset(part.opcode for part in [instruction, *inside[instruction.id]]),
                target=instruction.custom_call_target,
                op_name=op_names[instruction.id],
                source=_source(metadata[instruction.id], sources),
            )
            for instruction in computation.instructions
        }
        for instruction in computation.instructions:
            nearest = near.get(instruction.id)
            neighbour = near_call.get(computation.id) if nearest is None else nodes[nearest]
            near_call |= dict.fromkeys(instruction.called, neighbour)
            operations[instruction.name] = replace(
                nodes[instruction.id],
                neighbour=neighbour,
                readers=tuple(readers[instruction.id]),
            )
    return Program(operations=operations, content=content, calls=calls_of(module))


def _source(metadata: Any, sources: Mapping[int, str]) -> str:
    """The file and line of an operation, `train.py:31`; empty if the program has none."""
    if metadata.source_file:
        return f"{PurePath(metadata.source_file).name}:{metadata.source_line}"
    return sources.get(metadata.stack_frame_id, "")


def _source_lines(module: Any) -> dict[int, str]:
    """Number of a stack frame -> its innermost file and line, `train.py:31`."""
    files = [PurePath(name).name for name in module.sources.file_names]
    lines = [
        f"{files[place.file_name_id - 1]}:{place.line}" for place in module.sources.file_locations
    ]
    return {
        number: lines[frame.file_location_id - 1]
        for number, frame in enumerate(module.sources.stack_frames, 1)
    }


def _readers(instructions: Iterable[Any]) -> dict[int, list[str]]:
    """Number of an instruction -> names of those that read its result, under any name."""
    readers: dict[int, list[str]] = {}
    for instruction in reversed(list(instructions)):  # readers first
        readers.setdefault(instruction.id, [])
        names = [instruction.name]
        if instruction.opcode in NO_WORK:
            names = readers[instruction.id]
        for operand in instruction.operand_ids:
            readers.setdefault(operand, []).extend(names)
    return readers


def _inner(instruction: Any, computations: dict[int, Any], depth: int = 0) -> Iterator[Any]:
    """All instructions that a fusion or an asynchronous operation runs."""
    is_one_operation = "fusion" in instruction.opcode or "async" in instruction.opcode
    if not (is_one_operation or depth) or depth > MAX_DEPTH:
        return
    for called in instruction.called:
        if called in computations:
            for part in computations[called].instructions:
                yield part
                yield from _inner(part, computations, depth + 1)


def _metadata(instruction: Any, inner: list[Any]) -> Any:
    """What names an operation: of the matmul in it, else its own, else of a part with a name."""
    products = [part for part in inner if part.opcode in PRODUCTS]
    for part in [*products, instruction, *inner]:
        if part.metadata.op_name:
            return part.metadata
    return instruction.metadata
