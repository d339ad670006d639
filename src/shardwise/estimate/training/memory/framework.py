"""Memory behavior of training frameworks that a layout does not determine."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import units

# Peak bytes per logit, including those of the loss and of the logits' gradient.
LOSS_IN_PLACE = 8.0  # fp32 logits, and fp32 probabilities that the gradient overwrites
LOSS_COMPILED = 4.0  # one kernel reads 16-bit logits and writes their 16-bit gradient
LOSS_XLA = 2.0  # XLA on TPUs: the 16-bit gradient overwrites the logits
# Operation by operation: 16-bit logits, and in fp32 the log-softmax, its gradient, and the gradient
# of its input (torch.nn.functional.cross_entropy of `logits.float()`).
LOSS_EAGER = 14.0
# Operation by operation with logits sharded over the vocabulary: one more fp32 array, for
# probabilities (torch.distributed.tensor.parallel.loss, `_nll_loss_and_log_softmax_backward`).
LOSS_EAGER_SHARDED = 18.0

# HBM that kernels and buffers of NCCL occupy on a GPU: 0.55 to 2.00 GiB at the first barrier of two
# ranks (stas00/ml-engineering, training/performance, "torch.distributed memory usage").
NCCL_BYTES = 1.45 * units.GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkMemory:
    """Memory behavior of a training framework. The defaults are the planner's.

    Args:
        flash: whether attention is tiled; otherwise the backward pass reads saved scores.
        fused: whether the activation function of a gate and the product with it are one operation;
            otherwise the activated gate is saved too.
        compiled: whether a compiler drops arrays that nothing reads; otherwise selective remat
            saves the output of each matmul that is not recomputed, even of w_down (torchtitan's
            `_save_list`).
        logit_bytes: peak bytes per logit of a microbatch; at least `job.activation_bytes`.
        gradient_copies: copies of 16-bit gradients in addition to the fp32 sums: one, or two if
            they are also in buckets (PyTorch's DistributedDataParallel without
            `gradient_as_bucket_view`).
        root_unit: whether embedding and unembedding are gathered together (the root unit of FSDP),
            rather than each when it is used.
        bucket_elements: elements of a flat bucket of gradients, and of a flat bucket of gathered
            16-bit weights.
        stages_by_work: whether pipeline stages have equal FLOPs, counting the unembedding, rather
            than equal numbers of layers.
        outer_as_layers: whether embedding and unembedding each count as a layer of a stage.
        embedding_mask_bytes: bytes per element that the dropout after the embedding saves.
        cast_bytes: bytes per element of the largest weight, for frameworks that cast its 16-bit
            gradient before adding it to the sum.
        norm_bytes: bytes per element of the largest weight that a chip updates, for frameworks
            whose gradient norm and overflow check copy one gradient at a time.
        in_place_gradients: whether gradients of a gated FFN's arrays overwrite the arrays, as in
            Liger's SiLU; then only `NOT_IN_PLACE` arrays have additional gradients.
        full_weights_at_start: whether each chip has all weights in 16 bits before ZeRO shards them.
            The allocator reuses their memory for shards, gathered weights and small enough arrays.
        xla_scheduled: whether XLA orders the step. The gathered unembedding and its gradient are
            then not live at once. All gradients of a microbatch exist before they are added to the
            sum. The gradient of a gathered embedding or head is rearranged (a copy) before it is
            scattered, and that of the head waits while that of the embedding is rearranged.
        blocked_query_gradients: whether the kernel of attention keeps the part of the query
            gradients of each block of keys (`backward_key_block`) until it sums them, as Splash's
            fused backward kernel does; others have one running sum.
        live_scores: whether all scores of a layer are in memory, in several arrays at once, in a
            step of one device.
        padded_experts: whether each expert has a slot for every token, so that its arrays are as
            large as those of a dense layer.
        communicator_bytes: bytes of communicators in a job on several chips, outside the
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
    blocked_query_gradients: bool = False
    live_scores: bool = False
    padded_experts: bool = False
    communicator_bytes: float = 0.0


DEFAULT_FRAMEWORK = FrameworkMemory()
FRAMEWORK_OF_KIND = {
    "cpu": FrameworkMemory(live_scores=True, padded_experts=True),
    "gpu": FrameworkMemory(communicator_bytes=NCCL_BYTES),
    "tpu": FrameworkMemory(logit_bytes=LOSS_XLA, xla_scheduled=True, blocked_query_gradients=True),
}


def planned_framework(kind: str) -> FrameworkMemory:
    """Framework that the planner assumes on chips of a kind (`hardware.Chip.kind`).

    GPUs communicate through NCCL. XLA's CPU compiler runs the operations of one device side by
    side, so that arrays of attention do not follow each other in the same memory; it has no
    ragged AllToAll. On TPUs XLA compiles everything; `bench/check.py` measures its behavior.
    """
    return FRAMEWORK_OF_KIND.get(kind, DEFAULT_FRAMEWORK)
