"""FLOPs of a model by rules of thumb, and model FLOPs utilization (MFU). Book §4, §6, §7.

Letters: P parameters active per token, T tokens, N chips, C FLOP/s of one chip at its dense peak.
`models.count` has the exact FLOPs of a model, weight by weight and with attention scores.
"""

from __future__ import annotations

from shardwise.arrays import Num

REFERENCE_MFU = 0.4  # the MFU that book §6 assumes for a large training run


def forward_flops(params: Num, tokens: Num) -> Num:
    """2 P T: FLOPs of a forward pass without attention scores. Book §4, §7."""
    return 2 * params * tokens


def training_flops(params: Num, tokens: Num, *, recompute: bool = False) -> Num:
    """6 P T: FLOPs of a forward (2) and a backward pass (4); 8 P T with full recompute. Book §4.

    >>> training_flops(70e9, 15e12)
    6.3e+24
    """
    passes = 8 if recompute else 6
    return passes * params * tokens


def compute_s(flops: Num, n_chips: Num, flops_per_s: Num, mfu: Num = 1.0) -> Num:
    """FLOPs / (N C MFU): seconds of compute on N chips at this MFU. Book §6.

    Args:
        flops: model FLOPs of a step, a run or a prompt.
        n_chips: N.
        flops_per_s: C.
        mfu: model FLOPs utilization, a share of the peak; 1 gives the lower bound of the time.
    """
    return flops / (n_chips * flops_per_s * mfu)


def mfu(model_flops: Num, step_s: Num, n_chips: Num, flops_per_s: Num) -> Num:
    """FLOPs / (T N C) for a step of T seconds: model FLOPs utilization, without recompute. Book §4.

    Args:
        model_flops: FLOPs of a step: forward and backward in training, forward in inference.
        step_s: seconds of the step.
        n_chips: N.
        flops_per_s: C.
    """
    return model_flops / (step_s * n_chips * flops_per_s)
