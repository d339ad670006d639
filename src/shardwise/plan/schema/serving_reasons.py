"""Reasons of a serving plan as numbers: what limits it, and what other choices would cost.

`report.serving.reasons` turns them into sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwise.plan.schema.common import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePass(Reason):
    """Where the time of a decoding pass goes.

    Args:
        weights_s, kv_s: seconds of the matmuls with weights, and of reading KV caches.
        weights_bytes, kv_bytes: bytes per chip of weights and of KV caches.
        network_s: mesh role -> seconds of its collectives.
        software_s: seconds of everything else: elementwise work, kernel launches, the host.
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
    """The batch, compared with the critical batch above which FLOPs bound the matmuls.

    Args:
        batch, max_batch: sequences of an engine, and the most that fit in its memory.
        in_flight, critical_batch: sequences of one pass, and the critical number.
        kv_batch: sequences of an engine from which reading KV caches takes longer than the matmuls;
            None if it never does.
    """

    constraint: Literal["batch"] = "batch"
    batch: int
    max_batch: int
    in_flight: int
    critical_batch: float
    kv_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLimit(Reason):
    """The largest tensor degree of a memory-bound pass: Y < F / (B beta). Book §8.

    Args:
        tensor: the plan's degree.
        limit: the largest degree, if `tensor` runs over `axes` axes of the torus.
        rows: sequences of a pass, B of the formula.
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
    """Decoding on the same chips with FSDP instead, which gathers the weights for every pass.

    Args:
        fsdp: degree of FSDP.
        gathered_s, pass_s: seconds of a pass with FSDP, and of the plan's.
    """

    constraint: Literal["gathered"] = "gathered"
    fsdp: int
    gathered_s: float
    pass_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TwiceTheChips(Reason):
    """The same batch on engines with twice the chips.

    Args:
        tpot_s: expected seconds per output token.
        least_s: seconds per output token at peak rates with all communication overlapped.
        throughput: its tokens/s/chip over the plan's.
    """

    constraint: Literal["chips"] = "chips"
    hardware: str
    mesh: dict[str, int]
    tpot_s: float
    least_s: float
    throughput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation(Reason):
    """The best deployment with separate prefill engines, or without them if the plan has them.

    Args:
        disaggregated: whether this other deployment has separate prefill engines.
        n_chips: its chips; None if no such deployment meets the bounds. The numbers below are
            then 0.
        must_gain: share by which its TPOT had to be shorter for it to be chosen, where it is
            compared on time with a simpler deployment of as many chips.
    """

    constraint: Literal["disaggregation"] = "disaggregation"
    disaggregated: bool
    n_chips: int | None = None
    tpot_s: float = 0.0
    ttft_s: float = 0.0
    tokens_per_s_per_chip: float = 0.0
    must_gain: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation(Reason):
    """Speculative decoding, compared with decoding without drafts.

    Args:
        tpot_s, without_s: seconds per output token with and without drafts.
    """

    constraint: Literal["speculation"] = "speculation"
    drafted: int
    acceptance: float
    tokens_per_pass: float
    tpot_s: float
    without_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt(Reason):
    """The prefill, which decides the time to the first token.

    Args:
        tokens: tokens of a prompt.
        cached: share of the prompt that hits the prefix cache.
        step_s: seconds of the prefill.
        transfer_s: seconds to send the KV cache to a decode engine; None if the same engine
            decodes.
        busy: share of the time that engines spend on prefill.
        servers: prefill engines that keep one decode engine busy; None without an output length.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LongContext(Reason):
    """Sequences that are longer than the model's maximum.

    Args:
        context: tokens of a sequence, prompt and output.
        max_seq: the maximum that the model's configuration states.
    """

    constraint: Literal["max_seq"] = "max_seq"
    context: int
    max_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotServed(Reason):
    """What `serve` does not run yet of the layout.

    Args:
        names: what it is, in words.
    """

    constraint: Literal["runtime"] = "runtime"
    names: tuple[str, ...]


SERVING_REASONS: dict[str, type[Reason]] = {
    "decode": DecodePass,
    "batch": CriticalBatch,
    "tensor": TensorLimit,
    "gathered": GatheredWeights,
    "chips": TwiceTheChips,
    "disaggregation": Disaggregation,
    "speculation": Speculation,
    "prefill": Prompt,
    "max_seq": LongContext,
    "runtime": NotServed,
}
