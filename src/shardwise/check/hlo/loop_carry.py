"""The arrays that loops write into their carry, and the arrays behind copies and views.

A scan stacks the outputs of its trips in an array of its carry: the array is allocated before the
loop, and each trip writes one slice of it. The forward pass over layers saves activations this way,
the backward pass the gradients of layers; a loop over microbatches accumulates gradients. Such an
array has no name of its own where it is allocated, so it is identified by the instruction in the
loop body, or in a nested loop, that writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.check.hlo.scopes import scope
from shardwise.check.hlo.text import Computation, Instruction, Module

# Opcodes that change only the layout, type or memory space of an array of the model. JAX marks the
# arrays that remat saves by `reduce-precision`.
_COPIES = ("copy", "copy-start", "copy-done")
VIEWS = (*_COPIES, "bitcast", "convert", "reshape", "transpose", "reduce-precision")
DIFFERENTIATED = "jvp("  # in the op names of both passes of a differentiated function


@dataclass(frozen=True, slots=True)
class CarryElement:
    """An element of a loop's carry that the loop writes.

    Args:
        category: `activations` if a forward pass saves them slice by slice; `gradients` if a
            backward pass saves them slice by slice or an outer loop accumulates them; else "".
        op_name: op name of the array that is written.
    """

    category: str
    op_name: str


@dataclass(frozen=True, slots=True)
class _Write:
    """The write of one trip of a loop into an element of the carry.

    Args:
        is_slice: whether a trip writes one slice of the element, not all of it.
        op_name: op name of the instruction that writes.
        array_op_name: op name of the array that is written.
    """

    is_slice: bool
    op_name: str
    array_op_name: str


def carry_elements(module: Module) -> dict[tuple[str, str], CarryElement]:
    """The carry elements that loops write.

    Keys are the (computation, instruction) that produces the initial value of the element. Elements
    that a loop does not change are left out.
    """
    elements = {}
    for computation in module.computations.values():
        for loop in computation.instructions.values():
            if loop.opcode == "while":
                for name, index in _initial_values(computation, loop):
                    write = _write(module, loop, index)
                    if write:
                        elements[computation.name, name] = _carry_element(module, loop, write)
    return elements


def view_source(computation: Computation, instruction: Instruction) -> Instruction:
    """The instruction in this computation that computes an array, behind copies and other views."""
    while instruction.opcode in (*VIEWS, "get-tuple-element") and instruction.operands:
        operand = computation.operand(instruction)
        is_element = instruction.opcode == "get-tuple-element"
        if is_element and operand.opcode in ("parameter", "while"):
            break
        if operand.opcode == "tuple":
            break
        instruction = operand
    return instruction


def _initial_values(computation: Computation, loop: Instruction) -> Iterator[tuple[str, int]]:
    """Yield the name of the instruction that initializes each carry element, and the index."""
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
    """The write of a trip into the carry element `index`; None if it does not change it."""
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
    callee = module.callee(fusion)
    root = callee.root_instruction
    if root.opcode == "tuple":
        root = callee.operand(root, element)
    root = view_source(callee, root)
    op_name = root.op_name or fusion.op_name
    if root.opcode != "dynamic-update-slice":
        return _Write(False, op_name, op_name)
    array = view_source(callee, callee.operand(root, 1))
    if array.opcode == "parameter":
        array = view_source(body, body.operand(fusion, int(array.literal)))
    return _Write(True, op_name, array.op_name)
