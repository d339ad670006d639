"""Rates that a chip achieves in a training step, and the time of its work at these rates.

The time of a matmul is a roofline with the achieved shares of peak FLOP/s and HBM bandwidth
(`Calibration`). With `PEAK` and `IDEAL` it is the pure roofline of the book.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from shardwise import units
from shardwise.arrays import Num, maximum
from shardwise.estimate import kernels
from shardwise.estimate.calibration import MEASURED, PEAK, Calibration
from shardwise.estimate.items import PricedItem
from shardwise.estimate.training import measured_rates
from shardwise.estimate.training.local_work import LocalWork, local_work
from shardwise.estimate.training.matmul_kinds import (
    is_attention,
    is_core,
    is_embedding_or_head,
    is_scan,
    score_bytes,
)
from shardwise.estimate.training.run_variant import IDEAL, PLAIN_RUN, FusionProfile, RunVariant
from shardwise.hardware import Chip, catalog_chip, chip_names
from shardwise.models import ModelConfig
from shardwise.ops.program import Matmul, Step
from shardwise.strategy.layout import Layout, Layouts
from shardwise.workload import Train

# Reads and writes of unfused element-wise steps relative to fused ones: a norm or an activation
# function consists of two or three operations.
UNFUSED_RATIO = 2.5
TPU_ROWS = 128  # splash attention needs sequence lengths that are multiples of this
# Mean number of keys per query in packed short documents, counting whole tiles.
DOCUMENT_KEYS = 512
# Bytes of HBM traffic per element that is cast to 8 bits: 16 bits are read, and the result is
# written both by rows and by columns, for the matmuls of the forward and of the backward pass
# (Transformer Engine's MXFP8 and its transposed caches).
CAST_BYTES = 4.0
# Bytes of HBM traffic per element of a 16-bit gradient that a separate kernel adds to a sum: the
# gradient is written and read. Traffic of the sum is not included.
ADDED_BYTES = 4.0
NARROW_DTYPES = ("fp8", "fp4", "int8")
SHORTEST_S = 1e-12  # of measured work, which is divided by
ELEMENTWISE = "elementwise"  # name of items for norms, sums, rotary, activation functions
# FLOPs of the backward pass that kernels compute, relative to those counted. Tiled attention
# computes scores again: five matmuls instead of four. A scan computes scores and states again: ten
# instead of eight (state-spaces/mamba, _mamba_chunk_scan_combined_bwd).
BACKWARD_RECOMPUTE = 1.25


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of a chip in a training job.

    Args:
        job: dtypes and sequence length.
        calibration: shares of the chip's peak rates that it achieves.
        fusion: fusions of the framework's kernels.
        variant: properties of the run that the job does not state.
    """

    chip: Chip
    job: Train
    calibration: Calibration = PEAK
    fusion: FusionProfile = IDEAL
    variant: RunVariant = PLAIN_RUN

    @cached_property
    def hbm_bytes_per_s(self) -> float:
        """Achieved HBM bandwidth, bytes per second."""
        return self.chip.need("hbm_bytes_per_s") * self.calibration.hbm

    @property
    def measured(self) -> bool:
        """Whether these are rates that `hw measure` has found."""
        return self.calibration.name == MEASURED.name and not self.fusion.ideal

    @property
    def has_tiles(self) -> bool:
        """Whether the shape of a product counts, not only its FLOPs and bytes."""
        return bool(self.n_sms) or bool(self._matrix_unit) or self.measured

    @property
    def matmul_flops_per_s(self) -> float:
        """Achieved FLOP/s of large matmuls in the job's compute dtype."""
        return self.chip.peak(self.job.compute) * self.calibration.matmul(self.job.compute)

    @cached_property
    def n_sms(self) -> float:
        """Number of SMs for tile quantization; 0 if it is unknown or at ideal fusion."""
        return 0.0 if self.fusion.ideal else kernels.sm_count(self.chip)

    @cached_property
    def _sm_clocks_per_s(self) -> float:
        return kernels.sm_clocks_per_s(self.chip)

    @cached_property
    def _matrix_unit(self) -> int:
        """Side of the matrix unit of a TPU; 0 if it is unknown or at ideal fusion."""
        if self.fusion.ideal or self.chip.kind != "tpu":
            return 0
        return max(self.chip.matrix_unit or (0,))

    @cached_property
    def clock_share(self) -> float:
        """Clock of the chip under its power limit, relative to the catalog's limit; at most 1."""
        if self.fusion.ideal or self.chip.name not in chip_names():
            return 1.0
        default_watts = catalog_chip(self.chip.name).power_w
        watts = self.chip.power_w
        if not watts or not default_watts:
            return 1.0
        return float(kernels.clock_under_power_limit(watts, default_watts))

    def mask_tile(self, phase: str) -> Num:
        """Side of a square tile of masked attention: keys, and queries, of one tile."""
        return self.fusion.mask_tile or kernels.mask_tile(self.chip.kind, phase, self.job.seq)

    def dtype(self, matmul: Matmul) -> str:
        """Dtype of a matmul; attention, scans, embedding and head stay in 16 bits."""
        dtype = self.job.compute
        if units.bytes_per_element(dtype) < 2 and (is_core(matmul) or is_embedding_or_head(matmul)):
            dtype = "bf16"
        return self._half_precision if dtype == "bf16" else dtype

    def matmul(
        self,
        matmul: Matmul,
        config: ModelConfig,
        program: Step,
        layout: Layout | Layouts,
        part: str = "",
        work: LocalWork | None = None,
    ) -> PricedItem:
        """Price all occurrences of a matmul in one microbatch.

        Args:
            program: the program that contains the matmul.
            layout: one layout, or arrays of layouts.
            part: part of the layer to which the matmul belongs.
            work: the result of `local_work` for the matmul, if already computed.
        """
        work = work or self.local_work(matmul, program, layout)
        if self.measured:
            return self._measured_matmul(matmul, program, layout, part, work)
        dtype = self.dtype(matmul)
        flops = work.flops
        n_bytes = work.n_bytes
        launched = 1.0 - self.fusion.captured  # share of the kernels that the host launches
        launch_s: Num = launched * self.calibration.kernel_s
        if is_scan(matmul):
            achieved = self.calibration.scan_share
            flops = flops * self._scan_flops_ratio(matmul)
        elif is_attention(matmul):
            achieved = self._attention_share(config) * self._attention_depth(matmul, config)
            if matmul.phase == "backward" and self.fusion.flash:
                achieved = achieved * self.calibration.attention_backward
            flops = flops * self._score_flops_ratio(matmul)
            if not self.fusion.flash:
                n_bytes = n_bytes + matmul.count * score_bytes(matmul, layout.sizes)
        else:
            achieved = self.calibration.matmul(dtype)
            if work.tiles:
                achieved = achieved * self._tile_efficiency(work, dtype)
            if matmul.program.einsum.chosen:
                achieved = achieved * self.calibration.grouped
                if self.fusion.captured < 1:
                    launch_s = launch_s + work.experts * self.calibration.expert_s
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

    def _tile_efficiency(self, work: LocalWork, dtype: str) -> Num:
        """Rate of a matmul of these sizes relative to that of a large one."""
        rows, columns, depth = work.tiles or (1.0, 1.0, 1.0)
        if not self.n_sms:
            return kernels.matrix_unit_efficiency(columns, depth, self._matrix_unit)
        tiles = kernels.tile_efficiency(rows, columns, self.n_sms, work.experts)
        return tiles * kernels.depth_efficiency(
            depth, self.chip.peak(dtype) / self._sm_clocks_per_s
        )

    def _measured_matmul(
        self,
        matmul: Matmul,
        program: Step,
        layout: Layout | Layouts,
        part: str,
        work: LocalWork,
    ) -> PricedItem:
        """Price all occurrences of a matmul at measured rates."""
        dtype = self.dtype(matmul)
        count = matmul.count * matmul.n_chunks
        if work.tiles is None:
            length = float(self.job.seq)
            seconds = work.flops * measured_rates.attention_s_per_flop(
                self.chip, dtype, matmul.phase, length
            )
        else:
            kind = "forward"
            if matmul.phase == "backward":
                output = matmul.program.local.output
                kind = "weight" if output.gradient_of in program.weights else "input"
            experts_s = measured_rates.experts_s_per_flop(self.chip, dtype, kind)
            one_s = measured_rates.product_s(self.chip, dtype, kind, *work.tiles)
            if matmul.term.module == "embed":  # a lookup, not a product with one-hot vectors
                rows, width, depth = work.tiles
                tokens = depth if kind == "weight" else rows
                one_s = measured_rates.lookup_s(self.chip, dtype, tokens, width)
            seconds = count * work.experts * one_s * self.padded_experts(matmul)
            if matmul.program.einsum.chosen and experts_s:
                seconds = work.flops * experts_s
        if matmul.name == "unembed":
            array = matmul.program.local.output
            logits = array.local_elements(matmul.sizes, layout.sizes)
            seconds = seconds + measured_rates.loss_s(self.chip, logits)
        return PricedItem(
            name=matmul.name,
            phase=matmul.phase,
            count=count,
            part=part,
            work=matmul,
            flops=work.flops,
            n_bytes=work.n_bytes,
            flops_per_s=maximum(work.flops / maximum(seconds, SHORTEST_S), 1.0),  # a lookup has 0
            bytes_per_s=work.n_bytes / maximum(seconds, SHORTEST_S),
        )

    def padded_experts(self, matmul: Matmul) -> float:
        """Rows of the experts' products in relation to the tokens that are routed to them.

        XLA's CPU backend has no ragged AllToAll, so that each expert has room for all tokens.
        """
        if self.chip.kind != "cpu" or not matmul.program.einsum.chosen:
            return 1.0
        return float(matmul.sizes["E"] / matmul.sizes["R"])

    def local_work(self, matmul: Matmul, program: Step, layout: Layout | Layouts) -> LocalWork:
        """What one chip does in a matmul; of the rates, it depends on whether tiles count."""
        has_tiles = self.has_tiles and not is_core(matmul)
        return local_work(matmul, program.weights, self.job, layout, has_tiles=has_tiles)

    def _attention_share(self, config: ModelConfig) -> float:
        """Share of the peak FLOP/s that attention achieves at the model's head dim.

        On a TPU, a head dim smaller than the matrix unit fills only part of it. On a GPU, a smaller
        head dim has more exponentials per FLOP.
        """
        share = self.calibration.attention
        if self.fusion.ideal:
            return share
        if self.chip.kind == "tpu":
            return share * min(1.0, config.d_head / (self._matrix_unit or 1))
        if not (self.n_sms and self.fusion.flash):
            return share
        flops_per_clock = self.chip.peak(self._half_precision) / self._sm_clocks_per_s
        speedup = 1.0
        if self.fusion.narrow_attention and units.bytes_per_element(self.job.compute) < 2:
            speedup = self.chip.peak("fp8") / self.chip.peak("bf16")
        exponentials = self.chip.exponentials_per_clock_per_sm or kernels.EXPONENTIALS
        ratio = kernels.head_dim_efficiency(config.d_head, flops_per_clock, exponentials, speedup)
        if self.fusion.warp_attention:
            ratio *= kernels.warp_efficiency(flops_per_clock)
        return share * float(ratio)

    def _score_flops_ratio(self, matmul: Matmul) -> float:
        """FLOPs of attention that kernels compute, relative to those of unmasked scores."""
        if self.fusion.ideal:
            return 1.0
        repeats = BACKWARD_RECOMPUTE if matmul.phase == "backward" else 1.0
        if self.variant.packed:
            repeats *= DOCUMENT_KEYS / self.job.seq
        if not self.fusion.flash:
            return repeats / float(matmul.share)
        return repeats * self._visited_keys(matmul) / (float(matmul.share) * self.job.seq)

    def _visited_keys(self, matmul: Matmul) -> float:
        """Mean number of keys per query that tiled attention computes, masked ones included."""
        seq = self.job.seq
        visible = float(matmul.share) * seq
        edges = 1 if 2 * visible >= seq else 2
        tile = self.mask_tile(matmul.phase)
        return min(float(kernels.tiled_keys(visible, edges, tile)), float(seq))

    def _attention_depth(self, matmul: Matmul, config: ModelConfig) -> float:
        """Efficiency of tiled attention on a GPU, whose tiles have a start and an end."""
        if not (self.n_sms and self.fusion.flash):
            return 1.0
        keys = DOCUMENT_KEYS if self.variant.packed else self._visited_keys(matmul)
        exponentials = self.chip.exponentials_per_clock_per_sm or kernels.EXPONENTIALS
        flops_per_clock = self.chip.peak(self._half_precision) / self._sm_clocks_per_s
        return float(
            kernels.attention_depth_efficiency(keys, config.d_head, flops_per_clock, exponentials)
        )

    @property
    def _half_precision(self) -> str:
        """The dtype of 16 bits that the chip multiplies."""
        return "bf16" if "bf16" in self.chip.peak_flops_per_s else "fp16"

    def computed_flops(self, matmul: Matmul, mesh: Mapping[str, Num]) -> Num:
        """FLOPs of all occurrences of a matmul, including those that kernels compute in excess.

        Tiled attention computes whole tiles at the edge of its mask, and scores again in the
        backward pass. On a TPU, attention is not tiled if the sequence length is not a multiple of
        `TPU_ROWS`: all scores, masked ones too, are computed, and kept for the backward pass.
        """
        flops = matmul.flops(mesh)
        if not is_attention(matmul):
            return flops
        if self.chip.kind == "tpu" and self.job.seq % TPU_ROWS:
            return flops / matmul.share
        return flops * self._score_flops_ratio(matmul)

    def _scan_flops_ratio(self, matmul: Matmul) -> float:
        """FLOPs of an SSM scan that kernels compute, relative to those counted.

        Kernels compute whole tiles of the causally masked chunks. Packed documents make no
        difference, as they only mask the states passed from chunk to chunk.
        """
        if self.fusion.ideal:
            return 1.0
        repeats = BACKWARD_RECOMPUTE if matmul.phase == "backward" else 1.0
        if matmul.share == 1:
            return repeats
        chunk = float(matmul.sizes["Tc"])
        visible = float(matmul.share) * chunk
        computed = min(float(kernels.tiled_keys(visible, 1, self.mask_tile("forward"))), chunk)
        return repeats * computed / visible

    def elementwise(self, phase: str, n_bytes: Num, part: str = "") -> PricedItem:
        """Price element-wise steps that would read and write `n_bytes` if they were fused."""
        ratio = 1.0 if self.fusion.fused else UNFUSED_RATIO
        return replace(self._memory_work(ELEMENTWISE, phase, ratio * n_bytes), part=part)

    def casts(self, program: Step, mesh: Mapping[str, Num]) -> Iterator[PricedItem]:
        """Items for casts of matmul inputs from 16 bits to 8 or 4 bits.

        Each array is cast once, even if several matmuls read it: both matmuls of a backward pass
        read the same gradient, and those of queries, keys and values the same input.
        """
        if self.job.compute not in NARROW_DTYPES or self.fusion.ideal:
            return
        elements_by_phase: dict[str, dict[tuple[int, str], Num]] = {}
        for matmul in program.matmuls:
            left = matmul.program.local.left
            if is_core(matmul) or is_embedding_or_head(matmul):
                continue
            if matmul.phase == "backward" and not left.gradient_of:
                continue  # an activation, whose cast is saved in the forward pass
            n = matmul.count * matmul.copies(left) * left.local_elements(matmul.sizes, mesh)
            block = matmul.term.module if left.name == "x" else ""
            arrays = elements_by_phase.setdefault(matmul.phase, {})
            arrays[matmul.group, block + left.name] = n
        for phase, arrays in elements_by_phase.items():
            n_bytes = sum(arrays.values(), 0.0) * CAST_BYTES
            yield self._memory_work("casts", phase, n_bytes)

    def gradient_adds(self, program: Step, layout: Layout | Layouts) -> Iterator[PricedItem]:
        """Items for kernels that add weight gradients to their sum over microbatches.

        There are none if the matmuls add to the sum themselves, or under ZeRO-3, which scatters the
        gradients of every microbatch.
        """
        if (self.fusion.fused_gradient_add and not self.measured) or layout.zero == 3:
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
        """An item for work that only reads and writes HBM."""
        return PricedItem(name=name, phase=phase, n_bytes=n_bytes, bytes_per_s=self.hbm_bytes_per_s)
