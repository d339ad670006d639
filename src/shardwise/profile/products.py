"""Products of a compiled program that cost more than they need to.

A product in fp32 of arrays in 16 bits, which the program has cast, takes the time of fp32. A
product with an odd dim is computed in vectors or tiles that are not full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardwise.check.hlo.costs import instructions_inside, product_flops
from shardwise.check.hlo.reductions import WHOLE_ARRAY
from shardwise.check.hlo.text import Computation, Instruction, Module

CAST = "convert_element_type"  # the primitive of a cast that the program asks for
HALF = ("bf16", "f16")
MULTIPLE = {"TPU": 128, "GPU": 8, "CPU": 8}  # kind of device -> the dims that fill its vectors
LEAST_DIM = 128  # smaller ones are batches and heads
LEAST_PADDING = {"TPU": 0.05, "GPU": 0.0, "CPU": 0.0}  # share of a dim; TPUs pad, others slow down


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductFaults:
    """What slows the products of an operation.

    Args:
        is_cast: whether they are in fp32, of arrays that the program has cast from 16 bits.
        odd_dim: the largest dim that does not fill the vectors of its device; 0 without one.
    """

    is_cast: bool
    odd_dim: int


def product_faults(module: Module, names: Iterable[str], kind: str) -> dict[str, ProductFaults]:
    """Operation of a program that computes products -> what slows them.

    Args:
        names: of the operations that ran.
        kind: of the device: TPU, GPU, CPU.
    """
    return {
        instruction.name: ProductFaults(
            is_cast=is_cast(module, computation, instruction),
            odd_dim=odd_dim(module, computation, instruction, kind),
        )
        for computation, instruction in named_instructions(module, names)
        if any(_products(module, computation, instruction))
    }


def named_instructions(
    module: Module, names: Iterable[str]
) -> Iterator[tuple[Computation, Instruction]]:
    """The instructions of some names, which are unique in a program, with their computations."""
    wanted = set(names)
    for computation in module.computations.values():
        for name in wanted & computation.instructions.keys():
            yield computation, computation.instructions[name]


def summed_flops(module: Module, computation: Computation, instruction: Instruction) -> int:
    """FLOPs of the sums of products in an instruction: two for each element that they sum."""
    return sum(
        2 * container.operand(nested).shapes[0].elements
        for container, nested in instructions_inside(module, computation, instruction)
        if nested.opcode == "reduce" and container.operand(nested).opcode == "multiply"
    )


def is_cast(module: Module, computation: Computation, product: Instruction) -> bool:
    """Whether an instruction computes a product in fp32 of arrays that were cast from 16 bits.

    Either an operand has been cast, or, as CPUs forget that, the gradient that it computes is cast
    back to 16 bits. A cast that the compiler has added is none.
    """
    for container, dot in _products(module, computation, product):
        operands = _factors(container, dot)
        if operands[0].shapes[0].dtype != "f32":
            continue
        outer = {parameter.name: name for parameter, name in _arguments(container, product)}
        for operand in operands:
            if _comes_from_cast(container, operand):
                return True
            outside = computation.instructions.get(outer.get(operand.name, ""))
            if outside is not None and _result_is_cast(module, computation, outside):
                return True
        if _gradient_is_cast(module, computation, product.name):
            return True
    return False


def odd_dim(module: Module, computation: Computation, product: Instruction, kind: str) -> int:
    """The largest dim of a product that its device cannot fill vectors with; 0 if there is none.

    Args:
        kind: of the device: TPU, GPU, CPU.
    """
    multiple = MULTIPLE.get(kind, 1)
    dims = [
        dim
        for container, dot in _products(module, computation, product)
        for operand in _factors(container, dot)
        for dim in operand.shapes[0].dims
        if dim >= LEAST_DIM
    ]
    least = LEAST_PADDING.get(kind, 0.0)
    odd = [dim for dim in dims if math.ceil(dim / multiple) * multiple / dim - 1 > least]
    return max(odd, default=0)


def _products(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """The products that an instruction computes, each with its computation."""
    for container, nested in instructions_inside(module, computation, instruction):
        if product_flops(container, nested):
            yield container, nested


def _factors(computation: Computation, product: Instruction) -> list[Instruction]:
    return [computation.operand(product, index) for index in range(2)]


def _arguments(container: Computation, fusion: Instruction) -> Iterator[tuple[Instruction, str]]:
    """The parameters of a fusion's computation, each with the name of its operand."""
    if fusion.opcode == "fusion":
        yield from zip(container.parameters, fusion.operands, strict=False)


def _is_upcast(computation: Computation, instruction: Instruction) -> bool:
    return (
        instruction.opcode == "convert"
        and instruction.op_name.endswith(CAST)
        and instruction.shapes[0].dtype == "f32"
        and computation.operand(instruction).shapes[0].dtype in HALF
    )


def _comes_from_cast(computation: Computation, instruction: Instruction) -> bool:
    """Whether an array is one cast from 16 bits, perhaps in another layout."""
    while not _is_upcast(computation, instruction):
        if instruction.opcode not in WHOLE_ARRAY:
            return False
        instruction = computation.operand(instruction)
    return True


def _result_is_cast(module: Module, computation: Computation, instruction: Instruction) -> bool:
    if instruction.opcode == "fusion":
        computation = module.callee(instruction)
        instruction = computation.root_instruction
    return _comes_from_cast(computation, instruction)


def _gradient_is_cast(module: Module, computation: Computation, name: str) -> bool:
    """Whether a reader of an array casts it to 16 bits in the backward pass."""
    for user in computation.users(name):
        if user.opcode == "fusion":
            callee = module.callee(user)
            inner = [
                parameter for parameter, operand in _arguments(callee, user) if operand == name
            ]
            if any(_gradient_is_cast(module, callee, parameter.name) for parameter in inner):
                return True
        elif user.opcode == "convert" and user.shapes[0].dtype in HALF:
            if user.op_name.endswith(CAST) and "transpose(" in user.op_name:
                return True
        elif user.opcode in WHOLE_ARRAY and _gradient_is_cast(module, computation, user.name):
            return True
    return False
