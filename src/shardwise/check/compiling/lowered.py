"""The operations of a lowered program: what computes a value, and where it was traced.

Imports JAX's MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from shardwise.check.source_line import SourceLine

# Operations whose result has elements of their first operand.
PASSED = frozenset((
    "stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.slice",
    "stablehlo.dynamic_slice", "stablehlo.optimization_barrier", "sdy.sharding_constraint",
))  # fmt: skip
_NAME = re.compile(r'loc\("([^"]*)"')
_LINE = re.compile(r'"([^"]+)":(\d+):\d+')
_MAX_STEPS = 1000  # from a value to the operation that computes it


@dataclass(slots=True)
class LoweredProgram:
    """The functions of a lowered program, their calls, and the operations that a search needs.

    Args:
        is_wanted: whether an operation is added to `operations`.
        calls: a call of each function.
    """

    is_wanted: Callable[[Any], bool]
    functions: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)
    operations: list[Any] = field(default_factory=list)

    def visit(self, op: Any) -> ir.WalkResult:
        """Note an operation."""
        op = op.operation
        if op.name == "func.func":
            self.functions[ir.StringAttr(op.attributes["sym_name"]).value] = op
        elif op.name == "func.call":
            self.calls.setdefault(_callee(op), op)
        if self.is_wanted(op):
            self.operations.append(op)
        return ir.WalkResult.ADVANCE

    def producer(self, value: Any, passed: frozenset[str] = PASSED) -> Any:
        """The operation that computes a value, up to its arrangement; None for an argument.

        Args:
            passed: names of the operations that only arrange elements.
        """
        for _ in range(_MAX_STEPS):
            if isinstance(value.owner, ir.Block):
                value = self._outer_value(value)
                if value is None:
                    return None
                continue
            op = value.owner.operation
            if op.name == "func.call":
                body = self.functions[_callee(op)].regions[0].blocks[0]
                *_, last = body.operations
                value = last.operation.operands[ir.OpResult(value).result_number]
            elif op.name in passed:
                value = op.operands[0]
            else:
                return op
        return None

    def _outer_value(self, argument: Any) -> Any:
        """The value that a loop starts with, or that a function is called with; else None."""
        number = ir.BlockArgument(argument).arg_number
        parent = argument.owner.owner.operation
        if parent.name == "stablehlo.while":
            return parent.operands[number]
        if parent.name == "func.func":
            call = self.calls.get(ir.StringAttr(parent.attributes["sym_name"]).value)
            return call.operands[number] if call else None
        return None


def read_lowered(lowered: Any, is_wanted: Callable[[Any], bool]) -> LoweredProgram:
    """Read a lowered program, and collect the operations that are wanted."""
    program = LoweredProgram(is_wanted)
    lowered.compiler_ir("stablehlo").operation.walk(program.visit)
    return program


def op_name(op: Any) -> str:
    """The end of the op name of an operation; "" if it has none."""
    name = _NAME.match(str(op.location))
    return name[1] if name else ""


def source_lines(op: Any) -> tuple[SourceLine, ...]:
    """The user's lines under which an operation was traced, innermost first."""
    lines: dict[SourceLine, None] = {}
    for file, number in _LINE.findall(str(op.location)):
        line = SourceLine(file, int(number))
        if not line.is_library:
            lines[line] = None
    return tuple(lines)


def _callee(call: Any) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)
