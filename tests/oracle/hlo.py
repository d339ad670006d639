"""What a compiled program does, in the words of the tests: counts of collectives, FLOPs of dots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shardwise.check.hlo.collectives import collectives
from shardwise.check.hlo.costs import program_costs
from shardwise.check.hlo.text import parse

Axes = tuple[str, ...]
Mesh = dict[str, int]


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """Kind, mesh axes, and V in bytes."""

    kind: str
    axes: Axes
    n_bytes: int


class Module:
    """A compiled program as text."""

    def __init__(self, text: str) -> None:
        self.parsed = parse(text)

    def dot_flops(self) -> int:
        """2 times the product of the kept and the summed dims, over every dot."""
        return sum(op.flops for op in program_costs(self.parsed))

    def collectives(self, mesh: Mesh) -> Counter[Collective]:
        """How often each collective runs, those that the compiler combined one by one."""
        found: Counter[Collective] = Counter()
        for one in collectives(self.parsed, mesh):
            axes = () if one.kind == "permute" else one.axes
            for n_bytes in one.array_bytes:
                found[Collective(one.kind, axes, n_bytes)] += one.n_runs
        return found
