"""fp32 matmuls of 16-bit arrays in a lowered program: an operand was cast for them.

The compiler may undo such casts, so they are looked for before it. Imports JAX's MLIR.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from shardwise.check.compiling.lowered import op_name, read_lowered, source_lines
from shardwise.check.compiling.result import Upcast

_16_BIT = ("bf16", "f16")


def upcast_products(lowered: Any) -> tuple[Upcast, ...]:
    """The matmuls of two fp32 operands of which one, at least, is the cast of a 16-bit array."""
    program = read_lowered(lowered, _is_fp32_product)
    upcasts: dict[Upcast, None] = {}
    for product in program.operations:
        producers = map(program.producer, product.operands)
        if any(producer is not None and _is_upcast(producer) for producer in producers):
            source = next(iter(source_lines(product)), None)
            upcasts[Upcast(op_name=op_name(product), source=source)] = None
    return tuple(upcasts)


def _is_fp32_product(op: Any) -> bool:
    is_product = op.name == "stablehlo.dot_general"
    return is_product and all(_dtype(operand) == "f32" for operand in op.operands)


def _is_upcast(op: Any) -> bool:
    return op.name == "stablehlo.convert" and _dtype(op.operands[0]) in _16_BIT


def _dtype(value: Any) -> str:
    return str(ir.ShapedType(value.type).element_type)
