"""Results of simulated traffic in a serving plan: the keys under `estimate.traffic`."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.simulate.metrics import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """A number of engines of one layout on one machine."""

    count: int
    mesh: dict[str, int]
    weights: str
    kv: str
    expert_tensor: int | None
    hardware: str

    def __str__(self) -> str:
        """`2 × tensor 4 (KV by batch) on h100:4`."""
        words = [self.weights] * (self.weights != "stationary")
        words += [f"KV by {self.kv}"] * (self.kv != "copied")
        words += ["whole experts"] * (self.expert_tensor == 1)
        sizes = " × ".join(f"{role} {n}" for role, n in self.mesh.items() if n > 1) or "one chip"
        choices = f" ({', '.join(words)})" if words else ""
        return f"{self.count:,} × {sizes}{choices} on {self.hardware}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedDeployment:
    """A deployment that the search simulated before the one it chose.

    Args:
        decode: its decode engines.
        prefill: its separate prefill engines, if any.
        within: share of the requests within the bounds.
        holds: whether that share is large enough.
    """

    decode: Engines
    prefill: Engines | None
    n_chips: int
    within: float
    holds: bool

    def __str__(self) -> str:
        """`2 × tensor 4 on h100:4 + 4 × context 2 on h100:2 for prompts`."""
        return f"{self.decode} + {self.prefill} for prompts" if self.prefill else f"{self.decode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanField:
    """The closed-form means over equal requests for the same deployment.

    Args:
        ttft_s, tpot_s: with full batches, as in the search.
        tpot_at_rate_s: with the batch that this rate fills: exact for constant arrivals.
        ttft_off, tpot_off: relative error of the first two against the simulated means.
    """

    ttft_s: float
    tpot_s: float
    tpot_at_rate_s: float
    ttft_off: float
    tpot_off: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRate:
    """The highest request rate that meets the SLO.

    Args:
        rate: requests per second of the whole deployment.
        mean_field_rate: the same by the closed-form means, without queues.
        tried: (rate, share of requests within the bounds) of each simulation.
    """

    rate: float
    mean_field_rate: float
    tried: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficEstimate(Summary):
    """Metrics of simulated requests; rates and counts are for all engines of the deployment.

    Args:
        requests: number of judged requests, without those that fill and drain the engines.
        kind, variation, source, seed: the arrivals: see `plan.serving.arrivals.Arrivals`.
        rate: arriving requests per second.
        at: share of the requests that must meet the bounds.
        ttft_bound_s, tpot_bound_s: the bounds; None for no bound.
        holds: whether that share meets them and no queue grows without end.
        simulated: share of the engines (and requests) that was simulated.
        max_sequences, max_tokens, n_blocks, chunked, tokens_per_pass: limits of an engine: see
            `simulate.Limits`.
        tried: deployments simulated before this one.
        capacity: the highest rate that meets the SLO, if it was searched.
    """

    kind: str
    variation: float
    source: str
    seed: int
    rate: float
    at: float
    ttft_bound_s: float | None
    tpot_bound_s: float | None
    holds: bool
    simulated: float
    max_sequences: int
    max_tokens: int
    n_blocks: int
    chunked: bool
    tokens_per_pass: float
    mean_field: MeanField
    tried: tuple[TriedDeployment, ...] = ()
    capacity: LargestRate | None = None
