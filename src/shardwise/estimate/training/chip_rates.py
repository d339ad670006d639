"""Work of one chip, priced at the rates that it reaches.

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
    depth_share,
    head_share,
    power_share,
    sm_count,
    sm_flops_per_clock,
    tile_share,
    tiled_keys,
    warp_share,
)
from shardwise.estimate.routing import is_routed
from shardwise.hardware import Chip, catalog_chip, chip_names
from shardwise.models import ModelConfig
from shardwise.ops.einsum import Array, local_size
from shardwise.ops.program import Matmul, Step, Transfer
from shardwise.strategy.layout import Layout, Layouts, expert_degree
from shardwise.workload import Train

ENDS = ("embed", "unembed")
UNFUSED = 2.5  # operations for one fused kernel: a norm or an activation is two or three
SCORE_BYTES = 13.0  # a score in 16 bits through scale, mask, softmax and dropout, and its mask
# Tiles of masked attention: FlashAttention-2 and -3; MaxText's sa_block_q and sa_block_kv.
MASK_TILE = {"tpu": 512}
GPU_MASK_TILE = 128
TPU_ROWS = 128  # splash attention takes sequences of whole multiples
DOCUMENT = 512  # tokens seen by a token of packed short documents, whole tiles of them
# A cast to 8 bits reads 16 bits and writes the result by rows and by columns, for the products of
# the forward and the backward pass (Transformer Engine's MXFP8 and its transposed caches).
CAST_BYTES = 4.0
ADDED_BYTES = 4.0  # a gradient in 16 bits written and read, beside the sum that it is added to
NARROW = ("fp8", "fp4", "int8")
ELEMENTWISE = "elementwise"  # norms, sums, rotations, activation functions
# The backward pass of attention in tiles: five products for four. That of a scan computes scores
# and states again: ten for eight (state-spaces/mamba, _mamba_chunk_scan_combined_bwd).
SCORES_AGAIN = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What a framework fuses.

    Args:
        flash: attention in tiles; else the whole square is computed and scores go through HBM.
        warp_attention: attention by kernels written for Ampere (FlashAttention-2).
        narrow_attention: products of attention in 8 bits, where the job computes in no wider ones.
        fused: element-wise steps read and write once; else each operation does.
        adds: products of gradients add to the sum over microbatches themselves.
        prefetch: sharded weights are gathered ahead of the backward pass too.
        graphs: a graph holds the whole step: the host starts no kernel.
        once: a token is sent once to each chip and node with experts of it, not once per expert.
        ideal: nothing but the products: element-wise steps cost nothing, scores are kept.
    """

    flash: bool = True
    warp_attention: bool = False
    narrow_attention: bool = False
    fused: bool = True
    adds: bool = True
    prefetch: bool = True
    graphs: bool = False
    once: bool = False
    ideal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a run trains and runs that its configuration does not say.

    Args:
        frozen: weights stay; adapters of no size learn (LoRA).
        whole_remat: full remat runs all of a layer again, also the product that nothing reads.
        packed: sequences are packed short documents, and attention stays inside each.
        mtp_layers: layers of multi-token prediction, each with its own pass through the head.
    """

    frozen: bool = False
    whole_remat: bool = False
    packed: bool = False
    mtp_layers: int = 0


IDEAL = Kernels(ideal=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a chip reaches in a job."""

    chip: Chip
    job: Train
    cal: Calibration = PEAK
    kernels: Kernels = IDEAL
    extras: Extras = Extras()

    @property
    def hbm(self) -> float:
        """Bytes per second."""
        return self.chip.need("hbm_bytes_per_s") * self.cal.hbm

    @property
    def matmul_flops_per_s(self) -> float:
        """What large products reach."""
        return self.chip.peak(self.job.compute) * self.cal.matmul(self.job.compute)

    @property
    def units(self) -> float:
        """SMs that share the tiles of a product; 0 where they are not known or do not matter."""
        return 0.0 if self.kernels.ideal else sm_count(self.chip)

    @property
    def clock_share(self) -> float:
        """Of its clock that a chip keeps under a power limit below that of its file."""
        if self.kernels.ideal or self.chip.name not in chip_names():
            return 1.0
        usual, watts = catalog_chip(self.chip.name).power_w, self.chip.power_w
        return float(power_share(watts, usual)) if watts and usual else 1.0

    def dtype(self, matmul: Matmul) -> str:
        """Of the arithmetic: attention and the ends of the model stay in 16 bits."""
        whole = is_core(matmul) or is_end(matmul)
        dtype = "bf16" if whole and units.bytes_per_element(self.job.compute) < 2 else None
        dtype = dtype or self.job.compute
        return "fp16" if dtype == "bf16" and dtype not in self.chip.peak_flops_per_s else dtype

    def product(
        self,
        matmul: Matmul,
        config: ModelConfig,
        program: Step,
        layout: Layout | Layouts,
        part: str = "",
    ) -> PricedItem:
        """All `count` occurrences of a product in one microbatch, of a part of a layer."""
        mesh, dtype = layout.sizes, self.dtype(matmul)
        flops = matmul.flops(mesh)
        n_bytes = hbm_bytes(matmul, program.weights, self.job, mesh)
        start_s: Num = 0.0 if self.kernels.graphs else self.cal.kernel_s
        if is_scan(matmul):
            reached = self.cal.scanned
            flops = flops * self._chunks(matmul)
        elif is_attention(matmul):
            reached = self._attention(config)
            flops = flops * self._scores(matmul)
            if not self.kernels.flash:
                n_bytes = n_bytes + matmul.count * _score_bytes(matmul, mesh)
        else:
            reached = self.cal.matmul(dtype)
            experts = experts_here(matmul, layout)
            if self.units:
                per_clock = sm_flops_per_clock(self.chip, dtype)
                reached = reached * tiles(matmul, mesh, self.units, per_clock, experts)
            if matmul.program.einsum.chosen:
                reached = reached * self.cal.grouped
                if not self.kernels.graphs:
                    start_s = start_s + experts * self.cal.expert_s
        return PricedItem(
            name=matmul.name,
            phase=matmul.phase,
            count=matmul.count * matmul.pieces,
            part=part,
            work=matmul,
            flops=flops,
            n_bytes=n_bytes,
            flops_per_s=self.chip.peak(dtype) * self.clock_share * reached,
            bytes_per_s=self.hbm,
            occurrence_s=start_s,
        )

    def _attention(self, config: ModelConfig) -> float:
        """Share of the peak in attention: a head narrower than the matrix unit fills a part, and
        exponentials run beside the products."""
        if self.kernels.ideal:
            return self.cal.attention
        if self.chip.kind == "tpu":
            side = max(self.chip.matrix_unit or (1,))
            return self.cal.attention * min(1.0, config.d_head / side)
        if not (self.units and self.kernels.flash):
            return self.cal.attention
        each = sm_flops_per_clock(
            self.chip, "bf16" if "bf16" in self.chip.peak_flops_per_s else "fp16"
        )
        narrow = 1.0
        if self.kernels.narrow_attention and units.bytes_per_element(self.job.compute) < 2:
            narrow = self.chip.peak("fp8") / self.chip.peak("bf16")
        exponentials = self.chip.exponentials_per_clock_per_sm or EXPONENTIALS
        share = head_share(config.d_head, each, exponentials, narrow)
        share *= warp_share(each) if self.kernels.warp_attention else 1.0
        return self.cal.attention * float(share)

    def _scores(self, matmul: Matmul) -> float:
        """Scores that are computed over those that the mask leaves, each as often as it is."""
        if self.kernels.ideal:
            return 1.0
        times = SCORES_AGAIN if matmul.phase == "backward" else 1.0
        times *= DOCUMENT / self.job.seq if self.extras.packed else 1.0
        if not self.kernels.flash:
            return times / float(matmul.share)
        seq, visible = self.job.seq, float(matmul.share) * self.job.seq
        edges = 1 if 2 * visible >= seq else 2
        tile = MASK_TILE.get(self.chip.kind, GPU_MASK_TILE)
        return times * min(float(tiled_keys(visible, edges, tile)), float(seq)) / visible

    def computed_flops(self, matmul: Matmul, mesh: Mapping[str, Num]) -> Num:
        """FLOPs of all `count` occurrences as the chip's kernels compute them.

        Attention in tiles computes those on the edge of its mask whole, and makes its scores again
        in the backward pass. On a TPU a sequence that is no whole number of rows is not cut into
        tiles: its whole square of scores is computed, and kept.
        """
        flops = matmul.flops(mesh)
        if not is_attention(matmul):
            return flops
        if self.chip.kind == "tpu" and self.job.seq % TPU_ROWS:
            return flops / matmul.share
        return flops * self._scores(matmul)

    def _chunks(self, matmul: Matmul) -> float:
        """Products of a scan that are computed over those counted: whole tiles of masked chunks.

        Packed documents change no chunk: their masks cut states that pass on.
        """
        if self.kernels.ideal:
            return 1.0
        times = SCORES_AGAIN if matmul.phase == "backward" else 1.0
        if matmul.share == 1:
            return times
        chunk = float(matmul.sizes["Tc"])
        visible, tile = float(matmul.share) * chunk, MASK_TILE.get(self.chip.kind, GPU_MASK_TILE)
        return times * min(float(tiled_keys(visible, 1, tile)), chunk) / visible

    def elementwise(self, phase: str, n_bytes: Num, part: str = "") -> PricedItem:
        """Steps that read and write `n_bytes` when they are fused."""
        times = 1.0 if self.kernels.fused else UNFUSED
        return replace(self._memory_work(ELEMENTWISE, phase, times * n_bytes), part=part)

    def casts(self, program: Step, mesh: Mapping[str, Num]) -> Iterator[PricedItem]:
        """Inputs of products in 8 or 4 bits, made from 16 bits: each read and written once.

        Both products of a backward pass use the same gradient, and one fused product the input of
        its neighbours: each array is cast once.
        """
        if self.job.compute not in NARROW or self.kernels.ideal:
            return
        arrays: dict[str, dict[tuple[int, str], Num]] = {}
        for matmul in program.matmuls:
            left = matmul.program.local.left
            if is_core(matmul) or is_end(matmul):
                continue
            if matmul.phase == "backward" and not left.gradient_of:
                continue  # kept from the forward pass
            n = matmul.count * left.local_elements(matmul.sizes, mesh)
            if matmul.program.einsum.chosen and "R" not in left.names:
                n = n * matmul.sizes["R"]
            block = matmul.term.module if left.name == "x" else ""
            arrays.setdefault(matmul.phase, {})[matmul.group, block + left.name] = n
        for phase, elements in arrays.items():
            n_bytes = sum(elements.values(), 0.0) * CAST_BYTES
            yield self._memory_work("casts", phase, n_bytes)

    def added_gradients(self, program: Step, layout: Layout | Layouts) -> Iterator[PricedItem]:
        """Gradients of weights added to their sum by a kernel of its own, not by the product.

        ZeRO-3 scatters gradients at once.
        """
        if self.kernels.adds or layout.zero == 3:
            return
        total: Num = 0.0
        for matmul in program.matmuls:
            output = matmul.program.local.output
            is_gradient = output.gradient_of in program.weights
            if is_gradient and not is_end(matmul):
                elements = output.local_elements(matmul.sizes, layout.sizes)
                total = total + matmul.count * elements
        n_bytes = ADDED_BYTES + 2 * units.bytes_per_element(self.job.gradients)
        yield self._memory_work("gradients.add", "backward", total * n_bytes)

    def _memory_work(self, name: str, phase: str, n_bytes: Num) -> PricedItem:
        """Work that only reads and writes HBM."""
        return PricedItem(name=name, phase=phase, n_bytes=n_bytes, bytes_per_s=self.hbm)


