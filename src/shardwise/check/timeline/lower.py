"""Lowering of a compiled program to steps: the engine, seconds and waits of each instruction.

Collectives run on the links that connect their groups, copies between HBM and VMEM on the engine
`hbm`, copies to and from the host on the engines `host in` and `host out`, and offloaded work on
the SparseCores (an offloaded collective on the links too). Everything else is an operation of the
core. A conditional is assumed to take its longest branch, unless it is known which one is taken: in
each trip of a loop that runs in lockstep, devices take the branches of their own events, and wait
for the slowest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.forms import is_idle
from shardwise.check.hlo.loops import branches_of, is_optional, scope_of, trip_count
from shardwise.check.hlo.shape import HBM, HOST
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.timeline.durations import DeviceRates, OpWork
from shardwise.check.timeline.network import Network, Route
from shardwise.check.timeline.schedule import simulate
from shardwise.check.timeline.steps import COPY, Await, Compute, Loop, Operation, Step, Transfer

COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
OTHER_GROUPS = "other groups"  # label of collectives whose groups are not those of mesh axes
# Branches that a device takes in a trip: name scope of a conditional -> index of its branch.
Branches = Mapping[str, int]
# Trips of a loop in lockstep: how many there are with these branches, one mapping for each device.
Lockstep = tuple[tuple[int, tuple[Branches, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Dependencies:
    """The instructions of a computation that advance or await collectives.

    Args:
        advances: instruction -> starts of the fused collectives that progress while it runs.
        awaited_by: instruction -> starts of the collectives that it waits for; a recv-done waits
            for a send.
    """

    advances: dict[str, tuple[str, ...]]
    awaited_by: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """Converts the computations of a compiled program to steps.

    Args:
        collectives: (computation, instruction) -> the collectives that start there.
        work_of: returns FLOPs and bytes of one run of an instruction of a computation.
        operation_of: returns the planned operation and the pass of an op name.
        lockstep: trips of the loop whose conditionals these are.
        inexact: names of collectives whose groups are not evenly spaced along the torus axes;
            filled by `steps`.
    """

    module: Module
    network: Network
    rates: DeviceRates
    collectives: Mapping[tuple[str, str], list[Collective]]
    work_of: Callable[[Computation, Instruction], OpWork]
    operation_of: Callable[[str], Operation]
    lockstep: Lockstep = ()
    inexact: set[str] = field(default_factory=set)

    def steps(self, name: str, taken: Branches | None = None) -> tuple[Step, ...]:
        """The steps of one computation.

        Args:
            taken: the branches of conditionals in it, as far as they are known.
        """
        computation = self.module.computations[name]
        dependencies = self._dependencies(computation)
        steps: list[Step] = []
        for instruction in computation.instructions.values():
            steps += self._steps_of(computation, instruction, dependencies, taken or {})
        return tuple(steps)

    def _steps_of(
        self,
        computation: Computation,
        instruction: Instruction,
        dependencies: _Dependencies,
        taken: Branches,
    ) -> Iterator[Step]:
        """Yield the steps of one instruction."""
        opcode = instruction.opcode
        collectives = self.collectives.get((computation.name, instruction.name))
        awaited = dependencies.awaited_by.get(instruction.name)
        if collectives:
            yield from self._collective(instruction, collectives)
            yield from self._chain_work(computation, instruction, dependencies)
        elif scope_of(instruction) in taken and is_optional(self.module, computation, instruction):
            branch = taken[scope_of(instruction)]
            if opcode == "conditional":
                yield from self.steps(branches_of(instruction)[branch], taken)
            elif branch:
                yield from self.steps(instruction.attribute("body"), taken)
        elif opcode == "while":
            yield from self._loop(computation, instruction, taken)
        elif opcode == "conditional":
            yield from _slowest(self.steps(callee, taken) for callee in instruction.callees)
        elif opcode == "call":
            yield from self.steps(instruction.callees[0], taken)
        elif opcode in COPIES:
            yield self._copy(instruction)
        elif opcode in ("async-start", "call-start"):
            yield self._offloaded(instruction)
        elif awaited:
            yield from self._chain_work(computation, instruction, dependencies)
            yield from (Await(name=name) for name in awaited)
        elif opcode.endswith("-done") and instruction.operands:
            yield Await(name=instruction.operands[0])
        elif not is_idle(instruction) and not opcode.endswith("-start") and opcode != "recv":
            yield self._compute(computation, instruction, dependencies)

    def _loop(
        self, computation: Computation, instruction: Instruction, taken: Branches
    ) -> Iterator[Loop]:
        """Yield a loop; one in lockstep as one loop for each group of equal trips."""
        n_trips = trip_count(self.module, computation, instruction)
        body = instruction.attribute("body")
        if not self._is_lockstep(body, n_trips):
            trips = 1 if n_trips is None else n_trips
            yield Loop(name=instruction.name, trips=trips, body=self.steps(body, taken))
            return
        bodies: dict[tuple[tuple[str, int], ...], tuple[Step, ...]] = {}
        for trips, of_devices in self.lockstep:
            for branches in of_devices:
                key = tuple(branches.items())
                if key not in bodies:
                    bodies[key] = self.steps(body, {**taken, **branches})
            slowest = _slowest(bodies[tuple(branches.items())] for branches in of_devices)
            yield Loop(name=instruction.name, trips=trips, body=slowest)

    def _is_lockstep(self, body: str, n_trips: int | None) -> bool:
        """Whether the trips of a loop are those of `lockstep`."""
        if n_trips is None or n_trips != sum(trips for trips, _ in self.lockstep):
            return False
        known = {scope for _, devices in self.lockstep for taken in devices for scope in taken}
        computation = self.module.computations[body]
        return any(
            scope_of(op) in known and is_optional(self.module, computation, op)
            for op in computation.instructions.values()
        )

    def _chain_work(
        self, computation: Computation, instruction: Instruction, dependencies: _Dependencies
    ) -> Iterator[Step]:
        """Yield the matmuls of a fusion that starts or ends a fused collective."""
        if instruction.opcode == "fusion" and self.work_of(computation, instruction).flops:
            yield self._compute(computation, instruction, dependencies)

    def _compute(
        self, computation: Computation, instruction: Instruction, dependencies: _Dependencies
    ) -> Compute:
        work = self.work_of(computation, instruction)
        return Compute(
            name=instruction.name,
            operation=self.operation_of(self.op_name(instruction)),
            seconds=self.rates.seconds(instruction, work),
            advances=dependencies.advances.get(instruction.name, ()),
            flops=work.flops,
            hbm_bytes=work.hbm_bytes,
        )

    def op_name(self, instruction: Instruction) -> str:
        """Op name of an instruction; for a fusion, of the matmul or convolution in it."""
        instructions = [instruction]
        for nested in instructions:
            if nested.opcode == "fusion":
                instructions += self.module.callee(nested).instructions.values()
        op_name = ""
        for nested in instructions:
            if nested.op_name and nested.opcode in ("dot", "convolution"):
                return nested.op_name
            op_name = op_name or nested.op_name
        return op_name

    def _dependencies(self, computation: Computation) -> _Dependencies:
        advances: dict[str, tuple[str, ...]] = {}
        awaited_by: dict[str, tuple[str, ...]] = {}
        for (computation_name, start), collectives in self.collectives.items():
            if computation_name != computation.name:
                continue
            for collective in collectives:
                if collective.done:
                    done = collective.done
                    awaited_by[done] = (*awaited_by.get(done, ()), start)
                if collective.form == "fused":
                    chain_ids = self._chain_ids(computation.instructions[start])
                    for name in (start, *collective.overlapped, collective.done):
                        if chain_ids & self._chain_ids(computation.instructions[name]):
                            advances[name] = (*advances.get(name, ()), start)
        return _Dependencies(advances, awaited_by)

    def _chain_ids(self, instruction: Instruction) -> set[str]:
        """Chain ids of the fused collectives that a fusion helps to run."""
        if instruction.opcode != "fusion":
            return set()
        nested = self.module.callee(instruction).instructions.values()
        return {op.attribute("chain_id") for op in nested} - {""}

    def _collective(
        self, instruction: Instruction, collectives: list[Collective]
    ) -> Iterator[Step]:
        """Yield one transfer for the collectives that start in an instruction."""
        first = collectives[0]
        engines: dict[str, None] = {}
        seconds = 0.0
        for collective in collectives:
            route = self._route(collective)
            if not route.is_exact:
                self.inexact.add(instruction.name)
            engines |= dict.fromkeys(route.engines)
            seconds += route.time_s(collective.joined_bytes)
        if first.form == "offloaded":
            engines["sparsecore"] = None
        yield Transfer(
            name=instruction.name,
            label="+".join(first.axes) or OTHER_GROUPS,
            kind=first.kind,
            form=first.form,
            operation=self.operation_of(first.op_name),
            engines=tuple(engines),
            seconds=seconds,
            bytes=float(sum(collective.joined_bytes for collective in collectives)),
        )
        if first.form == "sync":
            yield Await(name=instruction.name)

    def _route(self, collective: Collective) -> Route:
        if collective.between_slices:
            return self.network.between_slices(collective.kind, collective.group_size)
        return self.network.route(collective.kind, collective.groups)

    def _copy(self, start: Instruction) -> Transfer:
        """The transfer of a copy between memories.

        The shapes of a `copy-start` are target, then source; of other starts source, then target.
        """
        sides = [shape for shape in start.shapes if shape.elements > 1] or list(start.shapes[:1])
        spaces = [shape.memory_space for shape in sides]
        n_bytes = float(min(shape.padded_bytes for shape in sides))
        label = "hbm"
        engine = "hbm"
        seconds = n_bytes * spaces.count(HBM) / self.rates.hbm_bytes_per_s
        if HOST in spaces:
            target = spaces[0 if start.opcode == "copy-start" else -1]
            label = "host"
            engine = "host out" if target == HOST else "host in"
            seconds = n_bytes / self.rates.host_bytes_per_s
        return Transfer(
            name=start.name,
            label=label,
            kind=COPY,
            form="async",
            operation=self.operation_of(self.op_name(start)),
            engines=(engine,),
            seconds=seconds,
            bytes=n_bytes,
        )

    def _offloaded(self, start: Instruction) -> Transfer:
        """The transfer that stands for work on another core: its bytes at HBM bandwidth."""
        callee = self.module.callee(start)
        n_bytes = sum(self.work_of(callee, op).hbm_bytes for op in callee.instructions.values())
        thread = callee.thread or "async"
        return Transfer(
            name=start.name,
            label=thread,
            kind="work",
            form="offloaded",
            operation=self.operation_of(self.op_name(start)),
            engines=(thread,),
            seconds=n_bytes / self.rates.hbm_bytes_per_s,
            bytes=n_bytes,
        )


def _slowest(alternatives: Iterable[tuple[Step, ...]]) -> tuple[Step, ...]:
    """The steps that take longest."""
    return max(alternatives, key=lambda steps: simulate(steps, max_bars=0).step_s)
