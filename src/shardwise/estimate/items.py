"""Priced items: the operations of a training step, or of an engine's pass, with their time costs.

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
    """One operation with its number of occurrences and its cost in time.

    Numeric fields are single numbers, or arrays with one element per layout.

    Args:
        name: name of the matmul, or of the array that a collective moves.
        phase: in training "forward", "remat", "backward" or "update"; in an engine "forward",
            which a plan replaces with "decode" or "prefill".
        count: number of occurrences.
        part: part of the layer to which an item of the forward pass belongs; remat of this part
            runs the item a second time.
        work: matmul or collective of the sharding algebra; None for all other work.
        description: description of other work.
        flops: FLOPs of all occurrences on one chip.
        n_bytes: bytes that all occurrences read and write on one chip.
        flops_per_s: FLOP/s at which `flops` run.
        bytes_per_s: bytes per second at which `n_bytes` move.
        role: mesh role to which the time of a collective is attributed; None for work that runs on
            the chip alone.
        kind: kind of a collective, one of `ops.collective.KINDS`.
        axes: mesh axes over which a collective runs.
        joined_bytes: bytes of one collective, summed over the shards that it joins (V of the book).
        arrays: number of arrays that the estimate takes as one collective; in the program each has
            its own collective.
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
        """Seconds of arithmetic in all occurrences."""
        return self.flops / self.flops_per_s

    @property
    def memory_s(self) -> Num:
        """Seconds of memory reads and writes in all occurrences."""
        return self.n_bytes / self.bytes_per_s

    @property
    def seconds(self) -> Num:
        """Seconds of all occurrences: the slower of arithmetic and memory, plus `occurrence_s`."""
        kernel = bounds(self.flops, self.flops_per_s, self.n_bytes, self.bytes_per_s)
        return kernel.lower + self.count * self.occurrence_s

    def times(self, n: Num) -> PricedItem:
        """A copy of the item with `n` times as many occurrences."""
        return replace(self, count=self.count * n, flops=self.flops * n, n_bytes=self.n_bytes * n)

    def expression(self, axes: tuple[str, ...]) -> str:
        """The item as text: its local einsum, its collective, or its description.

        Args:
            axes: mesh axes to show in a collective that is outside the sharding algebra, as in
                `AllToAll_expert(tokens back)`.
        """
        if isinstance(self.work, Matmul):
            return self.work.program.expression
        if isinstance(self.work, Transfer):
            return str(self.work.move)
        if not axes:
            return self.description
        kind = DISPLAY_NAMES[self.kind] if self.role else ""
        return f"{kind}_{axes_text(axes)}({self.description})"
