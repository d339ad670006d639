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
    """The requests, all alike, and the bounds that the means must meet.

    Args:
        batch: as it was asked for; None where the search chose it.
        cached: share of the prompt that a prefix cache has.
        drafted, acceptance, draft_cost: of speculative decoding.
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
class Servers:
    """Engines of one kind.

    Args:
        mesh: of one engine.
        hardware: the machine that one engine, or several side by side, lie on.
        count, n_chips: engines, and chips of one.
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
    """How the work is laid over chips.

    Args:
        mesh: of the engines that generate; `data` counts them.
        servers: engines that generate, and read where `prefill` is None.
        prefill: engines that only read prompts.
        disaggregated: whether there are such.
        n_chips: of the deployment.
        searched: "machine" where the machine was given, "chip" where those of a chip were searched.
        rule: what the search chose it by.
    """

    mesh: dict[str, int]
    precision: dict[str, str]
    servers: Servers
    prefill: Servers | None
    disaggregated: bool
    n_chips: int
    searched: str
    rule: Rule
    fixed: dict[str, int | str]
    most: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAtMfu:
    """A prompt at a model-FLOPs utilisation that was given, not predicted, as the book does.

    Args:
        servers: engines of the same size that keep one full engine busy; None without an output.
    """

    mfu: float
    step_s: float
    servers: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Reading of prompts on an idle engine.

    Args:
        step_s: seconds of a prompt.
        tokens: of it that are computed.
        prompts: read at once, one on each part of an engine's batch.
        parts: of the expected seconds.
        busy: share of the time that goes to prompts.
        transfer_s: of a prompt's caches to the engine that generates.
        servers: engines for prompts, of as many chips as those that generate, that keep one of
            these busy; None without an output.
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
    """One pass of an engine for the sequences that generate.

    Args:
        step_s: without prompts in between.
        batch: sequences of one engine; `in_flight` of one pass.
        context: keys that each reads, in the mean.
        parts: of the expected seconds.
        bound: what takes longest.
        max_batch: sequences that fit in one engine.
        critical_batch: sequences of one pass from which products are bound by FLOPs.
        kv_batch: sequences of one engine from which reading caches takes longer than the products;
            None without caches.
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
    """Dollars per million tokens; those of the input are None where no prompt is read."""

    input: float | None
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEstimate:
    """Every number that the plan predicts; means over equal requests, not percentiles.

    Args:
        tokens_per_s, requests_per_s: as many as are asked for, or as all full engines serve.
        most_requests_per_s: of all full engines; None where no output is stated.
        utilisation: requests that are served over the most; 1 where no rate is given.
        usd_per_million_tokens: None where the chip has no public price.
        usd_per_hour: of all chips.
        traffic: what simulated requests see, with percentiles; None where none were.
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
    """Another deployment, and what sets it apart."""

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
    """A deployment of a model that answers requests, with its prediction and reasons.

    `shardwise.load(path)` gives back an equal value.

    Args:
        pareto: of least time per token against most tokens/s/chip, fastest first.
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
        """Bytes per chip of the engines that generate."""
        return self.estimate.memory_bytes_per_chip

    @property
    def cost(self) -> ServingEstimate:
        """Where the dollars stand."""
        return self.estimate

    def __str__(self) -> str:
        mesh = " x ".join(f"{r} {n}" for r, n in self.strategy.mesh.items() if n > 1) or "one chip"
        told = self.estimate
        return (
            f"{self.model.name} on {self.hardware.name}: {mesh}, {told.decode.bound}-bound, "
            f"{units.show_seconds(told.tpot_s)} a token, "
            f"{told.tokens_per_s_per_chip:,.0f} tokens/s/chip"
        )
