"""One operation of a program: its arrays, what it computes, which einsum of the model it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.check.explained.arrays import ArrayInMemory, array_in_memory
from shardwise.check.explained.bounds import LowerBound, lower_bound
from shardwise.check.explained.devices import JoinedDevices, joined_devices
from shardwise.check.explained.program import Program
from shardwise.check.explained.text import UNKNOWN
from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.costs import (
    Cost,
    instruction_cost,
    instructions_inside,
    is_kernel,
    product_flops,
)
from shardwise.check.hlo.forms import COLLECTIVES, is_idle
from shardwise.check.hlo.loops import CONTROL_FLOW, trip_count
from shardwise.check.hlo.scopes import einsum_text, model_operation
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.timeline.kernels import call_cost
from shardwise.plan.collectives import STEPS

_NOT_NAMED = ("fusion", "convert", "broadcast", "reshape", "custom-call")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matmul or convolution.

    Args:
        operands, result: dtype and dims of its arrays.
        flops: FLOPs of one run.
    """

    opcode: str
    operands: tuple[str, ...]
    result: str
    flops: int
    op_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCollective:
    """A collective that starts in the operation, or for which it waits.

    Args:
        kind: `all_gather`, `reduce_scatter`, ...
        bytes: V of the book, the bytes of the whole array.
        received_bytes: bytes that each device receives.
        form: sync, async, fused or offloaded (see `hlo.forms`).
        start, done: names of the instructions that start it and wait for it.
        overlapped: number of instructions that do work in between.
    """

    kind: str
    dtype: str
    bytes: int
    received_bytes: int
    form: str
    start: str
    done: str
    overlapped: int
    devices: JoinedDevices


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """The part of the model that an operation computes.

    Args:
        operation: the planned operation, `mlp.up`; "" if its scopes name none.
        phase: forward, backward, remat or update.
        expressions: the planned einsums or collectives; () without a plan.
        einsum: the text of the `jnp.einsum` that JAX traced; "" if it is none.
        op_name: the path of name scopes.
        source: the line of the user's code; "" if the text does not say.
    """

    operation: str
    phase: str
    expressions: tuple[str, ...]
    einsum: str
    op_name: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An operation of a program.

    Args:
        fusion_kind: `kLoop`, `kOutput`, ...; "" if it is no fusion.
        computation: the computation that contains it.
        n_runs: how often it runs in one run of the program.
        results, operands: its arrays.
        root: opcode of the instruction whose result a fusion returns, unless it is a
            product or a tuple.
        products, collectives: those in it.
        others: opcode -> number of the other instructions that it fuses.
        kernel: target of a custom call; "" if there is none.
        n_trips: trips of a loop; None if it is no loop, or they are not known.
        missing: names of the computations that it calls and that the text does not have.
        flops: FLOPs of products of one run.
        elementwise: FLOPs of other arithmetic.
        hbm_bytes: bytes that one run reads from HBM and writes to it.
        bound: lower bound of the time of one run; None without a chip.
    """

    program: str
    name: str
    opcode: str
    fusion_kind: str
    computation: str
    n_runs: int
    is_tiled: bool
    results: tuple[ArrayInMemory, ...]
    operands: tuple[ArrayInMemory, ...]
    root: str
    products: tuple[Product, ...]
    collectives: tuple[ExplainedCollective, ...]
    others: dict[str, int]
    kernel: str
    n_trips: int | None
    missing: tuple[str, ...]
    part: ModelPart
    flops: int
    elementwise: int
    hbm_bytes: int
    bound: LowerBound | None


def explain(program: Program, computation: Computation, instruction: Instruction) -> Explanation:
    """Explain an instruction of one of the program's computations."""
    module = program.module
    inside = list(instructions_inside(module, computation, instruction))
    collectives = _collectives_of(program, instruction, inside)
    cost, _ = instruction_cost(module, computation, instruction, call_cost)
    n_trips = None
    if instruction.opcode == "while":
        n_trips = trip_count(module, computation, instruction)
    bound = None
    if program.chip:
        # A -done waits for what its start has begun.
        started = [c for c in collectives if instruction.name in (c.instruction, c.op.name)]
        bound = lower_bound(program.chip, cost, started, program.network)
    return Explanation(
        program=program.name,
        name=instruction.name,
        opcode=instruction.opcode,
        fusion_kind=instruction.attribute("kind") if instruction.opcode == "fusion" else "",
        computation=computation.name,
        n_runs=program.run_counts.by_computation[computation.name],
        is_tiled=module.tiled,
        results=tuple(array_in_memory(module, instruction.name, s) for s in instruction.shapes),
        operands=tuple(_operands(module, computation, instruction)),
        root=_root(module, instruction),
        products=tuple(_products(inside, instruction)),
        collectives=tuple(_explained(collective, program) for collective in collectives),
        others=_others(inside, instruction),
        kernel=_kernel(inside),
        n_trips=n_trips,
        missing=tuple(_missing(module, instruction)),
        part=_part(program, inside, instruction, collectives),
        flops=cost.flops,
        elementwise=cost.elementwise,
        hbm_bytes=_hbm_bytes(program, computation, cost),
        bound=bound,
    )


def _hbm_bytes(program: Program, computation: Computation, cost: Cost) -> int:
    """HBM bytes of a scheduled operation; those inside a fusion count with the fusion."""
    return cost.hbm_bytes if computation.name in program.run_counts.scheduled else 0


