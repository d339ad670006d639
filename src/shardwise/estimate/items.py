"""Priced items: each kind of work of a training step, or of a pass of an engine, with its price.

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
    """One kind of work, `count` times, and its price. Numbers, or arrays over layouts.

    Args:
        name: of the product, or of the array that a collective moves.
        phase: `forward`, `remat`, `backward`, `update`; of an engine `decode`, `prefill`.
        count: occurrences.
        part: of a layer: remat that drops it runs this item of the forward pass a second time.
        work: the product or the collective of the sharding algebra; None for all other work.
        what: other work, in words.
        flops, n_bytes: of all occurrences: what the chip computes, reads and writes.
        flops_per_s, bytes_per_s: the rates at which it does.
        role: of a collective, what it is booked on; None for work of the chip itself.
        kind, axes: of a collective, one of `ops.collective.KINDS` over axes of the mesh.
        joined_bytes: of one collective, summed over the shards that it joins (V of the book).
        arrays: that travel as one in the estimate, each in a collective of its own.
        occurrence_s: seconds of one collective, or to start one kernel.
    """

    name: str
    phase: str
    count: Num = 1
    part: str = ""
    work: Matmul | Transfer | None = None
    what: str = ""
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
        """Seconds to read and write."""
        return self.n_bytes / self.bytes_per_s

    @property
    def seconds(self) -> Num:
        """Seconds of all occurrences."""
        kernel = bounds(self.flops, self.flops_per_s, self.n_bytes, self.bytes_per_s)
        return kernel.lower + self.count * self.occurrence_s

    def times(self, n: Num) -> PricedItem:
        """The same item `n` times."""
        return replace(self, count=self.count * n, flops=self.flops * n, n_bytes=self.n_bytes * n)

    def expression(self, axes: tuple[str, ...]) -> str:
        """The einsum, the move, or `AllToAll_expert(tokens back)` over the axes that there are."""
        if isinstance(self.work, Matmul):
            return str(self.work.program.local)
        if isinstance(self.work, Transfer):
            return str(self.work.move)
        shown = DISPLAY_NAMES[self.kind] if self.role else ""
        return f"{shown}_{axes_text(axes)}({self.what})" if axes else self.what
