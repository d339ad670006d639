"""The envelope of a model on chips: what rooflines alone allow, from a handful of numbers.

Parameters, KV bytes, chips and a limit in; the largest batch, its throughput, the memory and the
days of a training run out. Nothing else is counted: no activations, no communication, no software,
and every chip at its peak. Book §4, §7, §8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.errors import UnknownFigure
from shardwise.formulas.flops import compute_s, training_flops
from shardwise.formulas.inference import DecodeStep, decode_step, max_batch
from shardwise.formulas.memory import chips_to_hold
from shardwise.hardware import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is served.

    Args:
        active: parameters that multiply each token.
        weight_bytes: bytes of all weights.
        kv_bytes: bytes of the KV cache of one sequence, at its full context.
    """

    active: float
    weight_bytes: float
    kv_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What some chips can serve at most.

    Args:
        n_chips: N.
        fewest_chips: chips that hold the weights and one sequence.
        max_batch: sequences whose KV caches fit beside the weights; 0 if the weights do not.
        single: the step of one sequence.
        full: the step of `max_batch` sequences; None if there are none.
        limit_s: seconds that a step may take; None without a limit.
        within: the step of the largest batch within the limit; None if no batch is.
    """

    n_chips: int
    fewest_chips: int
    max_batch: int
    single: DecodeStep
    full: DecodeStep | None = None
    limit_s: float | None = None
    within: DecodeStep | None = None


def envelope(
    load: Load, chip: Chip, n_chips: int, *, dtype: str = "bf16", limit_s: float | None = None
) -> Envelope:
    """What `n_chips` chips can serve at most. Book §7, §8.

    Args:
        dtype: of the matmuls.
        limit_s: seconds that a decode step may take.

    Raises:
        UnknownFigure: no public source gives the chip's memory, bandwidth or peak.
    """
    if chip.hbm_bytes is None or chip.hbm_bytes_per_s is None:
        raise UnknownFigure(f"{chip.name} has no figure for its memory, or for its bandwidth.")
    hbm_bytes = chip.hbm_bytes
    bandwidth = chip.hbm_bytes_per_s

    def step(batch: int) -> DecodeStep:
        return decode_step(
            batch,
            load.kv_bytes,
            load.weight_bytes,
            n_chips=n_chips,
            hbm_bytes_per_s=bandwidth,
            params=load.active,
            flops_per_s=chip.peak(dtype),
        )

    sequences = max(0, int(max_batch(n_chips, hbm_bytes, load.weight_bytes, load.kv_bytes)))
    fastest = min(sequences, _batch_within(step(1), limit_s)) if limit_s else 0
    return Envelope(
        n_chips=n_chips,
        fewest_chips=int(chips_to_hold(load.weight_bytes + load.kv_bytes, hbm_bytes)),
        max_batch=sequences,
        single=step(1),
        full=step(sequences) if sequences else None,
        limit_s=limit_s,
        within=step(fastest) if fastest else None,
    )


def _batch_within(single: DecodeStep, limit_s: float) -> int:
    """The largest batch whose step ends within the limit, from the parts of one sequence's.

    B kv + max(B math, weights) <= T holds if both B kv + B math <= T and B kv + weights <= T.
    """
    kv_s, math_s, weights_s = (float(s) for s in (single.kv_s, single.math_s, single.weights_s))
    if weights_s >= limit_s:
        return 0
    return math.floor(min(limit_s / (kv_s + math_s), (limit_s - weights_s) / kv_s) + 1e-9)


def training_s(active: float, tokens: float, chip: Chip, n_chips: int, mfu: float = 1.0) -> float:
    """6 N D / (chips C MFU): seconds of a training run of D tokens in bf16. Book §4, §6."""
    return float(compute_s(training_flops(active, tokens), n_chips, chip.peak("bf16"), mfu))
