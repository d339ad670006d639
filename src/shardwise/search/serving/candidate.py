"""One deployment in numbers: its engines, their passes, memory, latency and rates."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.estimate.chip_memory import Memory
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.memory import engine_memory, max_batch
from shardwise.estimate.serving.pass_time import PassTime
from shardwise.estimate.serving.steady_state import (
    SteadyState,
    colocated,
    decode_only,
    in_flight,
    prefill_only,
    prompts_per_pass,
)
from shardwise.formulas.inference import speculative_token_s
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.serving.evaluate import whole
from shardwise.strategy.mesh import Placement
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Engines of one kind.

    Args:
        system: the machine that one of them, or several side by side, lie on.
        count: engines.
    """

    config: ModelConfig
    job: Serve
    system: System
    layout: ServeLayout
    placement: Placement
    rates: ServeRates
    count: int

    @property
    def engine(self) -> Engine:
        """At the expected rates."""
        return self._at(self.rates)

    @property
    def ideal(self) -> Engine:
        """At the chip's peaks."""
        return self._at(ServeRates(chip=self.rates.chip, job=self.job))

    def _at(self, rates: ServeRates) -> Engine:
        costs = CollectiveCost([self.placement])
        return Engine(config=self.config, layout=self.layout, costs=costs, rates=rates)

    @property
    def n_chips(self) -> int:
        """Of one engine."""
        return self.layout.n_chips

    @property
    def max_batch(self) -> int:
        """Sequences of the whole context that fit in one engine, in whole parts."""
        layout, chip = self.layout, self.rates.chip
        unit = int(whole(self.config, layout, layout.sizes))
        most = max_batch(
            self.config,
            layout,
            layout.sizes,
            self.job,
            chip.need("hbm_bytes"),
            ideal=self.rates.ideal,
        )
        return int(most) // unit * unit

    def memory(self, batch: int) -> Memory:
        """Of the fullest chip with `batch` sequences in an engine."""
        return engine_memory(
            self.config,
            self.layout,
            self.layout.sizes,
            self.job,
            batch,
            self.rates.chip.need("hbm_bytes"),
            ideal=self.rates.ideal,
        )

    def decode(self, batch: int, *, ideal: bool = False) -> PassTime:
        """One pass of the sequences that generate."""
        engine = self.ideal if ideal else self.engine
        here = in_flight(engine, batch)
        return engine.decode(here, self.job.mean_context, 1 + self.job.drafted)

    def per_token(self, seconds: float) -> float:
        """From a pass to a token of a sequence: drafted passes over the tokens that are kept."""
        job = self.job
        return float(speculative_token_s(seconds, job.acceptance, job.drafted, job.draft_cost))

    def prefill(self, *, ideal: bool = False) -> PassTime:
        """A prompt on an idle engine, one on each part of its batch."""
        job, engine = self.job, self.ideal if ideal else self.engine
        n = prompts_per_pass(engine)
        return engine.prefill(n, job.prompt_tokens, job.prompt_tokens - job.fresh_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A deployment.

    Args:
        server: what generates, and reads where there is no `reader`.
        batch: sequences that decode at once in one engine.
        reader, busy: engines that only read prompts, and the share of their time.
        chips: that are paid for.
        transfer_s: of a prompt's caches between two engines.
    """

    server: Server
    batch: int
    reader: Server | None
    busy: float
    chips: int
    transfer_s: float

    @property
    def job(self) -> Serve:
        return self.server.job

    @property
    def steady(self) -> SteadyState:
        """Means of one engine that generates."""
        find = decode_only if self.reader else colocated
        return find(self.server.engine, self.job, self.batch)

    @property
    def tpot_s(self) -> float:
        """Mean seconds between two tokens of a sequence."""
        return float(self.steady.tpot_s)

    @property
    def ttft_s(self) -> float:
        """Mean seconds to the first token, with those of the server around the engine."""
        server_s = self.server.rates.overhead.request_s
        if not self.reader:
            return float(self.steady.ttft_s) + server_s
        _, seconds = prefill_only(self.reader.engine, self.job, self.busy)
        return float(seconds) + self.transfer_s + self.tpot_s + server_s

    @property
    def most_requests_per_s(self) -> float:
        """Requests that end a second when all engines are full."""
        ends = self.server.count * float(self.steady.requests_per_s)
        if not self.reader:
            return ends
        reads, _ = prefill_only(self.reader.engine, self.job, self.busy)
        return min(ends, self.reader.count * float(reads))

    @property
    def most_tokens_per_s(self) -> float:
        """Tokens that are generated when all engines are full."""
        if self.reader and self.job.output:
            return self.most_requests_per_s * self.job.output
        return self.server.count * float(self.steady.tokens_per_s)

    @property
    def requests_per_s(self) -> float:
        """Requests that end: as many as come, or can be."""
        return self.job.rate or self.most_requests_per_s

    @property
    def tokens_per_s(self) -> float:
        """Generated."""
        if self.job.rate and self.job.output:
            return self.job.rate * self.job.output
        return self.most_tokens_per_s
