"""What a chip reaches while it serves: its rates, and one product at them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.items import PricedItem
from shardwise.estimate.kernels import (
    depth_share,
    sm_count,
    sm_flops_per_clock,
    tile_share,
    warp_share,
)
from shardwise.estimate.serving.efficiency import AT_PEAK, Shares
from shardwise.estimate.serving.overhead import IDEAL, Engine
from shardwise.hardware import Chip
from shardwise.ops.einsum import local_size
from shardwise.ops.program import Matmul
from shardwise.workload import Serve

HEAD_BYTES = 2.0  # of an unembedding's weight: it stays in 16 bits
ROW_TILE = 16  # rows of the smallest tile: M of mma.m16n8k16; wgmma takes few rows as its columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRates:
    """Rates of a chip for one job on one engine; at `AT_PEAK` and `IDEAL` the bare roofline.

    Args:
        chip, job: what computes, in which dtypes.
        shares: of the chip's peaks.
        engine: what the software adds.
        parameter_bytes: of one parameter, where a format lies between dtypes.
    """

    chip: Chip
    job: Serve
    shares: Shares = AT_PEAK
    engine: Engine = IDEAL
    parameter_bytes: float | None = None

    @property
    def ideal(self) -> bool:
        """The bare roofline."""
        return self.engine is IDEAL

    @property
    def weight_bytes(self) -> float:
        """Of one parameter."""
        return self.parameter_bytes or units.bytes_per_element(self.job.weights)

    @property
    def hbm(self) -> float:
        """Bytes per second that reading weights and caches reaches."""
        reached = self.chip.need("hbm_bytes_per_s") * self.shares.stream
        return min(reached, self.engine.most_bytes_per_s or reached)

    @property
    def attention_flops_per_s(self) -> float:
        """Of attention over a whole prompt, in 16 bits."""
        return self.chip.peak(self.wide) * self.shares.attention

    @property
    def widens(self) -> bool:
        """Weights are widened inside of products, by kernels that were written for Ampere.

        Marlin (arXiv 2408.11743), which vLLM and SGLang use for 4-bit weights beside 16-bit
        arithmetic on any GPU.
        """
        narrow = units.bytes_per_element(self.job.weights) < 1
        return narrow and self.dtype(head=False) == self.wide and not self.ideal

    @property
    def wide(self) -> str:
        """The 16-bit dtype of the chip."""
        return "bf16" if "bf16" in self.chip.peak_flops_per_s else "fp16"

    def dtype(self, *, head: bool) -> str:
        """Of a product; unembeddings stay in 16 bits, and what a chip cannot multiply too."""
        narrow = self.job.compute in self.chip.peak_flops_per_s
        return self.wide if head or not narrow else self.job.compute

    def product(
        self,
        matmul: Matmul,
        rows: Num,
        mesh: Mapping[str, Num],
        weight_elements: Num,
        *,
        groups: Num = 1.0,
        head: bool = False,
    ) -> PricedItem:
        """All `count` occurrences of a product: FLOPs at the rate of whole tiles, or what it reads.

        Args:
            rows: tokens of the pass; of none nothing is computed.
            weight_elements: that one occurrence reads.
            groups: experts of a chip among them.
            head: an unembedding, whose weights stay in 16 bits.
        """
        local, dtype = matmul.program.local, self.dtype(head=head)
        sizes = {**matmul.sizes, "B": rows}
        n_bytes = weight_elements * (HEAD_BYTES if head else self.weight_bytes)
        if not self.ideal:
            moved = local.left.local_elements(sizes, mesh) + local.output.local_elements(
                sizes, mesh
            )
            n_bytes = n_bytes + 2.0 * moved
        reached = self.shares.matmul(dtype) * self._tiles(matmul, sizes, mesh, dtype, groups)
        if matmul.program.einsum.chosen:
            reached = reached * self.shares.grouped
        if self.widens and not head and (per_clock := sm_flops_per_clock(self.chip, self.wide)):
            reached = reached * warp_share(per_clock)
        count = where(rows > 0, matmul.count, 0)
        return PricedItem(
            name=matmul.name,
            phase="forward",
            count=count,
            work=matmul,
            flops=count * matmul.program.local_flops(sizes, mesh),
            n_bytes=count * n_bytes,
            flops_per_s=self.chip.peak(dtype) * reached,
            bytes_per_s=self.hbm,
        )

    def _tiles(
        self,
        matmul: Matmul,
        sizes: Mapping[str, Num],
        mesh: Mapping[str, Num],
        dtype: str,
        groups: Num,
    ) -> Num:
        sms = sm_count(self.chip)
        if self.ideal or not sms:
            return 1.0
        local = matmul.program.local
        dims = {d.name: d for a in (*local.inputs, local.output) for d in a.dims}
        size = {name: local_size(d, sizes, mesh) for name, d in dims.items()}
        columns = [n for n in local.output.names if n in local.right.names and n != "E"]
        m = size["B"] * sizes.get("R", 1) / groups if matmul.program.einsum.chosen else size["B"]
        n = math.prod(size[name] for name in columns)
        m = maximum(m, 1e-6)  # a pass may have no rows for the unembedding
        k = matmul.program.local_flops(sizes, mesh) / (2 * m * groups * n)
        each = sm_flops_per_clock(self.chip, dtype)
        # Few rows: tiles are cut thinner and the sum is split over SMs, down to one row of tiles.
        thin = m / (ROW_TILE * maximum(1.0, -(-m // ROW_TILE)))
        return maximum(minimum(thin, 0.5), tile_share(m, n, sms, groups) * depth_share(k, each))
