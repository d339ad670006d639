"""Detection of all-reduces that are reduce-scatters or all-gathers in effect.

Some backends emit no reduce-scatter. XLA:CPU keeps the all-reduce and slices its result; a TPU's
compiler puts both into one custom fusion. An all-reduce counts as a reduce-scatter if every reader
of its result takes a slice, and the slice is one shard.

A TPU's compiler gathers small weights of a layer by one all-reduce: each is a shard, written into
zeros. It counts as an all-gather, of which each device receives twice as many bytes.
"""

from __future__ import annotations

from shardwise.check.hlo.text import Computation, Instruction, Module

# Opcodes whose result is the whole operand, possibly with another layout or type.
WHOLE_ARRAY = ("copy", "bitcast", "transpose", "reshape", "convert", "get-tuple-element")
MOVED = ("copy-start", "copy-done")  # to another memory


def is_scattered(
    module: Module,
    computation: Computation,
    all_reduce: Instruction,
    array_index: int,
    group_size: int,
) -> bool:
    """Whether the readers of one array of an all-reduce read only one shard of it.

    Args:
        array_index: index of the array in the result.
        group_size: devices in a group, hence shards of the array.
    """
    element = array_index if len(all_reduce.shapes) > 1 else None
    shard = _slice_elements(module, computation, all_reduce.name, element)
    if shard is None or group_size < 2:
        return False
    return shard * group_size == all_reduce.shapes[array_index].elements


def _slice_elements(
    module: Module, computation: Computation, name: str, element: int | None
) -> int | None:
    """Elements in the slice that every reader takes of an array; None if readers differ.

    The array is the result of an instruction, or one `element` of it if it is a tuple.
    """
    if computation.instructions[name].is_root:
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
            callee = module.callee(user)
            for parameter, operand in zip(callee.parameters, user.operands, strict=True):
                if operand == name:
                    sizes.add(_slice_elements(module, callee, parameter.name, None))
        else:
            sizes.add(None)
    return sizes.pop() if len(sizes) == 1 else None


def is_gathered(module: Module, computation: Computation, name: str, group_size: int) -> bool:
    """Whether an array that an all-reduce sums is one shard, written into zeros.

    Args:
        computation: which contains the array.
        group_size: devices in a group, hence shards of the sum.
    """
    array = _moved(computation, computation.instructions[name])
    inside, update = computation, array
    if array.opcode == "fusion":
        inside = module.callee(array)
        update = _moved(inside, inside.root_instruction)
    if update.opcode != "dynamic-update-slice":
        return False
    target = inside.operand(update)
    if target.opcode == "parameter" and array.opcode == "fusion":
        number = inside.parameters.index(target)
        target = computation.instructions[array.operands[number]]
    shard = inside.operand(update, 1).shapes[0].elements
    return target.opcode == "broadcast" and shard * group_size == update.shapes[0].elements


def _moved(computation: Computation, instruction: Instruction) -> Instruction:
    """The instruction whose result is moved to another memory or layout."""
    while instruction.opcode in (*WHOLE_ARRAY, *MOVED):
        instruction = computation.operand(instruction)
    return instruction
