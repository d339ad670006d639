"""What training runs differ in beyond model, job and layout: fusions of the framework, variants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionProfile:
    """Fusions and schedules of a framework's kernels.

    Args:
        flash: tiled attention; otherwise the whole square is computed and scores go through HBM.
        warp_attention: attention kernels written for Ampere (FlashAttention-2).
        narrow_attention: matmuls of attention in 8 bits where the job computes in 8 bits or fewer.
        fused: element-wise steps read and write once; otherwise each operation does.
        fused_gradient_add: matmuls of gradients add to the sum over microbatches themselves.
        backward_prefetch: sharded weights are prefetched in the backward pass too.
        cuda_graphs: a graph holds the whole step: the host launches no kernel.
        send_once: a token is sent once to each chip and node with experts of it, not per expert.
        ideal: only the matmuls: element-wise steps cost nothing, scores are kept.
    """

    flash: bool = True
    warp_attention: bool = False
    narrow_attention: bool = False
    fused: bool = True
    fused_gradient_add: bool = True
    backward_prefetch: bool = True
    cuda_graphs: bool = False
    send_once: bool = False
    ideal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVariant:
    """Properties of a run that neither its model nor its job states.

    Args:
        frozen: weights are frozen; the trained adapters have no size (LoRA).
        whole_remat: full remat recomputes all of a layer, its unread last matmul included.
        packed: sequences are packed short documents, and attention stays inside each.
        mtp_layers: layers of multi-token prediction, each with its own pass through the head.
    """

    frozen: bool = False
    whole_remat: bool = False
    packed: bool = False
    mtp_layers: int = 0


IDEAL = FusionProfile(ideal=True)
PLAIN_RUN = RunVariant()
