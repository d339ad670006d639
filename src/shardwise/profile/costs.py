"""FLOPs and bytes of operations, and the roof of the chip that binds each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from shardwise.check.explained.bounds import lower_bound
from shardwise.check.hlo.collectives import Collective, collectives
from shardwise.check.hlo.costs import Cost, instruction_cost
from shardwise.check.hlo.text import Module, parse
from shardwise.check.timeline.kernels import call_cost
from shardwise.errors import BadInput
from shardwise.hardware import Chip
from shardwise.profile.categories import is_product
from shardwise.profile.messages import message_types
from shardwise.profile.products import ProductFaults, named_instructions, summed_flops
from shardwise.profile.programs import Program

COMPUTE, HBM = "compute", "HBM"  # roofs


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of operations on one device; the seconds at the roofs are 0 without a chip.

    `upcast_flops` and `odd_dim` are those of `OperationTime`.
    """

    flops: float = 0.0
    hbm_bytes: float = 0.0
    compute_s: float = 0.0
    hbm_s: float = 0.0
    upcast_flops: float = 0.0
    odd_dim: int = 0

    def plus(
        self, cost: Cost, faults: ProductFaults | None, chip: Chip | None, n_runs: float
    ) -> Work:
        """This work, and that of some runs of an operation."""
        bound = lower_bound(chip, cost, (), None) if chip else None
        upcast_flops = n_runs * cost.flops if faults and faults.is_cast else 0.0
        return Work(
            upcast_flops=self.upcast_flops + upcast_flops,
            odd_dim=max(self.odd_dim, faults.odd_dim if faults else 0),
            flops=self.flops + n_runs * cost.flops,
            hbm_bytes=self.hbm_bytes + n_runs * cost.hbm_bytes,
            compute_s=self.compute_s + n_runs * ((bound.math_s if bound else None) or 0.0),
            hbm_s=self.hbm_s + n_runs * ((bound.hbm_s if bound else None) or 0.0),
        )

    @property
    def roof(self) -> tuple[float | None, str]:
        """The least seconds, and the roof that makes them; (None, "") if they are not known."""
        if not self.compute_s and not self.hbm_s:
            return None, ""
        if self.compute_s >= self.hbm_s:
            return self.compute_s, COMPUTE
        return self.hbm_s, HBM


def program_module(program: Program) -> Module | None:
    """The program as HLO; None where this JAX cannot write it as text."""
    try:
        from jaxlib import xla_client

        content = message_types()["HloBytes"].FromString(program.content).hlo_module
        hlo_module: Any = xla_client.hlo.HloModule  # type: ignore[attr-defined]
        text = hlo_module.from_serialized_hlo_module_proto(content).to_string()
        return parse(text)
    except (ImportError, AttributeError, RuntimeError, BadInput):
        return None


def instruction_costs(module: Module, names: Iterable[str]) -> dict[str, Cost]:
    """The costs of operations of a program."""
    costs = {}
    for computation, instruction in named_instructions(module, names):
        cost, _ = instruction_cost(module, computation, instruction, call_cost)
        if not cost.flops and is_product(instruction.op_name):
            cost = replace(cost, flops=summed_flops(module, computation, instruction))
        costs[instruction.name] = cost
    return costs


def collective_groups(module: Module, n_devices: int) -> dict[str, list[list[int]]]:
    """Instruction that starts or ends a collective -> numbers of the devices that it joins.

    Of a permute, devices that a chain of pairs connects are a group.

    Args:
        n_devices: of the trace; without those of all hosts there are no groups.
    """
    groups: dict[str, list[list[int]]] = {}
    for collective in _collectives(module, n_devices):
        joined: list[set[int]] = []
        for members in collective.groups.tolist():
            touching = [group for group in joined if group & set(members)]
            joined = [group for group in joined if group not in touching]
            joined.append(set(members).union(*touching))
        for name in filter(None, (collective.instruction, collective.done)):
            groups[name] = [sorted(group) for group in joined]
    return groups


def instruction_collectives(module: Module, n_devices: int) -> dict[str, dict[str, int]]:
    """Instruction that starts collectives -> bytes of the arrays that one run joins, by kind.

    Args:
        n_devices: of the trace, as the program in it does not say; without those of all hosts the
            groups of devices cannot be read, and there are no sizes.
    """
    sizes: dict[str, dict[str, int]] = {}
    for collective in _collectives(module, n_devices):
        by_kind = sizes.setdefault(collective.instruction, {})
        by_kind[collective.kind] = by_kind.get(collective.kind, 0) + collective.joined_bytes
    return sizes


def _collectives(module: Module, n_devices: int) -> list[Collective]:
    """The collectives of a program; none if their groups cannot be read."""
    try:
        return collectives(replace(module, n_partitions=n_devices), {})
    except (BadInput, ValueError):
        return []
