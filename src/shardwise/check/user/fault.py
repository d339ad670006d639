"""A fault of a program, and what the searches for faults are given."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TypedDict

from shardwise.check.array_names import DTYPES, user_scope
from shardwise.check.compiled_costs import AnalyzedProgram
from shardwise.check.compiling.result import Constraint
from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.costs import instructions_inside, product_flops
from shardwise.check.hlo.replication import Replication
from shardwise.check.hlo.shape import Shape
from shardwise.check.hlo.sharding import AxesByDim
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.hlo.traffic import padded_hbm_bytes
from shardwise.check.source_line import SourceLine

# The smallest share of a chip's memory, of the program's peak, FLOPs or traffic that is a fault.
MEMORY_SHARE = 0.01
PEAK_SHARE = 0.05
FLOPS_SHARE = 0.05
TRAFFIC_SHARE = 0.05
COPIES_SHARE = 0.2  # of the HBM traffic; compilers copy some arrays of every program

SMALL_SHARE = 0.01  # of the bytes of the largest leaf: leaves that are not named

DimSizes = tuple[tuple[int, int], ...]  # for each dim of an array, its size on a chip and in all

# A leaf of an argument of a function that was wrapped: `args[0]['w']`.
_UNNAMED = re.compile(r"(?:args|arrays)\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that takes memory or time for nothing.

    Args:
        kind: `whole arguments`, `whole batch`, `whole activation`, `gathered whole`,
            `repeated work`, `reshard in a loop`, `fp32 product`, `not donated` or
            `copied arguments`.
        subject: the shape of an array, such as `bf16[64,1024]`; "" for faults of arguments.
        arguments: names of arguments of the function, or of leaves of one, such as `w['up']`; the
            number of an argument that has no name.
        scope: the name scope of the operation; "" if it has none.
        sources: line of the operation, and the line that called it.
        axes: mesh axes over which chips hold or compute the same, or over which data is moved.
        n_chips: chips along these axes.
        bytes: bytes on one chip: of memory, or received in one run.
        share: fraction of the chip's memory, of its FLOPs, or of the bytes that it receives; for
            copies, of the bytes that it reads and writes in HBM.
        n_runs: how often the operation runs.
        constraint: the line of the sharding constraint that causes it, and the line that called
            that; () if none is known to.
        seconds: of one run, at peak rates: of the work and the traffic that are needless; 0 if
            that is not known.
    """

    kind: str
    subject: str = ""
    arguments: tuple[str | int, ...] = ()
    scope: str = ""
    sources: tuple[SourceLine, ...] = ()
    axes: tuple[str, ...] = ()
    n_chips: int = 1
    bytes: int = 0
    share: float
    n_runs: int = 1
    constraint: tuple[SourceLine, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Product:
    """A matmul, with its FLOPs in one run of the program."""

    computation: Computation
    instruction: Instruction
    flops: float


class Place(TypedDict):
    """Where an operation comes from: the fields `scope` and `sources` of a `Fault`."""

    scope: str
    sources: tuple[SourceLine, ...]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A compiled program, and what follows from it.

    Args:
        memory_bytes: memory of a device.
    """

    program: AnalyzedProgram
    replication: Replication
    memory_bytes: float

    @property
    def module(self) -> Module:
        """The parsed program."""
        return self.program.module

    @property
    def least_activation_bytes(self) -> float:
        """Bytes from which on one activation is noticeable: in the peak, or in the memory."""
        peak_bytes = PEAK_SHARE * self.program.compiled.memory.device_bytes
        memory_bytes = MEMORY_SHARE * self.memory_bytes
        return min(max(peak_bytes, memory_bytes / 10), memory_bytes)

    @property
    def mesh(self) -> dict[str, int]:
        """Mesh axis -> size, of the axes with several devices."""
        return {axis: size for axis, size in self.program.compiled.mesh.items() if size > 1}

    @functools.cached_property
    def arguments(self) -> tuple[Instruction, ...]:
        """The program's arguments, by number."""
        return self.module.entry_computation.parameters

    @property
    def argument_axes(self) -> tuple[AxesByDim | None, ...]:
        """The mesh axes that shard each dim of each argument; None if unknown."""
        return self.replication.origins.argument_axes

    @functools.cached_property
    def argument_dims(self) -> tuple[DimSizes, ...]:
        """The dims of arguments and of their layers: sizes on a chip and in all, sorted."""
        distinct: dict[DimSizes, None] = {}
        for parameter, axes in zip(self.arguments, self.argument_axes, strict=True):
            local = parameter.shapes[0].dims
            sizes = []
            for dim, dim_axes in zip(local, axes or ((),) * len(local), strict=True):
                sizes.append((dim, dim * self.n_chips(dim_axes)))
            for dims in (sizes, sizes[1:]):
                distinct[tuple(sorted(pair for pair in dims if pair[1] > 1))] = None
        return tuple(distinct)

    def n_chips(self, axes: Iterable[str]) -> int:
        """Devices along some mesh axes."""
        return math.prod(self.mesh[axis] for axis in axes)

    def products(self) -> Iterator[Product]:
        """Yield the matmuls of the program, also those in fusions."""
        for op in self.program.ops:
            if op.flops:
                scheduled = self.module.computations[op.computation]
                for item in instructions_inside(self.module, scheduled, op.instruction):
                    computation, instruction = item
                    flops = product_flops(computation, instruction) * op.n_runs
                    if flops:
                        yield Product(computation, instruction, float(flops))

    def missing_axes(self, computation: Computation, *names: str) -> frozenset[str]:
        """The mesh axes along which all chips have the same of some arrays."""
        axes = frozenset(self.mesh)
        for name in names:
            axes -= self.replication.axes(computation, name)
        return axes

    def place(self, instruction: Instruction) -> Place:
        """Scope and source lines of an instruction."""
        return {
            "scope": user_scope(instruction.op_name),
            "sources": self.module.sources.lines_of(instruction.attributes),
        }

    def constraint_on(self, instruction: Instruction, axes: Set[str]) -> Constraint | None:
        """The sharding constraint that leaves the result of an operation whole along mesh axes."""
        sources = self.module.sources.lines_of(instruction.attributes)
        for constraint in self.program.compiled.constraints:
            is_result = instruction.op_name.endswith(constraint.op_name)
            if is_result and constraint.computed in sources and axes.isdisjoint(constraint.axes):
                return constraint
        return None

    def exposed_s(self, collectives: Iterable[Collective]) -> float:
        """Seconds of one run in which the chip waits for some collectives, by rooflines."""
        timed = self.program.timings.get("roofline")
        names = {collective.instruction for collective in collectives}
        transfers = timed.timeline.transfers if timed else ()
        return sum(transfer.exposed_s for transfer in transfers if transfer.name in names)

    def is_activation(self, computation: str, instruction: Instruction) -> bool:
        """Whether the result of an instruction is computed from several arguments.

        Updates and gradients of arguments, which have their dims, are no activations.
        """
        origin = self.module.computations[computation]
        if len(self.replication.arguments(origin, instruction.name)) < 2:
            return False
        largest = max(instruction.shapes, key=lambda shape: shape.bytes)
        return not self._resembles_argument(largest)

    def _resembles_argument(self, shape: Shape) -> bool:
        """Whether an array has the dims of an argument or of one of its layers, up to sharding."""
        dims = sorted(dim for dim in shape.dims if dim > 1)
        for sizes in self.argument_dims:
            if len(sizes) == len(dims) > 1 and all(
                low <= dim <= high for dim, (low, high) in zip(dims, sizes, strict=True)
            ):
                return True
        return False


def show_shape(shape: Shape) -> str:
    """An array as in tables: `bf16[8,128]`."""
    dtype = DTYPES.get(shape.dtype, shape.dtype)
    return f"{dtype}[{','.join(map(str, shape.dims))}]"


def add_bytes(sizes: dict[str, int], evidence: Evidence, parameter: Instruction) -> None:
    """Add the bytes of an argument to those of its name; programs may have lost the names."""
    n_bytes = padded_hbm_bytes(evidence.module, parameter.shapes)
    sizes[parameter.op_name] = sizes.get(parameter.op_name, 0) + n_bytes


def large_leaves(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The leaves that are not small beside the largest.

    Args:
        sizes: name of a leaf -> its bytes.
    """
    least = SMALL_SHARE * max(sizes.values())
    return tuple(leaf for leaf, n_bytes in sizes.items() if n_bytes >= least)


def argument_of(leaf: str) -> str | int:
    """The argument of the function to which a leaf belongs: `w` for `w['up']`.

    Of an argument without a name it is the number.
    """
    unnamed = _UNNAMED.match(leaf)
    return int(unnamed[1]) if unnamed else re.split(r"[\[.]", leaf)[0]
