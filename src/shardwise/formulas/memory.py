"""Bytes of activations and training state, and the chips whose HBM holds them. Book §4-6, §8."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwise.arrays import Num


def saved_bytes(tokens: Num, n_layers: Num, widths: Sequence[Num], element_bytes: Num = 2.0) -> Num:
    """Bytes of the activations that all layers save: e B L sum(widths). Book §4, §6.

    Args:
        tokens: B, tokens of the global batch.
        n_layers: L.
        widths: width of each array that a layer saves, such as `[D, F, F]` or `[D] * 20`.
        element_bytes: e, bytes per element.
    """
    return element_bytes * tokens * n_layers * sum(widths)


def chips_to_hold(n_bytes: float, hbm_bytes: float) -> int:
    """The fewest chips that have `n_bytes` of HBM together. Book §6, §8.

    >>> chips_to_hold(113e9, 16e9)
    8
    """
    return math.ceil(n_bytes / hbm_bytes)


def parameters_that_fit(hbm_bytes: Num, bytes_per_parameter: Num) -> Num:
    """Parameters of the largest model that pure data parallelism can train. Book §5.

    HBM of one chip / bytes per parameter, which are 10 with bf16 weights and two fp32 Adam moments
    (`Train.weight_bytes` + `Train.optimizer_bytes`).
    """
    return hbm_bytes / bytes_per_parameter
