"""A program with what is known of the machine and the model that it is of."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwise.check.explained.text import parse_text, read_text
from shardwise.check.hlo.collectives import Collective, collectives
from shardwise.check.hlo.costs import ScheduledOp, program_costs
from shardwise.check.hlo.loops import RunCounts, count_runs
from shardwise.check.hlo.text import Module
from shardwise.check.timeline.kernels import call_cost
from shardwise.check.timeline.network import Network
from shardwise.errors import BadInput
from shardwise.hardware import Chip
from shardwise.plan.schema.common import Operation


@dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled program.

    Args:
        name: what it is the program of: a file, or a step of a plan.
        mesh: axis -> size, the last axis fastest; {} if it is not known.
        chip: the chip that runs it; None if it is not known.
        network: the links between its devices; None if they are not known.
        operations: the planned operations; () without a plan.
        branch_runs: run counts of the branches of conditionals, see `hlo.loops.count_runs`.
    """

    name: str
    module: Module
    mesh: Mapping[str, int]
    chip: Chip | None = None
    network: Network | None = None
    operations: tuple[Operation, ...] = ()
    branch_runs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @functools.cached_property
    def run_counts(self) -> RunCounts:
        """How often each computation runs."""
        return count_runs(self.module, self.branch_runs)

    @functools.cached_property
    def ops(self) -> list[ScheduledOp]:
        """Every scheduled instruction with its cost."""
        return program_costs(self.module, call_cost, self.run_counts)

    @functools.cached_property
    def collectives(self) -> list[Collective]:
        """Every collective."""
        return collectives(self.module, self.mesh, self.run_counts)


def read_program(path: str, mesh: Mapping[str, int], chip: Chip | None) -> Program:
    """Read a program from a file.

    Args:
        mesh: axis -> size; {} if it is not known.

    Raises:
        BadFile: the file cannot be read.
        BadInput: it is no HLO text, or the mesh has another number of devices than the program.
    """
    module = parse_text(read_text(path), path)
    n_devices = module.n_partitions
    if mesh and math.prod(mesh.values()) != n_devices:
        shape = ",".join(f"{axis}={size}" for axis, size in mesh.items())
        raise BadInput(
            f"--mesh {shape} is {math.prod(mesh.values()):,} devices, and {path} is the program "
            f"of {n_devices:,}. The sizes of the mesh have to multiply to {n_devices:,}."
        )
    return Program(name=path, module=module, mesh=mesh, chip=chip)
