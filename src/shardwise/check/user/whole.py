"""Arrays that are whole on every chip, and products that several chips compute alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.costs import ScheduledOp
from shardwise.check.hlo.text import Instruction
from shardwise.check.hlo.traffic import FREE, padded_hbm_bytes
from shardwise.check.source_line import SourceLine
from shardwise.check.user.fault import (
    MEMORY_SHARE,
    TRAFFIC_SHARE,
    Evidence,
    Fault,
    Product,
    add_bytes,
    argument_of,
    large_leaves,
    show_shape,
)

# Data parallelism holds all weights on every chip on purpose, and may as long as they are small.
DATA_PARALLEL_SHARE = 0.2
REPEATED_SHARE = 0.1  # of the FLOPs of a chip
CONSTRAINED_SHARE = 0.05  # likewise, if a sharding constraint is the cause
TOKENS_SHARE = 0.02  # of the bytes of all arguments: what tokens take at most
MAX_LEAVES = 3  # of one argument that are named
_INDICES = ("s32", "u32", "s64", "u64", "pred")
_MOVES = ("copy", "custom-call", "all-gather-start")


def whole_arguments(evidence: Evidence) -> Iterator[Fault]:
    """Yield a fault if arguments are split over no axis: many, or fewer if it is not on purpose."""
    sizes: dict[str, int] = {}
    token_axes: set[str] = set()
    first_axes: set[str] = set()
    for parameter, axes in zip(evidence.arguments, evidence.argument_axes, strict=True):
        if axes is None:
            continue
        if _is_index(parameter):
            token_axes.update(*axes)
            continue
        if not any(axes):
            add_bytes(sizes, evidence, parameter)
        first_axes.update(*axes[:1])
    n_bytes = sum(sizes.values())
    share = n_bytes / evidence.memory_bytes
    is_data_parallel = (token_axes or first_axes) >= set(evidence.mesh)
    limit = DATA_PARALLEL_SHARE if is_data_parallel else MEMORY_SHARE
    if evidence.mesh and share >= limit:
        yield Fault(
            kind="whole arguments",
            arguments=names_of_leaves(sizes),
            axes=tuple(evidence.mesh),
            n_chips=evidence.n_chips(evidence.mesh),
            bytes=n_bytes,
            share=share,
        )


def names_of_leaves(sizes: Mapping[str, int]) -> tuple[str | int, ...]:
    """The large leaves of each argument; the argument itself if they are many or have no names.

    Args:
        sizes: name of a leaf -> its bytes.
    """
    leaves: dict[str | int, list[str]] = {}
    for leaf in large_leaves(sizes):
        leaves.setdefault(argument_of(leaf), []).append(leaf)
    names: list[str | int] = []
    for argument, large in leaves.items():
        has_names = isinstance(argument, str) and len(large) <= MAX_LEAVES
        names += large if has_names else [argument]
    return tuple(names)


def whole_batch(evidence: Evidence) -> Iterator[Fault]:
    """Yield a fault if a training step splits its batch over none of several mesh axes.

    Its tokens are whole on every chip, and the forward pass sums activations along every axis: all
    axes split weights only. Serving does this on purpose, and training over a single axis may.
    """
    tokens = {}
    for parameter, axes in zip(evidence.arguments, evidence.argument_axes, strict=True):
        if _is_index(parameter) and parameter.shapes[0].dims:
            if axes is None or any(axes):
                return
            tokens[parameter.op_name] = parameter.bytes
    is_small = sum(tokens.values()) <= TOKENS_SHARE * evidence.program.compiled.memory.arguments
    if not tokens or not is_small or len(evidence.mesh) < 2:
        return
    total = 0
    summed = dict.fromkeys(evidence.mesh, 0)
    for move in evidence.program.collectives:
        n_bytes = move.received_bytes * move.n_runs
        total += n_bytes
        is_forward = "jvp(" in move.op_name and "transpose(" not in move.op_name
        if move.kind == "all_reduce" and is_forward:
            for axis in summed.keys() & set(move.axes):
                summed[axis] += n_bytes
    share = sum(summed.values()) / max(total, 1)
    if min(summed.values()) >= TRAFFIC_SHARE * total > 0:
        yield Fault(
            kind="whole batch",
            arguments=names_of_leaves(tokens),
            axes=tuple(evidence.mesh),
            n_chips=evidence.n_chips(evidence.mesh),
            bytes=sum(tokens.values()),
            share=share,
        )


def whole_activation(evidence: Evidence, needless: list[Collective]) -> Iterator[Fault]:
    """Yield a fault for the activation that is whole on most chips, the largest of these.

    An activation is whole on the chips along mesh axes if it is the same on all of them, though the
    batch is split over them, or though they are all chips and compute it by products. Gathers that
    a product needs do not count.
    """
    batch = _batch_arguments(evidence)
    batch_axes = frozenset[str]().union(*batch.values())
    collectives = evidence.program.collectives
    gathers = {_place(move) for move in collectives if move.kind == "all_gather"}
    starts = {(move.computation, move.instruction) for move in collectives if move.done}
    needless_gathers = set(map(_place, needless))
    fault = None
    for op in evidence.program.ops:
        n_bytes = padded_hbm_bytes(evidence.module, op.instruction.shapes)
        share = n_bytes / evidence.memory_bytes
        key = (op.computation, op.instruction.name)
        if n_bytes < evidence.least_activation_bytes or not _computes(op) or key in starts:
            continue
        if not evidence.is_activation(op.computation, op.instruction):
            continue
        if key in gathers - needless_gathers:
            continue
        computation = evidence.module.computations[op.computation]
        missing = evidence.missing_axes(computation, op.instruction.name)
        is_whole = bool(batch_axes) and batch_axes <= missing and _reads_any(evidence, op, batch)
        is_repeated = op.flops > 0 and missing == set(evidence.mesh)
        n_chips = evidence.n_chips(missing)
        if not (is_whole or is_repeated) or n_chips == 1:
            continue
        if fault is None or (n_chips, n_bytes) > (fault.n_chips, fault.bytes):
            constraint = evidence.constraint_on(op.instruction, missing)
            largest = max(op.instruction.shapes, key=lambda shape: shape.padded_bytes)
            fault = Fault(
                kind="gathered whole" if key in gathers else "whole activation",
                subject=show_shape(largest),
                axes=tuple(axis for axis in evidence.mesh if axis in missing),
                n_chips=n_chips,
                bytes=n_bytes,
                share=share,
                constraint=constraint.sources if constraint else (),
                **evidence.place(op.instruction),
            )
    if fault:
        yield fault


def repeated_work(evidence: Evidence) -> Iterator[Fault]:
    """Yield a fault if chips along some mesh axes compute the same products."""
    repeated: dict[frozenset[str], list[Product]] = {}
    total = max(evidence.program.flops, 1.0)
    for product in evidence.products():
        axes = evidence.missing_axes(product.computation, *product.instruction.operands[:2])
        flops = product.flops * (1 - 1 / evidence.n_chips(axes))
        repeated.setdefault(axes, []).append(replace(product, flops=flops))
    for axes, products in repeated.items():
        constraint, constrained = _constrained(evidence, axes, products)
        if _flops(constrained) >= CONSTRAINED_SHARE * total:
            yield _repetition(evidence, axes, constrained, constraint)
        elif axes and _flops(products) >= REPEATED_SHARE * total:
            yield _repetition(evidence, axes, products, ())


def _constrained(
    evidence: Evidence, axes: frozenset[str], products: Iterable[Product]
) -> tuple[tuple[SourceLine, ...], list[Product]]:
    """The lines of the constraint by which most repeated FLOPs are repeated, and their products."""
    by_constraint: dict[tuple[SourceLine, ...], list[Product]] = {}
    for product in products:
        constraint = evidence.constraint_on(product.instruction, axes)
        if constraint:
            by_constraint.setdefault(constraint.sources, []).append(product)
    return max(by_constraint.items(), key=lambda item: _flops(item[1]), default=((), []))


def _repetition(
    evidence: Evidence,
    axes: frozenset[str],
    products: Iterable[Product],
    constraint: tuple[SourceLine, ...],
) -> Fault:
    """The fault of products that chips along mesh axes repeat, and of what is gathered for them.

    Args:
        products: with the FLOPs that are repeated.
    """
    largest = max(products, key=lambda product: product.flops).instruction
    op_names = {product.instruction.op_name for product in products}
    gathers = []
    for move in evidence.program.collectives:
        is_along = bool(move.axes) and axes.issuperset(move.axes)
        if is_along and move.kind == "all_gather" and move.op_name in op_names:
            gathers.append(move)
    flops = _flops(products)
    seconds = 0.0
    if evidence.program.flops_per_s:
        seconds = flops / evidence.program.flops_per_s + evidence.exposed_s(gathers)
    return Fault(
        kind="repeated work",
        subject=show_shape(largest.shapes[0]),
        axes=tuple(axis for axis in evidence.mesh if axis in axes),
        n_chips=evidence.n_chips(axes),
        bytes=sum(move.received_bytes * move.n_runs for move in gathers),
        share=flops / max(evidence.program.flops, 1.0),
        seconds=seconds,
        constraint=constraint,
        **evidence.place(largest),
    )


def _flops(products: Iterable[Product]) -> float:
    return sum(product.flops for product in products)


def _is_index(parameter: Instruction) -> bool:
    """Whether an argument has indices, such as tokens; weights in int8 are none."""
    return parameter.shapes[0].dtype in _INDICES


def _batch_arguments(evidence: Evidence) -> dict[int, frozenset[str]]:
    """Numbers of the arguments that have the tokens of the batch, with the axes that split it.

    They are integers whose first dim is sharded. If they are large, they are packed weights.
    """
    arguments = {}
    n_bytes = 0
    for number, axes in enumerate(evidence.argument_axes):
        parameter = evidence.arguments[number]
        if axes and axes[0] and _is_index(parameter):
            arguments[number] = frozenset(axes[0])
            n_bytes += parameter.bytes
    is_small = n_bytes <= TOKENS_SHARE * evidence.program.compiled.memory.arguments
    return arguments if is_small else {}


def _reads_any(evidence: Evidence, op: ScheduledOp, numbers: Iterable[int]) -> bool:
    """Whether an operation depends on any of the arguments with these numbers."""
    computation = evidence.module.computations[op.computation]
    arguments = evidence.replication.arguments(computation, op.instruction.name)
    return not arguments.isdisjoint(numbers)


def _place(move: Collective) -> tuple[str, str]:
    """Computation and name of the instruction whose result a collective is."""
    return move.computation, move.done or move.instruction


def _computes(op: ScheduledOp) -> bool:
    """Whether an operation makes a new array: it does not rename, copy or allocate one."""
    opcode = op.instruction.opcode
    return opcode not in FREE and opcode not in _MOVES
