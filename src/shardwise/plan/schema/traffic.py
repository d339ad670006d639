"""Results of simulated requests in a serving plan: the keys under `estimate.traffic`."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.simulate.metrics import Summary


def layout_choices(weights: str, kv: str, expert_tensor: int | None, tensor: int) -> str:
    """Choices of a layout of engines that are not the usual ones: ` (KV by batch)`; or empty.

    Args:
        expert_tensor: chips that share an expert; None for all of `tensor`.
    """
    words = []
    if weights != "stationary":
        words.append(weights)
    if kv != "copied":
        words.append(f"KV by {kv}")
    if expert_tensor == 1:
        words.append("whole experts")
    elif expert_tensor and expert_tensor < tensor:
        words.append(f"an expert over {expert_tensor} chips")
    return f" ({', '.join(words)})" if words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Identical engines, each on a machine `hardware`.

    Args:
        count: number of engines.
        mesh: size of each mesh role in one engine.
    """

    count: int
    mesh: dict[str, int]
    weights: str
    kv: str
    expert_tensor: int | None
    hardware: str

    def __str__(self) -> str:
        """For example `2 × tensor 4 (KV by batch) on h100:4`."""
        sizes = " × ".join(f"{role} {n}" for role, n in self.mesh.items() if n > 1) or "one chip"
        choices = layout_choices(
            self.weights, self.kv, self.expert_tensor, self.mesh.get("tensor", 1)
        )
        return f"{self.count:,} × {sizes}{choices} on {self.hardware}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedDeployment:
    """A deployment that the search simulated and did not choose.

    Args:
        decode: its decode engines.
        prefill: its separate prefill engines, or None.
        within: share of the requests that met the bounds.
        holds: whether that share is large enough.
    """

    decode: Engines
    prefill: Engines | None
    n_chips: int
    within: float
    holds: bool

    def __str__(self) -> str:
        """For example `2 × tensor 4 on h100:4 + 4 × context 2 on h100:2 for prompts`."""
        return f"{self.decode} + {self.prefill} for prompts" if self.prefill else f"{self.decode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanField:
    """Closed-form means of the same deployment, to compare with the simulated means.

    They assume equal requests without queues.

    Args:
        ttft_s, tpot_s: with full batches, as the search uses them.
        tpot_at_rate_s: with the batch that the request rate fills: exact for constant arrivals.
        ttft_off, tpot_off: relative error of `ttft_s` and `tpot_s` against the simulated means.
    """

    ttft_s: float
    tpot_s: float
    tpot_at_rate_s: float
    ttft_off: float
    tpot_off: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRate:
    """The highest request rate at which a deployment meets its SLO.

    Args:
        rate: requests per second of the whole deployment.
        mean_field_rate: requests per second of full engines by the closed-form means.
        tried: (rate, share of requests that met the bounds) of each simulation.
    """

    rate: float
    mean_field_rate: float
    tried: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficEstimate(Summary):
    """Metrics of simulated requests; rates and counts are those of the whole deployment.

    Args:
        requests: number of judged requests: those that only fill or drain the engines do not count.
        users: users in a closed loop; 0 if requests arrive at times of their own.
        kind, variation, source, seed: the arrivals; `source` is the file name of a recording. See
            `plan.serving.arrivals.Arrivals`.
        recorded: requests of the recording, or 0.
        part: if not all of them were simulated, the first and the last that were, counted from 1.
        prompt, output: shortest and longest prompts and outputs, if lengths were drawn.
        rate: requests that arrive per second; in a closed loop, those that the users make.
        at: share of the requests that must meet the bounds.
        ttft_bound_s, tpot_bound_s: the bounds; None for no bound.
        holds: whether at least the share `at` meets the bounds and no queue keeps growing.
        simulated: share of the engines, and of the requests, that was simulated.
        max_sequences, max_tokens, n_blocks, chunked, tokens_per_pass: settings of an engine's
            scheduler: see `simulate.Limits`.
        mean_field: closed-form means of the same deployment.
        tried: the other deployments that the search simulated.
        capacity: the highest rate that meets the SLO; None if it was not searched.
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
    recorded: int = 0
    users: int = 0
    part: tuple[int, int] | None = None
    prompt: tuple[int, int] | None = None
    output: tuple[int, int] | None = None
    tried: tuple[TriedDeployment, ...] = ()
    capacity: LargestRate | None = None
