"""Rates that a chip achieves in serving, and the price of one matmul at them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.items import PricedItem
from shardwise.estimate.kernels import (
    depth_efficiency,
    sm_count,
    sm_flops_per_clock,
    tile_efficiency,
    warp_efficiency,
)
from shardwise.estimate.serving.efficiency import AT_PEAK, ServingEfficiency
from shardwise.estimate.serving.overhead import IDEAL, EngineOverhead
from shardwise.hardware import Chip
from shardwise.ops.einsum import local_size
from shardwise.ops.program import Matmul
from shardwise.workload import Serve

HEAD_BYTES = 2.0  # per parameter of the unembedding: it stays in 16 bits
ROW_TILE = 16  # rows of the smallest tile: M of mma.m16n8k16; wgmma takes few rows as its columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRates:
    """Rates of a chip for one job on one engine; at `AT_PEAK` and `IDEAL` the bare roofline.

    Args:
        chip: the accelerator.
        job: dtypes of weights, KV cache and compute.
        efficiency: achieved shares of the chip's peaks.
        overhead: time that the engine's software adds.
        parameter_bytes: mean bytes per parameter of a mixed format; None for `job.weights`.
    """

    chip: Chip
    job: Serve
    efficiency: ServingEfficiency = AT_PEAK
    overhead: EngineOverhead = IDEAL
    parameter_bytes: float | None = None

    @property
    def ideal(self) -> bool:
        """Whether these are the rates of the bare roofline."""
        return self.overhead is IDEAL

    @property
    def weight_bytes(self) -> float:
        """Bytes per parameter."""
        return self.parameter_bytes or units.bytes_per_element(self.job.weights)

    @property
    def hbm_bytes_per_s(self) -> float:
        """Achieved bandwidth of reading weights and KV cache."""
        achieved = self.chip.need("hbm_bytes_per_s") * self.efficiency.stream
        return min(achieved, self.overhead.max_read_bytes_per_s or achieved)

    @property
    def attention_flops_per_s(self) -> float:
        """Achieved FLOP/s of attention over prompts, in 16 bits."""
        return self.chip.peak(self.wide_dtype) * self.efficiency.attention

    @property
    def dequantizes(self) -> bool:
        """Whether matmuls widen sub-byte weights inside, with kernels written for Ampere.

        Marlin (arXiv 2408.11743), which vLLM and SGLang use for 4-bit weights with 16-bit
        arithmetic on any GPU.
        """
        sub_byte = units.bytes_per_element(self.job.weights) < 1
        return sub_byte and self.dtype(head=False) == self.wide_dtype and not self.ideal

    @property
    def wide_dtype(self) -> str:
        """The 16-bit dtype of the chip."""
        return "bf16" if "bf16" in self.chip.peak_flops_per_s else "fp16"

    def dtype(self, *, head: bool) -> str:
        """Dtype of a matmul: 16 bits for unembeddings and where the chip lacks `job.compute`."""
        if head or self.job.compute not in self.chip.peak_flops_per_s:
            return self.wide_dtype
        return self.job.compute

    def matmul(
        self,
        matmul: Matmul,
        rows: Num,
        mesh: Mapping[str, Num],
        weight_elements: Num,
        *,
        groups: Num = 1.0,
        head: bool = False,
    ) -> PricedItem:
        """Price all `count` occurrences of a matmul.

        Args:
            rows: tokens of the pass; the count is 0 where there are none.
            weight_elements: elements of the weight that one occurrence reads.
            groups: experts on the chip whose matmuls run as one grouped matmul.
            head: whether it is the unembedding, whose weights stay in 16 bits.
        """
        local = matmul.program.local
        dtype = self.dtype(head=head)
        sizes = {**matmul.sizes, "B": rows}
        n_bytes = weight_elements * (HEAD_BYTES if head else self.weight_bytes)
        if not self.ideal:
            activations = local.left.local_elements(sizes, mesh)
            activations = activations + local.output.local_elements(sizes, mesh)
            n_bytes = n_bytes + 2.0 * activations
        tiling = self._tile_efficiency(matmul, sizes, mesh, dtype, groups)
        achieved = self.efficiency.matmul(dtype) * tiling
        if matmul.program.einsum.chosen:
            achieved = achieved * self.efficiency.grouped
        flops_per_clock = sm_flops_per_clock(self.chip, self.wide_dtype)
        if self.dequantizes and not head and flops_per_clock:
            achieved = achieved * warp_efficiency(flops_per_clock)
        count = where(rows > 0, matmul.count, 0)
        return PricedItem(
            name=matmul.name,
            phase="forward",
            count=count,
            work=matmul,
            flops=count * matmul.program.local_flops(sizes, mesh),
            n_bytes=count * n_bytes,
            flops_per_s=self.chip.peak(dtype) * achieved,
            bytes_per_s=self.hbm_bytes_per_s,
        )

    def _tile_efficiency(
        self,
        matmul: Matmul,
        sizes: Mapping[str, Num],
        mesh: Mapping[str, Num],
        dtype: str,
        groups: Num,
    ) -> Num:
        """Share of the achievable rate that remains in whole tiles on all SMs."""
        n_sms = sm_count(self.chip)
        if self.ideal or not n_sms:
            return 1.0
        local = matmul.program.local
        local_sizes: dict[str, Num] = {}
        for array in (*local.inputs, local.output):
            for dim in array.dims:
                local_sizes[dim.name] = local_size(dim, sizes, mesh)
        m = local_sizes["B"]
        if matmul.program.einsum.chosen:
            m = m * sizes.get("R", 1) / groups
        columns = [dim for dim in local.output.names if dim in local.right.names and dim != "E"]
        n = math.prod(local_sizes[dim] for dim in columns)
        m = maximum(m, 1e-6)  # a pass may have no rows for the unembedding
        k = matmul.program.local_flops(sizes, mesh) / (2 * m * groups * n)
        depth = depth_efficiency(k, sm_flops_per_clock(self.chip, dtype))
        # Few rows: tiles are cut thinner and the sum is split over SMs, down to one row of tiles.
        row_fill = m / (ROW_TILE * maximum(1.0, -(-m // ROW_TILE)))
        return maximum(minimum(row_fill, 0.5), tile_efficiency(m, n, n_sms, groups) * depth)
