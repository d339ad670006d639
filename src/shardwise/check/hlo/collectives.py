"""Every collective of a compiled program, once, in whatever form the compiler has put it.

`forms` finds them. Bytes are V of the book, the array summed over the shards that a collective
joins, as in `ops.sharded.Move.joined_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardwise.check.hlo import groups as read
from shardwise.check.hlo.forms import Found, base, beside, in_block
from shardwise.check.hlo.loops import Runs, runs
from shardwise.check.hlo.reductions import is_scattered
from shardwise.check.hlo.shape import Shape
from shardwise.check.hlo.text import Instruction, Module
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
# Transfers between slices: what the pair of a send and a recv does together.
MEGASCALE = {
    "ALL_REDUCE": "all_reduce",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALL_TO_ALL": "all_to_all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective op.

    Args:
        axes: mesh axes over which it runs; () when the groups are not those of whole axes.
        group_size: chips in a group.
        dtype: of the largest array.
        parts: V of each array; several where the compiler has combined collectives.
        received_bytes: into each chip in one run; what a chip gets itself is not counted.
        count: how often it runs in one run of the program.
        form: sync, async, fused or offloaded.
        computation, instruction, done: its place in the schedule; `done` is "" of an op alone.
        beside: instructions that work between start and done.
        groups: device ids, [groups, size], or [pairs, 2] of a permute.
        between_slices: it goes over the data-center network.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    dtype: str
    parts: tuple[int, ...]
    received_bytes: int
    count: int
    form: str
    computation: str
    instruction: str
    done: str
    op_name: str
    beside: tuple[str, ...]
    groups: read.Devices
    between_slices: bool = False

    @property
    def joined_bytes(self) -> int:
        """V of the book, of all its arrays."""
        return sum(self.parts)

    @property
    def total_bytes(self) -> int:
        """V times how often it runs."""
        return self.joined_bytes * self.count


def collectives(
    module: Module, mesh: Mapping[str, int], counted: Runs | None = None
) -> list[Collective]:
    """All collectives in the order of the schedule.

    Args:
        mesh: axis -> size; device ids are positions in it, the last axis fastest.
        counted: `loops.runs(module)` where the caller has it already.
    """
    counted = counted or runs(module)
    found = []
    for name in counted.scheduled:
        block = module.computations[name]
        if not counted.count[name] or block.thread:
            continue
        for one in in_block(module, block):
            for part in _described(module, one, mesh):
                working = beside(block, one)
                found.append(
                    replace(part, count=counted.count[name], computation=name, beside=working)
                )
    return found


def _described(module: Module, found: Found, mesh: Mapping[str, int]) -> Iterator[Collective]:
    """The collective; two when of combined sums some are only read in shards."""
    one = found.one
    kind = KINDS[base(one)]
    devices, axes, size = _devices(module, one, mesh)
    if kind == "send_recv":
        kind = MEGASCALE.get(one.word("_xla_megascale_transfer_type"), kind)
    results = _results(found)
    kinds = [kind] * len(results)
    # On a TPU sum and shard are one fusion, or all of the sum goes over the links.
    if base(one) == "all-reduce" and not (module.tiled and found.start is one):
        scattered = [is_scattered(module, found.block, one, i, size) for i in range(len(results))]
        kinds = ["reduce_scatter" if s else kind for s in scattered]
    for each in dict.fromkeys(kinds):
        mine = [i for i, k in enumerate(kinds) if k == each]
        parts = tuple(results[i].bytes * _shards(one, each, size) for i in mine)
        parts = (sum(parts),) if each == "all_to_all" else parts  # a tuple is one array in blocks
        largest = max((results[i] for i in mine), key=lambda shape: shape.bytes)
        moved = "permute" if each == "send_recv" else each
        yield Collective(
            kind=each,
            axes=axes,
            group_size=size,
            dtype=largest.dtype,
            parts=parts,
            received_bytes=round(received_bytes(moved, sum(parts), size)),
            count=0,
            form=found.form,
            computation="",
            instruction=found.start.name,
            done=found.done.name if found.done else "",
            op_name=one.op_name or found.start.op_name,
            beside=(),
            groups=devices,
            between_slices=bool(one.word("_xla_megascale_transfer_type")),
        )


def _shards(one: Instruction, kind: str, size: int) -> int:
    """How many of an op's arrays make V: a real reduce-scatter and an exchange have a shard as
    result, a gather or an exchange between slices sends one; the others have the whole."""
    part = ("reduce-scatter", "all-to-all", "ragged-all-to-all")
    sent = one.opcode == "send" and kind in ("all_gather", "all_to_all")
    return size if sent or base(one) in part else 1


def _results(found: Found) -> tuple[Shape, ...]:
    """The arrays that it makes; a start lists its operands before them."""
    one = found.one
    if one.opcode == "send":
        return one.shapes[:1]
    if not one.opcode.endswith("-start") or one.opcode == "all-reduce-start":
        return one.shapes
    n = len(one.operands)
    return one.shapes[n : 2 * n]


def _devices(
    module: Module, one: Instruction, mesh: Mapping[str, int]
) -> tuple[read.Devices, tuple[str, ...], int]:
    """Groups, axes and chips in a group."""
    if one.opcode == "send":
        return _slices(one, mesh)
    if base(one) == "collective-permute":
        moves = read.pairs(one.attributes)
        axes = read.axes_between(moves, mesh) or ()
        return moves, axes, int(np.prod([mesh[a] for a in axes])) if axes else len(moves)
    devices = read.groups(one.attributes, module.n_partitions)
    return devices, read.axes_of(devices, mesh) or (), devices.shape[1]


def _slices(one: Instruction, mesh: Mapping[str, int]) -> tuple[read.Devices, tuple[str, ...], int]:
    """A transfer names its slices, `{1,2}x{0:3}`, not its devices: slices are taken to be the
    first axes of the mesh. An exchange lists devices, `{{100000,200000},...}`."""
    target = re.match(r"\{([\d,:]*)\}", one.word("_xla_megascale_target"))
    listed = target[1] if target else ""
    n = 0 if target else len(one.numbers("_xla_megascale_target"))
    for part in filter(None, listed.split(",")):
        low, _, high = part.partition(":")
        n += int(high or low) - int(low) + 1
    axes: list[str] = []
    covered = 1
    for name, size in mesh.items():
        if covered < n:
            axes.append(name)
            covered *= size
    devices = np.arange(int(np.prod(list(mesh.values()))))
    if covered != n:
        return devices.reshape(1, -1), (), max(n, 1)
    return devices.reshape(n, -1).T, tuple(axes), n
