"""Properties of a training run other than model, job and layout, such as fusions of kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionProfile:
    """Fusions and scheduling of a framework's kernels.

    Args:
        flash: whether attention is tiled; otherwise masked scores are computed too and all scores
            go through HBM.
        warp_attention: whether attention kernels are written for Ampere (FlashAttention-2).
        mask_tile: side of the square tiles of masked attention, in tokens; None for the default of
            the kind of chip.
        narrow_attention: whether attention computes in 8 bits if the job computes in 8 bits or
            fewer.
        fused: whether element-wise steps are fused into kernels that read and write HBM once;
            otherwise each operation reads and writes.
        fused_gradient_add: whether matmuls of weight gradients add to the sum over microbatches,
            without another kernel.
        backward_prefetch: whether sharded weights are prefetched in the backward pass too.
        captured: share of a layer's kernels in CUDA graphs, which the host does not launch one by
            one; 1 if a graph holds the whole step.
        send_once: whether a token is sent once to each chip and node that has its experts, rather
            than once to each expert.
        narrow_dispatch: whether tokens are sent to experts in 8 bits if the job computes in 8 bits.
        ideal: whether only matmuls and collectives count: element-wise steps take no time, and the
            backward pass does not recompute scores.
    """

    flash: bool = True
    warp_attention: bool = False
    mask_tile: int | None = None
    narrow_attention: bool = False
    fused: bool = True
    fused_gradient_add: bool = True
    backward_prefetch: bool = True
    captured: float = 0.0
    send_once: bool = False
    narrow_dispatch: bool = False
    ideal: bool = False

    @property
    def at_peak(self) -> FusionProfile:
        """The profile of the roofline: the same bytes go to experts, and nothing else counts."""
        return replace(IDEAL, send_once=self.send_once, narrow_dispatch=self.narrow_dispatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVariant:
    """Properties of a run that neither its model nor its job states.

    Args:
        frozen: whether weights are frozen, as with LoRA; the size of its adapters is neglected.
        whole_remat: whether full remat recomputes whole layers, including the last matmul, whose
            output the backward pass does not read.
        packed: whether sequences are packed short documents, with attention inside each document.
    """

    frozen: bool = False
    whole_remat: bool = False
    packed: bool = False


IDEAL = FusionProfile(ideal=True)
PLAIN_RUN = RunVariant()
