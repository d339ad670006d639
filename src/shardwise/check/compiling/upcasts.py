"""fp32 matmuls of 16-bit arrays in a lowered program: an operand was cast for them.

The compiler may undo such casts, so they are looked for before it. Imports JAX's MLIR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from shardwise.check.compiling.result import Upcast
from shardwise.check.source_line import SourceLine

# Operations whose result has elements of their first operand.
_PASSED = frozenset((
    "stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.slice",
    "stablehlo.dynamic_slice", "stablehlo.optimization_barrier", "sdy.sharding_constraint",
))  # fmt: skip
_16_BIT = ("bf16", "f16")
_NAME = re.compile(r'loc\("([^"]*)"')
_LINE = re.compile(r'"([^"]+)":(\d+):\d+')
_MAX_STEPS = 1000  # from an operand to the operation that computes it


def upcast_products(lowered: Any) -> tuple[Upcast, ...]:
    """The matmuls of two fp32 operands of which one, at least, is the cast of a 16-bit array."""
    program = _Program()
    lowered.compiler_ir("stablehlo").operation.walk(program.visit)
    products: dict[Upcast, None] = {}
    for product in program.products:
        if any(map(program.is_upcast, product.operands)):
            products[_describe(str(product.location))] = None
    return tuple(products)


@dataclass(slots=True)
class _Program:
    """The operations of a lowered program that matter: functions, calls and fp32 matmuls."""

    functions: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)  # one of each function
    products: list[Any] = field(default_factory=list)

    def visit(self, op: Any) -> ir.WalkResult:
        """Note an operation."""
        op = op.operation
        if op.name == "func.func":
            self.functions[ir.StringAttr(op.attributes["sym_name"]).value] = op
        elif op.name == "func.call":
            self.calls.setdefault(_callee(op), op)
        elif op.name == "stablehlo.dot_general" and all(_dtype(o) == "f32" for o in op.operands):
            self.products.append(op)
        return ir.WalkResult.ADVANCE

    def is_upcast(self, value: Any) -> bool:
        """Whether a value is the cast of a 16-bit one, up to its arrangement."""
        for _ in range(_MAX_STEPS):
            if isinstance(value.owner, ir.Block):
                outer = self._outer_value(value)
                if outer is None:
                    return False
                value = outer
                continue
            op = value.owner.operation
            if op.name == "stablehlo.convert":
                return _dtype(op.operands[0]) in _16_BIT
            if op.name == "func.call":
                body = self.functions[_callee(op)].regions[0].blocks[0]
                *_, last = body.operations
                value = last.operation.operands[ir.OpResult(value).result_number]
            elif op.name in _PASSED:
                value = op.operands[0]
            else:
                return False
        return False

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


def _callee(call: Any) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _dtype(value: Any) -> str:
    return str(ir.ShapedType(value.type).element_type)


def _describe(location: str) -> Upcast:
    name = _NAME.match(location)
    source = None
    for file, line in _LINE.findall(location):  # innermost first
        frame = SourceLine(file, int(line))
        if source is None and not frame.is_library:
            source = frame
    return Upcast(op_name=name[1] if name else "", source=source)