def is_core(matmul: Matmul) -> bool:
    """The products that kernels of attention and of scans fuse: they stay in 16 bits."""
    return matmul.term.block == "core"


def is_attention(matmul: Matmul) -> bool:
    """Scores and weighted values of attention."""
    return is_core(matmul) and matmul.term.module == "attn"


def is_scan(matmul: Matmul) -> bool:
    """Products of the scan of a Mamba block."""
    return is_core(matmul) and matmul.term.module == "mamba"


def is_end(work: Matmul | Transfer | None) -> bool:
    """Whether work of the algebra belongs to the embedding or the unembedding, not to a layer."""
    return work is not None and work.term.module in ENDS


def element_bytes(array: Array, weights: frozenset[str], job: Train) -> float:
    """Bytes per element of an array of the step, by what it is.

    Weights that are held wider are cast to 16 bits before they are sent or multiplied.
    """
    if array.name in weights:
        return min(job.weight_bytes, 2.0) if job.compute != "fp32" else job.weight_bytes
    if array.gradient_of in weights:
        return units.bytes_per_element(job.gradients)
    return job.activation_bytes


def hbm_bytes(matmul: Matmul, weights: frozenset[str], job: Train, mesh: Mapping[str, Num]) -> Num:
    """Bytes that one chip reads and writes for all `count` of a matmul; of experts its own."""
    total: Num = 0.0
    for array, n in matmul.arrays(mesh):
        one = n * element_bytes(array, weights, job)
        total = total + (one / mesh["expert"] if is_routed(array) else one)
    return total


