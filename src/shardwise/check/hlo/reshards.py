"""Collectives that move an activation to another sharding although nothing needs it there.

An all-gather or all-to-all is needed if it brings operands of a product together: if the other
operand of a product that reads the array, or both operands of one that wrote it, are split over the
same mesh axes. So are the gathers of sequence parallelism, of keys over the context, and the
exchanges of experts and of heads. What only element-wise work reads, until it is sliced or sent
again, could have stayed where it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.costs import ELEMENTWISE, is_kernel, product_flops
from shardwise.check.hlo.dataflow import Analysis, Bits, Dataflow, union
from shardwise.check.hlo.forms import COLLECTIVES, sync_opcode
from shardwise.check.hlo.replication import Replication
from shardwise.check.hlo.text import Computation, Instruction, Module

_MOVES = ("all-gather", "all-to-all")
# Instructions that pass elements on. A dynamic-slice does, but not by the number of the chip.
_PASSED = frozenset((
    *ELEMENTWISE, "reshape", "transpose", "reduce-precision", "slice", "dynamic-slice", "pad",
    "concatenate", "reverse", "broadcast", "reduce", "dynamic-update-slice",
))  # fmt: skip


def needless_moves(
    module: Module, collectives: Iterable[Collective], replication: Replication
) -> list[Collective]:
    """The all-gathers and all-to-alls that no product needs, one of each channel."""
    moves: dict[str, Collective] = {}
    for collective in collectives:
        if sync_opcode(collective.op) in _MOVES:
            moves.setdefault(_channel(collective.op), collective)
    bits = {channel: 1 << position for position, channel in enumerate(moves)}
    readers = Dataflow(module, _Moved(replication, bits))
    readers.run()
    writers = Dataflow(module, _Multiplied(replication))
    writers.run()
    needed = set()
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            channel = _channel(instruction)
            if channel in moves and sync_opcode(instruction) in _MOVES:
                axes = union(writers.of(computation, name) for name in instruction.operands)
                if axes & replication.origins.axes_bits(moves[channel].axes):
                    needed.add(channel)
            elif is_product(computation, instruction):
                needed |= _channels_needed(computation, instruction, readers, replication, moves)
    return [collective for channel, collective in moves.items() if channel not in needed]


def is_product(computation: Computation, instruction: Instruction) -> bool:
    """Whether an instruction combines elements at different places of its operands."""
    if instruction.opcode in ("gather", "scatter", "sort"):
        return True
    is_custom = instruction.opcode == "custom-call" and is_kernel(instruction)
    return is_custom or product_flops(computation, instruction) > 0


def _channels_needed(
    computation: Computation,
    product: Instruction,
    readers: Dataflow,
    replication: Replication,
    moves: dict[str, Collective],
) -> set[str]:
    """Channels of the moves that bring an operand of a product to the others."""
    channels = set()
    for position, name in enumerate(product.operands):
        moved = readers.of(computation, name)
        others = frozenset[str]()
        for other_position, other in enumerate(product.operands):
            if other_position != position:
                others |= replication.axes(computation, other)
        for index, (channel, collective) in enumerate(moves.items()):
            if moved >> index & 1 and others & set(collective.axes):
                channels.add(channel)
    return channels


def _channel(instruction: Instruction) -> str:
    """The channel of a collective, which all parts of a fused one share."""
    return instruction.attribute("channel_id")


@dataclass(frozen=True, slots=True)
class _Moved(Analysis):
    """A bit for each move whose elements an array has."""

    replication: Replication
    bits: dict[str, int]

    def argument(self, parameter: Instruction) -> Bits:
        return 0

    def result(
        self, computation: Computation, instruction: Instruction, operands: tuple[int, ...]
    ) -> Bits:
        opcode = sync_opcode(instruction)
        if opcode in _MOVES:
            return self.bits.get(_channel(instruction), 0)
        if opcode in COLLECTIVES or opcode not in _PASSED:
            return 0
        if opcode == "dynamic-slice":
            indices = instruction.operands[1:]
            if any(self.replication.axes(computation, index) for index in indices):
                return 0
        return union(operands)


@dataclass(frozen=True, slots=True)
class _Multiplied(Analysis):
    """The mesh axes over which all operands of the product behind an array are split."""

    replication: Replication

    def argument(self, parameter: Instruction) -> Bits:
        return 0

    def result(
        self, computation: Computation, instruction: Instruction, operands: tuple[int, ...]
    ) -> Bits:
        if is_product(computation, instruction):
            shared = frozenset(self.replication.origins.mesh)
            for name in instruction.operands[:2]:
                shared &= self.replication.axes(computation, name)
            return self.replication.origins.axes_bits(tuple(shared))
        opcode = sync_opcode(instruction)
        return union(operands) if opcode in _PASSED else 0
