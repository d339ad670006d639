"""What optimizers ask for beyond reading and writing their state."""

from __future__ import annotations

import functools
import math

from shardwise.arrays import Num, maximum, minimum
from shardwise.models import ModelConfig
from shardwise.models.weights import Weight, model_weights
from shardwise.workload import Train

NEWTON_SCHULZ_STEPS = 5  # of Muon: arXiv 2502.16982, section 2


def parameter_kind(weight: Weight) -> str:
    """The kind of a weight's parameters, one of `workload.PARAMETER_KINDS`.

    Biases, norms and gates of one number a channel are vectors, however their shape is written.
    """
    if weight.part in ("embedding", "unembedding"):
        return "vector" if len(weight.dims) == 1 else "embedding"
    return "matrix" if weight.matmul and len(weight.dims) > 1 else "vector"


def muon_flops(rows: Num, columns: Num, steps: Num = NEWTON_SCHULZ_STEPS) -> Num:
    """steps 2 (2 n^2 m + n^3): FLOPs to orthogonalise the momentum of one n x m matrix, n <= m.

    A step is X <- a X + (b A + c A A) X with A = X X^T: two products of n^2 m, one of n^3. What
    grows with n m only is left out, and that the products are symmetric is not made use of.

    As much as the step itself spends on the matrix for about 15,600 tokens, 6 n m FLOPs each:

    >>> round(muon_flops(4096, 14336) / (6 * 4096 * 14336))
    15604

    Args:
        rows, columns: of the matrix, in either order. An expert's matrix is one of its own.
        steps: Newton-Schulz steps.
    """
    n, m = minimum(rows, columns), maximum(rows, columns)
    return steps * 2 * (2 * n**2 * m + n**3)


@functools.lru_cache(maxsize=64)
def state_bytes(config: ModelConfig, job: Train) -> float:
    """Bytes of optimizer state per parameter, the mean over the kinds of a model's parameters."""
    weights = model_weights(config)
    held = sum(n * w.size * job.optimizer_bytes_of(parameter_kind(w)) for w, n in weights)
    return held / sum(n * w.size for w, n in weights)


@functools.lru_cache(maxsize=64)
def update_flops(config: ModelConfig, job: Train) -> float:
    """FLOPs of one update beyond reading and writing: those of Muon, 0 for the others.

    An expert's matrix is one of its own.
    """
    if job.optimizer != "muon":
        return 0.0
    total = 0.0
    for weight, n in model_weights(config):
        if parameter_kind(weight) == "matrix":
            routed = weight.dims[0] == "E" and len(weight.dims) == 3
            experts, shape = (weight.shape[0], weight.shape[1:]) if routed else (1, weight.shape)
            # [D, N, H] maps D to heads, [N, H, D] heads to D.
            side = shape[-1] if weight.dims[-1] == "D" else shape[0]
            total += n * experts * float(muon_flops(side, math.prod(shape) // side))
    return total
