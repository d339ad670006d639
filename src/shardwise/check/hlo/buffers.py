"""Buffers of a computation: which results share memory, and the live range of each.

A result gets a new buffer, with these exceptions:

- a tuple, a bitcast or the done of an asynchronous pair only names an existing buffer;
- a loop updates its carry in place, and a dynamic-update-slice its first operand;
- an instruction may declare that a result aliases an operand, and the program that a result aliases
  a donated argument;
- on TPUs an array takes the memory of a larger result of the program that is computed later;
- an elementwise result overwrites an operand that no later instruction reads, where the compiler
  allows it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shardwise.check.hlo.costs import ELEMENTWISE
from shardwise.check.hlo.shape import Shape
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.hlo.traffic import padded_hbm_bytes

# Opcodes whose result is the buffer of their first operand.
SAME_BUFFER = ("bitcast", "optimization-barrier", "add-dependency", "domain", "while")
_OUTPUT_ALIAS = re.compile(r"\{(\d*)[\d, ]*\}: \((\d+)")
BufferIndices = list[list[int]]  # for each element of a tuple, the indices of its arrays' buffers


@dataclass(slots=True)
class ArrayBuffer:
    """Memory of one array, with its live range in the schedule.

    Args:
        producer: the instruction that writes the array.
        bytes: size in HBM, in whole tiles.
        first, last: schedule positions between which the array is live.
        owned_by_caller: whether the memory counts in the calling computation instead.
        merged_into: index of the buffer whose memory it shares; None if it has its own.
    """

    producer: Instruction
    shape: Shape
    bytes: int
    first: int
    last: int
    owned_by_caller: bool = False
    merged_into: int | None = None


@dataclass(slots=True)
class BufferAssignment:
    """The buffers of one computation. Buffers of its parameters belong to the caller.

    Args:
        values: instruction -> buffer indices of its result.
        buffers: all buffers, merged ones included.
    """

    module: Module
    computation: Computation
    values: dict[str, BufferIndices] = field(default_factory=dict)
    buffers: list[ArrayBuffer] = field(default_factory=list)

    def find(self, index: int) -> int:
        """The index of the buffer that a buffer was merged into, or `index` if it was not."""
        while (target := self.buffers[index].merged_into) is not None:
            index = target
        return index

    def merge(self, index: int, other_index: int) -> None:
        """Merge the second buffer into the first: they share memory, as large as the larger."""
        index = self.find(index)
        other_index = self.find(other_index)
        if index == other_index:
            return
        buffer = self.buffers[index]
        merged = self.buffers[other_index]
        merged.merged_into = index
        buffer.first = min(buffer.first, merged.first)
        buffer.last = max(buffer.last, merged.last)
        buffer.owned_by_caller = buffer.owned_by_caller or merged.owned_by_caller
        if merged.bytes > buffer.bytes:
            buffer.bytes = merged.bytes
            buffer.shape = merged.shape
            buffer.producer = merged.producer

    def operand_value(self, instruction: Instruction, index: int = 0) -> BufferIndices:
        """Buffer indices of an operand, one list for each tuple element."""
        return self.values[instruction.operands[index]]

    def operand_buffers(self, instruction: Instruction, index: int = 0) -> list[int]:
        """Buffer indices of an operand in one flat list."""
        return list(itertools.chain.from_iterable(self.operand_value(instruction, index)))

    def add(
        self, instruction: Instruction, shapes: tuple[Shape, ...], position: int
    ) -> BufferIndices:
        """Add a buffer for each array of a result that is produced at a schedule position."""
        value = []
        for shape in shapes:
            n_bytes = padded_hbm_bytes(self.module, (shape,))
            is_parameter = instruction.opcode == "parameter"
            buffer = ArrayBuffer(instruction, shape, n_bytes, position, position, is_parameter)
            value.append([len(self.buffers)])
            self.buffers.append(buffer)
        return value

    @property
    def local_buffers(self) -> list[ArrayBuffer]:
        """Buffers with memory of their own that the computation needs while it runs."""
        buffers = []
        for buffer in self.buffers:
            if buffer.merged_into is None and not buffer.owned_by_caller and buffer.bytes:
                buffers.append(buffer)
        return buffers


def assign_buffers(
    module: Module, computation: Computation, is_loop_body: bool
) -> BufferAssignment:
    """Assign a buffer with its live range to every array of one computation.

    The result belongs to the caller, except for the entry computation, which has none.

    Args:
        is_loop_body: whether the result is written into the memory of the parameter (the carry).
    """
    assignment = BufferAssignment(module, computation)
    instructions = list(computation.instructions.values())
    positions = {name: i for i, name in enumerate(computation.instructions)}
    dones = computation.dones()
    for position, instruction in enumerate(instructions):
        done = dones.get(instruction.name)
        assignment.values[instruction.name] = _result_buffers(
            assignment, instruction, position, done
        )
    _extend_to_readers(assignment, positions, dones)
    results: list[int] = []
    if computation.name == module.entry:
        results = _place_entry_results(assignment)
    else:
        _place_results(assignment, is_loop_body)
    for position, instruction in enumerate(instructions):
        _reuse_operand(assignment, instruction, position)
    _reuse_results(assignment, results)
    return assignment


def _result_buffers(
    assignment: BufferAssignment, instruction: Instruction, position: int, done: Instruction | None
) -> BufferIndices:
    """Buffers of a result: existing ones if it only names or updates those, else new ones.

    `done` is the instruction that ends an asynchronous pair, whose shapes are those of the result.
    """
    opcode = instruction.opcode
    if opcode in SAME_BUFFER:
        return assignment.operand_value(instruction)
    if opcode == "tuple":
        n_operands = len(instruction.operands)
        return [assignment.operand_buffers(instruction, index) for index in range(n_operands)]
    if opcode == "get-tuple-element":
        operand = assignment.operand_value(instruction)
        index = instruction.tuple_index
        return [[buffer] for buffer in operand[index]] if index < len(operand) else []
    if opcode.endswith(("-done", "-update")) and instruction.operands:
        return assignment.operand_value(instruction)
    if opcode == "dynamic-update-slice":
        return assignment.operand_value(instruction)
    if done is not None:
        return assignment.add(instruction, done.shapes, position)
    value = assignment.add(instruction, instruction.shapes, position)
    if opcode in ("fusion", "custom-call"):
        for element, operand_index in _aliased_operands(assignment.module, instruction).items():
            reused = assignment.operand_buffers(instruction, operand_index)
            if element < len(value) and reused:
                assignment.merge(reused[0], value[element][0])
    return value


def _aliased_operands(module: Module, instruction: Instruction) -> dict[int, int]:
    """Map each result element that reuses the buffer of an operand to the operand's index."""
    aliases: dict[int, int] = {}
    _, _, text = instruction.attributes.partition("output_to_operand_aliasing={")
    for element_text, operand in _OUTPUT_ALIAS.findall(text.partition("})}")[0]):
        aliases.setdefault(int(element_text or 0), int(operand))
    if instruction.opcode == "fusion":
        callee = module.callee(instruction)
        root = callee.root_instruction
        results = root.operands if root.opcode == "tuple" else (root.name,)
        for element, name in enumerate(results):
            parameter = _updated_parameter(module, callee, name)
            if parameter is not None:
                aliases.setdefault(element, parameter)
    return aliases


