"""What a simulation of its traffic adds to a serving plan: keys under `estimate.traffic`."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.simulate.metrics import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Engines of one kind: how many, and how one of them splits its machine."""

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
class Tried:
    """A deployment that was simulated on the way.

    Args:
        decode, prefill: its engines; those for prompts where they are separate.
        within: share of the requests within the bounds; `holds` says whether that is enough.
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
    """What means over equal requests say of the same deployment.

    Args:
        ttft_s, tpot_s: with full batches, as the plan was found.
        tpot_at_rate_s: with as many sequences as this rate brings: exact for constant arrivals.
        ttft_off, tpot_off: the first two over the simulated means, less 1.
    """

    ttft_s: float
    tpot_s: float
    tpot_at_rate_s: float
    ttft_off: float
    tpot_off: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRate:
    """The largest rate that keeps the bounds.

    Args:
        rate: requests per second of the whole deployment.
        mean_field_rate: the same by balance alone: mean time between tokens within its bound, no
            queues.
        tried: rates and the share of requests within the bounds at each.
    """

    rate: float
    mean_field_rate: float
    tried: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficEstimate(Summary):
    """The simulated requests of a deployment; rates and counts are of all of its engines.

    Args:
        requests: that are judged, between others that fill and empty the engines.
        kind, variation, source, seed: what arrives: see `plan.arrivals.Arrivals`.
        rate: requests per second that arrive.
        at: share of the requests that must keep the bounds.
        ttft_bound_s, tpot_bound_s: these; None for none.
        holds: whether so many do, and no queue grows for ever.
        simulated: share of the engines (and requests) that was simulated; 1 for all.
        max_sequences: that run at once in an engine at most; `max_tokens` of a pass, `n_blocks` of
            the cache, `chunked`, `tokens_per_pass`: see `simulate.Limits`.
        tried: deployments that were simulated before this one was taken.
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
    tried: tuple[Tried, ...] = ()
    capacity: LargestRate | None = None
