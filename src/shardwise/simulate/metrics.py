"""What a simulation found: one row for each request, sums for each engine, and their summary."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwise.errors import BadInput
from shardwise.simulate.engine import Tally
from shardwise.simulate.request import Live, Request

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

COLUMNS = ("id", "arrival_s", "start_s", "first_s", "end_s", "prompt", "output", "preemptions",
           "hit", "replica")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request is promised.

    Args:
        ttft_s: seconds from its arrival to its first token, at most.
        tpot_s: mean seconds between its tokens, at most.
        share: share of the requests for which both must hold.

    Raises:
        BadInput: a bound or a share that cannot be.
    """

    ttft_s: float = float("inf")
    tpot_s: float = float("inf")
    share: float = 0.99

    def __post_init__(self) -> None:
        if not (self.ttft_s > 0 and self.tpot_s > 0 and 0 < self.share <= 1):
            raise BadInput(f"{self}: bounds are above 0, the share is above 0 and at most 1.")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Array) -> Spread:
        """Of some values; all 0 where there are none."""
        import numpy as np

        if not len(values):
            return cls(0.0, 0.0, 0.0, 0.0)
        return cls(float(values.mean()), *np.percentile(values, (50, 90, 99)).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a run; times are seconds of requests, shares are of 1.

    Args:
        ttft_s: from arrival to first token.
        tpot_s: mean between the tokens of one request (those with two at least).
        latency_s: from arrival to the last token.
        queue_s: from arrival to the start of the first pass.
        output_tokens_per_s, requests_per_s: over the whole run.
        utilisation: share of the engines' time in which passes run.
        step_s: busy seconds for each decode pass.
        decoding: mean sequences in a decode pass.
        running: mean sequences that hold blocks, all engines together.
        in_system: mean requests that wait or run.
        kv_use, kv_peak: blocks held, of those there are: mean over time, and most.
        preemptions: how often a sequence gave its blocks back.
        hit_rate: share of prompt tokens found in the prefix cache.
        goodput: requests a second within the bounds of `Slo`, and `within` their share.
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


class Record:
    """Rows of requests that ended, kept in one flat array of numbers."""

    def __init__(self) -> None:
        self.rows = array("d")

    def add(self, request: Request, first: Live, last: Live, end_s: float, replica: int) -> None:
        """A request ended: the sequence of its first token, and that of its last one."""
        preemptions = first.preemptions if first is last else first.preemptions + last.preemptions
        self.rows.extend(
            (request.id, request.arrival_s, first.start_s, first.first_s, end_s, request.prompt,
             last.generated, preemptions, first.hit, replica)
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """A finished run.

    Args:
        columns: one array a column of `COLUMNS`, in the order of the requests' numbers.
        tallies: one for each engine; those of prefill engines first.
        n_blocks: blocks of each of these engines.
        duration_s: seconds from the start to the last end.
    """

    columns: dict[str, Array]
    tallies: tuple[Tally, ...]
    n_blocks: tuple[int, ...]
    duration_s: float

    @classmethod
    def of(
        cls, record: Record, tallies: tuple[Tally, ...], n_blocks: tuple[int, ...], end_s: float
    ) -> Result:
        """From the rows and the sums of a run."""
        import numpy as np

        table = np.frombuffer(record.rows, dtype=np.float64).reshape(-1, len(COLUMNS))
        order = np.argsort(table[:, 0], kind="stable")
        columns = {name: column[order] for name, column in zip(COLUMNS, table.T, strict=True)}
        return cls(columns=columns, tallies=tallies, n_blocks=n_blocks, duration_s=end_s)

    def judged(self, after_s: float = 0.0, until_s: float = math.inf) -> Array:
        """Which requests arrived between these times, both included."""
        arrival = self.columns["arrival_s"]
        return (arrival >= after_s) & (arrival <= until_s)

    def times(self, after_s: float = 0.0, until_s: float = math.inf) -> dict[str, Array]:
        """Seconds of each request that arrived between these times: ttft, tpot, latency, queue.

        `tpot` is 0 for a request of one token.
        """
        import numpy as np

        kept = self.judged(after_s, until_s)
        arrival, start, first, end, output = (
            self.columns[name][kept]
            for name in ("arrival_s", "start_s", "first_s", "end_s", "output")
        )
        gaps = np.maximum(output - 1, 1)
        return {
            "ttft": first - arrival,
            "tpot": (end - first) / gaps,
            "latency": end - arrival,
            "queue": start - arrival,
        }

    def within(self, slo: Slo, after_s: float = 0.0, until_s: float = math.inf) -> float:
        """Share of the requests that meet both bounds."""
        times = self.times(after_s, until_s)
        good = (times["ttft"] <= slo.ttft_s) & (times["tpot"] <= slo.tpot_s)
        return float(good.mean()) if len(good) else 1.0

    def summary(
        self, slo: Slo | None = None, after_s: float = 0.0, until_s: float = math.inf
    ) -> Summary:
        """The figures of the run.

        Args:
            slo: bounds for goodput; without it every request is good.
            after_s, until_s: times, `within` and `hit_rate` are of requests that arrived between
                them, to leave out how the run fills and empties; what is measured over time is of
                the whole run.
        """
        columns, tallies = self.columns, self.tallies
        times, kept = self.times(after_s, until_s), self.judged(after_s, until_s)
        engine_s = max(self.duration_s, 1e-300) * len(tallies)  # an empty run divides 0 by it
        wall_s = engine_s / len(tallies)
        within = self.within(slo or Slo(), after_s, until_s)
        rate = len(columns["id"]) / wall_s
        busy_s = sum(t.busy_s for t in tallies)
        decode_passes = max(1, sum(t.decode_passes for t in tallies))
        used = sum(t.used_s / n for t, n in zip(tallies, self.n_blocks, strict=True))
        return Summary(
            requests=len(columns["id"]),
            duration_s=self.duration_s,
            ttft_s=Spread.of(times["ttft"]),
            tpot_s=Spread.of(times["tpot"][columns["output"][kept] > 1]),
            latency_s=Spread.of(times["latency"]),
            queue_s=Spread.of(times["queue"]),
            output_tokens_per_s=float(columns["output"].sum()) / wall_s,
            requests_per_s=rate,
            utilisation=busy_s / engine_s,
            step_s=busy_s / decode_passes,
            decoding=sum(t.decoded for t in tallies) / decode_passes,
            running=sum(t.running_s for t in tallies) / wall_s,
            in_system=sum(t.system_s for t in tallies) / wall_s,
            kv_use=used / engine_s,
            kv_peak=max(t.peak_used / n for t, n in zip(tallies, self.n_blocks, strict=True)),
            preemptions=sum(t.preemptions for t in tallies),
            hit_rate=float(columns["hit"][kept].sum() / max(1.0, columns["prompt"][kept].sum())),
            goodput=rate * within,
            within=within,
        )