def _updated_parameter(module: Module, callee: Computation, name: str) -> int | None:
    """The number of the parameter that a fusion's result updates in place; None if there is none.

    Args:
        callee: the computation of the fusion.
        name: the instruction in it that produces the result.
    """
    instruction = callee.instructions[name]
    if instruction.opcode == "bitcast":
        return _updated_parameter(module, callee, instruction.operands[0])
    if instruction.opcode == "fusion":
        nested = module.callee(instruction)
        operand_index = _updated_parameter(module, nested, nested.root)
        if operand_index is None:
            return None
        return _parameter_number(callee, instruction.operands[operand_index])
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
        return _parameter_number(callee, instruction.operands[0])
    return None


def _parameter_number(callee: Computation, name: str) -> int | None:
    """The number of the parameter that a value is, up to bitcasts; None if it is computed."""
    instruction = callee.instructions[name]
    if instruction.opcode == "bitcast":
        return _parameter_number(callee, instruction.operands[0])
    return int(instruction.literal) if instruction.opcode == "parameter" else None


def _extend_to_readers(
    assignment: BufferAssignment, positions: dict[str, int], dones: dict[str, Instruction]
) -> None:
    """Extend live ranges to the last reader; an asynchronous start reads until its done."""
    for instruction in assignment.computation.instructions.values():
        if instruction.opcode in ("tuple", "get-tuple-element", "bitcast"):
            continue
        end = positions[dones.get(instruction.name, instruction).name]
        for operand_index in range(len(instruction.operands)):
            for index in assignment.operand_buffers(instruction, operand_index):
                buffer = assignment.buffers[index]
                buffer.last = max(buffer.last, end)


