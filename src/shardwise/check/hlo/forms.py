"""The instructions that start and end each collective, in the four forms that compilers use.

sync       one op, scheduled by itself or inside a fusion that does not overlap it
async      a pair: `all-gather-start` and `-done`, `async-start` and `-done`, send and recv-done
fused      a chain of fusions, on TPUs, that run the collective alongside their own work; the first
           starts it, the last ends it, and each contains a copy of the op
offloaded  a pair that runs on another core: `call-start` on the thread "sparsecore"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.check.hlo.text import Computation, Instruction, Module

COLLECTIVES = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip
# Opcodes that do no work and therefore do not overlap with a collective.
IDLE = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScheduledCollective:
    """A collective op and its place in the schedule.

    Args:
        op: the collective instruction itself.
        computation: the computation that contains `op`.
        start: the scheduled instruction that starts it: `op`, or a fusion or call around it.
        done: the scheduled instruction that waits for it; None if `start` waits itself.
        form: sync, async, fused or offloaded.
    """

    op: Instruction
    computation: Computation
    start: Instruction
    done: Instruction | None
    form: str


def sync_opcode(instruction: Instruction) -> str:
    """The opcode without the suffix `-start`."""
    return instruction.opcode.removesuffix("-start")


def is_idle(instruction: Instruction) -> bool:
    """Whether an instruction does no work, or only waits."""
    if instruction.opcode == "custom-call":
        target = instruction.attribute("custom_call_target")
        return target.startswith(("PrepareAsync", "AllocateBuffer"))
    return instruction.opcode in IDLE or instruction.opcode.endswith(("-done", "-update"))


def scheduled_collectives(
    module: Module, computation: Computation
) -> Iterator[ScheduledCollective]:
    """Yield the collectives that start in a computation, in schedule order."""
    chains = _chains(module, computation)
    dones = computation.dones()
    for instruction in computation.instructions.values():
        done = dones.get(instruction.name)
        if instruction.opcode == "fusion":
            yield from _in_fusion(module, instruction, chains)
        elif instruction.opcode in ("async-start", "call-start"):
            callee = module.callee(instruction)
            form = _wrapper_form(instruction, callee)
            for op in _ops_inside(module, callee):
                yield ScheduledCollective(op, callee, instruction, done, form)
        elif instruction.opcode == "send":
            done = _recv_done(computation, instruction) or done
            yield ScheduledCollective(instruction, computation, instruction, done, "async")
        elif sync_opcode(instruction) in COLLECTIVES:
            config = instruction.backend_config.get("collective_backend_config", {})
            form = "async"
            if done is None or config.get("is_sync"):
                form = "sync"
            yield ScheduledCollective(instruction, computation, instruction, done, form)


def _wrapper_form(start: Instruction, callee: Computation) -> str:
    """The form of the collectives in the computation that an asynchronous start calls."""
    thread = start.attribute("async_execution_thread")
    if thread == "main" or not (thread or callee.thread):
        return "async"
    return "offloaded"


def _ops_inside(module: Module, computation: Computation) -> Iterator[Instruction]:
    """Yield the collectives of a computation and of the fusions and calls in it."""
    for instruction in computation.instructions.values():
        if instruction.opcode in COLLECTIVES:
            yield instruction
        elif instruction.opcode in ("fusion", "call"):
            yield from _ops_inside(module, module.callee(instruction))


def _in_fusion(
    module: Module, fusion: Instruction, chains: Mapping[str, list[Instruction]]
) -> Iterator[ScheduledCollective]:
    """Yield the collectives that start in a fusion; later fusions of a chain yield none."""
    callee = module.callee(fusion)
    for op in _ops_inside(module, callee):
        chain_id = op.attribute("chain_id")
        if not chain_id:
            container = _containing_computation(module, callee, op)
            yield ScheduledCollective(op, container, fusion, None, "sync")
        elif chains[chain_id][0].name == fusion.name:
            yield ScheduledCollective(op, callee, fusion, chains[chain_id][-1], "fused")


def _containing_computation(
    module: Module, computation: Computation, op: Instruction
) -> Computation:
    """The computation that contains an instruction: `computation`, or one that it calls."""
    if computation.instructions.get(op.name) is op:
        return computation
    for instruction in computation.instructions.values():
        for name in instruction.callees:
            callee = _containing_computation(module, module.computations[name], op)
            if callee.instructions.get(op.name) is op:
                return callee
    return computation


def _chains(module: Module, computation: Computation) -> dict[str, list[Instruction]]:
    """Chain id of a fused collective -> the fusions that run it, in schedule order."""
    fusions: dict[str, list[Instruction]] = {}
    for fusion in computation.instructions.values():
        if fusion.opcode == "fusion":
            for op in _ops_inside(module, module.callee(fusion)):
                chain_id = op.attribute("chain_id")
                if chain_id:
                    fusions.setdefault(chain_id, []).append(fusion)
    return fusions


def _recv_done(computation: Computation, send: Instruction) -> Instruction | None:
    """The recv-done that ends a send, matched by the rendezvous name of its recv; else None."""
    rendezvous = send.attribute("_xla_host_transfer_rendezvous")
    if not rendezvous:
        return None
    for instruction in computation.instructions.values():
        if instruction.opcode == "recv-done":
            recv = computation.operand(instruction)
            name = recv.attribute("_xla_host_transfer_rendezvous")
            if recv.opcode == "recv" and name == rendezvous:
                return instruction
    return None


def overlapped_instructions(
    computation: Computation, collective: ScheduledCollective
) -> tuple[str, ...]:
    """Names of the instructions that do work between start and done of a collective."""
    if collective.done is None or collective.form == "sync":
        return ()
    names = list(computation.instructions)
    start = names.index(collective.start.name)
    done = names.index(collective.done.name)
    between = names[start + 1 : done]
    return tuple(name for name in between if not is_idle(computation.instructions[name]))