def experts_here(matmul: Matmul, split: Layout | Layouts) -> Num:
    """Experts of one layer that lie on a chip, 1 for products without."""
    if not matmul.program.einsum.chosen:
        return 1.0
    return maximum(1.0, matmul.sizes["E"] / expert_degree(split, split.sizes))


def tiles(
    matmul: Matmul, mesh: Mapping[str, Num], units: float, flops_per_clock: float, groups: Num
) -> Num:
    """Share of its rate that a product reaches in whole tiles on all SMs.

    Args:
        units: SMs, and `flops_per_clock` those of each.
        groups: experts on the chip, whose products run in one go.
    """
    local = matmul.program.local
    size: dict[str, Num] = {
        d.name: local_size(d, matmul.sizes, mesh)
        for array in (*local.inputs, local.output)
        for d in array.dims
    }
    size["T"] = size.get("T", 1.0) / matmul.pieces
    columns = [n for n in local.output.names if n in local.right.names]
    rows = [n for n in local.output.names if n not in columns]
    if matmul.program.einsum.chosen:
        size["E"] = 1.0
        if "E" not in local.output.names:  # tokens, each once for every expert it goes to
            rows, columns = ["B", "T"], [n for n in columns if n not in ("B", "T")]
            size["B"] = size["B"] * matmul.sizes["R"] / groups
    m, n = (math.prod(size[name] for name in names) for names in (rows, columns))
    k = matmul.program.local_flops(matmul.sizes, mesh) / (2 * m * n * groups * matmul.pieces)
    return tile_share(m, n, units, groups) * depth_share(k, flops_per_clock)


def _score_bytes(matmul: Matmul, mesh: Mapping[str, Num]) -> Num:
    """Scores written, masked, normalised, dropped and read: half with each product."""
    local = matmul.program.local
    s = next(a for a in (*local.inputs, local.output) if a.name in ("s", "ds"))
    return s.local_elements(matmul.sizes, mesh) * SCORE_BYTES / 2
