"""Reasons of a serving plan: what binds it and what other choices would take, as numbers.

`report.serving.reasons` words them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwise.plan.schema.common import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePass(Reason):
    """Seconds of a decoding pass: reading weights and caches, the network by role, the rest.

    Args:
        weights_bytes, kv_bytes: on a chip.
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
    """Sequences of a pass against those from which products are bound by FLOPs.

    Args:
        batch, max_batch: sequences of an engine, and as many as fit.
        in_flight, critical_batch: sequences of one pass.
        kv_batch: sequences of an engine from which reading caches takes longer than weights.
    """

    constraint: Literal["batch"] = "batch"
    batch: int
    max_batch: int
    in_flight: int
    critical_batch: float
    kv_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLimit(Reason):
    """The book's limit of tensor parallelism that is bound by memory: Y < F / (B beta). §8.

    Args:
        limit: over so many `axes`.
        rows: tokens of a pass.
        beta: HBM bytes/s over those of one link.
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
    """The same chips under FSDP, which gathers all weights for every pass."""

    constraint: Literal["gathered"] = "gathered"
    fsdp: int
    gathered_s: float
    pass_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TwiceTheChips(Reason):
    """The same batch on engines of twice the chips.

    Args:
        least_s: a token with communication hidden.
        throughput: tokens/s/chip over those of the plan.
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
        disaggregated: of that other deployment.
        n_chips: None, and the rest 0, where none keeps the bounds.
    """

    constraint: Literal["disaggregation"] = "disaggregation"
    disaggregated: bool
    n_chips: int | None = None
    tpot_s: float = 0.0
    ttft_s: float = 0.0
    tokens_per_s_per_chip: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation(Reason):
    """Speculative decoding against a pass for every token."""

    constraint: Literal["speculation"] = "speculation"
    drafted: int
    acceptance: float
    tokens_per_pass: float
    tpot_s: float
    without_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt(Reason):
    """What the first token waits for.

    Args:
        cached: share of the prompt that a prefix cache has.
        transfer_s: to send its caches to another engine; None where the same engine decodes.
        busy: share of the time that prompts take.
        servers: engines that only read prompts, to one that decodes.
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
