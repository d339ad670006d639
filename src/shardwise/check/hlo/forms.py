"""Where the collectives of a computation start and end, in every form of the compiler.

sync       an op of its own in the schedule, or alone inside a fusion
async      a pair: `all-gather-start` and `-done`, `async-start` and `-done`, send and recv-done
fused      a chain of fusions on a TPU that carry it beside their own work: one of them starts
           it, some go on with it, one ends it; each holds a copy of the collective
offloaded  a pair that runs on another core: `call-start` on the thread "sparsecore"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.check.hlo.text import Computation, Instruction, Module

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# What does no work of its own: not counted among what runs beside a collective.
IDLE = (
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
)


@dataclass(frozen=True, slots=True)
class Found:
    """A collective op, where it is scheduled and where it is written."""

    one: Instruction
    block: Computation
    start: Instruction
    done: Instruction | None
    form: str


def base(one: Instruction) -> str:
    """The opcode without -start."""
    return one.opcode.removesuffix("-start")


def is_idle(one: Instruction) -> bool:
    """It does no work of its own, or only waits."""
    if one.opcode == "custom-call":
        return one.word("custom_call_target").startswith(("PrepareAsync", "AllocateBuffer"))
    return one.opcode in IDLE or one.opcode.endswith(("-done", "-update"))


def in_block(module: Module, block: Computation) -> Iterator[Found]:
    chains = _chains(module, block)
    done = {user.operands[0]: user for user in block.instructions.values() if _ends(user)}
    for one in block.instructions.values():
        end = done.get(one.name)
        if one.opcode == "fusion":
            yield from _in_fusion(module, block, one, chains)
        elif one.opcode in ("async-start", "call-start"):
            inner = module.computations[one.called[0]]
            form = "offloaded" if inner.thread or one.word("async_execution_thread") else "async"
            form = "async" if one.word("async_execution_thread") == "main" else form
            yield from (Found(i, inner, one, end, form) for i in _inside(module, inner))
        elif one.opcode == "send":
            yield Found(one, block, one, _receive(block, one) or end, "async")
        elif base(one) in COLLECTIVES:
            config = one.backend.get("collective_backend_config", {})
            waits = end is None or bool(config.get("is_sync"))
            yield Found(one, block, one, end, "sync" if waits else "async")


def _ends(one: Instruction) -> bool:
    return one.opcode.endswith("-done") and bool(one.operands)


def _inside(module: Module, block: Computation) -> Iterator[Instruction]:
    """Collectives of a computation that runs as one op, and of the fusions in it."""
    for one in block.instructions.values():
        if one.opcode in COLLECTIVES:
            yield one
        elif one.opcode in ("fusion", "call"):
            yield from _inside(module, module.computations[one.called[0]])


def _in_fusion(
    module: Module, block: Computation, fusion: Instruction, chains: Mapping[str, list[Instruction]]
) -> Iterator[Found]:
    """Collectives that start in a fusion; the other links of a chain are passed over."""
    inner = module.computations[fusion.called[0]]
    for one in _inside(module, inner):
        key = _chain(one)
        if key is None:
            yield Found(one, _home(module, inner, one), fusion, None, "sync")
        elif chains[key][0].name == fusion.name:
            yield Found(one, inner, fusion, chains[key][-1], "fused")


def _home(module: Module, block: Computation, one: Instruction) -> Computation:
    """The computation below `block` in which an instruction is written."""
    if block.instructions.get(one.name) is one:
        return block
    for outer in block.instructions.values():
        for called in outer.called:
            inner = _home(module, module.computations[called], one)
            if inner.instructions.get(one.name) is one:
                return inner
    return block


def _chain(one: Instruction) -> str | None:
    return one.word("chain_id") or None


def _chains(module: Module, block: Computation) -> dict[str, list[Instruction]]:
    """Chain -> its links in the order of the schedule, of one computation."""
    links: dict[str, list[Instruction]] = {}
    for one in block.instructions.values():
        if one.opcode == "fusion":
            for inside in _inside(module, module.computations[one.called[0]]):
                key = _chain(inside)
                if key is not None:
                    links.setdefault(key, []).append(one)
    return links


def _receive(block: Computation, send: Instruction) -> Instruction | None:
    """The recv-done that ends what a send has started: they meet under one name."""
    name = send.word("_xla_host_transfer_rendezvous")
    recv = [
        one.name
        for one in block.instructions.values()
        if one.opcode == "recv" and one.word("_xla_host_transfer_rendezvous") == name
    ]
    ends = [one for one in block.instructions.values() if one.opcode == "recv-done"]
    return next((one for one in ends if one.operands[0] in recv), None) if name else None


def beside(block: Computation, found: Found) -> tuple[str, ...]:
    if found.done is None or found.form == "sync":
        return ()
    names = list(block.instructions)
    between = names[names.index(found.start.name) + 1 : names.index(found.done.name)]
    return tuple(name for name in between if not is_idle(block.instructions[name]))
