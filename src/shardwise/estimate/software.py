"""What frameworks keep in memory beyond what a layout says, by the operations that they fuse."""

from __future__ import annotations

from dataclasses import dataclass

# Bytes held for each logit when most are, loss and gradient included.
LOSS_IN_PLACE = 8.0  # fp32 logits and, in a second array, probabilities that become the gradient
LOSS_COMPILED = 4.0  # one kernel reads logits in 16 bits and writes their gradient in 16 bits
# Operation by operation: logits in 16 bits; in fp32 log-softmax, its gradient, and the gradient of
# what it was taken of (torch.nn.functional.cross_entropy of `logits.float()`).
LOSS_EAGER = 14.0
# The same on logits sharded over the vocabulary: one more in fp32, for probabilities
# (torch.distributed.tensor.parallel.loss, `_nll_loss_and_log_softmax_backward`).
LOSS_EAGER_SHARDED = 18.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """How a framework keeps and cuts, where frameworks differ. The defaults are a planner's.

    Args:
        flash: Attention in tiles; else the backward pass reads stored scores.
        fused: An activation and its product with the gate are one operation; else both results of
            the activation are kept.
        logit_bytes: Held for each logit of a microbatch at the head.
        loss_chunks: Pieces of a microbatch whose logits exist one after the other (fused linear
            cross entropy). Published long contexts need it: 256k tokens of a 128k vocabulary are
            269 GB of logits in one piece.
        gradient_buckets: 16-bit gradients lie in buckets beside the fp32 sums that they are added
            to (PyTorch's DistributedDataParallel without `gradient_as_bucket_view`).
        root_unit: Embedding and unembedding are gathered together (the root unit of FSDP), and not
            each when it is used.
        buffers: Elements of flat communication buffers, in 16 bits.
        stages_by_work: Stages are cut by FLOPs with the unembedding counted, not by layers.
    """

    flash: bool = True
    fused: bool = True
    logit_bytes: float = LOSS_IN_PLACE
    loss_chunks: int = 1
    gradient_buckets: bool = False
    root_unit: bool = False
    buffers: float = 0.0
    stages_by_work: bool = False


PLANNED = Software()
