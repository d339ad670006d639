"""Bytes of the training state, and FLOPs of the update, by kind of parameter."""

from __future__ import annotations

import functools
import math

from shardwise import units
from shardwise.arrays import Num, maximum, minimum
from shardwise.models import ModelConfig
from shardwise.models.count import parameters
from shardwise.models.token_prediction import mtp_weights
from shardwise.models.weights import Weight, model_weights
from shardwise.workload import Train

NEWTON_SCHULZ_STEPS = 5  # iterations of Muon: arXiv 2502.16982, section 2


def parameter_kind(weight: Weight) -> str:
    """Kind of a weight's parameters for the optimizer, one of `workload.PARAMETER_KINDS`.

    Biases, norms and gates with one number per channel are vectors, whatever their shape.
    """
    if weight.part in ("embedding", "unembedding"):
        return "vector" if len(weight.dims) == 1 else "embedding"
    return "matrix" if weight.is_matmul and len(weight.dims) > 1 else "vector"


def muon_flops(rows: Num, columns: Num, steps: Num = NEWTON_SCHULZ_STEPS) -> Num:
    """FLOPs to orthogonalize the momentum of one n x m matrix with n <= m.

    Each Newton-Schulz step computes X <- a X + (b A + c A A) X with A = X X^T, which are two
    matmuls of n^2 m multiply-adds and one of n^3: 2 (2 n^2 m + n^3) FLOPs. Terms that grow only
    with n m are left out, and the symmetry of A is not used.

    For this matrix, Muon spends as many FLOPs as the training step does on 15,604 tokens, at 6 n m
    FLOPs per token:

    >>> round(muon_flops(4096, 14336) / (6 * 4096 * 14336))
    15604

    Args:
        rows: rows of the matrix; each expert has a separate matrix.
        columns: columns of the matrix; rows and columns may be swapped.
        steps: number of Newton-Schulz steps.
    """
    n, m = minimum(rows, columns), maximum(rows, columns)
    return steps * 2 * (2 * n**2 * m + n**3)


@functools.lru_cache(maxsize=64)
def state_bytes(config: ModelConfig, job: Train) -> float:
    """Mean bytes of optimizer state per parameter over all parameters of a model."""
    n_bytes = 0.0
    for weight, count in model_weights(config):
        n_bytes += count * weight.size * job.optimizer_bytes_of(parameter_kind(weight))
    return n_bytes / parameters(config).total


def bytes_per_parameter(config: ModelConfig, job: Train) -> dict[str, float]:
    """Component of the training state -> its mean bytes per parameter of a model."""
    return {
        "weights": job.weight_bytes,
        "gradients": units.bytes_per_element(job.gradients),
        "optimizer": state_bytes(config, job),
    }


@functools.lru_cache(maxsize=64)
def update_flops(config: ModelConfig, job: Train) -> float:
    """FLOPs of Muon in one update of all parameters; 0 for other optimizers."""
    if job.optimizer != "muon":
        return 0.0
    total = 0.0
    of_mtp = [(weight, job.mtp_layers) for weight in mtp_weights(config)]
    for weight, count in (*model_weights(config), *of_mtp):
        if parameter_kind(weight) != "matrix":
            continue
        n_experts = 1
        shape = weight.shape
        if weight.per_expert:
            n_experts = shape[0]
            shape = shape[1:]
        # [D, N, H] is a D x NH matrix, and [N, H, D] an NH x D matrix.
        rows = shape[-1] if weight.dims[-1] == "D" else shape[0]
        total += count * n_experts * float(muon_flops(rows, math.prod(shape) // rows))
    return total
