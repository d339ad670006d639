"""Results of a simulation: a row per request, a tally per engine, and summary statistics."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwise.errors import BadInput
from shardwise.simulate.engine import ALL_TIME, Tally
from shardwise.simulate.request import Request, SequenceState

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

COLUMNS = ("id", "arrival_s", "start_s", "first_s", "end_s", "prompt", "output", "preemptions",
           "hit", "replica")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Service-level objective: upper bounds on the latency of a request.

    Args:
        ttft_s: bound on the seconds from the arrival to the first token.
        tpot_s: bound on the mean seconds between two tokens of the request.
        share: share of the requests that must meet both bounds.

    Raises:
        BadInput: a bound or the share is out of range.
    """

    ttft_s: float = float("inf")
    tpot_s: float = float("inf")
    share: float = 0.99

    def __post_init__(self) -> None:
        if not (self.ttft_s > 0 and self.tpot_s > 0 and 0 < self.share <= 1):
            raise BadInput(f"{self}: bounds must be above 0, the share in (0, 1].")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of a latency, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Array) -> Spread:
        """Compute the statistics of values; all are 0 if there is no value."""
        import numpy as np

        if not len(values):
            return cls(0.0, 0.0, 0.0, 0.0)
        return cls(float(values.mean()), *np.percentile(values, (50, 90, 99)).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of a run; times are in seconds, shares between 0 and 1.

    Args:
        requests: number of requests in the run.
        duration_s: time from the start of the run to the end of the last request.
        ttft_s: time from the arrival of a request to its first token.
        tpot_s: mean time between two tokens of a request, for requests of at least two tokens.
        latency_s: time from the arrival of a request to its last token.
        queue_s: time from the arrival of a request to the start of its first pass.
        output_tokens_per_s: generated tokens per second, all engines together.
        requests_per_s: finished requests per second, all engines together.
        utilisation: share of the time in which passes run, mean over the engines that decode.
        step_s: time in which passes run, divided by the number of decode passes.
        decoding: mean number of sequences that decode in a decode pass.
        running: mean number of sequences that have blocks, all engines together.
        in_system: mean number of requests that wait or run, all engines together.
        kv_use: share of the KV cache blocks in use, mean over time and the engines that decode.
        kv_peak: largest share of the KV cache blocks in use in any of them.
        prefill_utilisation, prefill_kv_use, prefill_kv_peak: the same of separate prefill engines;
            None without them.
        preemptions: number of preemptions.
        hit_rate: share of the prompt tokens that were in the prefix cache.
        goodput: requests per second that meet the bounds of an `Slo`.
        within: share of the requests that meet these bounds.
    """

    requests: int
    duration_s: float
    ttft_s: Spread
    tpot_s: Spread
    latency_s: Spread
    queue_s: Spread
    output_tokens_per_s: float
    requests_per_s: float
    utilisation: float
    step_s: float
    decoding: float
    running: float
    in_system: float
    kv_use: float
    kv_peak: float
    preemptions: int
    hit_rate: float
    goodput: float
    within: float
    prefill_utilisation: float | None = None
    prefill_kv_use: float | None = None
    prefill_kv_peak: float | None = None


class RequestLog:
    """Log of finished requests: one flat array with the values of `COLUMNS` for each request."""

    def __init__(self) -> None:
        self.rows = array("d")

    def add(
        self,
        request: Request,
        prefill: SequenceState,
        decode: SequenceState,
        end_s: float,
        replica: int,
    ) -> None:
        """Append a finished request.

        Args:
            request: the request, with its arrival at the first engine.
            prefill: its sequence in the engine that computed the prompt.
            decode: its sequence in the decode engine; the same object with a single pool.
            end_s: time of its last token.
            replica: index of the engine that generated the last token.
        """
        preemptions = prefill.preemptions
        if decode is not prefill:
            preemptions += decode.preemptions
        self.rows.extend(
            (request.id, request.arrival_s, prefill.start_s, prefill.first_token_s, end_s,
             request.prompt, decode.generated, preemptions, prefill.hit_tokens, replica)
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationResult:
    """Result of a finished run.

    Args:
        columns: name in `COLUMNS` -> array with one value per request, in the order of the ids.
        tallies: tally of each engine, prefill engines before decode engines.
        n_blocks: number of KV cache blocks of each engine.
        duration_s: seconds from the start to the end of the last request.
        n_prefill: number of separate prefill engines.
        counted_s: start and end of the time that tallies count.
    """

    columns: dict[str, Array]
    tallies: tuple[Tally, ...]
    n_blocks: tuple[int, ...]
    duration_s: float
    n_prefill: int = 0
    counted_s: tuple[float, float] = ALL_TIME

    @classmethod
    def of(
        cls,
        log: RequestLog,
        tallies: tuple[Tally, ...],
        n_blocks: tuple[int, ...],
        end_s: float,
        n_prefill: int = 0,
        counted_s: tuple[float, float] = ALL_TIME,
    ) -> SimulationResult:
        """Build the result from the log and the tallies of a run."""
        import numpy as np

        table = np.frombuffer(log.rows, dtype=np.float64).reshape(-1, len(COLUMNS))
        order = np.argsort(table[:, 0], kind="stable")
        columns = {name: column[order] for name, column in zip(COLUMNS, table.T, strict=True)}
        return cls(
            columns=columns,
            tallies=tallies,
            n_blocks=n_blocks,
            duration_s=end_s,
            n_prefill=n_prefill,
            counted_s=counted_s,
        )

    def arrival_mask(self, after_s: float = 0.0, until_s: float = math.inf) -> Array:
        """Return a mask of the requests that arrived between these times, both included."""
        arrival = self.columns["arrival_s"]
        return (arrival >= after_s) & (arrival <= until_s)

    def times(self, after_s: float = 0.0, until_s: float = math.inf) -> dict[str, Array]:
        """Return latencies in seconds of the requests that arrived between these times.

        The keys are ttft, tpot, latency and queue, as in `Summary`. The tpot of a request with one
        token is 0.
        """
        import numpy as np

        is_counted = self.arrival_mask(after_s, until_s)
        columns = {name: column[is_counted] for name, column in self.columns.items()}
        arrival_s = columns["arrival_s"]
        decode_s = columns["end_s"] - columns["first_s"]
        return {
            "ttft": columns["first_s"] - arrival_s,
            "tpot": decode_s / np.maximum(columns["output"] - 1, 1),
            "latency": columns["end_s"] - arrival_s,
            "queue": columns["start_s"] - arrival_s,
        }

    def within(self, slo: Slo, after_s: float = 0.0, until_s: float = math.inf) -> float:
        """Return the share of the requests that meet both bounds; 1 if there are no requests."""
        times = self.times(after_s, until_s)
        good = (times["ttft"] <= slo.ttft_s) & (times["tpot"] <= slo.tpot_s)
        if not len(good):
            return 1.0
        return float(good.mean())

    def summary(
        self, slo: Slo | None = None, after_s: float = 0.0, until_s: float = math.inf
    ) -> Summary:
        """Compute the statistics of the run.

        Args:
            slo: bounds for `goodput` and `within`; None for no bounds.
            after_s, until_s: latencies, `within` and `hit_rate` are computed from the requests that
                arrived between these times, to exclude the start and the end of the run. Averages
                of the load are of `counted_s`.
        """
        columns = self.columns
        times = self.times(after_s, until_s)
        is_counted = self.arrival_mask(after_s, until_s)
        outputs = columns["output"][is_counted]
        prompt_tokens = columns["prompt"][is_counted].sum()
        within = self.within(slo or Slo(), after_s, until_s)
        first_s, last_s = self.counted_s
        wall_s = max(min(last_s, self.duration_s) - first_s, 1e-300)  # an empty run lasts 0 s
        ended = (columns["end_s"] >= first_s) & (columns["end_s"] <= last_s)
        rate = float(ended.sum()) / wall_s
        tallies = self.tallies
        decoding = tallies[self.n_prefill :]
        decode_passes = max(1, sum(tally.decode_passes for tally in decoding))
        busy, kv_use, kv_peak = self._load(self.n_prefill, len(tallies), wall_s)
        prefill_load = self._load(0, self.n_prefill, wall_s) if self.n_prefill else (None,) * 3
        return Summary(
            requests=len(columns["id"]),
            duration_s=self.duration_s,
            ttft_s=Spread.of(times["ttft"]),
            tpot_s=Spread.of(times["tpot"][outputs > 1]),
            latency_s=Spread.of(times["latency"]),
            queue_s=Spread.of(times["queue"]),
            output_tokens_per_s=float(columns["output"][ended].sum()) / wall_s,
            requests_per_s=rate,
            utilisation=busy,
            prefill_utilisation=prefill_load[0],
            step_s=sum(tally.busy_s for tally in decoding) / decode_passes,
            decoding=sum(tally.decoded for tally in decoding) / decode_passes,
            running=sum(tally.running_s for tally in tallies) / wall_s,
            in_system=sum(tally.system_s for tally in tallies) / wall_s,
            kv_use=kv_use,
            kv_peak=kv_peak,
            prefill_kv_use=prefill_load[1],
            prefill_kv_peak=prefill_load[2],
            preemptions=sum(tally.preemptions for tally in tallies),
            hit_rate=float(columns["hit"][is_counted].sum() / max(1.0, prompt_tokens)),
            goodput=rate * within,
            within=within,
        )

    def _load(self, first: int, end: int, wall_s: float) -> tuple[float, float, float]:
        """Share of the time in which the engines from `first` to before `end` run passes, and the
        mean and the largest share of their blocks in use."""
        tallies = self.tallies[first:end]
        n_blocks = self.n_blocks[first:end]
        engine_s = wall_s * len(tallies)
        used_s = sum(tally.used_s / n for tally, n in zip(tallies, n_blocks, strict=True))
        peak = max(tally.peak_used / n for tally, n in zip(tallies, n_blocks, strict=True))
        busy = sum(tally.busy_s for tally in tallies) / engine_s
        return min(1.0, busy), used_s / engine_s, peak  # sums of passes are rounded
