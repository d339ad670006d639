"""Arguments of a program that it returns updated, such as weights after a step or a cache.

A result is an update of an argument if element-wise work leads from the one to the other, also by
way of shards, and both have the same shape on a chip. The memory of the argument can then hold the
result, if the caller donates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.check.hlo.costs import ELEMENTWISE
from shardwise.check.hlo.dataflow import Analysis, Bits, Dataflow, joined, union
from shardwise.check.hlo.forms import sync_opcode
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.hlo.traffic import in_hbm

# Instructions whose result has elements of their operands, at the same places.
_PASSED = (*ELEMENTWISE, "reshape", "transpose", "reduce-precision", "slice", "dynamic-slice",
           "concatenate", "all-gather", "collective-permute", "dynamic-update-slice")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Updates(Analysis):
    """A bit for each argument whose elements an array has, after element-wise work."""

    def argument(self, parameter: Instruction) -> Bits:
        return 1 << int(parameter.literal)

    def result(
        self, computation: Computation, instruction: Instruction, operands: tuple[int, ...]
    ) -> Bits:
        opcode = sync_opcode(instruction)
        if opcode in _PASSED:
            return union(operands)
        if opcode == "scatter":
            return operands[0]
        if "output_to_operand_aliasing" in instruction.attributes:  # a kernel that works in place
            return union(operands)
        return 0


@dataclass(frozen=True, slots=True)
class ArgumentUpdates:
    """The arguments whose elements the arrays of a program have.

    Args:
        results: bits of the program's results.
    """

    module: Module
    dataflow: Dataflow
    results: tuple[Bits, ...]

    def copies(self) -> Iterator[tuple[str, Instruction, Instruction]]:
        """Yield the copies of whole arguments, or of their updates, that stay in the same memory.

        A copy is (computation, copy, argument).
        """
        arguments = self.module.entry_computation.parameters
        for computation in self.module.computations.values():
            for copy in computation.instructions.values():
                if copy.opcode != "copy" or not in_hbm(self.module, copy.shapes[0]):
                    continue
                bits = self.dataflow.of(computation, copy.name)
                for number, argument in enumerate(arguments):
                    is_whole = argument.bytes == copy.bytes
                    if bits >> number & 1 and is_whole:
                        yield computation.name, copy, argument
                        break

    def unaliased(self) -> Iterator[Instruction]:
        """Yield the arguments that the program returns updated, but in other memory."""
        entry = self.module.entry_computation
        arguments = entry.parameters
        aliased_results = {result for result, _ in self.module.aliases}
        used_arguments = {argument for _, argument in self.module.aliases}
        shapes = entry.root_instruction.shapes
        for index, (bits, shape) in enumerate(zip(self.results, shapes, strict=True)):
            if index in aliased_results:
                continue
            for number, argument in enumerate(arguments):
                is_source = joined(bits) >> number & 1 and number not in used_arguments
                if is_source and argument.shapes and str(argument.shapes[0]) == str(shape):
                    used_arguments.add(number)
                    yield argument
                    break


def argument_updates(module: Module) -> ArgumentUpdates:
    """Follow the elements of arguments through a program."""
    dataflow = Dataflow(module, _Updates())
    results = dataflow.run()
    return ArgumentUpdates(module, dataflow, (results,) if isinstance(results, int) else results)
