"""Bytes that one instruction reads from and writes to HBM.

Each operand and each result counts once, in whole tiles, with these exceptions:

- arrays in other memories (on a TPU: VMEM, scalar memory, host memory) do not count;
- results that only rename an array (bitcasts, tuples, loop carries) do not count;
- an in-place update counts only the update, not the array that it changes;
- an operand that is only sliced counts the slices.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardwise.check.hlo.shape import HBM, Shape
from shardwise.check.hlo.text import Computation, Instruction, Module

FREE = frozenset((
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "while", "conditional", "call", "call-start", "call-done", "async-done",
    "async-update", "domain", "optimization-barrier", "add-dependency", "send-done", "recv",
    "recv-done", "send", "iota",
))  # fmt: skip
SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = ("dynamic-update-slice", "scatter")
_RENAMES = ("bitcast", "reshape", "get-tuple-element", "copy-done")


def in_hbm(module: Module, shape: Shape) -> bool:
    """Whether an array is in HBM; memory space 1 is VMEM on a TPU, but HBM elsewhere."""
    return shape.memory_space == HBM or (not module.tiled and shape.memory_space == 1)


def padded_hbm_bytes(module: Module, shapes: Iterable[Shape]) -> int:
    """Bytes of those of the arrays that are in HBM, in whole tiles."""
    return sum(shape.padded_bytes for shape in shapes if in_hbm(module, shape))


def hbm_bytes(module: Module, computation: Computation, instruction: Instruction) -> int:
    """HBM bytes that one run of an instruction reads and writes.

    The bytes of an asynchronous pair count at its start; its done counts 0.
    """
    opcode = instruction.opcode
    if opcode in FREE or opcode.endswith("-done"):
        return 0
    if opcode == "fusion":
        return _fusion_bytes(module, computation, instruction)
    if opcode.endswith("-start"):
        return _pair_bytes(module, computation, instruction)
    if opcode in SLICES:
        return 2 * padded_hbm_bytes(module, instruction.shapes[:1])
    if opcode in _UPDATES:
        return 2 * padded_hbm_bytes(module, _update(computation, instruction).shapes)
    if instruction.attribute("custom_call_target") == "AllocateBuffer":
        return 0
    written = padded_hbm_bytes(module, instruction.shapes)
    return _operand_bytes(module, computation, instruction) + written


def _update(computation: Computation, instruction: Instruction) -> Instruction:
    """What an update in place writes: the last operand of a scatter, the second of a slice."""
    return computation.operand(instruction, 1 if instruction.opcode != "scatter" else -1)


def _operand_bytes(module: Module, computation: Computation, instruction: Instruction) -> int:
    total = 0
    for name in dict.fromkeys(instruction.operands):
        total += padded_hbm_bytes(module, computation.instructions[name].shapes)
    return total


def _pair_bytes(module: Module, computation: Computation, start: Instruction) -> int:
    """HBM bytes of an asynchronous pair; a slice reads only as many bytes as it writes."""
    read = _operand_bytes(module, computation, start)
    for user in computation.users(start.name):
        if user.operands[0] == start.name:
            if start.opcode == "slice-start":
                read = min(read, sum(shape.padded_bytes for shape in user.shapes))
            return read + padded_hbm_bytes(module, user.shapes)
    return read


def _fusion_bytes(module: Module, computation: Computation, fusion: Instruction) -> int:
    callee = module.callee(fusion)
    total = 0
    for parameter, operand in zip(callee.parameters, fusion.operands, strict=True):
        whole = padded_hbm_bytes(module, computation.instructions[operand].shapes)
        if whole:
            total += min(whole, _bytes_read(module, callee, parameter.name))
    return total + _bytes_written(module, callee, fusion)


def _bytes_read(module: Module, callee: Computation, name: str) -> int:
    """Bytes that a fusion reads of one of its parameters, or of a view of it."""
    whole = sum(shape.padded_bytes for shape in callee.instructions[name].shapes)
    total = 0
    for user in callee.users(name):
        is_target = user.operands[0] == name
        if user.opcode in SLICES and is_target:
            total += user.shapes[0].padded_bytes
        elif user.opcode in _UPDATES and is_target:
            continue
        elif user.opcode in _RENAMES or _only_renames(module, user):
            total += _bytes_read(module, callee, user.name)
        elif user.opcode == "fusion":
            nested = module.callee(user)
            for parameter, operand in zip(nested.parameters, user.operands, strict=True):
                if operand == name:
                    total += _bytes_read(module, nested, parameter.name)
        elif not _carries_collective(user):
            return whole
    return min(total, whole)


def _only_renames(module: Module, instruction: Instruction) -> bool:
    """Whether a nested fusion only renames an array, or changes its tiles in place."""
    if instruction.opcode != "fusion":
        return False
    if "output_to_operand_aliasing" in instruction.attributes:
        return True
    nested = module.callee(instruction).instructions.values()
    return all(i.opcode in ("parameter", *_RENAMES) for i in nested)


def _carries_collective(user: Instruction) -> bool:
    """Whether an instruction carries a fused collective, whose bytes count with the collective."""
    if user.opcode == "custom-call":
        return user.attribute("custom_call_target").startswith("AsyncCollective")
    return user.opcode == "tuple" or user.attribute("chain_id") != ""


def _bytes_written(module: Module, callee: Computation, fusion: Instruction) -> int:
    root = callee.root_instruction
    if root.opcode == "custom-call" and _carries_collective(root):
        return 0
    results = root.operands if root.opcode == "tuple" else (root.name,)
    if len(results) != len(fusion.shapes):
        return padded_hbm_bytes(module, fusion.shapes)
    total = 0
    for name, shape in zip(results, fusion.shapes, strict=True):
        if in_hbm(module, shape):
            total += min(shape.padded_bytes, _new_bytes(module, callee, name))
    return total


def _new_bytes(module: Module, callee: Computation, name: str) -> int:
    """Bytes that a fusion writes for one of its results; a part shared with an operand is free."""
    instruction = callee.instructions[name]
    if instruction.opcode in ("parameter", "get-tuple-element"):
        return 0
    if instruction.opcode == "bitcast":
        return _new_bytes(module, callee, instruction.operands[0])
    if instruction.opcode in _UPDATES:
        return _update(callee, instruction).shapes[0].padded_bytes
    if instruction.opcode == "fusion":
        return _bytes_written(module, module.callee(instruction), instruction)
    target = instruction.attribute("custom_call_target")
    if instruction.attribute("chain_id") or target.startswith("AsyncCollective"):
        return 0
    return sum(shape.padded_bytes for shape in instruction.shapes)
