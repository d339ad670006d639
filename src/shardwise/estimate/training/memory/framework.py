"""Memory that frameworks need beyond what a layout states, by the operations that they fuse."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import units
from shardwise.estimate.training.chip_rates import MASK_TILE

# Peak bytes per logit, loss and gradient included.
LOSS_IN_PLACE = 8.0  # fp32 logits and, in a second array, probabilities that become the gradient
LOSS_COMPILED = 4.0  # one kernel reads logits in 16 bits and writes their gradient in 16 bits
LOSS_XLA = 2.0  # XLA on TPUs: the gradient overwrites the logits
# Operation by operation: logits in 16 bits; in fp32 log-softmax, its gradient, and the gradient of
# its input (torch.nn.functional.cross_entropy of `logits.float()`).
LOSS_EAGER = 14.0
# The same on logits sharded over the vocabulary: one more array in fp32, for probabilities
# (torch.distributed.tensor.parallel.loss, `_nll_loss_and_log_softmax_backward`).
LOSS_EAGER_SHARDED = 18.0

# Kernels and buffers of NCCL on a GPU: 0.55 to 2.00 GiB at the first barrier of two ranks
# (stas00/ml-engineering, training/performance, "torch.distributed memory usage").
NCCL_BYTES = 1.45 * units.GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkMemory:
    """Memory behaviour of a training framework. The defaults are the planner's.

    Args:
        flash: attention is tiled; otherwise the backward pass reads stored scores.
        fused: an activation and its product with the gate are one operation; otherwise both
            results of the activation are saved.
        compiled: a compiler drops what nothing reads; otherwise selective remat saves the output of
            each matmul that is not recomputed, that of w_down too (torchtitan's `_save_list`).
        logit_bytes: bytes per logit of a microbatch at the head; at least the width of activations.
        gradient_copies: copies of 16-bit gradients apart from the fp32 sums that they are added to:
            one, or two where they are also in buckets (PyTorch's DistributedDataParallel without
            `gradient_as_bucket_view`).
        root_unit: embedding and unembedding are gathered together (the root unit of FSDP), not each
            when it is used.
        bucket_elements: elements of a flat bucket of gradients, and of one of gathered 16-bit
            weights.
        stages_by_work: stages have equal FLOPs, the unembedding included, not equal layers.
        outer_as_layers: embedding and unembedding each count as a layer of a stage.
        embedding_mask_bytes: bytes per element that the dropout after the embedding saves.
        cast_bytes: bytes per element of the largest weight, where a 16-bit gradient is cast before
            it is added to its sum.
        norm_bytes: bytes per element of the largest weight that a chip updates, where gradient norm
            and overflow check copy one gradient at a time.
        in_place_gradients: gradients of a gated feed-forward's arrays overwrite them, as Liger's
            SiLU does: only those of its output and of the matmul's input are additional.
        full_weights_at_start: each chip has all weights in 16 bits before ZeRO shards them, and the
            allocator reuses that memory for shards, gathered weights and small enough arrays.
        xla_scheduled: XLA orders the step. At the head, the gathered unembedding and its gradient
            are not live at once. A microbatch's gradients are complete before they are added to the
            sum, and a gathered embedding's or head's gradient is rearranged before its scatter; the
            embedding's while the head's still waits for that.
        query_block: keys of a block of flash attention whose part of the query gradients is live
            until all blocks are summed (Splash's fused backward kernel); 0 for one running sum.
        communicator_bytes: bytes of the communicators of a job on several chips, outside the
            framework's allocator.
    """

    flash: bool = True
    fused: bool = True
    compiled: bool = True
    logit_bytes: float = LOSS_IN_PLACE
    gradient_copies: int = 0
    root_unit: bool = False
    bucket_elements: float = 0.0
    stages_by_work: bool = False
    outer_as_layers: bool = False
    embedding_mask_bytes: float = 0.0
    cast_bytes: float = 0.0
    norm_bytes: float = 0.0
    in_place_gradients: bool = False
    full_weights_at_start: bool = False
    xla_scheduled: bool = False
    query_block: int = 0
    communicator_bytes: float = 0.0


DEFAULT_FRAMEWORK = FrameworkMemory()
FRAMEWORK_OF_KIND = {
    "gpu": FrameworkMemory(communicator_bytes=NCCL_BYTES),
    "tpu": FrameworkMemory(logit_bytes=LOSS_XLA, xla_scheduled=True, query_block=MASK_TILE["tpu"]),
}


def planned_framework(kind: str) -> FrameworkMemory:
    """Framework that the planner assumes on chips of a kind (`hardware.Chip.kind`).

    GPUs communicate through NCCL. On TPUs XLA compiles everything; its behaviour is measured by
    `bench/check.py`.
    """
    return FRAMEWORK_OF_KIND.get(kind, DEFAULT_FRAMEWORK)
