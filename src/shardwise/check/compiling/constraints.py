"""Sharding constraints of a lowered program, and what computes the arrays that they constrain.

In the compiled program a constraint is no instruction: it shows in the shardings of others. Imports
JAX's MLIR.
"""

from __future__ import annotations

import re
from typing import Any

from shardwise.check.compiling.lowered import PASSED, op_name, read_lowered, source_lines
from shardwise.check.compiling.result import Constraint
from shardwise.check.source_line import SourceLine

_CONSTRAINT = "sdy.sharding_constraint"
_AXIS = re.compile(r'"([^"]+)"')


def sharding_constraints(lowered: Any) -> tuple[Constraint, ...]:
    """The constraints that state the axes of all dims, on arrays that are computed.

    A constraint of a helper that is called from several lines is placed at the calling line.
    """
    program = read_lowered(lowered, lambda op: op.name == _CONSTRAINT)
    callers: dict[SourceLine, set[SourceLine]] = {}
    for op in program.operations:
        inner, *outer = source_lines(op)[:2] or (None,)
        if inner and outer:
            callers.setdefault(inner, set()).add(outer[0])
    constraints: dict[Constraint, None] = {}
    for op in program.operations:
        sharding = str(op.attributes["sharding"])
        producer = program.producer(op.operands[0], PASSED | {"stablehlo.convert"})
        sources = source_lines(op)[:2]
        if producer is None or not sources or "?" in sharding:
            continue
        if len(callers.get(sources[0], ())) > 1:
            sources = sources[::-1]
        constraint = Constraint(
            op_name=op_name(producer),
            computed=next(iter(source_lines(producer)), None),
            axes=tuple(dict.fromkeys(_AXIS.findall(sharding))),
            sources=sources,
        )
        constraints[constraint] = None
    return tuple(constraints)
