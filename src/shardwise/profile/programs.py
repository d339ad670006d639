"""The compiled programs that a trace holds: what each of their operations is made of.

A trace keeps programs in the plane `/host:metadata`, as protocol buffers of HLO, which the reader
of JAX does not show. The library of protocol buffers parses them, from descriptors of the few
fields that are needed. A trace without them, or a machine without the library, still has the names
of operations.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

PLANE = "/host:metadata"
_NUMBER = re.compile(r"\(\d+\)$")
MAX_DEPTH = 8  # of computations that call each other

# Message -> field -> (number, type); a type ending in * is repeated. From tsl's xplane.proto and
# XLA's hlo.proto.
MESSAGES = {
    "XSpace": {"planes": (1, "XPlane*")},
    "XPlane": {"name": (2, "string"), "event_metadata": (4, "Entry*")},
    "Entry": {"key": (1, "int64"), "value": (2, "XEventMetadata")},
    "XEventMetadata": {"name": (2, "string"), "stats": (5, "XStat*")},
    "XStat": {"bytes_value": (6, "bytes")},
    "HloProto": {"hlo_module": (1, "HloModule")},
    "HloModule": {"name": (1, "string"), "computations": (3, "Computation*")},
    "Computation": {"instructions": (2, "Instruction*"), "id": (5, "int64")},
    "Instruction": {
        "name": (1, "string"),
        "opcode": (2, "string"),
        "metadata": (7, "OpMetadata"),
        "custom_call_target": (28, "string"),
        "called": (38, "int64*"),
    },
    "OpMetadata": {"op_name": (2, "string")},
}
TYPES = {"int64": 3, "string": 9, "message": 11, "bytes": 12}  # of FieldDescriptorProto
OPTIONAL, REPEATED = 1, 3  # labels of FieldDescriptorProto


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOperation:
    """One operation of a compiled program.

    Args:
        opcode: of the instruction itself: `fusion`, `dot`, `all-reduce`.
        opcodes: opcodes of all that it computes, those inside a fusion too.
        target: the kernel that a custom call calls, else empty.
        op_name: the path of name scopes under which JAX traced it; empty if it has none.
    """

    opcode: str
    opcodes: frozenset[str]
    target: str
    op_name: str


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of a trace: name -> programs of that name -> their operations by name.

    Events of CPUs number the programs in another way than the trace does, so names have to do.
    """

    by_name: dict[str, list[dict[str, ProgramOperation]]]

    def find(self, module: str, name: str) -> ProgramOperation | None:
        """An operation of a program, `jit_step` or `jit_step(12)`; None if it is not there."""
        same_name = self.by_name.get(module) or self.by_name.get(_NUMBER.sub("", module), [])
        for program in same_name:
            if name in program:
                return program[name]
        return None

    def has(self, modules: Iterable[str]) -> bool:
        """Whether one of the named programs is in the trace."""
        return any(_NUMBER.sub("", module) in self.by_name for module in modules)


def programs(content: bytes) -> Programs:
    """The programs in the bytes of a trace; none of a trace without, or without the library."""
    by_name: dict[str, list[dict[str, ProgramOperation]]] = defaultdict(list)
    try:
        space_type = _message_types()["XSpace"]
        hlo_type = _message_types()["HloProto"]
    except ImportError:
        return Programs({})
    for plane in space_type.FromString(content).planes:
        if plane.name != PLANE:
            continue
        for entry in plane.event_metadata:
            for stat in entry.value.stats:
                if stat.bytes_value:
                    program = _program(hlo_type.FromString(stat.bytes_value).hlo_module)
                    by_name[entry.value.name].append(program)
                    by_name[_NUMBER.sub("", entry.value.name)].append(program)
    return Programs(dict(by_name))


@cache
def _message_types() -> dict[str, Any]:
    """The classes of MESSAGES.

    Raises:
        ImportError: the library of protocol buffers is not installed.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="shardwise_trace.proto", package="shardwise", syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = REPEATED if kind.endswith("*") else OPTIONAL
            base = kind.rstrip("*")
            described = message.field.add(name=field, number=number, label=label)
            described.type = TYPES.get(base, TYPES["message"])
            if base not in TYPES:
                described.type_name = f".shardwise.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = {}
    for name in MESSAGES:
        descriptor = pool.FindMessageTypeByName(f"shardwise.{name}")
        types[name] = message_factory.GetMessageClass(descriptor)
    return types


def _program(module: Any) -> dict[str, ProgramOperation]:
    computations = {computation.id: computation for computation in module.computations}
    program = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            inner = list(_inner(instruction, computations))
            program[instruction.name] = ProgramOperation(
                opcode=instruction.opcode,
                opcodes=frozenset(part.opcode for part in [instruction, *inner]),
                target=instruction.custom_call_target,
                op_name=_op_name(instruction, inner),
            )
    return program


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


def _op_name(instruction: Any, inner: list[Any]) -> str:
    """The path of an operation: of the matmul in it, else its own, else of a part that has one."""
    products = [part for part in inner if part.opcode in ("dot", "convolution")]
    for part in [*products, instruction, *inner]:
        if part.metadata.op_name:
            return str(part.metadata.op_name)
    return ""
