"""fp32 matmuls of 16-bit arrays in a lowered program: both operands were cast just before.

The compiler may undo such casts, so they are looked for before it. Imports JAX's MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from shardwise.check.compiling.result import Upcast
from shardwise.check.source_line import SourceLine

# Operations whose result has the elements of their first operand.
_PASSED = frozenset((
    "stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.slice",
    "stablehlo.dynamic_slice", "stablehlo.optimization_barrier", "sdy.sharding_constraint",
))  # fmt: skip
_16_BIT = ("bf16", "f16")
_NAME = re.compile(r'loc\("([^"]*)"')
_LINE = re.compile(r'"([^"]+)":(\d+):\d+')


def upcast_products(lowered: Any) -> tuple[Upcast, ...]:
    """The matmuls of fp32 operands that are both casts of 16-bit arrays."""
    products: list[Upcast] = []

    def visit(op: Any) -> ir.WalkResult:
        if op.operation.name == "stablehlo.dot_general" and all(map(_is_upcast, op.operands)):
            products.append(_describe(str(op.location)))
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir("stablehlo").operation.walk(visit)
    return tuple(dict.fromkeys(products))


def _is_upcast(value: Any) -> bool:
    """Whether an fp32 value is the cast of a 16-bit one, up to its arrangement."""
    if _dtype(value) != "f32":
        return False
    while isinstance(value.owner, ir.Operation | ir.OpView):
        op = value.owner.operation if isinstance(value.owner, ir.OpView) else value.owner
        if op.name == "stablehlo.convert":
            return _dtype(op.operands[0]) in _16_BIT
        if op.name not in _PASSED:
            return False
        value = op.operands[0]
    return False


def _dtype(value: Any) -> str:
    return str(ir.ShapedType(value.type).element_type)


def _describe(location: str) -> Upcast:
    name = _NAME.match(location)
    lines: Iterator[SourceLine] = (
        SourceLine(file, int(line)) for file, line in _LINE.findall(location)
    )
    own = next((line for line in lines if not line.is_library), None)
    return Upcast(op_name=name[1] if name else "", source=own)
