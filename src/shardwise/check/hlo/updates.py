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


def copied_arguments(module: Module) -> Iterator[tuple[str, Instruction, Instruction]]:
    """Yield the copies of whole arguments, or of their updates, that stay in the same memory.

    A copy is (computation, copy, argument).
    """
    updates = Dataflow(module, _Updates())
    updates.run()
    for computation in module.computations.values():
        for copy in computation.instructions.values():
            if copy.opcode != "copy" or not in_hbm(module, copy.shapes[0]):
                continue
            bits = updates.of(computation, copy.name)
            for number, parameter in enumerate(module.entry_computation.parameters):
                is_whole = parameter.bytes == copy.bytes
                if bits >> number & 1 and is_whole:
                    yield computation.name, copy, parameter
                    break


def unaliased_updates(module: Module) -> Iterator[Instruction]:
    """Yield the arguments that the program returns updated, but in other memory."""
    entry = module.entry_computation
    results = Dataflow(module, _Updates()).run()
    root = entry.root_instruction
    if isinstance(results, int):
        results = (results,)
    aliased_results = {result for result, _ in module.aliases}
    used_arguments = {argument for _, argument in module.aliases}
    for index, (bits, shape) in enumerate(zip(results, root.shapes, strict=True)):
        if index in aliased_results:
            continue
        for number, parameter in enumerate(entry.parameters):
            is_source = joined(bits) >> number & 1 and number not in used_arguments
            if is_source and parameter.shapes and str(parameter.shapes[0]) == str(shape):
                used_arguments.add(number)
                yield parameter
                break
