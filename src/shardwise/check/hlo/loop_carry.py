"""Arrays that loops write into their carry, and the arrays that copies and views stem from.

A scan saves what each of its trips produces in an array of its carry, allocated before the loop
without a name, of which each trip writes a slice. The forward pass over layers saves activations
this way, the backward pass the gradients of layers; a loop over microbatches accumulates gradients.
The loop body tells what each of them is, however deeply loops are nested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.check.hlo.scopes import scope
from shardwise.check.hlo.text import Computation, Instruction, Module

# Opcodes that change the layout, type or memory space, but leave the same array to a model.
# Reduced precision marks what remat saves.
_COPIES = ("copy", "copy-start", "copy-done")
VIEWS = (*_COPIES, "bitcast", "convert", "reshape", "transpose", "reduce-precision")
DIFFERENTIATED = "jvp("  # in the op names of both passes of a differentiated function


@dataclass(frozen=True, slots=True)
class CarryElement:
    """An element of the carry of a loop that its trips write.

    Args:
        category: `activations` that a forward pass saves slice by slice, `gradients` that a
            backward pass saves so or that an outer loop accumulates, "" otherwise.
        op_name: of the array that is written.
    """

    category: str
    op_name: str


@dataclass(frozen=True, slots=True)
class _Write:
    """A write of an element by a trip: whether only a slice, by which op, and of which array."""

    is_slice: bool
    op_name: str
    array_op_name: str


def carry_elements(module: Module) -> dict[tuple[str, str], CarryElement]:
    """(computation, instruction) of the first value of an element -> what the loop writes into it.

    Elements that a loop passes on unchanged are left out.
    """
    elements = {}
    for computation in module.computations.values():
        for loop in computation.instructions.values():
            if loop.opcode == "while":
                for name, index in _first_values(computation, loop):
                    write = _write(module, loop, index)
                    if write:
                        elements[computation.name, name] = _carry_element(module, loop, write)
    return elements


def view_source(computation: Computation, instruction: Instruction) -> Instruction:
    """The array behind copies and other views, as far as this computation shows."""
    while instruction.opcode in (*VIEWS, "get-tuple-element") and instruction.operands:
        operand = computation.operand(instruction)
        is_element = instruction.opcode == "get-tuple-element"
        if is_element and operand.opcode in ("parameter", "while"):
            break
        if operand.opcode == "tuple":
            break
        instruction = operand
    return instruction


def _first_values(computation: Computation, loop: Instruction) -> Iterator[tuple[str, int]]:
    """Yield the instruction that produces each element of the carry, and its index."""
    carry = computation.operand(loop)
    if carry.opcode == "tuple":
        for index in range(len(carry.operands)):
            instruction = computation.operand(carry, index)
            while instruction.opcode == "bitcast":
                instruction = computation.operand(instruction)
            yield instruction.name, index


def _carry_element(module: Module, loop: Instruction, write: _Write) -> CarryElement:
    _, phase = scope(write.op_name)
    if write.is_slice and DIFFERENTIATED in write.op_name:
        if phase == "forward":
            return CarryElement("activations", write.array_op_name)
        if phase == "backward":
            return CarryElement("gradients", write.array_op_name)
    accumulates = not write.is_slice and DIFFERENTIATED not in loop.op_name
    if accumulates and _has_backward_pass(module, loop):
        return CarryElement("gradients", write.op_name)
    return CarryElement("", write.array_op_name or write.op_name)


def _has_backward_pass(module: Module, loop: Instruction) -> bool:
    """Whether each trip of a loop contains a backward pass."""
    for instruction in module.loop_body(loop).instructions.values():
        if DIFFERENTIATED in instruction.op_name and scope(instruction.op_name)[1] == "backward":
            return True
    return False


def _write(module: Module, loop: Instruction, index: int) -> _Write | None:
    """The write of an element of the carry by a trip, None where it passes it on."""
    body = module.loop_body(loop)
    root = body.root_instruction
    if root.opcode != "tuple" or index >= len(root.operands):
        return None
    element = 0
    writer = body.operand(root, index)
    while writer.opcode in (*VIEWS, "get-tuple-element") and writer.operands:
        if writer.opcode == "get-tuple-element":
            element = writer.tuple_index
        writer = body.operand(writer)
    if writer.opcode == "parameter":
        return None
    if writer.opcode == "while":
        return _write(module, writer, element)
    if writer.opcode == "dynamic-update-slice":
        array = view_source(body, body.operand(writer, 1))
        return _Write(True, writer.op_name, array.op_name)
    if writer.opcode == "fusion":
        return _fused_write(module, body, writer, element)
    return _Write(False, writer.op_name, writer.op_name)


def _fused_write(module: Module, body: Computation, fusion: Instruction, element: int) -> _Write:
    """The write of one element of the result of a fusion."""
    inner = module.callee(fusion)
    root = inner.root_instruction
    if root.opcode == "tuple":
        root = inner.operand(root, element)
    root = view_source(inner, root)
    op_name = root.op_name or fusion.op_name
    if root.opcode != "dynamic-update-slice":
        return _Write(False, op_name, op_name)
    array = view_source(inner, inner.operand(root, 1))
    if array.opcode == "parameter":
        array = view_source(body, body.operand(fusion, int(array.literal)))
    return _Write(True, op_name, array.op_name)
