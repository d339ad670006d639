"""Rates that a chip achieves in serving, and the time of one matmul at these rates."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.items import PricedItem
from shardwise.estimate.kernels import (
    depth_efficiency,
    sm_clocks_per_s,
    sm_count,
    tile_efficiency,
    warp_efficiency,
)
from shardwise.estimate.serving.efficiency import AT_PEAK, ServingEfficiency
from shardwise.estimate.serving.measured_rates import (
    is_measured,
    product_dtype,
    product_flops_per_s,
    read_bytes_per_s,
)
from shardwise.estimate.serving.overhead import IDEAL, OURS, EngineOverhead
from shardwise.hardware import Chip
from shardwise.ops.program import Matmul
from shardwise.workload import Serve

HALF_PRECISION = ("bf16", "fp16")
ACTIVATION_BYTES = 2.0  # bytes per element
HEAD_BYTES = 2.0  # bytes per parameter of the unembedding, which stays in 16 bits
# Rows of the smallest tile: M of mma.m16n8k16. Kernels with wgmma transpose a matmul with few rows,
# so that they become its columns.
ROW_TILE = 16


@dataclass(frozen=True, kw_only=True)  # without slots, for what is kept
class ServeRates:
    """Rates of a chip for one job on one engine.

    The defaults `AT_PEAK` and `IDEAL` give the pure roofline.

    Args:
        job: dtypes of weights, KV cache and compute.
        efficiency: shares of the chip's peak rates that it achieves.
        overhead: time that the engine's software adds.
        parameter_bytes: mean bytes per parameter of a mixed format; None for those of the dtype
            `job.weights`.
    """

    chip: Chip
    job: Serve
    efficiency: ServingEfficiency = AT_PEAK
    overhead: EngineOverhead = IDEAL
    parameter_bytes: float | None = None

    @property
    def ideal(self) -> bool:
        """Whether these are the rates of the pure roofline."""
        return self.overhead is IDEAL

    @property
    def measured(self) -> bool:
        """Whether these are rates of this package's engine that `hw measure` has found."""
        return self.overhead.name == OURS.name and is_measured(self.chip)

    @property
    def weight_bytes(self) -> float:
        """Mean bytes per parameter."""
        return self.parameter_bytes or units.bytes_per_element(self.job.weights)

    @property
    def hbm_bytes_per_s(self) -> float:
        """Achieved HBM bandwidth when reading weights and KV cache, bytes per second."""
        achieved = self.chip.need("hbm_bytes_per_s") * self.efficiency.stream
        return min(achieved, self.overhead.max_read_bytes_per_s or achieved)

    @property
    def key_bytes_per_s(self) -> float:
        """Achieved bandwidth when decoding reads the KV cache, bytes per second."""
        if self.measured:
            return self.chip.need("serving.keys_bf16" if self.job.kv == "bf16" else "serving.keys")
        return self.hbm_bytes_per_s

    @property
    def attention_flops_per_s(self) -> float:
        """Achieved FLOP/s of attention over prompts, in 16 bits."""
        if self.measured:
            return self.chip.need("serving.attention")
        return self.chip.peak(self.half_precision_dtype) * self.efficiency.attention

    @property
    def dequantizes(self) -> bool:
        """Whether matmuls convert sub-byte weights to 16 bits inside the kernel.

        Such kernels are written for Ampere: Marlin (arXiv 2408.11743), which vLLM and SGLang use
        for 4-bit weights with 16-bit arithmetic on any GPU.
        """
        return (
            self.narrow_weights
            and self.dtype(head=False) == self.half_precision_dtype
            and not self.ideal
        )

    @property
    def narrow_weights(self) -> bool:
        """Whether weights have less than 8 bits."""
        return units.bytes_per_element(self.job.weights) < 1

    @property
    def half_precision_dtype(self) -> str:
        """The chip's dtype for 16-bit matmuls: bf16, or fp16 on chips without bf16."""
        return "bf16" if "bf16" in self.chip.peak_flops_per_s else "fp16"

    def dtype(self, *, head: bool) -> str:
        """Dtype of a matmul: `job.compute`, or 16 bits.

        16 bits are for the unembedding (`head`) and for chips that do not support `job.compute`. On
        a machine that was measured it is that of the products for the dtype of the weights.
        """
        if is_measured(self.chip):
            return product_dtype(self._weights(head=head))
        if head or self.job.compute not in self.chip.peak_flops_per_s:
            return self.half_precision_dtype
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
        """Price all occurrences of a matmul of the program in one pass.

        Args:
            rows: tokens of the pass; with 0 tokens the matmul does not occur.
            mesh: mesh role -> chips.
            weight_elements: elements of the weight that one occurrence reads on a chip.
            groups: number of experts on the chip whose matmuls run as one grouped matmul.
            head: whether it is the unembedding, whose weights stay in 16 bits.
        """
        sizes = {**matmul.sizes, "B": rows}
        if self.measured:
            n_bytes, flops_per_s, bytes_per_s = self._measured(rows, weight_elements, head=head)
        else:
            n_bytes = self._matmul_bytes(matmul, sizes, mesh, weight_elements, head=head)
            flops_per_s = self._matmul_flops_per_s(matmul, sizes, mesh, groups, head=head)
            bytes_per_s = self.hbm_bytes_per_s
        count = where(rows > 0, matmul.count, 0)
        return PricedItem(
            name=matmul.name,
            phase="forward",
            count=count,
            work=matmul,
            flops=count * matmul.program.local_flops(sizes, mesh),
            n_bytes=count * n_bytes,
            flops_per_s=flops_per_s,
            bytes_per_s=bytes_per_s,
        )

    def _measured(self, rows: Num, weight_elements: Num, *, head: bool) -> tuple[Num, Num, float]:
        """(bytes, FLOP/s, bytes per second) of a matmul."""
        weights = self._weights(head=head)
        n_bytes = units.bytes_per_element(weights)
        flops_per_s = product_flops_per_s(self.chip, weights, rows, head=head)
        bytes_per_s = read_bytes_per_s(self.chip, weights, n_bytes, head=head)
        return weight_elements * n_bytes, flops_per_s, bytes_per_s

    def _weights(self, *, head: bool) -> str:
        """Dtype of weights of this package's engine on a CPU: it quantizes no unembedding."""
        is_narrow = units.bytes_per_element(self.job.weights) < HEAD_BYTES
        return self.job.compute if head and is_narrow else self.job.weights

    def _matmul_bytes(
        self,
        matmul: Matmul,
        sizes: Mapping[str, Num],
        mesh: Mapping[str, Num],
        weight_elements: Num,
        *,
        head: bool,
    ) -> Num:
        """Bytes that one occurrence of a matmul moves; the ideal ones are those of its weight."""
        n_bytes = weight_elements * (HEAD_BYTES if head else self.weight_bytes)
        if self.ideal:
            return n_bytes
        return n_bytes + input_and_output_bytes(matmul, sizes, mesh)

    def _matmul_flops_per_s(
        self,
        matmul: Matmul,
        sizes: Mapping[str, Num],
        mesh: Mapping[str, Num],
        groups: Num,
        *,
        head: bool,
    ) -> Num:
        """Achieved FLOP/s of a matmul."""
        dtype = self.dtype(head=head)
        tiling = self._tile_efficiency(matmul, sizes, mesh, dtype, groups)
        achieved = self.efficiency.matmul(dtype) * self.overhead.matmuls * tiling
        if matmul.program.einsum.chosen:
            achieved = achieved * self.efficiency.grouped
        flops_per_clock = self.sm_flops_per_clock(self.half_precision_dtype)
        if dtype in HALF_PRECISION and not head and self.narrow_weights:
            achieved = achieved * self.overhead.narrow
        is_for_ampere = self.overhead.warp_matmuls or (self.dequantizes and not head)
        if is_for_ampere and flops_per_clock:
            achieved = achieved * warp_efficiency(flops_per_clock)
        return self._peak_flops_per_s(dtype) * achieved

    @functools.cached_property
    def _n_sms(self) -> float:
        """Number of SMs; 0 if it is unknown."""
        return sm_count(self.chip)

    @functools.cached_property
    def _sm_clocks_per_s(self) -> float:
        return sm_clocks_per_s(self.chip)

    def sm_flops_per_clock(self, dtype: str) -> float:
        """Peak FLOPs of one SM per clock cycle at a dtype; 0 if the number of SMs is unknown."""
        return self.chip.peak(dtype) / self._sm_clocks_per_s if self._sm_clocks_per_s else 0.0

    @property
    def _has_matrix_units(self) -> bool:
        """Whether matmuls run on units of their own, which work on tiles."""
        vector_flops_per_s = self.chip.vector_flops_per_s or 0.0
        return self.chip.peak(self.half_precision_dtype) > vector_flops_per_s

    def _peak_flops_per_s(self, dtype: str) -> float:
        """Peak FLOP/s of matmuls in a dtype, with the sums of the engine's kernels."""
        peak = self.chip.peak(dtype)
        if self.overhead.half_sums and dtype in HALF_PRECISION:
            int8 = self.chip.peak_flops_per_s.get("int8", 0.0)
            return max(peak, int8 / 2)
        return peak

    def _tile_efficiency(
        self,
        matmul: Matmul,
        sizes: Mapping[str, Num],
        mesh: Mapping[str, Num],
        dtype: str,
        groups: Num,
    ) -> Num:
        """Rate of the local matmul in whole tiles and waves of tiles, relative to its best rate."""
        if self.ideal or not self._n_sms:
            return 1.0
        program = matmul.program
        local_sizes = program.local_sizes(sizes, mesh)
        m = local_sizes["B"]
        if program.einsum.chosen:
            m = m * sizes.get("R", 1) / groups
        n = math.prod(local_sizes[dim] for dim in program.columns if dim != "E")
        m = maximum(m, 1e-6)  # avoids 0 / 0: a pass may have no rows for the unembedding
        k = program.local_flops(sizes, mesh) / (2 * m * groups * n)
        depth = depth_efficiency(k, self.sm_flops_per_clock(dtype))
        # With few rows, kernels use thinner tiles and split the contraction over SMs, so that only
        # the empty rows of the smallest tile are lost.
        row_tile = ROW_TILE if self._has_matrix_units else 1
        row_fill = m / (row_tile * maximum(1.0, -(-m // row_tile)))
        return maximum(minimum(row_fill, 0.5), tile_efficiency(m, n, self._n_sms, groups) * depth)


def input_and_output_bytes(
    matmul: Matmul, sizes: Mapping[str, Num], mesh: Mapping[str, Num]
) -> Num:
    """Bytes of the activations that one occurrence of a matmul reads and writes on a chip."""
    local = matmul.program.local
    inputs = local.left.local_elements(sizes, mesh)
    return ACTIVATION_BYTES * (inputs + local.output.local_elements(sizes, mesh))
