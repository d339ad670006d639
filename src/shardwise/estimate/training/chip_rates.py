"""Rates that a chip achieves in a training step, and the price of its work at them.

A matmul is a roofline at the achieved shares of the peak and of HBM (`Calibration`); at `PEAK` and
`IDEAL` all of it is the bare roofline of the book.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise import units
from shardwise.arrays import Num, maximum
from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.items import PricedItem
from shardwise.estimate.kernels import (
    EXPONENTIALS,
    clock_under_power_limit,
    depth_efficiency,
    head_dim_efficiency,
    sm_count,
    sm_flops_per_clock,
    tile_efficiency,
    tiled_keys,
    warp_efficiency,
)
from shardwise.estimate.routing import is_routed
from shardwise.estimate.training.run_variant import IDEAL, PLAIN_RUN, FusionProfile, RunVariant
from shardwise.hardware import Chip, catalog_chip, chip_names
from shardwise.models import ModelConfig
from shardwise.ops.einsum import Array, local_size
from shardwise.ops.program import Matmul, Step, Transfer
from shardwise.strategy.layout import Layout, Layouts, expert_degree
from shardwise.workload import Train

EMBEDDING_AND_HEAD = ("embed", "unembed")
UNFUSED = 2.5  # operations per fused kernel: a norm or an activation is two or three
SCORE_BYTES = 13.0  # a score in 16 bits through scale, mask, softmax and dropout, and its mask
# Tiles of masked attention: FlashAttention-2 and -3; MaxText's sa_block_q and sa_block_kv.
MASK_TILE = {"tpu": 512}
GPU_MASK_TILE = 128
TPU_ROWS = 128  # splash attention takes sequences of whole multiples
DOCUMENT = 512  # tokens that a token of packed short documents attends to, in whole tiles
# A cast to 8 bits reads 16 bits and writes the result by rows and by columns, for the matmuls of
# the forward and the backward pass (Transformer Engine's MXFP8 and its transposed caches).
CAST_BYTES = 4.0
ADDED_BYTES = 4.0  # a gradient in 16 bits written and read, apart from the sum it is added to
NARROW_DTYPES = ("fp8", "fp4", "int8")
ELEMENTWISE = "elementwise"  # norms, sums, rotary, activation functions
# The backward pass of tiled attention: five matmuls for four. That of a scan computes scores and
# states again: ten for eight (state-spaces/mamba, _mamba_chunk_scan_combined_bwd).
BACKWARD_RECOMPUTE = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a chip in a training job.

    Args:
        chip: the accelerator.
        job: dtypes and sequence length.
        calibration: achieved shares of the chip's peaks.
        fusion: fusions of the framework.
        variant: properties of the run.
    """

    chip: Chip
    job: Train
    calibration: Calibration = PEAK
    fusion: FusionProfile = IDEAL
    variant: RunVariant = PLAIN_RUN

    @property
    def hbm_bytes_per_s(self) -> float:
        """Achieved HBM bandwidth."""
        return self.chip.need("hbm_bytes_per_s") * self.calibration.hbm

    @property
    def matmul_flops_per_s(self) -> float:
        """Achieved FLOP/s of large matmuls."""
        return self.chip.peak(self.job.compute) * self.calibration.matmul(self.job.compute)

    @property
    def n_sms(self) -> float:
        """SMs that share the tiles of a matmul; 0 where unknown or without effect."""
        return 0.0 if self.fusion.ideal else sm_count(self.chip)

    @property
    def clock_share(self) -> float:
        """Share of its clock that a chip keeps under a power limit below the catalog's."""
        if self.fusion.ideal or self.chip.name not in chip_names():
            return 1.0
        default_watts = catalog_chip(self.chip.name).power_w
        watts = self.chip.power_w
        if not watts or not default_watts:
            return 1.0
        return float(clock_under_power_limit(watts, default_watts))

    @property
    def mask_tile(self) -> int:
        """Keys, and queries, of one tile of masked attention."""
        return MASK_TILE.get(self.chip.kind, GPU_MASK_TILE)

    def dtype(self, matmul: Matmul) -> str:
        """Dtype of a matmul: attention, embedding and head stay in 16 bits."""
        dtype = self.job.compute
        if units.bytes_per_element(dtype) < 2 and (is_core(matmul) or is_embedding_or_head(matmul)):
            dtype = "bf16"
        if dtype == "bf16" and dtype not in self.chip.peak_flops_per_s:
            return "fp16"
        return dtype

    def matmul(
        self,
        matmul: Matmul,
        config: ModelConfig,
        program: Step,
        layout: Layout | Layouts,
        part: str = "",
    ) -> PricedItem:
        """Price all `count` occurrences of a matmul in one microbatch.

        Args:
            matmul: the matmul.
            config: the model.
            program: the step that has the matmul.
            layout: one layout, or arrays of them.
            part: part of a layer that computes it.
        """
        mesh = layout.sizes
        dtype = self.dtype(matmul)
        flops = matmul.flops(mesh)
        n_bytes = matmul_bytes(matmul, program.weights, self.job, mesh)
        launch_s: Num = 0.0 if self.fusion.cuda_graphs else self.calibration.kernel_s
        if is_scan(matmul):
            achieved = self.calibration.scan_share
            flops = flops * self._scan_flops_ratio(matmul)
        elif is_attention(matmul):
            achieved = self._attention_share(config)
            flops = flops * self._score_flops_ratio(matmul)
            if not self.fusion.flash:
                n_bytes = n_bytes + matmul.count * _score_bytes(matmul, mesh)
        else:
            achieved = self.calibration.matmul(dtype)
            experts = local_experts(matmul, layout)
            if self.n_sms:
                achieved = achieved * self._tile_efficiency(matmul, mesh, dtype, experts)
            if matmul.program.einsum.chosen:
                achieved = achieved * self.calibration.grouped
                if not self.fusion.cuda_graphs:
                    launch_s = launch_s + experts * self.calibration.expert_s
        return PricedItem(
            name=matmul.name,
            phase=matmul.phase,
            count=matmul.count * matmul.n_chunks,
            part=part,
            work=matmul,
            flops=flops,
            n_bytes=n_bytes,
            flops_per_s=self.chip.peak(dtype) * self.clock_share * achieved,
            bytes_per_s=self.hbm_bytes_per_s,
            occurrence_s=launch_s,
        )

    def _tile_efficiency(
        self, matmul: Matmul, mesh: Mapping[str, Num], dtype: str, groups: Num
    ) -> Num:
        """Share of its rate that a matmul keeps in whole tiles on all SMs.

        Args:
            matmul: not of attention or a scan.
            mesh: chips by role.
            dtype: dtype of the arithmetic.
            groups: experts on the chip, whose matmuls run as one grouped matmul.
        """
        local = matmul.program.local
        sizes: dict[str, Num] = {}
        for array in (*local.inputs, local.output):
            for dim in array.dims:
                sizes[dim.name] = local_size(dim, matmul.sizes, mesh)
        sizes["T"] = sizes.get("T", 1.0) / matmul.n_chunks
        columns = [dim for dim in local.output.names if dim in local.right.names]
        rows = [dim for dim in local.output.names if dim not in columns]
        if matmul.program.einsum.chosen:
            sizes["E"] = 1.0
            if "E" not in local.output.names:  # tokens, each once per expert that it is routed to
                rows = ["B", "T"]
                columns = [dim for dim in columns if dim not in rows]
                sizes["B"] = sizes["B"] * matmul.sizes["R"] / groups
        m = math.prod(sizes[dim] for dim in rows)
        n = math.prod(sizes[dim] for dim in columns)
        k = matmul.program.local_flops(matmul.sizes, mesh) / (2 * m * n * groups * matmul.n_chunks)
        depth = depth_efficiency(k, sm_flops_per_clock(self.chip, dtype))
        return tile_efficiency(m, n, self.n_sms, groups) * depth

    def _attention_share(self, config: ModelConfig) -> float:
        """Share of the peak that attention achieves at the model's head dim.

        A head dim smaller than the matrix unit fills a part of it.
        """
        share = self.calibration.attention
        if self.fusion.ideal:
            return share
        if self.chip.kind == "tpu":
            side = max(self.chip.matrix_unit or (1,))
            return share * min(1.0, config.d_head / side)
        if not (self.n_sms and self.fusion.flash):
            return share
        wide_dtype = "bf16" if "bf16" in self.chip.peak_flops_per_s else "fp16"
        flops_per_clock = sm_flops_per_clock(self.chip, wide_dtype)
        speedup = 1.0
        if self.fusion.narrow_attention and units.bytes_per_element(self.job.compute) < 2:
            speedup = self.chip.peak("fp8") / self.chip.peak("bf16")
        exponentials = self.chip.exponentials_per_clock_per_sm or EXPONENTIALS
        ratio = head_dim_efficiency(config.d_head, flops_per_clock, exponentials, speedup)
        if self.fusion.warp_attention:
            ratio *= warp_efficiency(flops_per_clock)
        return share * float(ratio)

    def _score_flops_ratio(self, matmul: Matmul) -> float:
        """Ratio of the scores that kernels compute to the unmasked ones."""
        if self.fusion.ideal:
            return 1.0
        repeats = BACKWARD_RECOMPUTE if matmul.phase == "backward" else 1.0
        if self.variant.packed:
            repeats *= DOCUMENT / self.job.seq
        if not self.fusion.flash:
            return repeats / float(matmul.share)
        seq = self.job.seq
        visible = float(matmul.share) * seq
        edges = 1 if 2 * visible >= seq else 2
        computed = min(float(tiled_keys(visible, edges, self.mask_tile)), float(seq))
        return repeats * computed / visible

    def computed_flops(self, matmul: Matmul, mesh: Mapping[str, Num]) -> Num:
        """FLOPs of all `count` occurrences as the chip's kernels compute them.

        Tiled attention computes tiles on the edge of its mask whole, and its scores again in the
        backward pass. On a TPU a sequence that is not a multiple of `TPU_ROWS` is not tiled: its
        whole square of scores is computed, and kept.
        """
        flops = matmul.flops(mesh)
        if not is_attention(matmul):
            return flops
        if self.chip.kind == "tpu" and self.job.seq % TPU_ROWS:
            return flops / matmul.share
        return flops * self._score_flops_ratio(matmul)

    def _scan_flops_ratio(self, matmul: Matmul) -> float:
        """Ratio of a scan's computed products to the counted ones: whole tiles of masked chunks.

        Packed documents change no chunk: their masks cut the states that are passed on.
        """
        if self.fusion.ideal:
            return 1.0
        repeats = BACKWARD_RECOMPUTE if matmul.phase == "backward" else 1.0
        if matmul.share == 1:
            return repeats
        chunk = float(matmul.sizes["Tc"])
        visible = float(matmul.share) * chunk
        computed = min(float(tiled_keys(visible, 1, self.mask_tile)), chunk)
        return repeats * computed / visible

    def elementwise(self, phase: str, n_bytes: Num, part: str = "") -> PricedItem:
        """Price element-wise steps that read and write `n_bytes` when they are fused."""
        repeats = 1.0 if self.fusion.fused else UNFUSED
        return replace(self._memory_work(ELEMENTWISE, phase, repeats * n_bytes), part=part)

    def casts(self, program: Step, mesh: Mapping[str, Num]) -> Iterator[PricedItem]:
        """Casts of matmul inputs from 16 bits to 8 or 4 bits: each array is cast once.

        Both matmuls of a backward pass use the same gradient, and matmuls of one fused matmul the
        same input.
        """
        if self.job.compute not in NARROW_DTYPES or self.fusion.ideal:
            return
        elements_by_phase: dict[str, dict[tuple[int, str], Num]] = {}
        for matmul in program.matmuls:
            left = matmul.program.local.left
            if is_core(matmul) or is_embedding_or_head(matmul):
                continue
            if matmul.phase == "backward" and not left.gradient_of:
                continue  # kept from the forward pass
            n = matmul.count * left.local_elements(matmul.sizes, mesh)
            if matmul.program.einsum.chosen and "R" not in left.names:
                n = n * matmul.sizes["R"]
            block = matmul.term.module if left.name == "x" else ""
            arrays = elements_by_phase.setdefault(matmul.phase, {})
            arrays[matmul.group, block + left.name] = n
        for phase, arrays in elements_by_phase.items():
            n_bytes = sum(arrays.values(), 0.0) * CAST_BYTES
            yield self._memory_work("casts", phase, n_bytes)

    def gradient_adds(self, program: Step, layout: Layout | Layouts) -> Iterator[PricedItem]:
        """Kernels that add weight gradients to their sum, where the matmuls do not.

        ZeRO-3 scatters gradients at once.
        """
        if self.fusion.fused_gradient_add or layout.zero == 3:
            return
        total: Num = 0.0
        for matmul in program.matmuls:
            output = matmul.program.local.output
            is_gradient = output.gradient_of in program.weights
            if is_gradient and not is_embedding_or_head(matmul):
                elements = output.local_elements(matmul.sizes, layout.sizes)
                total = total + matmul.count * elements
        n_bytes = ADDED_BYTES + 2 * units.bytes_per_element(self.job.gradients)
        yield self._memory_work("gradients.add", "backward", total * n_bytes)

    def _memory_work(self, name: str, phase: str, n_bytes: Num) -> PricedItem:
        """Work that only reads and writes HBM."""
        return PricedItem(name=name, phase=phase, n_bytes=n_bytes, bytes_per_s=self.hbm_bytes_per_s)


