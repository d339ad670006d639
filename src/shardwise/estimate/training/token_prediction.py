"""Multi-token prediction (MTP) in a step: the last stage runs its layers and its heads.

Each MTP layer is a projection of two concatenated residuals [2D -> D], a Transformer layer that
takes as long as the mean layer of the model, and one more pass through the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardwise.arrays import Num, maximum
from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.microbatch import MicrobatchTime
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.models.count import TRAINING_PASSES
from shardwise.models.token_prediction import mtp_groups

PART = "mtp"  # part of the items of MTP layers, which the stage with the head runs


def n_mtp_layers(priced: PricedLayout) -> int:
    """Transformer layers of all MTP layers: one of each, two if layers have one block each."""
    return priced.job.mtp_layers * len(mtp_groups(priced.config))


def traffic_share(priced: PricedLayout) -> Num:
    """Layers whose collectives the busiest stage runs, divided by the layers of the model."""
    beyond = priced.stage.passed_beyond(n_mtp_layers(priced))
    return priced.stage.share + beyond / priced.config.n_layers


def mtp_time(priced: PricedLayout, microbatch: MicrobatchTime, layer_s: Num) -> Num:
    """Seconds of compute of the MTP layers in one microbatch; 0 without MTP layers.

    Args:
        layer_s: seconds of one microbatch in one layer, in all phases.
    """
    if not priced.job.mtp_layers:
        return 0.0
    projection_s = _projection_flops(priced) / priced.rates.matmul_flops_per_s
    heads_and_projections = priced.job.mtp_layers * (microbatch.unembedding + projection_s)
    return heads_and_projections + n_mtp_layers(priced) * layer_s


def _projection_flops(priced: PricedLayout) -> Num:
    """FLOPs of one MTP layer's projection on one chip for one microbatch, in all phases."""
    mesh = priced.mesh
    tokens = priced.layout.micro_batch * priced.job.seq / (mesh["context"] * mesh["tensor"])
    return TRAINING_PASSES * 2 * tokens * 2 * priced.config.d_model**2


def mtp_items(
    priced: PricedLayout, layer_items: Mapping[str, Sequence[PricedItem]]
) -> Iterator[PricedItem]:
    """Items of the MTP layers' work on a chip of the last stage in one step, without the head.

    Args:
        layer_items: phase -> items of a step in all layers of the fullest stage.
    """
    if not priced.job.mtp_layers:
        return
    share = float(n_mtp_layers(priced) / priced.stage.layers)
    for phase, items in layer_items.items():
        yield _sum(items, phase).times(share)
    n = priced.job.mtp_layers * priced.layout.n_microbatches
    for phase, passes in (("forward", 1), ("backward", TRAINING_PASSES - 1)):
        yield PricedItem(
            name="mtp.projection",
            phase=phase,
            part=PART,
            description="[2D -> D] of the residual and the next token",
            count=n,
            flops=n * _projection_flops(priced) * passes / TRAINING_PASSES,
            flops_per_s=priced.rates.matmul_flops_per_s,
        )


def _sum(items: Sequence[PricedItem], phase: str) -> PricedItem:
    """One item with the FLOPs, bytes and seconds of several ones."""
    math_s = sum(item.math_s for item in items)
    memory_s = sum(item.memory_s for item in items)
    flops = sum(item.flops for item in items)
    n_bytes = sum(item.n_bytes for item in items)
    return PricedItem(
        name="mtp.layer",
        phase=phase,
        part=PART,
        description="Transformer layers of multi-token prediction",
        flops=flops,
        flops_per_s=flops / math_s if math_s else 1.0,
        n_bytes=n_bytes,
        bytes_per_s=n_bytes / memory_s if memory_s else 1.0,
        occurrence_s=sum(item.seconds for item in items) - maximum(math_s, memory_s),
    )
