"""Start and end of each collective of a computation, in every form that the compiler uses.

sync       an op scheduled on its own, or alone inside a fusion
async      a pair: `all-gather-start` and `-done`, `async-start` and `-done`, send and recv-done
fused      a chain of fusions on a TPU that run it alongside their own work: the first starts it,
           the last ends it; each contains a copy of the collective
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
# Opcodes without work: not counted among what overlaps with a collective.
IDLE = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScheduledCollective:
    """A collective op and its place in the schedule.

    Args:
        op: the collective itself, and `computation` the one that contains it.
        start: the scheduled instruction that starts it: the op, or a fusion or call around it.
        done: the scheduled instruction that waits for it, None where `start` does.
        form: sync, async, fused or offloaded.
    """

    op: Instruction
    computation: Computation
    start: Instruction
    done: Instruction | None
    form: str


def sync_opcode(instruction: Instruction) -> str:
    """The opcode without `-start`."""
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
            inner = module.callee(instruction)
            form = _wrapper_form(instruction, inner)
            for op in _ops_inside(module, inner):
                yield ScheduledCollective(op, inner, instruction, done, form)
        elif instruction.opcode == "send":
            done = _recv_done(computation, instruction) or done
            yield ScheduledCollective(instruction, computation, instruction, done, "async")
        elif sync_opcode(instruction) in COLLECTIVES:
            config = instruction.backend_config.get("collective_backend_config", {})
            form = "async"
            if done is None or config.get("is_sync"):
                form = "sync"
            yield ScheduledCollective(instruction, computation, instruction, done, form)


def _wrapper_form(start: Instruction, inner: Computation) -> str:
    """The form of the collectives in an asynchronous computation."""
    thread = start.attribute("async_execution_thread")
    if thread == "main" or not (thread or inner.thread):
        return "async"
    return "offloaded"


def _ops_inside(module: Module, computation: Computation) -> Iterator[Instruction]:
    """Collectives of a computation that runs as one op, and of the fusions in it."""
    for instruction in computation.instructions.values():
        if instruction.opcode in COLLECTIVES:
            yield instruction
        elif instruction.opcode in ("fusion", "call"):
            yield from _ops_inside(module, module.callee(instruction))


def _in_fusion(
    module: Module, fusion: Instruction, chains: Mapping[str, list[Instruction]]
) -> Iterator[ScheduledCollective]:
    """Collectives that start in a fusion; the later links of a chain are skipped."""
    inner = module.callee(fusion)
    for op in _ops_inside(module, inner):
        chain_id = op.attribute("chain_id")
        if not chain_id:
            yield ScheduledCollective(op, _home(module, inner, op), fusion, None, "sync")
        elif chains[chain_id][0].name == fusion.name:
            yield ScheduledCollective(op, inner, fusion, chains[chain_id][-1], "fused")


def _home(module: Module, computation: Computation, op: Instruction) -> Computation:
    """The computation at or below `computation` that contains an instruction."""
    if computation.instructions.get(op.name) is op:
        return computation
    for instruction in computation.instructions.values():
        for callee in instruction.callees:
            inner = _home(module, module.computations[callee], op)
            if inner.instructions.get(op.name) is op:
                return inner
    return computation


def _chains(module: Module, computation: Computation) -> dict[str, list[Instruction]]:
    """Chain id -> the fusions of a computation that are its links, in schedule order."""
    links: dict[str, list[Instruction]] = {}
    for fusion in computation.instructions.values():
        if fusion.opcode == "fusion":
            for op in _ops_inside(module, module.callee(fusion)):
                chain_id = op.attribute("chain_id")
                if chain_id:
                    links.setdefault(chain_id, []).append(fusion)
    return links


def _recv_done(computation: Computation, send: Instruction) -> Instruction | None:
    """The recv-done that ends a send: its recv has the same rendezvous name."""
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
    return tuple(n for n in names[start + 1 : done] if not is_idle(computation.instructions[n]))
