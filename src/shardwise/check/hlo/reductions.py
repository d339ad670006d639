"""Whether an all-reduce stands for a reduce-scatter.

Not every backend forms one. XLA:CPU leaves the all-reduce of the partial sums and slices the
result, which stands for what a chip's own compiler would make of it; a TPU's puts both into one
custom fusion. Either is a reduce-scatter when all that reads the sum takes the same shard of it.
"""

from __future__ import annotations

from shardwise.check.hlo.text import Computation, Instruction, Module

# What hands on the whole array, in another order or under another name.
SAME = ("copy", "bitcast", "transpose", "reshape", "convert", "get-tuple-element")


def is_scattered(
    module: Module, block: Computation, one: Instruction, element: int, size: int
) -> bool:
    """Whether of one array of an all-reduce over `size` chips only a chip's shard is read."""
    index = element if len(one.shapes) > 1 else None
    kept = _sliced(module, block, one.name, index)
    return kept is not None and size > 1 and kept * size == one.shapes[element].elements


def _sliced(module: Module, block: Computation, name: str, element: int | None) -> int | None:
    """Elements of the slices when all that read an array slice it alike, else None."""
    if block.instructions[name].root:
        return None
    found: set[int | None] = set()
    for user in block.instructions.values():
        if name not in user.operands:
            continue
        if element is not None and user.opcode == "get-tuple-element":
            if user.numbers("index") == (element,):
                found.add(_sliced(module, block, user.name, None))
        elif user.opcode == "dynamic-slice" and name not in user.operands[1:]:
            found.add(user.shapes[0].elements)
        elif user.opcode in SAME:
            found.add(_sliced(module, block, user.name, None))
        elif user.opcode == "fusion":
            found |= _sliced_inside(module, user, name)
        else:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def _sliced_inside(module: Module, fusion: Instruction, name: str) -> set[int | None]:
    inner = module.computations[fusion.called[0]]
    given = [p for p, o in zip(inner.parameters, fusion.operands, strict=True) if o == name]
    return {_sliced(module, inner, one.name, None) for one in given}
