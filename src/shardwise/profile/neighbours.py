"""The operations to which those that JAX has not traced belong: copies of the compiler, say.

Such an operation belongs to the nearest one that computes what it reads. If none of these has a
name, as with a copy of a weight, it belongs to the nearest that reads its result; the slice of a
scan's turn always does. Loops are not passed: what goes into one and what comes out have nothing
else in common.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwise.profile.names import has_name, is_slice

MAX_VISITED = 50  # operations between it and the nearest one
NO_WORK = ("parameter", "constant")
LOOP = "while"


def neighbours(instructions: Sequence[Any], names: Mapping[int, str]) -> dict[int, int]:
    """The neighbour of each instruction of a computation without a name.

    Args:
        names: id of an instruction -> its op_name.
    """
    by_id = {instruction.id: instruction for instruction in instructions}
    users = defaultdict(list)
    for instruction in instructions:
        for operand in instruction.operand_ids:
            users[operand].append(instruction.id)
    named = {
        number
        for number, op_name in names.items()
        if by_id[number].opcode not in NO_WORK and has_name(op_name)
    }
    loops = {number for number in by_id if by_id[number].opcode == LOOP}

    def operands(number: int) -> Sequence[int]:
        return by_id[number].operand_ids if number in by_id and number not in loops else ()

    def readers(number: int) -> Sequence[int]:
        return users[number] if number not in loops else ()

    near = {}
    for number in by_id.keys() - named:
        directions = (readers, operands) if is_slice(names[number]) else (operands, readers)
        for direction in directions:
            nearest = _nearest(number, direction, named)
            if nearest is not None:
                near[number] = nearest
                break
    return near


def _nearest(start: int, step: Callable[[int], Sequence[int]], named: set[int]) -> int | None:
    """The first of `named` in steps from an instruction, those of fewest steps first."""
    visited = {start}
    queue = [start]
    for number in queue:
        for following in step(number):
            if following in named:
                return following
            if following not in visited and len(visited) < MAX_VISITED:
                visited.add(following)
                queue.append(following)
    return None
