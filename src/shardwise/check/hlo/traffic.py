"""Bytes that one instruction reads from and writes to HBM.

Each operand and each result counts once, in whole tiles. Free are arrays in other memories (on a
TPU VMEM, scalar memory, the host), results that only rename an array (bitcasts, tuples, carries),
and in-place updates except for the update itself. Of an operand that is only sliced, the slices
are read.
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
    """Whether an array is in HBM: off TPUs every memory space but the host's is."""
    return shape.memory_space == HBM or (not module.tiled and shape.memory_space == 1)


def padded_hbm_bytes(module: Module, shapes: Iterable[Shape]) -> int:
    """Bytes of arrays in HBM, in whole tiles; arrays elsewhere count 0."""
    return sum(shape.padded_bytes for shape in shapes if in_hbm(module, shape))


def hbm_bytes(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Bytes read and written by one run of an instruction.

    Asynchronous pairs count at the start; the done is free.
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
        update = computation.operand(instruction, 1 if opcode != "scatter" else -1)
        return 2 * padded_hbm_bytes(module, update.shapes)
    if instruction.attribute("custom_call_target") == "AllocateBuffer":
        return 0
    written = padded_hbm_bytes(module, instruction.shapes)
    return _operand_bytes(module, computation, instruction) + written


def _operand_bytes(module: Module, computation: Computation, instruction: Instruction) -> int:
    total = 0
    for name in dict.fromkeys(instruction.operands):
        total += padded_hbm_bytes(module, computation.instructions[name].shapes)
    return total


def _pair_bytes(module: Module, computation: Computation, start: Instruction) -> int:
    """Bytes that an asynchronous pair moves; a slice reads only as much as it writes."""
    read = _operand_bytes(module, computation, start)
    for user in computation.users(start.name):
        if user.operands[0] == start.name:
            if start.opcode == "slice-start":
                read = min(read, sum(shape.padded_bytes for shape in user.shapes))
            return read + padded_hbm_bytes(module, user.shapes)
    return read


def _fusion_bytes(module: Module, computation: Computation, fusion: Instruction) -> int:
    inner = module.callee(fusion)
    total = 0
    for parameter, operand in zip(inner.parameters, fusion.operands, strict=True):
        whole = padded_hbm_bytes(module, computation.instructions[operand].shapes)
        if whole:
            total += min(whole, _bytes_read(module, inner, parameter.name))
    return total + _bytes_written(module, inner, fusion)


def _bytes_read(module: Module, inner: Computation, name: str) -> int:
    """Bytes of a parameter of a fusion that its instructions read."""
    whole = sum(shape.padded_bytes for shape in inner.instructions[name].shapes)
    total = 0
    for user in inner.users(name):
        is_target = user.operands[0] == name
        if user.opcode in SLICES and is_target:
            total += user.shapes[0].padded_bytes
        elif user.opcode in _UPDATES and is_target:
            continue
        elif user.opcode in _RENAMES or _only_renames(module, user):
            total += _bytes_read(module, inner, user.name)
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
    """Whether an instruction is a link of a fused collective, whose bytes count there."""
    if user.opcode == "custom-call":
        return user.attribute("custom_call_target").startswith("AsyncCollective")
    return user.opcode == "tuple" or user.attribute("chain_id") != ""


def _bytes_written(module: Module, inner: Computation, fusion: Instruction) -> int:
    root = inner.root_instruction
    if root.opcode == "custom-call" and _carries_collective(root):
        return 0
    results = root.operands if root.opcode == "tuple" else (root.name,)
    if len(results) != len(fusion.shapes):
        return padded_hbm_bytes(module, fusion.shapes)
    total = 0
    for name, shape in zip(results, fusion.shapes, strict=True):
        if in_hbm(module, shape):
            total += min(shape.padded_bytes, _new_bytes(module, inner, name))
    return total


def _new_bytes(module: Module, inner: Computation, name: str) -> int:
    """Bytes of a result of a fusion that it does not share with an operand."""
    instruction = inner.instructions[name]
    if instruction.opcode in ("parameter", "get-tuple-element"):
        return 0
    if instruction.opcode == "bitcast":
        return _new_bytes(module, inner, instruction.operands[0])
    if instruction.opcode == "dynamic-update-slice":
        return inner.operand(instruction, 1).shapes[0].padded_bytes
    if instruction.opcode == "fusion":
        return _bytes_written(module, module.callee(instruction), instruction)
    target = instruction.attribute("custom_call_target")
    if instruction.attribute("chain_id") or target.startswith("AsyncCollective"):
        return 0
    return sum(shape.padded_bytes for shape in instruction.shapes)
