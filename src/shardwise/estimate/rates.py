"""Seconds that one chip takes for local work and that links take for what it sends.

A matmul is a roofline at the achieved shares of the peak and of HBM (`Calibration`); at `PEAK` and
`IDEAL` all of it is the bare roofline of the book.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum, where
from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.prices import Prices
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.ops.einsum import Array, shards
from shardwise.ops.program import Matmul
from shardwise.workload import Train

ENDS = ("embed", "unembed")
CORE = ("attn.scores", "attn.values")
UNFUSED = 2.5  # operations for one fused kernel: a norm or an activation is two or three
SCORE_BYTES = 13.0  # a score in 16 bits through scale, mask, softmax and dropout, and its mask
SCORES_AGAIN = 1.25  # the backward pass of attention in tiles: five products for four


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What a framework fuses.

    Args:
        flash: attention in tiles; else the whole square is computed and scores go through HBM.
        fused: element-wise steps read and write once; else each operation does.
        ideal: nothing but the products: element-wise steps cost nothing, scores are kept.
    """

    flash: bool = True
    fused: bool = True
    ideal: bool = False


IDEAL = Kernels(ideal=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a chip reaches in a job."""

    chip: Chip
    job: Train
    cal: Calibration = PEAK
    kernels: Kernels = IDEAL

    @property
    def hbm(self) -> float:
        """Bytes per second."""
        return self.chip.need("hbm_bytes_per_s") * self.cal.hbm

    def dtype(self, matmul: Matmul) -> str:
        """Of the arithmetic: attention and the ends of the model stay in 16 bits."""
        whole = is_core(matmul) or is_end(matmul.name)
        dtype = "bf16" if whole and units.bytes_per_element(self.job.compute) < 2 else None
        dtype = dtype or self.job.compute
        return "fp16" if dtype == "bf16" and dtype not in self.chip.peak_flops_per_s else dtype

    def matmul_s(
        self,
        matmul: Matmul,
        config: ModelConfig,
        weights: frozenset[str],
        mesh: Mapping[str, Num],
    ) -> Num:
        """Seconds of all `count` occurrences in one microbatch."""
        core, dtype = is_core(matmul), self.dtype(matmul)
        reached = self._attention(config) if core else self.cal.matmul(dtype)
        if matmul.program.einsum.chosen:
            reached *= self.cal.grouped
        flops = matmul.flops(mesh)
        n_bytes = hbm_bytes(matmul, weights, self.job, mesh)
        if core and not self.kernels.ideal:
            flops = flops * (SCORES_AGAIN if matmul.phase == "backward" else 1.0)
        if core and not self.kernels.flash:
            flops = flops / matmul.share
            n_bytes = n_bytes + matmul.count * _score_bytes(matmul, mesh)
        math_s = flops / (self.chip.peak(dtype) * reached)
        return maximum(math_s, n_bytes / self.hbm) + matmul.count * self.cal.kernel_s

    def _attention(self, config: ModelConfig) -> float:
        """Share of the peak in attention: a head narrower than the matrix unit fills a part."""
        narrow = self.chip.kind == "tpu" and not self.kernels.ideal
        side = max(self.chip.matrix_unit or (1,)) if narrow else 1
        return self.cal.attention * min(1.0, config.d_head / side)

    def elementwise_s(self, n_bytes: Num) -> Num:
        """Seconds of steps that read and write `n_bytes` when they are fused."""
        if self.kernels.ideal:
            return 0.0 * n_bytes
        return (1.0 if self.kernels.fused else UNFUSED) * n_bytes / self.hbm

    def send_s(
        self,
        prices: Prices,
        kind: str,
        axes: tuple[str, ...],
        n_bytes: Num,
        mesh: Mapping[str, Num],
    ) -> Num:
        """Seconds of one collective on an array of `n_bytes`; nothing over one chip."""
        sent = prices.of(kind, axes).time_s(n_bytes / self.cal.network)
        if not self.cal.collective_s:
            return sent
        return sent + where(shards(axes, mesh) > 1, self.cal.collective_s, 0.0)


def is_core(matmul: Matmul) -> bool:
    """Scores and weighted values: the products that attention kernels fuse."""
    return matmul.name.startswith(CORE)


def is_end(name: str) -> bool:
    """Embedding and unembedding, which are in no layer."""
    return name.split(".")[0] in ENDS


def is_routed(array: Array) -> bool:
    """The matrices of routed experts, or their gradients."""
    return len(array.dims) == 3 and array.dims[0].name == "E"


def element_bytes(name: str, weights: frozenset[str], job: Train) -> float:
    """Bytes per element of an array of the step, by what it is.

    Weights that are held wider are cast to 16 bits before they are sent or multiplied.
    """
    if name in weights:
        return min(job.weight_bytes, 2.0) if job.compute != "fp32" else job.weight_bytes
    if name.startswith("d") and name[1:] in weights:
        return units.bytes_per_element(job.gradients)
    return job.activation_bytes


def hbm_bytes(
    matmul: Matmul, weights: frozenset[str], job: Train, mesh: Mapping[str, Num]
) -> Num:
    """Bytes that one chip reads and writes for all `count` of a matmul; of experts its own."""
    total: Num = 0.0
    for array, n in matmul.arrays(mesh):
        one = n * element_bytes(array.name, weights, job)
        total = total + (one / mesh["expert"] if is_routed(array) else one)
    return total


def _score_bytes(matmul: Matmul, mesh: Mapping[str, Num]) -> Num:
    """Scores written, masked, normalised, dropped and read: half with each product."""
    local = matmul.program.local
    s = next(a for a in (*local.inputs, local.output) if a.name in ("s", "ds"))
    return s.local_elements(matmul.sizes, mesh) * SCORE_BYTES / 2
