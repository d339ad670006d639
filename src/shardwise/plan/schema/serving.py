"""The dataclasses of a serving plan; field names are the JSON keys (schema "shardwise.plan/2")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
from shardwise.search.serving.rule import Rule

Bound = Literal["weights", "kv", "flops", "network", "software"]  # of a pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWork:
    """The requests, all of the same lengths, and the latency bounds that their means must meet.

    Fields are those of `shardwise.Serve`.

    Args:
        batch: sequences that decode at the same time, as requested; None if the search chose them.
    """

    kind: Literal["serve"]
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
    engine: str = "unknown"
    users: int | None = None

    @property
    def states_load(self) -> bool:
        """Whether there is a rate, or users."""
        return bool(self.rate or self.users)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngines:
    """Identical engines of a deployment, which prefill, decode or both, and their layout.

    Args:
        mesh: size of each mesh role in one engine, except `data`: the number of engines.
        placement: role -> the links that its mesh axis uses, in words.
        rules: dim -> the mesh axes that shard it.
        weights: layout of the weights, one of `WEIGHT_LAYOUTS`.
        kv: sharding of the KV cache, one of `KV_SPLITS`.
        expert_tensor: tensor shards of one expert's matrices; None for the size of `tensor`.
        hardware: the machine of one engine, or of several engines that share a machine.
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
    """The engines of a deployment, and the search that chose them.

    Args:
        mesh: size of each mesh role in one decode engine, except `data`: the number of engines.
        precision: dtypes of `weights`, `kv` and `compute`.
        servers: decode engines; they also prefill if `prefill` is None.
        prefill: separate prefill engines, or None.
        disaggregated: whether there are separate prefill engines.
        n_chips: chips of all engines; on one machine also those that are too few for another.
        searched: what the search was given: "machine" for one machine, "chip" for a chip, whose
            machines it compares.
        rule: the objective and bounds of the search.
        fixed: choices that the search had to keep, by name.
        most: largest sizes of mesh roles that the search had to keep.
    """

    mesh: dict[str, int]
    precision: dict[str, str]
    servers: PlannedEngines
    prefill: PlannedEngines | None
    disaggregated: bool
    n_chips: int
    searched: Literal["machine", "chip"]
    rule: Rule
    fixed: dict[str, int | str]
    most: dict[str, int]

    @property
    def engine_chips(self) -> int:
        """Chips of all engines."""
        engines = [self.servers, self.prefill] if self.prefill else [self.servers]
        return sum(each.count * each.n_chips for each in engines)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAtMfu:
    """Prefill at an assumed model-FLOPs utilisation (MFU), as in the book.

    Args:
        step_s: seconds of a prefill pass.
        servers: prefill engines that keep one decode engine of the same number of chips busy; None
            if the workload has no output length.
    """

    mfu: float
    step_s: float
    servers: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Prefill on an engine that does nothing else at the time.

    Args:
        step_s: seconds of a prefill pass.
        tokens: tokens of a prompt that miss the prefix cache and are computed.
        prompts: prompts in a pass, one for each data-parallel part of an engine.
        parts: part of the pass -> its expected seconds.
        bound: what takes longest: "weights", "kv", "flops", "network" or "software".
        mfu: model-FLOPs utilisation; in a pipeline, of the stage that the pass is on.
        busy: share of the time that engines spend on prefill.
        transfer_s: seconds to send a prompt's KV cache to the decode engine.
        servers: prefill engines that keep one decode engine of the same number of chips busy; None
            if the workload has no output length.
    """

    step_s: Range
    tokens: float
    prompts: int
    parts: dict[str, float]
    bound: Bound
    mfu: float
    busy: float
    transfer_s: float
    servers: float | None
    at_mfu: PrefillAtMfu


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """One decoding pass of an engine.

    Args:
        step_s: seconds of a pass, without prefill between passes.
        batch: sequences of one engine.
        in_flight: sequences of one pass, fewer than `batch` under pipeline parallelism.
        context: mean number of keys that a sequence attends to.
        parts: part of the pass -> its expected seconds.
        bound: what takes longest: "weights", "kv", "flops", "network" or "software".
        max_batch: sequences that fit in the memory of one engine.
        critical_batch: sequences of one pass above which FLOPs, not weights, bound the matmuls.
        kv_batch: sequences of one engine from which reading KV caches takes longer than the
            matmuls; None if it never does.
        tokens_per_pass: mean number of tokens that a sequence gains by a pass; above 1 with
            speculative decoding.
    """

    step_s: Range
    batch: int
    in_flight: int
    context: float
    parts: dict[str, float]
    bound: Bound
    kv_bytes_per_token: float
    kv_bytes_per_sequence: float
    max_batch: int
    critical_batch: float
    kv_batch: int | None
    tokens_per_pass: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UsdPerMillion:
    """Dollars per million tokens, of prompts and of answers."""

    input: float | None
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEstimate:
    """The predicted numbers: means over equal requests. Only `traffic` has percentiles.

    Args:
        tokens_per_s, requests_per_s: of the deployment at the workload's request rate; if it has no
            rate, with full engines.
        most_requests_per_s: requests per second of full engines; None without an output length.
        utilisation: `requests_per_s` over `most_requests_per_s`; 1 without a rate.
        usd_per_million_tokens: None if the chip has no public price.
        usd_per_hour: price of all chips; None if the chip has no public price.
        memory_bytes_per_chip: memory of a decode engine's chip.
        traffic: metrics of simulated requests; None without a simulation.
        tpot_parts: part of the mean TPOT -> its seconds per output token; with simulated requests,
            of their TPOT and at the sequences that they have in a pass. Beside the parts of a
            decoding pass: `drafts`, `prompts` of other requests, or `waiting` for other engines'
            prefill. None in plans of versions that did not record it.
    """

    bound: Bound
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
    tpot_parts: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """Another deployment, and why it is worse than the plan."""

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
        alternatives: the next best deployments, best first.
        pareto: the Pareto front of time per output token against tokens/s/chip, fastest first.
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
        """The estimate, which holds the prices."""
        return self.estimate

    def __str__(self) -> str:
        return (
            f"{self.headline(self.strategy.mesh, self.estimate.decode.bound)}, "
            f"{units.show_seconds(self.estimate.tpot_s)} a token, "
            f"{self.estimate.tokens_per_s_per_chip:,.0f} tokens/s/chip"
        )
