"""Bytes that one instruction reads from and writes to HBM.

Each operand and each result once, in whole tiles. Free is what lies elsewhere (on a TPU VMEM,
scalar memory, the host), what only has another name (bitcasts, tuples, carries), and what is
updated in place but for the update. Of an operand that is only sliced, the slices are read.
"""

from __future__ import annotations

from shardwise.check.hlo.shape import HBM, Shape
from shardwise.check.hlo.text import Computation, Instruction, Module

FREE = frozenset(
    [
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "partition-id",
        "replica-id",
        "while",
        "conditional",
        "call",
        "call-start",
        "call-done",
        "async-done",
        "async-update",
        "domain",
        "optimization-barrier",
        "add-dependency",
        "send-done",
        "recv",
        "recv-done",
        "send",
        "iota",
    ]
)
SLICES = ("dynamic-slice", "slice", "gather")
_NAMES = ("bitcast", "reshape", "get-tuple-element", "copy-done")


def in_hbm(module: Module, shape: Shape) -> bool:
    """Off TPUs every memory space but the host's is the device's own memory."""
    return shape.memory_space == HBM or (not module.tiled and shape.memory_space == 1)


def held(module: Module, shape: Shape) -> int:
    """Bytes of an array in HBM, in whole tiles; 0 elsewhere."""
    return shape.padded_bytes if in_hbm(module, shape) else 0


def hbm_bytes(module: Module, block: Computation, one: Instruction) -> int:
    """Read and written by one run of an instruction.

    Its asynchronous forms count at the start, so that the end is free.
    """
    if one.opcode in FREE or one.opcode.endswith("-done"):
        return 0
    if one.opcode == "fusion":
        return _fusion(module, block, one)
    if one.opcode.endswith("-start"):
        return _start(module, block, one)
    if one.opcode in SLICES:
        return 2 * held(module, one.shapes[0])
    if one.opcode in ("dynamic-update-slice", "scatter"):
        update = block.instructions[one.operands[1 if one.opcode != "scatter" else -1]]
        return 2 * sum(held(module, shape) for shape in update.shapes)
    if one.opcode == "custom-call" and one.word("custom_call_target") == "AllocateBuffer":
        return 0
    return _operands(module, block, one) + sum(held(module, shape) for shape in one.shapes)


def _operands(module: Module, block: Computation, one: Instruction) -> int:
    names = dict.fromkeys(one.operands)
    return sum(held(module, s) for n in names for s in block.instructions[n].shapes)


def _start(module: Module, block: Computation, one: Instruction) -> int:
    """What the pair moves: its result, and of its operand as much as that if it is a slice."""
    done = next((u for u in block.instructions.values() if u.operands[:1] == (one.name,)), None)
    written = sum(held(module, shape) for shape in done.shapes) if done else 0
    read = _operands(module, block, one)
    if done and one.opcode == "slice-start":
        read = min(read, sum(shape.padded_bytes for shape in done.shapes))
    return read + written


def _fusion(module: Module, block: Computation, one: Instruction) -> int:
    inner = module.computations[one.called[0]]
    total = 0
    for parameter, operand in zip(inner.parameters, one.operands, strict=True):
        whole = sum(held(module, shape) for shape in block.instructions[operand].shapes)
        if whole:
            total += min(whole, _read(module, inner, parameter.name))
    return total + _written(module, inner, one)


def _read(module: Module, inner: Computation, name: str) -> int:
    """Bytes of a parameter of a fusion that its instructions read."""
    whole = sum(shape.padded_bytes for shape in inner.instructions[name].shapes)
    total = 0
    for user in inner.instructions.values():
        if name not in user.operands:
            continue
        if user.opcode in SLICES and user.operands[0] == name:
            total += user.shapes[0].padded_bytes
        elif user.opcode in ("dynamic-update-slice", "scatter") and user.operands[0] == name:
            continue
        elif user.opcode in _NAMES or _renames(module, user):
            total += _read(module, inner, user.name)
        elif user.opcode == "fusion":
            deeper = module.computations[user.called[0]]
            given = zip(deeper.parameters, user.operands, strict=True)
            total += sum(_read(module, deeper, p.name) for p, o in given if o == name)
        elif not _hands_on(user):
            return whole
    return min(total, whole)


def _renames(module: Module, one: Instruction) -> bool:
    """Whether a nested fusion only gives an array another name, or other tiles where it lies."""
    if one.opcode != "fusion":
        return False
    inner = module.computations[one.called[0]].instructions.values()
    plain = all(i.opcode in ("parameter", *_NAMES) for i in inner)
    return plain or "output_to_operand_aliasing" in one.attributes


def _hands_on(user: Instruction) -> bool:
    """The links of a chain hand a collective's arrays on; it is counted at the collective."""
    if user.opcode == "custom-call":
        return user.word("custom_call_target").startswith("AsyncCollective")
    return user.opcode == "tuple" or user.word("chain_id") != ""


def _written(module: Module, inner: Computation, one: Instruction) -> int:
    root = inner.instructions[inner.root]
    if root.opcode == "custom-call" and _hands_on(root):
        return 0
    made = root.operands if root.opcode == "tuple" else (root.name,)
    if len(made) != len(one.shapes):
        return sum(held(module, shape) for shape in one.shapes)
    total = 0
    for name, shape in zip(made, one.shapes, strict=True):
        if in_hbm(module, shape):
            total += min(shape.padded_bytes, _made(module, inner, name))
    return total


def _made(module: Module, inner: Computation, name: str) -> int:
    """Bytes of a result of a fusion that are new."""
    one = inner.instructions[name]
    if one.opcode in ("parameter", "get-tuple-element"):
        return 0
    if one.opcode == "bitcast":
        return _made(module, inner, one.operands[0])
    if one.opcode == "dynamic-update-slice":
        return inner.instructions[one.operands[1]].shapes[0].padded_bytes
    if one.opcode == "fusion":
        return _written(module, module.computations[one.called[0]], one)
    if one.word("chain_id") or one.word("custom_call_target").startswith("AsyncCollective"):
        return 0
    return sum(shape.padded_bytes for shape in one.shapes)
