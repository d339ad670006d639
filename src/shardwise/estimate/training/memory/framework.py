"""What frameworks keep in memory beyond what a layout says, by the operations that they fuse."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import units
from shardwise.estimate.training.chip_rates import MASK_TILE

# Bytes held for each logit when most are, loss and gradient included.
LOSS_IN_PLACE = 8.0  # fp32 logits and, in a second array, probabilities that become the gradient
LOSS_COMPILED = 4.0  # one kernel reads logits in 16 bits and writes their gradient in 16 bits
LOSS_XLA = 2.0  # XLA on TPUs: the gradient takes the place of the logits
# Operation by operation: logits in 16 bits; in fp32 log-softmax, its gradient, and the gradient of
# what it was taken of (torch.nn.functional.cross_entropy of `logits.float()`).
LOSS_EAGER = 14.0
# The same on logits sharded over the vocabulary: one more in fp32, for probabilities
# (torch.distributed.tensor.parallel.loss, `_nll_loss_and_log_softmax_backward`).
LOSS_EAGER_SHARDED = 18.0

# What joining a job takes of a GPU: the kernels and buffers of NCCL, from 0.55 to 2.00 GiB at the
# first barrier of two (stas00/ml-engineering, training/performance, "torch.distributed memory
# usage").
NCCL = 1.45 * units.GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """How a framework keeps and cuts, where frameworks differ. The defaults are a planner's.

    Args:
        flash: Attention in tiles; else the backward pass reads stored scores.
        fused: An activation and its product with the gate are one operation; else both results of
            the activation are kept.
        compiled: A compiler drops what nothing reads; else selective remat keeps the result of each
            product that is not to run again, that of w_down too (torchtitan's `_save_list`).
        logit_bytes: Held for each logit of a microbatch at the head; at least the width of
            activations.
        gradient_copies: Times that 16-bit gradients are held beside the fp32 sums that they are
            added to: once, or twice where they also lie in buckets (PyTorch's
            DistributedDataParallel without `gradient_as_bucket_view`).
        root_unit: Embedding and unembedding are gathered together (the root unit of FSDP), and not
            each when it is used.
        buffers: Elements of a flat bucket of gradients, and of one of gathered 16-bit weights.
        stages_by_work: Stages are cut by FLOPs with the unembedding counted, not by layers.
        ends_are_layers: Embedding and unembedding each take the place of a layer in a stage.
        embedding_mask: Bytes that the dropout after the embedding keeps of each of its elements.
        cast_bytes: Of each element of the largest weight, where a 16-bit gradient is cast before it
            is added to its sum.
        norm_bytes: The same, of the part that a chip updates, where the norm of the gradients and
            the search for overflows copy one gradient at a time.
        in_place: Gradients of a gated feed-forward's arrays are written over them, as Liger's SiLU
            does: beside a layer's arrays live only those of its output and of the product's input.
        whole_at_start: Weights lie whole on each chip, in 16 bits, before ZeRO shards them, and the
            allocator keeps their room: for shards, gathered weights, and arrays small enough.
        scheduled: The compiler orders the step: at the head the gathered unembedding and its
            gradient do not meet. Gradients of a microbatch are whole before they join the sum of
            those before, and a gathered end's is rearranged before it is scattered; the embedding's
            while the unembedding's still waits for that.
        query_block: Keys of a block of flash attention whose part of the gradients of queries is
            held until those of all blocks are summed (Splash's fused backward kernel); 0 for one
            sum that every block adds to.
        joining: Bytes that joining a job of several chips takes, seen by the driver alone.
    """

    flash: bool = True
    fused: bool = True
    compiled: bool = True
    logit_bytes: float = LOSS_IN_PLACE
    gradient_copies: int = 0
    root_unit: bool = False
    buffers: float = 0.0
    stages_by_work: bool = False
    ends_are_layers: bool = False
    embedding_mask: float = 0.0
    cast_bytes: float = 0.0
    norm_bytes: float = 0.0
    in_place: bool = False
    whole_at_start: bool = False
    scheduled: bool = False
    query_block: int = 0
    joining: float = 0.0


PLANNED = Software()
KINDS = {
    "gpu": Software(joining=NCCL),
    "tpu": Software(logit_bytes=LOSS_XLA, scheduled=True, query_block=MASK_TILE["tpu"]),
}


def planned(kind: str) -> Software:
    """A planner's for chips of a kind (`hardware.Chip.kind`).

    GPUs join a job through NCCL. On TPUs everything is compiled by XLA, whose ways `bench/check.py`
    shows.
    """
    return KINDS.get(kind, PLANNED)