def is_core(matmul: Matmul) -> bool:
    """Whether kernels of attention or of scans fuse a matmul: it stays in 16 bits."""
    return matmul.term.block == "core"


def is_attention(matmul: Matmul) -> bool:
    """Whether a matmul computes the scores or the weighted values of attention."""
    return is_core(matmul) and matmul.term.module == "attn"


def is_scan(matmul: Matmul) -> bool:
    """Whether a matmul belongs to the scan of a Mamba block."""
    return is_core(matmul) and matmul.term.module == "mamba"


def is_embedding_or_head(work: Matmul | Transfer | None) -> bool:
    """Whether work of the algebra belongs to the embedding or the unembedding, not to a layer."""
    return work is not None and work.term.module in EMBEDDING_AND_HEAD


def element_bytes(array: Array, weights: frozenset[str], job: Train) -> float:
    """Bytes per element of an array of the step: a weight, a weight's gradient or an activation.

    Weights that are stored wider are cast to 16 bits before they are sent or multiplied.
    """
    if array.name in weights:
        return job.weight_bytes if job.compute == "fp32" else min(job.weight_bytes, 2.0)
    if array.gradient_of in weights:
        return units.bytes_per_element(job.gradients)
    return job.activation_bytes


def matmul_bytes(
    matmul: Matmul, weights: frozenset[str], job: Train, mesh: Mapping[str, Num]
) -> Num:
    """Bytes that one chip reads and writes for all `count` of a matmul, of its experts only."""
    total: Num = 0.0
    for array, elements in matmul.arrays(mesh):
        n_bytes = elements * element_bytes(array, weights, job)
        if is_routed(array):
            n_bytes = n_bytes / mesh["expert"]
        total = total + n_bytes
    return total


def local_experts(matmul: Matmul, layout: Layout | Layouts) -> Num:
    """Experts of one layer on a chip; 1 for matmuls without experts."""
    if not matmul.program.einsum.chosen:
        return 1.0
    return maximum(1.0, matmul.sizes["E"] / expert_degree(layout, layout.sizes))


def _score_bytes(matmul: Matmul, mesh: Mapping[str, Num]) -> Num:
    """Bytes of scores written, masked, normalised, dropped and read, half for each matmul."""
    local = matmul.program.local
    scores = next(a for a in (*local.inputs, local.output) if a.name in ("s", "ds"))
    return scores.local_elements(matmul.sizes, mesh) * SCORE_BYTES / 2
