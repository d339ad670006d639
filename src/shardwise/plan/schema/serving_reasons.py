"""Reasons of a serving plan as numbers: what binds it, and what other choices would cost.

`report.serving.reasons` writes their sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwise.plan.schema.common import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePass(Reason):
    """Parts of a decoding pass: weights, KV caches, network by role, software overhead.

    Args:
        weights_bytes, kv_bytes: bytes per chip.
    """

    constraint: Literal["decode"] = "decode"
    pass_s: float
    weights_s: float
    weights_bytes: float
    kv_s: float
    kv_bytes: float
    network_s: dict[str, float]
    software_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalBatch(Reason):
    """The batch of a pass against the one from which matmuls are bound by FLOPs.

    Args:
        batch, max_batch: sequences of an engine, and the most that fit.
        in_flight, critical_batch: sequences of one pass.
        kv_batch: sequences of an engine from which reading KV caches takes longer than weights.
    """

    constraint: Literal["batch"] = "batch"
    batch: int
    max_batch: int
    in_flight: int
    critical_batch: float
    kv_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLimit(Reason):
    """The book's limit of memory-bound tensor parallelism: Y < F / (B beta). §8.

    Args:
        limit: largest tensor degree over `axes` axes.
        rows: tokens of a pass.
        beta: HBM bandwidth over the bandwidth of one link.
    """

    constraint: Literal["tensor"] = "tensor"
    tensor: int
    limit: float
    axes: int
    d_ff: int
    rows: int
    beta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredWeights(Reason):
    """The same chips under FSDP, which gathers the weights for every pass."""

    constraint: Literal["gathered"] = "gathered"
    fsdp: int
    gathered_s: float
    pass_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TwiceTheChips(Reason):
    """The same batch on engines with twice the chips.

    Args:
        least_s: seconds per token with all communication hidden.
        throughput: tokens/s/chip over the plan's.
    """

    constraint: Literal["chips"] = "chips"
    hardware: str
    mesh: dict[str, int]
    tpot_s: float
    least_s: float
    throughput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation(Reason):
    """The best deployment of the other kind: with or without separate prefill engines.

    Args:
        disaggregated: whether that deployment has separate prefill engines.
        n_chips: None where none meets the bounds; the numbers after it are then 0.
    """

    constraint: Literal["disaggregation"] = "disaggregation"
    disaggregated: bool
    n_chips: int | None = None
    tpot_s: float = 0.0
    ttft_s: float = 0.0
    tokens_per_s_per_chip: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation(Reason):
    """Speculative decoding against one pass per token."""

    constraint: Literal["speculation"] = "speculation"
    drafted: int
    acceptance: float
    tokens_per_pass: float
    tpot_s: float
    without_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt(Reason):
    """Time to the first token.

    Args:
        cached: share of the prompt that a prefix cache holds.
        step_s: seconds of the prefill.
        transfer_s: seconds to send the KV cache to a decode engine; None where the same engine
            decodes.
        busy: share of the time spent on prefill.
        servers: prefill engines per decode engine.
        longest: the part of the prefill that takes longest.
    """

    constraint: Literal["prefill"] = "prefill"
    tokens: int
    cached: float
    step_s: float
    transfer_s: float | None
    busy: float
    servers: float | None
    longest: str


SERVING_REASONS: dict[str, type[Reason]] = {
    "decode": DecodePass,
    "batch": CriticalBatch,
    "tensor": TensorLimit,
    "gathered": GatheredWeights,
    "chips": TwiceTheChips,
    "disaggregation": Disaggregation,
    "speculation": Speculation,
    "prefill": Prompt,
}
