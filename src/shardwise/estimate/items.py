"""Priced items: the kinds of work of a training step, or of an engine's pass, with their costs.

The time of a step is the sum of its items; a plan lists the same items as its operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.arrays import Num
from shardwise.formulas.roofline import bounds
from shardwise.ops.collective import DISPLAY_NAMES
from shardwise.ops.einsum import axes_text
from shardwise.ops.program import Matmul, Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedItem:
    """One kind of work, its count and its cost. Numbers, or arrays over layouts.

    Args:
        name: of the matmul, or of the array that a collective moves.
        phase: `forward`, `remat`, `backward`, `update`; of an engine `decode`, `prefill`.
        count: occurrences.
        part: part of the layer whose remat runs this item of the forward pass a second time.
        work: matmul or collective of the sharding algebra; None for all other work.
        description: description of other work.
        flops: FLOPs of all occurrences on one chip.
        n_bytes: bytes that all occurrences read and write on one chip.
        flops_per_s: rate of `flops`.
        bytes_per_s: rate of `n_bytes`.
        role: role of the mesh that a collective is booked on; None for work of the chip itself.
        kind: of a collective, one of `ops.collective.KINDS`.
        axes: of the mesh, over which a collective runs.
        joined_bytes: bytes of one collective, summed over the shards that it joins (V of the book).
        arrays: number of arrays that the estimate joins, each of which has its own collective.
        occurrence_s: seconds of one collective, or of one kernel launch.
    """

    name: str
    phase: str
    count: Num = 1
    part: str = ""
    work: Matmul | Transfer | None = None
    description: str = ""
    flops: Num = 0.0
    n_bytes: Num = 0.0
    flops_per_s: Num = 1.0
    bytes_per_s: Num = 1.0
    role: str | None = None
    kind: str = ""
    axes: tuple[str, ...] = ()
    joined_bytes: Num = 0.0
    arrays: int = 1
    occurrence_s: Num = 0.0

    @property
    def math_s(self) -> Num:
        """Seconds of the arithmetic."""
        return self.flops / self.flops_per_s

    @property
    def memory_s(self) -> Num:
        """Seconds of reads and writes."""
        return self.n_bytes / self.bytes_per_s

    @property
    def seconds(self) -> Num:
        """Seconds of all occurrences."""
        kernel = bounds(self.flops, self.flops_per_s, self.n_bytes, self.bytes_per_s)
        return kernel.lower + self.count * self.occurrence_s

    def times(self, n: Num) -> PricedItem:
        """Copy of the item with `n` times as many occurrences."""
        return replace(self, count=self.count * n, flops=self.flops * n, n_bytes=self.n_bytes * n)

    def expression(self, axes: tuple[str, ...]) -> str:
        """The einsum, the move, or e.g. `AllToAll_expert(tokens back)` over `axes`."""
        if isinstance(self.work, Matmul):
            return str(self.work.program.local)
        if isinstance(self.work, Transfer):
            return str(self.work.move)
        if not axes:
            return self.description
        kind = DISPLAY_NAMES[self.kind] if self.role else ""
        return f"{kind}_{axes_text(axes)}({self.description})"
