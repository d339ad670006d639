"""What each array of a compiled program depends on: the mesh axes along which it differs between
chips, and the arguments of the program.

An array that differs along no axis is whole on every chip, and every chip computes it again. The
analysis errs on the side of difference: what it cannot follow (indices that are computed from the
chip's own number, loops that put an array together piece by piece) differs along all axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.check.hlo.collectives import KINDS, device_groups
from shardwise.check.hlo.dataflow import Analysis, Bits, Dataflow, union
from shardwise.check.hlo.forms import sync_opcode
from shardwise.check.hlo.sharding import AxesByDim, sharded_axes
from shardwise.check.hlo.text import Computation, Instruction, Module

_GATHERS = ("all_gather", "all_reduce")


@dataclass(frozen=True, slots=True)
class Origins(Analysis):
    """Bits of mesh axes, then a bit for each argument.

    Args:
        argument_axes: the mesh axes that shard each dim of each argument; None if unknown.
    """

    module: Module
    mesh: Mapping[str, int]
    argument_axes: tuple[AxesByDim | None, ...]

    def axes_bits(self, axes: tuple[str, ...]) -> int:
        """The bits of some mesh axes."""
        names = tuple(self.mesh)
        return sum(1 << names.index(axis) for axis in axes)

    @property
    def all_axes(self) -> int:
        """The bits of all mesh axes."""
        return (1 << len(self.mesh)) - 1

    def argument_bit(self, number: int) -> int:
        """The bit of an argument."""
        return 1 << (len(self.mesh) + number)

    def argument(self, parameter: Instruction) -> Bits:
        number = int(parameter.literal)
        bits = self.argument_bit(number)
        axes = self.argument_axes[number]
        if axes is None:
            return bits | self.all_axes
        for dim_axes in axes:
            bits |= self.axes_bits(dim_axes)
        return bits

    def result(
        self, computation: Computation, instruction: Instruction, operands: tuple[int, ...]
    ) -> Bits:
        opcode = sync_opcode(instruction)
        if opcode in ("partition-id", "replica-id", "recv", "send", "infeed"):
            return union(operands) | self.all_axes
        if opcode not in KINDS:
            return union(operands)
        _, axes, group_size = device_groups(self.module, instruction, self.mesh)
        results = []
        for operand in operands:
            if not axes and group_size > 1:
                operand |= self.all_axes
            elif KINDS[opcode] in _GATHERS:
                operand &= ~self.axes_bits(axes)
            else:
                operand |= self.axes_bits(axes)
            results.append(operand)
        return results[0] if len(results) == 1 else tuple(results)


@dataclass(frozen=True, slots=True)
class Replication:
    """The origins of all arrays of a program."""

    origins: Origins
    dataflow: Dataflow

    def axes(self, computation: Computation, name: str) -> frozenset[str]:
        """The mesh axes along which the result of an instruction may differ between chips."""
        bits = self.dataflow.of(computation, name)
        return frozenset(a for i, a in enumerate(self.origins.mesh) if bits >> i & 1)

    def arguments(self, computation: Computation, name: str) -> frozenset[int]:
        """The numbers of the arguments on which the result of an instruction depends."""
        bits = self.dataflow.of(computation, name) >> len(self.origins.mesh)
        return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)


def replication(module: Module, mesh: Mapping[str, int]) -> Replication:
    """Follow mesh axes and arguments through a program.

    Args:
        mesh: axis -> size. Device ids number the mesh positions, the last axis fastest.
    """
    argument_axes = []
    for parameter in module.entry_computation.parameters:
        n_dims = len(parameter.shapes[0].dims) if parameter.shapes else 0
        argument_axes.append(sharded_axes(parameter.attributes, n_dims, mesh))
    origins = Origins(module, mesh, tuple(argument_axes))
    dataflow = Dataflow(module, origins)
    dataflow.run()
    return Replication(origins, dataflow)
