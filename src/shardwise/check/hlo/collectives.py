"""Collectives of a compiled program, listed once each, whatever form the compiler gave them.

`forms` locates them. Their size is V of the book: bytes of the array that the collective joins from
the shards of its group, as in `ops.sharded.Move.joined_bytes`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.check.hlo.forms import (
    ScheduledCollective,
    overlapped_instructions,
    scheduled_collectives,
    sync_opcode,
)
from shardwise.check.hlo.groups import (
    DeviceIds,
    axes_of_groups,
    axes_of_pairs,
    replica_groups,
    source_target_pairs,
)
from shardwise.check.hlo.loops import RunCounts, count_runs
from shardwise.check.hlo.reductions import is_gathered, is_scattered
from shardwise.check.hlo.shape import Shape
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.source_line import SourceLine
from shardwise.ops.collective import received_bytes

KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "permute",
    "send": "send_recv",
}
# Between slices, a collective is a pair of send and recv with an attribute that names its kind.
MEGASCALE = {
    "ALL_REDUCE": "all_reduce",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALL_TO_ALL": "all_to_all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective of a compiled program.

    Args:
        kind: one of the values of `KINDS`.
        axes: mesh axes over which it runs; () if its groups do not run along whole axes.
        group_size: devices in a group.
        dtype: element type of the largest array.
        array_bytes: V of each array; several if the compiler combined collectives.
        received_bytes: bytes that each device receives in one run, without its own shard.
        n_runs: how often it runs in one run of the program.
        form: sync, async, fused or offloaded (see `forms`).
        computation: name of the computation that contains it.
        instruction, done: names of the instructions that start and end it; `done` is "" if one
            instruction does both.
        op: the collective itself, which may be inside a fusion.
        overlapped: names of instructions that do work between start and done.
        groups: device ids, [groups, group_size]; of a permute [pairs, 2].
        between_slices: whether it uses the data-center network.
        sources: its line in the traced function, and the line that called that one.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    dtype: str
    array_bytes: tuple[int, ...]
    received_bytes: int
    n_runs: int
    form: str
    computation: str
    instruction: str
    done: str
    op: Instruction
    op_name: str
    overlapped: tuple[str, ...]
    groups: DeviceIds
    between_slices: bool = False
    sources: tuple[SourceLine, ...] = ()

    @property
    def joined_bytes(self) -> int:
        """V of the book, summed over the arrays."""
        return sum(self.array_bytes)

    @property
    def total_bytes(self) -> int:
        """V times the number of runs."""
        return self.joined_bytes * self.n_runs


def collectives(
    module: Module, mesh: Mapping[str, int], run_counts: RunCounts | None = None
) -> list[Collective]:
    """All collectives in schedule order.

    Args:
        mesh: axis -> size. Device ids number the mesh positions, the last axis fastest.
        run_counts: `loops.count_runs(module)`, if the caller has it already.
    """
    run_counts = run_counts or count_runs(module)
    program: list[Collective] = []
    for name in run_counts.scheduled:
        computation = module.computations[name]
        n_runs = run_counts.by_computation[name]
        if n_runs and not computation.thread:
            for scheduled in scheduled_collectives(module, computation):
                program += _collectives_of(module, computation, scheduled, mesh, n_runs)
    return program


def _collectives_of(
    module: Module,
    computation: Computation,
    scheduled: ScheduledCollective,
    mesh: Mapping[str, int],
    n_runs: int,
) -> Iterator[Collective]:
    """Yield the collective of an op.

    A combined all-reduce yields several if some of its arrays are in effect scattered or gathered.
    """
    op = scheduled.op
    kind = KINDS[sync_opcode(op)]
    groups, axes, group_size = device_groups(module, op, mesh)
    if kind == "send_recv":
        kind = MEGASCALE.get(op.attribute("_xla_megascale_transfer_type"), kind)
    # A TPU's compiler fuses an all-reduce with the slicing of its result into a reduce-scatter. An
    # all-reduce outside a fusion therefore sends the whole sum.
    may_scatter = sync_opcode(op) == "all-reduce" and not (module.tiled and scheduled.start is op)
    shapes_by_kind: dict[str, list[Shape]] = {}
    for index, shape in enumerate(_result_arrays(op)):
        array_kind = kind
        if may_scatter and is_scattered(module, scheduled.computation, op, index, group_size):
            array_kind = "reduce_scatter"
        elif kind == "all_reduce" and _gathers(module, computation, scheduled, index, group_size):
            array_kind = "all_gather"
        shapes_by_kind.setdefault(array_kind, []).append(shape)
    for array_kind, shapes in shapes_by_kind.items():
        n_shards = _shards_of_joined(op, array_kind, group_size)
        array_bytes = [shape.bytes * n_shards for shape in shapes]
        if array_kind == "all_to_all":  # elements of the tuple are blocks of one array
            array_bytes = [sum(array_bytes)]
        cost_kind = {"all_gather": kind, "send_recv": "permute"}.get(array_kind, array_kind)
        yield Collective(
            kind=array_kind,
            axes=axes,
            group_size=group_size,
            dtype=max(shapes, key=lambda shape: shape.bytes).dtype,
            array_bytes=tuple(array_bytes),
            received_bytes=round(received_bytes(cost_kind, sum(array_bytes), group_size)),
            n_runs=n_runs,
            form=scheduled.form,
            computation=computation.name,
            instruction=scheduled.start.name,
            done=scheduled.done.name if scheduled.done else "",
            op=op,
            op_name=op.op_name or scheduled.start.op_name,
            overlapped=overlapped_instructions(computation, scheduled),
            groups=groups,
            between_slices=bool(op.attribute("_xla_megascale_transfer_type")),
            sources=_source_lines(module, op) or _source_lines(module, scheduled.start),
        )


def _gathers(
    module: Module,
    computation: Computation,
    scheduled: ScheduledCollective,
    index: int,
    group_size: int,
) -> bool:
    """Whether an all-reduce gathers one of its arrays, which may come from outside of a call."""
    op, inside = scheduled.op, scheduled.computation
    name = op.operands[index]
    operand = inside.instructions[name]
    if operand.opcode == "parameter" and scheduled.start is not op:
        number = inside.parameters.index(operand)
        return is_gathered(module, computation, scheduled.start.operands[number], group_size)
    return is_gathered(module, inside, name, group_size)


def _source_lines(module: Module, instruction: Instruction) -> tuple[SourceLine, ...]:
    return module.sources.lines_of(instruction.attributes)


def _shards_of_joined(op: Instruction, kind: str, group_size: int) -> int:
    """V divided by the bytes of the array in an op's result: the group size if that is a shard.

    It is a shard for reduce-scatter and all-to-all, and for the send of an all-gather or all-to-all
    between slices. Results of other collectives are whole arrays.
    """
    sends_shard = op.opcode == "send" and kind in ("all_gather", "all_to_all")
    if sends_shard or sync_opcode(op) in ("reduce-scatter", "all-to-all", "ragged-all-to-all"):
        return group_size
    return 1


def _result_arrays(op: Instruction) -> tuple[Shape, ...]:
    """Shapes of the arrays that a collective produces.

    The result of most `-start` ops is a tuple of the operands, then these arrays.
    """
    if op.opcode == "send":
        return op.shapes[:1]
    if not op.opcode.endswith("-start") or op.opcode == "all-reduce-start":
        return op.shapes
    n_operands = len(op.operands)
    return op.shapes[n_operands : 2 * n_operands]


def device_groups(
    module: Module, op: Instruction, mesh: Mapping[str, int]
) -> tuple[DeviceIds, tuple[str, ...], int]:
    """Device groups of a collective, the mesh axes along which they run, and the group size."""
    if op.opcode == "send":
        return _slice_groups(op, mesh)
    if sync_opcode(op) == "collective-permute":
        pairs = source_target_pairs(op.attributes)
        axes = axes_of_pairs(pairs, mesh)
        if not axes:
            return pairs, (), len(pairs)
        return pairs, axes, math.prod(mesh[axis] for axis in axes)
    groups = replica_groups(op.attributes, module.n_partitions)
    return groups, axes_of_groups(groups, mesh) or (), groups.shape[1]


def _slice_groups(
    op: Instruction, mesh: Mapping[str, int]
) -> tuple[DeviceIds, tuple[str, ...], int]:
    """Groups, axes and group size of a transfer between slices.

    Slices are assumed to lie along the first axes of the mesh. A transfer names its target slices,
    `{1,2}x{0:3}`, not its devices, except for an all-to-all: `{{100000,200000},...}`.
    """
    n_slices = 0
    target = re.match(r"\{([\d,:]*)\}", op.attribute("_xla_megascale_target"))
    if target is None:
        n_slices = len(op.integers("_xla_megascale_target"))
    else:
        for part in filter(None, target[1].split(",")):
            low, _, high = part.partition(":")
            n_slices += int(high or low) - int(low) + 1
    axes: list[str] = []
    covered = 1
    for name, size in mesh.items():
        if covered < n_slices:
            axes.append(name)
            covered *= size
    devices = np.arange(math.prod(mesh.values()))
    if covered != n_slices:
        return devices.reshape(1, -1), (), max(n_slices, 1)
    return devices.reshape(n_slices, -1).T, tuple(axes), n_slices
