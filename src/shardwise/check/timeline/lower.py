"""A compiled program as steps: which engine does each instruction, for how long, and what waits.

Collectives go onto the links under their groups, copies between HBM and VMEM onto the DMA engine,
copies to and from the host onto its own two, what is handed to SparseCores onto those and, when it
is a collective, onto the links. Everything else is an operation of the core. A conditional is taken
to choose its longer side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.forms import is_idle
from shardwise.check.hlo.loops import trips
from shardwise.check.hlo.shape import HBM, HOST
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.timeline.durations import Speed, Work
from shardwise.check.timeline.network import Network, Route
from shardwise.check.timeline.schedule import simulate
from shardwise.check.timeline.steps import COPY, Await, Compute, Loop, Step, Transfer

COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
ENDS = " ends"  # after the name of an instruction: what it awaits
OTHER = "other groups"  # label of collectives whose groups are not those of mesh axes

Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """What steps are made with.

    Args:
        found: collectives of the program.
        work: FLOPs and bytes of one run of an instruction of a computation.
        group: planned operation and pass by the path of names of an instruction.
        inexact: instructions whose groups are no runs along the axes of the torus; filled here.
    """

    module: Module
    network: Network
    speed: Speed
    found: Mapping[tuple[str, str], list[Collective]]
    work: Callable[[Computation, Instruction], Work]
    group: Callable[[str], Group]
    inexact: set[str] = field(default_factory=set)

    def steps(self, name: str) -> tuple[Step, ...]:
        """The steps of one computation."""
        block = self.module.computations[name]
        drives = self._drives(block)
        return tuple(s for one in block.instructions.values() for s in self._of(block, one, drives))

    def _of(
        self, block: Computation, one: Instruction, drives: Mapping[str, tuple[str, ...]]
    ) -> tuple[Step, ...]:
        if found := self.found.get((block.name, one.name)):
            return (*self._collective(one, found), *self._products(block, one, drives))
        if one.opcode == "while":
            count = trips(self.module, block, one)
            body = self.steps(one.word("body"))
            return (Loop(name=one.name, trips=1 if count is None else count, body=body),)
        if one.opcode == "conditional":
            sides = [self.steps(name) for name in one.called]
            return max(sides, key=lambda side: simulate(side, cap=0).step_s)
        if one.opcode == "call":
            return self.steps(one.called[0])
        if one.opcode in COPIES:
            return (self._copy(one),)
        if one.opcode in ("async-start", "call-start"):
            return (self._elsewhere(one),)
        if ended := drives.get(one.name + ENDS):
            return (*self._products(block, one, drives), *(Await(name=name) for name in ended))
        if one.opcode.endswith("-done") and one.operands:
            return (Await(name=one.operands[0]),)
        if is_idle(one) or one.opcode.endswith("-start") or one.opcode == "recv":
            return ()
        return (self._compute(block, one, drives),)

    def _products(
        self, block: Computation, one: Instruction, drives: Mapping[str, tuple[str, ...]]
    ) -> tuple[Step, ...]:
        """The first and the last link of a chain may hold work of their own."""
        own = one.opcode == "fusion" and self.work(block, one).flops
        return (self._compute(block, one, drives),) if own else ()

    def _compute(
        self, block: Computation, one: Instruction, drives: Mapping[str, tuple[str, ...]]
    ) -> Compute:
        return Compute(
            name=one.name,
            group=self.group(self.named(one)),
            seconds=self.speed.seconds(one, self.work(block, one)),
            drives=drives.get(one.name, ()),
        )

    def named(self, one: Instruction) -> str:
        """Path of names of an instruction; a fusion has that of the product in it."""
        inside = [one]
        for each in inside:
            if each.opcode == "fusion":
                inside += self.module.computations[each.called[0]].instructions.values()
        named = [each for each in inside if each.op_name]
        products = [each for each in named if each.opcode in ("dot", "convolution")]
        return next((each.op_name for each in [*products, *named]), "")

    def _drives(self, block: Computation) -> dict[str, tuple[str, ...]]:
        """Fused collectives that move while an instruction runs, and all that end at one: a
        recv-done ends what a send has started."""
        links: dict[str, list[str]] = {}
        for (where, start), found in self.found.items():
            for one in found if where == block.name else ():
                if one.done:
                    links.setdefault(one.done + ENDS, []).append(start)
                if one.form == "fused":
                    chain = self._chains(block.instructions[start])
                    for name in (start, *one.beside, one.done):
                        if chain & self._chains(block.instructions[name]):
                            links.setdefault(name, []).append(start)
        return {name: tuple(starts) for name, starts in links.items()}

    def _chains(self, one: Instruction) -> set[str]:
        """Chains of fused collectives that a fusion is a link of."""
        if one.opcode != "fusion":
            return set()
        inside = self.module.computations[one.called[0]].instructions.values()
        return {word for each in inside if (word := each.word("chain_id"))}

    def _collective(self, one: Instruction, found: list[Collective]) -> tuple[Step, ...]:
        routes = [self._route(c) for c in found]
        if not all(route.exact for route in routes):
            self.inexact.add(one.name)
        first = found[0]
        engines = dict.fromkeys(e for route in routes for e in route.engines)
        if first.form == "offloaded":
            engines["sparsecore"] = None
        sent = Transfer(
            name=one.name,
            label="+".join(first.axes) or OTHER,
            kind=first.kind,
            form=first.form,
            group=self.group(first.op_name),
            engines=tuple(engines),
            seconds=sum(r.time_s(c.joined_bytes) for r, c in zip(routes, found, strict=True)),
            bytes=float(sum(c.joined_bytes for c in found)),
        )
        return (sent, Await(name=one.name)) if first.form == "sync" else (sent,)

    def _route(self, one: Collective) -> Route:
        if one.between_slices:
            return self.network.between_slices(one.kind, one.group_size)
        return self.network.route(one.kind, one.groups)

    def _copy(self, one: Instruction) -> Transfer:
        """Between memories. The result of a start holds both ends, the target first in a copy."""
        ends = [s for s in one.shapes if s.elements > 1] or list(one.shapes[:1])
        moved = float(min(s.padded_bytes for s in ends))
        host = any(s.memory_space == HOST for s in ends)
        out = ends[0 if one.opcode == "copy-start" else -1].memory_space == HOST
        in_hbm = sum(s.memory_space == HBM for s in ends)
        seconds = moved / self.speed.host if host else moved * in_hbm / self.speed.hbm
        return Transfer(
            name=one.name,
            label="host" if host else "hbm",
            kind=COPY,
            form="async",
            group=self.group(self.named(one)),
            engines=(("host out" if out else "host in") if host else "hbm",),
            seconds=seconds,
            bytes=moved,
        )

    def _elsewhere(self, one: Instruction) -> Transfer:
        """Work that another core does while this one goes on: its bytes at the rate of HBM."""
        inner = self.module.computations[one.called[0]]
        works = [self.work(inner, each) for each in inner.instructions.values()]
        moved = sum(w.hbm_bytes for w in works)
        return Transfer(
            name=one.name,
            label=inner.thread or "async",
            kind="work",
            form="offloaded",
            group=self.group(self.named(one)),
            engines=(inner.thread or "async",),
            seconds=moved / self.speed.hbm,
            bytes=moved,
        )
