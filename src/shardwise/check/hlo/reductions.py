"""Detection of all-reduces that are reduce-scatters in effect.

Not every backend forms one. XLA:CPU keeps the all-reduce of the partial sums and slices the result,
where a chip's own compiler would emit a reduce-scatter; a TPU's puts both into one custom fusion.
Either is a reduce-scatter when every reader of the sum takes the same shard of it.
"""

from __future__ import annotations

from shardwise.check.hlo.text import Computation, Instruction, Module

# Opcodes that pass on the whole array, in another order or under another name.
WHOLE_ARRAY = ("copy", "bitcast", "transpose", "reshape", "convert", "get-tuple-element")


def is_scattered(
    module: Module,
    computation: Computation,
    all_reduce: Instruction,
    array_index: int,
    group_size: int,
) -> bool:
    """Whether only a chip's shard of one array of an all-reduce is read."""
    element = array_index if len(all_reduce.shapes) > 1 else None
    shard = _slice_elements(module, computation, all_reduce.name, element)
    if shard is None or group_size < 2:
        return False
    return shard * group_size == all_reduce.shapes[array_index].elements


def _slice_elements(
    module: Module, computation: Computation, name: str, element: int | None
) -> int | None:
    """Size of the slices when all readers of an array slice it alike, else None."""
    if computation.instructions[name].root:
        return None
    sizes: set[int | None] = set()
    for user in computation.users(name):
        if element is not None and user.opcode == "get-tuple-element":
            if user.tuple_index == element:
                sizes.add(_slice_elements(module, computation, user.name, None))
        elif user.opcode == "dynamic-slice" and name not in user.operands[1:]:
            sizes.add(user.shapes[0].elements)
        elif user.opcode in WHOLE_ARRAY:
            sizes.add(_slice_elements(module, computation, user.name, None))
        elif user.opcode == "fusion":
            inner = module.callee(user)
            for parameter, operand in zip(inner.parameters, user.operands, strict=True):
                if operand == name:
                    sizes.add(_slice_elements(module, inner, parameter.name, None))
        else:
            sizes.add(None)
    return sizes.pop() if len(sizes) == 1 else None
