"""What loops make of the arrays that they carry, and what copies are copies of.

A scan keeps for later what each of its trips makes: an array in its carry, allocated before the
loop without a name, of which each trip writes a slice. The forward pass of layers keeps activations
so, the backward pass the gradients of layers; a loop over microbatches adds gradients up. What each
of them is stands where the loop writes it, however deep loops lie in loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.check.hlo.scopes import scope
from shardwise.check.hlo.text import Computation, Instruction, Module

# What has another layout, type or place, but is the same array to a model.
# Reduced precision is the mark of what remat keeps.
_COPIES = ("copy", "copy-start", "copy-done")
VIEWS = (*_COPIES, "bitcast", "convert", "reshape", "transpose", "reduce-precision")
DERIVED = "jvp("  # in the names of what is differentiated, both passes


@dataclass(frozen=True, slots=True)
class Carried:
    """An element of the carry of a loop that its trips write.

    Args:
        category: `activations` that a forward pass keeps slice by slice, `gradients` that a
            backward pass keeps so, or that a loop around both adds up; "" of others.
        path: names of what is written.
    """

    category: str
    path: str


def carried(module: Module) -> dict[tuple[str, str], Carried]:
    """(computation, instruction) of the first value of an element of a carry -> what becomes of
    it; elements that a loop hands on as they came are left out."""
    found = {}
    for block in module.computations.values():
        for loop in block.instructions.values():
            if loop.opcode == "while":
                for first, index in _elements(block, loop):
                    written = _written(module, loop, index)
                    if written:
                        found[block.name, first] = _sorted(module, loop, *written)
    return found


def source(block: Computation, one: Instruction) -> Instruction:
    """What a copy or another view of an array is one of, as far as this computation shows."""
    while one.opcode in (*VIEWS, "get-tuple-element") and one.operands:
        before = block.instructions[one.operands[0]]
        carry = one.opcode == "get-tuple-element" and before.opcode in ("parameter", "while")
        if carry or before.opcode == "tuple":
            break
        one = before
    return one


def _elements(block: Computation, loop: Instruction) -> Iterator[tuple[str, int]]:
    """Instruction that makes an element of the carry, and its place in it."""
    carry = block.instructions[loop.operands[0]]
    if carry.opcode == "tuple":
        for index, name in enumerate(carry.operands):
            one = block.instructions[name]
            while one.opcode == "bitcast":
                one = block.instructions[one.operands[0]]
            yield one.name, index


def _sorted(module: Module, loop: Instruction, sliced: bool, path: str, made: str) -> Carried:
    derived, phase = DERIVED in path, scope(path)[1]
    if sliced and derived and phase in ("forward", "backward"):
        return Carried("activations" if phase == "forward" else "gradients", made)
    if not sliced and DERIVED not in loop.op_name and _differentiates(module, loop):
        return Carried("gradients", path)
    return Carried("", made or path)


def _differentiates(module: Module, loop: Instruction) -> bool:
    """Whether each trip of a loop is a backward pass too."""
    body = module.computations[loop.word("body")]
    paths = [one.op_name for one in body.instructions.values() if DERIVED in one.op_name]
    return any(scope(path)[1] == "backward" for path in paths)


def _written(module: Module, loop: Instruction, index: int) -> tuple[bool, str, str] | None:
    """(whether a trip writes only a slice, names of who writes, names of what is written)."""
    body = module.computations[loop.word("body")]
    root = body.instructions[body.root]
    if root.opcode != "tuple" or index >= len(root.operands):
        return None
    element, one = 0, body.instructions[root.operands[index]]
    while one.opcode in (*VIEWS, "get-tuple-element") and one.operands:
        if one.opcode == "get-tuple-element":
            element = one.numbers("index")[0]
        one = body.instructions[one.operands[0]]
    if one.opcode == "parameter":
        return None
    if one.opcode == "while":
        return _written(module, one, element)
    if one.opcode == "dynamic-update-slice":
        made = source(body, body.instructions[one.operands[1]])
        return True, one.op_name, made.op_name
    if one.opcode != "fusion":
        return False, one.op_name, one.op_name
    return _fused(module, body, one, element)


def _fused(
    module: Module, body: Computation, one: Instruction, element: int
) -> tuple[bool, str, str]:
    """The same of an element of the result of a fusion."""
    inner = module.computations[one.called[0]]
    last = inner.instructions[inner.root]
    if last.opcode == "tuple":
        last = inner.instructions[last.operands[element]]
    last = source(inner, last)
    path = last.op_name or one.op_name
    if last.opcode != "dynamic-update-slice":
        return False, path, path
    made = source(inner, inner.instructions[last.operands[1]])
    if made.opcode == "parameter":
        made = source(body, body.instructions[one.operands[int(made.literal)]])
    return True, path, made.op_name
