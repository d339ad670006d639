"""Facts about the arrays of a compiled program that follow from those of its arguments.

A fact is a bit, and each array has a set of bits, an integer. An analysis gives the bits of the
program's arguments, and says which bits an instruction passes on from its operands. This module
carries them through fusions, calls, branches and loops, whose carry is repeated until it holds no
new bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shardwise.check.hlo.forms import COLLECTIVES
from shardwise.check.hlo.text import Computation, Instruction, Module

# Bits of an array, or of each element of a tuple.
Bits = int | tuple["Bits", ...]
# Instructions that pass on their operand as it is.
_SAME = ("copy", "bitcast", "optimization-barrier", "add-dependency", "domain", "async-update")


def union(operands: Iterable[int]) -> int:
    """The bits of any of several arrays."""
    total = 0
    for bits in operands:
        total |= bits
    return total


def joined(bits: Bits) -> int:
    """The bits of all elements of a tuple."""
    return bits if isinstance(bits, int) else union(map(joined, bits))


def merged(left: Bits, right: Bits) -> Bits:
    """The bits of a value that is one of two."""
    if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
        return tuple(map(merged, left, right))
    if isinstance(left, int) and isinstance(right, int):
        return left | right
    return joined(left) | joined(right)


def with_bits(value: Bits, bits: int) -> Bits:
    """A value with more bits in each of its elements."""
    if isinstance(value, int):
        return value | bits
    return tuple(with_bits(element, bits) for element in value)


class Analysis:
    """What an analysis says of single instructions."""

    def argument(self, parameter: Instruction) -> Bits:
        """The bits of an argument of the program."""
        raise NotImplementedError

    def result(
        self, computation: Computation, instruction: Instruction, operands: tuple[int, ...]
    ) -> Bits:
        """The bits that an instruction without callees gives to its result."""
        raise NotImplementedError


@dataclass(slots=True)
class Dataflow:
    """The bits of every array of a program.

    Args:
        bits: (computation, instruction) -> bits of its result, of all runs together.
    """

    module: Module
    analysis: Analysis
    bits: dict[tuple[str, str], Bits] = field(default_factory=dict)
    results: dict[tuple[str, tuple[Bits, ...]], Bits] = field(default_factory=dict)

    def run(self) -> Bits:
        """Carry the bits of the arguments through the program; return those of its results."""
        entry = self.module.entry_computation
        return self._run(entry.name, tuple(map(self.analysis.argument, entry.parameters)))

    def of(self, computation: Computation, name: str) -> int:
        """The bits of the result of an instruction."""
        return joined(self.bits.get((computation.name, name), 0))

    def _run(self, name: str, arguments: tuple[Bits, ...]) -> Bits:
        """The bits of the result of a computation for those of its arguments."""
        if (name, arguments) in self.results:
            return self.results[name, arguments]
        computation = self.module.computations[name]
        values: dict[str, Bits] = {}
        for instruction in computation.instructions.values():
            if instruction.opcode == "parameter":
                value = arguments[int(instruction.literal)]
            else:
                operands = tuple(values[operand] for operand in instruction.operands)
                value = self._value(computation, instruction, operands)
            values[instruction.name] = value
            key = (name, instruction.name)
            self.bits[key] = merged(self.bits.get(key, value), value)
        self.results[name, arguments] = values[computation.root]
        return values[computation.root]

    def _value(
        self, computation: Computation, instruction: Instruction, operands: tuple[Bits, ...]
    ) -> Bits:
        """The bits of the result of an instruction."""
        opcode = instruction.opcode
        if opcode == "tuple":
            return operands
        if opcode == "get-tuple-element":
            index = instruction.tuple_index
            value = operands[0]
            return value[index] if isinstance(value, tuple) and index < len(value) else value
        if opcode in _SAME or (opcode.endswith("-done") and operands):
            return operands[0]
        if opcode == "while":
            return self._loop(instruction, operands[0])
        if opcode == "conditional":
            branches = [
                self._run(name, (argument,))
                for name, argument in zip(instruction.callees, operands[1:], strict=True)
            ]
            result = branches[0]
            for branch in branches[1:]:
                result = merged(result, branch)
            return with_bits(result, joined(operands[0]))
        if opcode in ("fusion", "call", "async-start", "call-start"):
            return self._run(instruction.callees[0], operands)
        target = instruction.attribute("custom_call_target")
        if opcode == "copy-start" or target == "ConcatBitcast":
            return union(map(joined, operands))
        if target == "AsyncCollectiveDone":
            for index, name in enumerate(instruction.operands):
                if computation.instructions[name].opcode in COLLECTIVES:
                    return operands[index]
        return self.analysis.result(computation, instruction, tuple(map(joined, operands)))

    def _loop(self, loop: Instruction, carry: Bits) -> Bits:
        while True:
            result = merged(carry, self._run(loop.attribute("body"), (carry,)))
            if result == carry:
                return carry
            carry = result
