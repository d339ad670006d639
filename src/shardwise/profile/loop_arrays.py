"""Arrays that a loop stacks, one part in each turn, such as the activations of a scan over layers.

They go into the loop empty and come out full. The copies of the compiler on both sides belong to
what the loop writes into them, and not to an operation that happens to stand beside the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.profile.names import stacked

LOOP, TUPLE, ELEMENT = "while", "tuple", "get-tuple-element"
RENAMED = ("bitcast", "copy")  # of the compiler, between an operation and the result of a loop


def loop_arrays(
    computation: Any, computations: Mapping[int, Any], names: Mapping[int, str]
) -> dict[int, str]:
    """Instructions at both sides of loops -> the op_name of what stacks their arrays in the loop.

    Args:
        computations: of the program, by their ids.
        names: id of an instruction of the loops' bodies -> its op_name.
    """
    by_id = {instruction.id: instruction for instruction in computation.instructions}
    op_names: dict[int, str] = {}
    for loop in computation.instructions:
        if loop.opcode != LOOP:
            continue
        written = dict(_written(loop, computations, names))
        before = by_id.get(loop.operand_ids[0])
        if before is not None and before.opcode == TUPLE:
            for index, operand in enumerate(before.operand_ids):
                if index in written and operand in by_id:
                    op_names[operand] = written[index]
        for after in computation.instructions:
            is_result = after.opcode == ELEMENT and loop.id in after.operand_ids
            if is_result and after.tuple_index in written:
                op_names[after.id] = written[after.tuple_index]
    return op_names


def _written(
    loop: Any, computations: Mapping[int, Any], names: Mapping[int, str]
) -> Iterator[tuple[int, str]]:
    """Positions of the arrays that the loop stacks, and the op_names that write them."""
    for called in loop.called:
        if called not in computations:
            continue
        body = computations[called]
        by_id = {instruction.id: instruction for instruction in body.instructions}
        root = by_id.get(body.root_id)
        if root is None or root.opcode != TUPLE:
            continue
        for index, number in enumerate(root.operand_ids):
            while number in by_id and by_id[number].opcode in RENAMED:
                number = by_id[number].operand_ids[0]
            if stacked(names.get(number, "")):
                yield index, names[number]