def _place_entry_results(assignment: BufferAssignment) -> list[int]:
    """Merge results of the program with the donated arguments that they alias.

    Results live until the end. Returns the buffers of all results.
    """
    module = assignment.module
    parameters = assignment.computation.parameters
    results = assignment.values[assignment.computation.root]
    for element, number in module.aliases:
        argument = assignment.values[parameters[number].name]
        for index in results[element] if element < len(results) else ():
            assignment.merge(argument[0][0], index)
    result_buffers = list(itertools.chain.from_iterable(results))
    for index in result_buffers:
        buffer = assignment.buffers[assignment.find(index)]
        buffer.last = len(assignment.computation.instructions)
    return result_buffers


def _reuse_results(assignment: BufferAssignment, results: Iterable[int]) -> None:
    """Merge arrays with results that are computed later, as the TPU's compiler does.

    The runtime allocates results before the program starts.
    """
    written: dict[int, int] = {}
    for index in map(assignment.find, results):
        buffer = assignment.buffers[index]
        written.setdefault(index, buffer.first)
        buffer.first = 0
    if not assignment.module.tiled:
        return
    guests: dict[int, list[ArrayBuffer]] = {result: [] for result in written}
    arrays = [index for index in range(len(assignment.buffers)) if index not in written]
    for index in sorted(arrays, key=lambda index: -assignment.buffers[index].bytes):
        array = assignment.buffers[index]
        if array.merged_into is not None or array.owned_by_caller:
            continue
        for result, position in written.items():
            is_free = array.last < position and all(
                array.last < guest.first or guest.last < array.first for guest in guests[result]
            )
            if is_free and array.bytes <= assignment.buffers[result].bytes:
                guests[result].append(array)
                assignment.merge(result, index)
                break


def _place_results(assignment: BufferAssignment, is_loop_body: bool) -> None:
    """Mark the results as the caller's; merge those of a loop body with its carry."""
    carry: BufferIndices = []
    if is_loop_body:
        carry = assignment.values[assignment.computation.parameters[0].name]
    for element, indices in enumerate(assignment.values[assignment.computation.root]):
        carried = carry[element] if element < len(carry) else []
        for position, index in enumerate(indices):
            if position < len(carried):
                assignment.merge(carried[position], index)
            assignment.buffers[assignment.find(index)].owned_by_caller = True


def _reuse_operand(assignment: BufferAssignment, instruction: Instruction, position: int) -> None:
    """Merge a result with a large enough operand whose live range ends at this instruction."""
    if len(instruction.shapes) != 1 or instruction.opcode in ("parameter", "constant"):
        return
    value = assignment.values[instruction.name]
    if not value or len(value[0]) != 1:
        return
    result_index = assignment.find(value[0][0])
    result = assignment.buffers[result_index]
    if result.first != position or result.owned_by_caller:
        return
    for operand_index in _reusable_operands(assignment.module, instruction):
        for index in assignment.operand_buffers(instruction, operand_index):
            operand = assignment.buffers[assignment.find(index)]
            ends_here = operand.first < position == operand.last
            fits = operand.bytes >= result.bytes > 0
            if fits and ends_here and not operand.owned_by_caller:
                assignment.merge(index, result_index)
                return


def _reusable_operands(module: Module, instruction: Instruction) -> Iterator[int]:
    """Yield indices of operands that a result may overwrite.

    TPU programs list them. In other programs they are the operands of elementwise operations.
    """
    aliasing_config = instruction.backend_config.get("aliasing_operands")
    n_operands = len(instruction.operands)
    if isinstance(aliasing_config, dict):
        for pair in aliasing_config.get("lists", []):
            indices = list(map(int, pair["indices"]))
            if n_operands in indices:
                yield from (index for index in indices if index < n_operands)
    elif instruction.opcode == "fusion":
        callee = module.callee(instruction)
        for index, parameter in enumerate(callee.parameters):
            if _is_elementwise(callee, parameter):
                yield index
    elif instruction.opcode in ELEMENTWISE:
        yield from range(n_operands)


def _is_elementwise(callee: Computation, instruction: Instruction) -> bool:
    """Whether a fusion's result depends on a value only element by element."""
    for user in callee.users(instruction.name):
        if user.opcode not in ELEMENTWISE and user.opcode != "bitcast":
            return False
        if user.shapes[0].elements != instruction.shapes[0].elements:
            return False
        if not _is_elementwise(callee, user):
            return False
    return True
