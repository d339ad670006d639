"""Search for the faults of a user's program: causes of memory and time that it could do without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardwise.check.array_names import user_scope
from shardwise.check.compiled_costs import AnalyzedProgram
from shardwise.check.compiling.result import Upcast
from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.replication import replication
from shardwise.check.hlo.reshards import needless_moves
from shardwise.check.hlo.text import Instruction
from shardwise.check.hlo.traffic import padded_hbm_bytes
from shardwise.check.hlo.updates import ArgumentUpdates, argument_updates
from shardwise.check.user.fault import (
    COPIES_SHARE,
    FLOPS_SHARE,
    MEMORY_SHARE,
    TRAFFIC_SHARE,
    Evidence,
    Fault,
    add_bytes,
    argument_of,
    large_leaves,
    show_shape,
)
from shardwise.check.user.whole import repeated_work, whole_activation, whole_arguments, whole_batch

ASSUMED_MEMORY_BYTES = 2**34  # of a device of which no public source says how much it has
# Ends of op names of table lookups and of their gradients, which move tokens to the rows.
_LOOKUPS = ("gather", "scatter-add", "scatter", "dynamic_slice")


def find_faults(program: AnalyzedProgram) -> tuple[Fault, ...]:
    """The faults of a program; what may be the cause of others comes first."""
    compiled = program.compiled
    evidence = Evidence(
        program=program,
        replication=replication(program.module, compiled.mesh),
        memory_bytes=compiled.target.memory_bytes or ASSUMED_MEMORY_BYTES,
    )
    updates = argument_updates(program.module)
    moves = needless_moves(program.module, program.collectives, evidence.replication)
    faults = [
        *whole_arguments(evidence),
        *whole_batch(evidence),
        *whole_activation(evidence, moves),
        *_reshards_in_loops(evidence, moves),
        *_fp32_products(evidence),
        *_undonated(evidence, updates),
        *_copied_arguments(evidence, updates),
    ]
    if not any(fault.kind.startswith("whole") for fault in faults):
        faults += repeated_work(evidence)
    return tuple(faults)


def _undonated(evidence: Evidence, updates: ArgumentUpdates) -> Iterator[Fault]:
    """Yield a fault if arguments are returned updated, but not donated."""
    sizes: dict[str, int] = {}
    for parameter in updates.unaliased():
        add_bytes(sizes, evidence, parameter)
    n_bytes = sum(sizes.values())
    share = n_bytes / evidence.memory_bytes
    if share >= MEMORY_SHARE:
        names = tuple(dict.fromkeys(map(argument_of, large_leaves(sizes))))
        yield Fault(kind="not donated", arguments=names, bytes=n_bytes, share=share)


def _copied_arguments(evidence: Evidence, updates: ArgumentUpdates) -> Iterator[Fault]:
    """Yield a fault if copies of whole arguments take a noticeable share of the HBM traffic."""
    ops = {(op.computation, op.instruction.name): op for op in evidence.program.ops}
    names = []
    n_bytes = 0.0
    traffic = 0.0
    for computation, copy, argument in updates.copies():
        op = ops.get((computation, copy.name))
        size = padded_hbm_bytes(evidence.module, copy.shapes)
        if op and size >= MEMORY_SHARE * evidence.memory_bytes:
            names.append(argument.op_name)
            n_bytes += size
            traffic += op.hbm_bytes
    share = traffic / max(evidence.program.hbm_bytes, 1.0)
    if share >= COPIES_SHARE:
        yield Fault(
            kind="copied arguments",
            arguments=tuple(dict.fromkeys(map(argument_of, names))),
            bytes=int(n_bytes),
            share=share,
        )


def _fp32_products(evidence: Evidence) -> Iterator[Fault]:
    """Yield a fault if a noticeable share of all FLOPs is in fp32 products of 16-bit arrays."""
    flops: dict[Upcast, float] = {}
    examples: dict[Upcast, Instruction] = {}
    for product in evidence.products():
        instruction = product.instruction
        sources = evidence.module.sources.lines_of(instruction.attributes)
        for upcast in evidence.program.compiled.upcasts:
            # Functions that were exported to another machine keep the names, but not the lines.
            is_line = upcast.source is None or not sources or upcast.source in sources
            if is_line and instruction.op_name.endswith(upcast.op_name):
                flops[upcast] = flops.get(upcast, 0.0) + product.flops
                examples.setdefault(upcast, instruction)
                break
    share = sum(flops.values()) / max(evidence.program.flops, 1.0)
    if share >= FLOPS_SHARE:
        upcast = max(flops, key=flops.__getitem__)
        largest = examples[upcast]
        place = evidence.place(largest)
        if upcast.source and not place["sources"]:
            place["sources"] = (upcast.source,)
        yield Fault(
            kind="fp32 product", subject=show_shape(largest.shapes[0]), share=share, **place
        )


def _reshards_in_loops(evidence: Evidence, moves: Iterable[Collective]) -> Iterator[Fault]:
    """Yield a fault for the needless moves of activations in loops, with the largest of them."""
    collectives = evidence.program.collectives
    total = max(sum(move.received_bytes * move.n_runs for move in collectives), 1)
    in_loops = []
    for move in moves:
        is_lookup = move.op_name.rpartition("/")[2] in _LOOKUPS
        if move.n_runs > 1 and not is_lookup and evidence.is_activation(move.computation, move.op):
            in_loops.append(move)
    n_bytes = sum(move.received_bytes * move.n_runs for move in in_loops)
    if n_bytes >= TRAFFIC_SHARE * total:
        largest = max(in_loops, key=lambda move: move.received_bytes * move.n_runs)
        yield Fault(
            kind="reshard in a loop",
            subject=f"{largest.kind.replace('_', '-')} of {show_shape(largest.op.shapes[-1])}",
            axes=largest.axes,
            n_chips=largest.group_size,
            bytes=n_bytes,
            share=n_bytes / total,
            n_runs=largest.n_runs,
            seconds=evidence.exposed_s(in_loops),
            scope=user_scope(largest.op_name),
            sources=largest.sources,
        )
