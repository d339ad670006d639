"""The operations of a program by name, and the largest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardwise.check.explained.operation import Explanation, explain, naming, source_line
from shardwise.check.explained.program import Program
from shardwise.check.hlo.costs import ScheduledOp, instructions_inside
from shardwise.check.hlo.forms import is_idle
from shardwise.check.hlo.scopes import model_operation
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.errors import UnknownName

N_LARGEST = 5  # operations of each list


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """An operation in a list; numbers are of all its runs in one run of the program.

    Args:
        operation, phase, op_name, source: see `operation.ModelPart`.
        kinds: the kinds of its collectives.
        collective_bytes: V of the book, bytes of the whole arrays that its collectives move.
    """

    name: str
    opcode: str
    operation: str
    phase: str
    op_name: str
    source: str
    kinds: tuple[str, ...]
    n_runs: int
    flops: int
    hbm_bytes: int
    collective_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationList:
    """Operations of a program, or those whose names begin with a prefix.

    Args:
        prefix: "" for the largest operations of the whole program.
        names: all that begin with the prefix, those inside fusions too; () without a prefix.
        n_devices: devices that run the program.
        partitioned: whether arrays are those of one device; before the compiler divides a program
            they are whole.
        n_operations: number of those that run one by one.
        flops, hbm_bytes, collective_bytes: sums over all of them, of one device.
        by_*: the largest, largest first.
    """

    program: str
    prefix: str
    names: tuple[str, ...]
    n_devices: int
    n_operations: int
    partitioned: bool
    flops: int
    hbm_bytes: int
    collective_bytes: int
    by_flops: tuple[OperationRow, ...]
    by_hbm_bytes: tuple[OperationRow, ...]
    by_collective_bytes: tuple[OperationRow, ...]


def find(program: Program, word: str) -> Explanation | OperationList:
    """The operation of a name, or the only one of a prefix; the list if a prefix has several.

    Args:
        word: a name or a prefix, with or without %; "" for the largest operations.

    Raises:
        UnknownName: no operation has this name or prefix.
    """
    name = word.strip().removeprefix("%")
    matches: dict[str, tuple[Computation, Instruction]] = {}
    for computation, instruction in _instructions(program.module):
        if instruction.name == name:
            return explain(program, computation, instruction)
        if instruction.name.startswith(name):
            matches[instruction.name] = (computation, instruction)
    if not matches:
        known = [op.instruction.name for op in program.ops]
        raise UnknownName(
            f"operation of {program.name}", name, known, "Without a name, the largest are listed."
        )
    if len(matches) == 1:
        return explain(program, *next(iter(matches.values())))
    return _listed(program, name, tuple(matches) if name else ())


def _instructions(module: Module) -> Iterator[tuple[Computation, Instruction]]:
    """All instructions; of a text of single lines those of the text."""
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            is_line = not computation.name and instruction.opcode != "parameter"
            if module.entry or is_line:
                yield computation, instruction


def _listed(program: Program, prefix: str, names: tuple[str, ...]) -> OperationList:
    """The largest of the operations that run one by one and whose names begin with `prefix`."""
    collective_bytes: dict[str, int] = defaultdict(int)
    kinds: dict[str, dict[str, None]] = defaultdict(dict)
    for collective in program.collectives:
        collective_bytes[collective.instruction] += collective.total_bytes
        kinds[collective.instruction][collective.kind] = None
    rows = []
    for op in program.ops:
        name = op.instruction.name
        if name.startswith(prefix) and not (is_idle(op.instruction) and not prefix):
            rows.append(_row(program, op, tuple(kinds[name]), collective_bytes[name]))
    return OperationList(
        program=program.name,
        prefix=prefix,
        names=names,
        n_devices=program.module.n_partitions,
        n_operations=len(rows),
        partitioned=program.module.scheduled
        or program.module.n_partitions == 1
        or bool(program.collectives),
        flops=sum(row.flops for row in rows),
        hbm_bytes=sum(row.hbm_bytes for row in rows),
        collective_bytes=sum(row.collective_bytes for row in rows),
        by_flops=_largest(rows, lambda row: row.flops),
        by_hbm_bytes=_largest(rows, lambda row: row.hbm_bytes),
        by_collective_bytes=_largest(rows, lambda row: row.collective_bytes),
    )


def _row(
    program: Program, op: ScheduledOp, kinds: tuple[str, ...], collective_bytes: int
) -> OperationRow:
    computation = program.module.computations[op.computation]
    inside = list(instructions_inside(program.module, computation, op.instruction))
    op_name, attributes = naming(inside, op.instruction)
    operation, phase = model_operation(op_name)
    return OperationRow(
        name=op.instruction.name,
        opcode=op.instruction.opcode,
        operation=operation,
        phase=phase,
        op_name=op_name,
        source=source_line(program, attributes),
        kinds=kinds,
        n_runs=op.n_runs,
        flops=op.flops,
        hbm_bytes=op.hbm_bytes,
        collective_bytes=collective_bytes,
    )


def _largest(
    rows: list[OperationRow], size: Callable[[OperationRow], int]
) -> tuple[OperationRow, ...]:
    """The largest rows, without those of size 0."""
    ordered = sorted(filter(size, rows), key=size, reverse=True)
    return tuple(ordered[:N_LARGEST])
