"""A serving plan as a value. Field names are the keys of its JSON (schema "shardwise.plan/2")."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import units
from shardwise.plan.schema.common import (
    Loss,
    MemoryBytes,
    Operation,
    PlanDocument,
    Range,
    RatesUsed,
    Reason,
)
from shardwise.plan.schema.traffic import TrafficEstimate
from shardwise.search.serving.choose import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWork:
    """The requests, all of the same lengths, and the bounds that their means must meet.

    Args:
        batch: None where the search chose it.
        cached: share of the prompt that a prefix cache holds.
        drafted, acceptance, draft_cost: speculative decoding: tokens per pass, share accepted, cost
            of a draft.
    """

    kind: str
    context: int
    prompt: int | None
    output: int | None
    batch: int | None
    rate: float | None
    ttft_s: float | None
    tpot_s: float | None
    cached: float
    drafted: int
    acceptance: float
    draft_cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngines:
    """Engines of one kind and their layout.

    Args:
        mesh: sizes of one engine; `data` is the number of engines.
        hardware: the machine of one engine, or of several engines that share it.
        count: number of engines.
        n_chips: chips of one engine.
    """

    mesh: dict[str, int]
    placement: dict[str, str]
    rules: dict[str, tuple[str, ...]]
    weights: str
    kv: str
    expert_tensor: int | None
    hardware: str
    count: int
    n_chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStrategy:
    """The engines of a deployment and the search that chose them.

    Args:
        mesh: sizes of the decode engines; `data` is their number.
        servers: decode engines, which also prefill where `prefill` is None.
        prefill: separate prefill engines.
        disaggregated: whether there are separate prefill engines.
        n_chips: chips of the deployment.
        searched: "machine" for a search on one machine, "chip" for one over the chip's machines.
        rule: the objective and bounds of the search.
        fixed, most: choices and largest sizes that the search had to keep.
    """

    mesh: dict[str, int]
    precision: dict[str, str]
    servers: PlannedEngines
    prefill: PlannedEngines | None
    disaggregated: bool
    n_chips: int
    searched: str
    rule: Rule
    fixed: dict[str, int | str]
    most: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAtMfu:
    """Prefill at an assumed model-FLOPs utilisation, as in the book.

    Args:
        servers: prefill engines per full decode engine of the same size; None without an output.
    """

    mfu: float
    step_s: float
    servers: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Prefill on an idle engine.

    Args:
        step_s: seconds of a prompt.
        tokens: tokens of the prompt that are computed.
        prompts: prompts processed at once, one for each data-parallel part of an engine.
        parts: expected seconds by part of the pass.
        busy: share of the time spent on prefill.
        transfer_s: seconds to send a prompt's KV cache to the decode engine.
        servers: prefill engines per decode engine, of the same number of chips; None without an
            output.
    """

    step_s: Range
    tokens: float
    prompts: int
    parts: dict[str, float]
    bound: str
    mfu: float
    busy: float
    transfer_s: float
    servers: float | None
    at_mfu: PrefillAtMfu


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """One decoding pass of an engine.

    Args:
        step_s: seconds without prefill in between.
        batch: sequences of one engine; `in_flight` of one pass.
        context: mean number of keys that a sequence attends to.
        parts: expected seconds by part of the pass.
        bound: what takes longest.
        max_batch: sequences that fit in one engine.
        critical_batch: sequences of one pass from which matmuls are bound by FLOPs.
        kv_batch: sequences of one engine from which reading KV caches takes longer than the
            matmuls; None without caches.
    """

    step_s: Range
    batch: int
    in_flight: int
    context: float
    parts: dict[str, float]
    bound: str
    kv_bytes_per_token: float
    kv_bytes_per_sequence: float
    max_batch: int
    critical_batch: float
    kv_batch: int | None
    tokens_per_pass: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UsdPerMillion:
    """Dollars per million tokens; `input` is None without prompts."""

    input: float | None
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEstimate:
    """The predicted numbers: means over equal requests, not percentiles.

    Args:
        tokens_per_s, requests_per_s: at the rate of the workload; without a rate, of full engines.
        most_requests_per_s: of full engines; None without an output length.
        utilisation: `requests_per_s` over `most_requests_per_s`; 1 without a rate.
        usd_per_million_tokens: None where the chip has no public price.
        usd_per_hour: of all chips.
        traffic: percentiles over simulated requests; None without a simulation.
    """

    bound: str
    prefill: Prefill
    decode: Decode
    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    requests_per_s: float | None
    most_requests_per_s: float | None
    utilisation: float
    usd_per_million_tokens: UsdPerMillion | None
    usd_per_hour: float | None
    memory_bytes_per_chip: MemoryBytes
    prefill_memory_bytes_per_chip: MemoryBytes | None
    rates: RatesUsed
    traffic: TrafficEstimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """Another deployment, and its disadvantage against the plan."""

    hardware: str
    mesh: dict[str, int]
    weights: str
    kv: str
    expert_tensor: int | None
    dtype: str
    batch: int
    engines: int
    prefill_mesh: dict[str, int] | None
    prefill_engines: int
    n_chips: int
    tpot_s: float
    ttft_s: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    usd_per_million_output_tokens: float | None
    memory_bytes_per_chip: float
    loses_on: Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan(PlanDocument):
    """A deployment of a model for serving, with its prediction and reasons.

    Args:
        pareto: front of time per output token against tokens/s/chip, fastest first.
    """

    workload: ServedWork
    strategy: ServingStrategy
    estimate: ServingEstimate
    operations: tuple[Operation, ...]
    why: tuple[Reason, ...]
    alternatives: tuple[ServingPoint, ...]
    pareto: tuple[ServingPoint, ...]

    @property
    def step(self) -> Range:
        """Seconds of a decoding pass."""
        return self.estimate.decode.step_s

    @property
    def memory(self) -> MemoryBytes:
        """Bytes per chip of the decode engines."""
        return self.estimate.memory_bytes_per_chip

    @property
    def cost(self) -> ServingEstimate:
        """The estimate, with its dollars."""
        return self.estimate

    def __str__(self) -> str:
        return (
            f"{self.headline(self.strategy.mesh, self.estimate.decode.bound)}, "
            f"{units.show_seconds(self.estimate.tpot_s)} a token, "
            f"{self.estimate.tokens_per_s_per_chip:,.0f} tokens/s/chip"
        )
