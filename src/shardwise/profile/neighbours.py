"""The operations to which those without a name scope belong: the compiler's copies, sums, gates.

Such an operation belongs to the nearest one that computes what it reads. If none of these has a
name scope, as with a copy of a weight, it belongs to the nearest that reads its result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwise.profile.names import model_operation

MAX_VISITED = 50  # operations between it and the nearest one
NO_WORK = ("parameter", "constant")


def neighbours(instructions: Sequence[Any], names: Mapping[int, str]) -> dict[int, str]:
    """The op_name of its neighbour for each instruction of a computation without a name scope.

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
        if by_id[number].opcode not in NO_WORK and model_operation(op_name)[0]
    }
    found = {}
    for number in by_id.keys() - named:
        read = _nearest(number, lambda i: by_id[i].operand_ids if i in by_id else (), named)
        nearest = read or _nearest(number, users.__getitem__, named)
        if nearest is not None:
            found[number] = names[nearest]
    return found


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