def _operands(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[ArrayInMemory]:
    for name in dict.fromkeys(instruction.operands):
        for shape in computation.instructions[name].shapes:
            yield array_in_memory(module, name, shape)


def _missing(module: Module, instruction: Instruction) -> Iterator[str]:
    """The computations without which it is not known what an instruction does."""
    if instruction.opcode in ("fusion", "async-start", *CONTROL_FLOW):
        for name in instruction.callees:
            if _is_missing(module, name):
                yield name


def _is_missing(module: Module, name: str) -> bool:
    """Whether the text has only the name of a computation (see `text.parse_text`)."""
    root = module.computations[name].root_instruction
    return root.opcode == UNKNOWN and not root.attributes


def _root(module: Module, instruction: Instruction) -> str:
    """The opcode of a fusion's result, behind bitcasts; "" for a product or a tuple."""
    if instruction.opcode != "fusion" or _is_missing(module, instruction.callees[0]):
        return ""
    callee = module.callee(instruction)
    root = callee.root_instruction
    while root.opcode in ("bitcast", "get-tuple-element"):
        root = callee.operand(root)
    if product_flops(callee, root):
        return ""
    return _root(module, root) or root.opcode.replace("tuple", "")


def _products(
    inside: list[tuple[Computation, Instruction]], instruction: Instruction
) -> Iterator[Product]:
    for container, nested in inside:
        flops = product_flops(container, nested)
        if flops:
            operands = [container.operand(nested, index).shapes[0] for index in (0, 1)]
            yield Product(
                opcode=nested.opcode,
                operands=tuple(map(str, operands)),
                result=str(nested.shapes[0]),
                flops=flops,
                op_name=nested.op_name or instruction.op_name,
            )


def _others(
    inside: list[tuple[Computation, Instruction]], instruction: Instruction
) -> dict[str, int]:
    """The work of a fusion other than products and collectives, the most frequent first."""
    if instruction.opcode != "fusion":
        return {}
    counts: Counter[str] = Counter()
    for container, nested in inside:
        is_named = is_idle(nested) or nested.opcode in _NOT_NAMED
        if (
            not is_named
            and nested.opcode not in COLLECTIVES
            and not product_flops(container, nested)
        ):
            counts[nested.opcode] += 1
    return dict(counts.most_common())


def _kernel(inside: list[tuple[Computation, Instruction]]) -> str:
    for _, nested in inside:
        if nested.opcode == "custom-call" and is_kernel(nested):
            return nested.attribute("custom_call_target")
    return ""


def _collectives_of(
    program: Program,
    instruction: Instruction,
    inside: list[tuple[Computation, Instruction]],
) -> list[Collective]:
    """The collectives that an instruction is, starts, waits for, or runs alongside its own work."""
    name = instruction.name
    chains = {nested.attribute("chain_id") for _, nested in inside} - {""}
    collectives = []
    for collective in program.collectives:
        is_named = name in (collective.instruction, collective.done, collective.op.name)
        if is_named or collective.op.attribute("chain_id") in chains:
            collectives.append(collective)
    return collectives


def _explained(collective: Collective, program: Program) -> ExplainedCollective:
    return ExplainedCollective(
        kind=collective.kind,
        dtype=collective.dtype,
        bytes=collective.joined_bytes,
        received_bytes=collective.received_bytes,
        form=collective.form,
        start=collective.instruction,
        done=collective.done,
        overlapped=len(collective.overlapped),
        devices=joined_devices(collective, program.mesh),
    )


def _part(
    program: Program,
    inside: list[tuple[Computation, Instruction]],
    instruction: Instruction,
    collectives: list[Collective],
) -> ModelPart:
    """The part of the model by the scopes of the largest product, else of the operation."""
    op_name, attributes = naming(inside, instruction)
    if not op_name and collectives:
        op_name = collectives[0].op_name
        attributes = collectives[0].op.attributes
    operation, phase = model_operation(op_name)
    kinds = {collective.kind for collective in collectives}
    if not kinds or any(product_flops(container, nested) for container, nested in inside):
        kinds.add("")
    axes = {axis for collective in collectives for axis in collective.axes}
    return ModelPart(
        operation=operation,
        phase=phase,
        expressions=_expressions(program, operation, phase, kinds, axes),
        einsum=einsum_text(op_name),
        op_name=op_name,
        source=source_line(program, attributes),
    )


def source_line(program: Program, attributes: str) -> str:
    """The line of the user's code of an instruction, from its attributes; "" if it is not there."""
    sources = program.module.sources.lines_of(attributes)
    return str(sources[0]) if sources else ""


def naming(
    inside: list[tuple[Computation, Instruction]], instruction: Instruction
) -> tuple[str, str]:
    """Op name of an operation's largest product, else its own; and the attributes beside it."""
    products = [nested for container, nested in inside if product_flops(container, nested)]
    largest = max(products, key=lambda nested: nested.bytes, default=instruction)
    named = largest if largest.op_name else instruction
    if named.op_name:
        return named.op_name, named.attributes
    for _, nested in inside:
        if nested.op_name:
            return nested.op_name, nested.attributes
    return "", ""


def _expressions(
    program: Program, operation: str, phase: str, kinds: set[str], axes: set[str]
) -> tuple[str, ...]:
    """The planned collectives of an operation of these kinds and axes; of the kind "" its einsums.

    Gradients are operations of their own: `mlp.up.d_x` and `mlp.up.d_w_up`.
    """
    phases = ({"remat": "forward"}.get(phase, phase), *STEPS)
    expressions: dict[str, None] = {}
    for name in filter(None, operation.split("+")):
        for op in program.operations:
            is_part = op.name == name or op.name.startswith(f"{name}.")
            is_kind = (op.collective or "") in kinds
            if is_part and is_kind and op.phase in phases and set(op.axes) <= axes:
                expressions[op.expression] = None
    return tuple(expressions)
