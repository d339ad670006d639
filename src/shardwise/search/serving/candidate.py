"""A serving deployment: its engines, and their pass times, memory, latency and throughput."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from shardwise.estimate.chip_memory import Memory, capacity_bytes
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.load import Load, decode_load, prefill_load
from shardwise.estimate.serving.memory import engine_memory, max_batch, program_bytes
from shardwise.estimate.serving.pass_time import PassTime
from shardwise.estimate.serving.steady_state import (
    SteadyState,
    colocated,
    decode_only,
    in_flight,
    prefill_only,
    prompts_per_pass,
    requested_rate,
)
from shardwise.formulas.inference import speculative_token_s
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.serving.legal import batch_unit
from shardwise.strategy.mesh import Placement
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve


@dataclass(frozen=True, kw_only=True)
class Server:
    """A number of identical engines.

    Args:
        system: the machine that holds one engine, or several of them.
        placement: physical placement of one engine, or on a torus of all engines of the machine.
        rates: the rates that the chip is expected to reach.
        count: number of engines.
    """

    config: ModelConfig
    job: Serve
    system: System
    layout: ServeLayout
    placement: Placement
    rates: ServeRates
    count: int

    @functools.cached_property
    def engine(self) -> Engine:
        """One of the engines, at the expected rates."""
        return self._at(self.rates)

    @functools.cached_property
    def ideal(self) -> Engine:
        """One of the engines, at the chip's peak rates and without software overhead."""
        return self._at(ServeRates(chip=self.rates.chip, job=self.job))

    def _at(self, rates: ServeRates) -> Engine:
        costs = CollectiveCost([self.placement])
        return Engine(config=self.config, layout=self.layout, costs=costs, rates=rates)

    @property
    def n_chips(self) -> int:
        """Chips of one engine."""
        return self.layout.n_chips

    @property
    def batch_unit(self) -> int:
        """Number of sequences that every batch of an engine is a multiple of."""
        return int(batch_unit(self.config, self.layout, self.layout.sizes))

    @property
    def max_batch(self) -> int:
        """The most sequences of full context length that fit in one engine.

        Rounded down to a multiple of `batch_unit`.
        """
        layout = self.layout
        capacity = capacity_bytes(self.rates.chip)
        limit = max_batch(
            self.config, layout, layout.sizes, self.job, capacity, ideal=self.rates.ideal
        )
        return int(limit) // self.batch_unit * self.batch_unit

    def memory(self, batch: int) -> Memory:
        """Memory of the fullest chip of an engine that holds `batch` sequences."""
        return engine_memory(
            self.config,
            self.layout,
            self.layout.sizes,
            self.job,
            batch,
            capacity_bytes(self.rates.chip),
            ideal=self.rates.ideal,
        )

    def program_bytes(self, batch: int, load: Load) -> int:
        """Bytes that the program of one pass takes on the fullest chip."""
        layout = self.layout
        tokens = load.rows / prompts_per_pass(self.engine)
        return int(program_bytes(self.config, layout, layout.sizes, self.job, batch, tokens))

    def decode(self, batch: int, *, ideal: bool = False) -> PassTime:
        """Time of one decoding pass of an engine that holds `batch` sequences."""
        return self._ideal_or_expected(ideal=ideal).pass_time(self.decode_load(batch))

    def decode_load(self, batch: int) -> Load:
        """Sequences and tokens of one decoding pass of an engine that holds `batch` sequences."""
        n_sequences = in_flight(self.engine, batch)
        return decode_load(n_sequences, self.job.mean_context, 1 + self.job.drafted)

    def per_token(self, seconds: float) -> float:
        """Seconds per output token of a sequence, where one decoding pass takes `seconds`.

        With speculative decoding, one pass may yield several accepted tokens.
        """
        job = self.job
        return float(speculative_token_s(seconds, job.acceptance, job.drafted, job.draft_cost))

    def prefill(self, *, ideal: bool = False) -> PassTime:
        """Time of a prefill pass of an idle engine, with one prompt on each shard of its batch."""
        return self._ideal_or_expected(ideal=ideal).pass_time(self.prefill_load)

    @property
    def prefill_load(self) -> Load:
        """Tokens of one prefill pass of an idle engine."""
        job = self.job
        n_prompts = prompts_per_pass(self.engine)
        return prefill_load(n_prompts, job.prompt_tokens, job.prompt_tokens - job.fresh_tokens)

    def _ideal_or_expected(self, *, ideal: bool) -> Engine:
        if ideal:
            return self.ideal
        return self.engine


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A deployment.

    Args:
        server: the decode engines; in a colocated deployment they also prefill.
        batch: sequences that decode at once in one engine.
        prefill_server: the prefill engines of a disaggregated deployment; None if colocated.
        prefill_busy: fraction of the time that these engines are working; 0 if colocated.
        chips: number of chips that are paid for.
        transfer_s: seconds to send the KV cache of one prompt from a prefill engine to a decode
            engine; 0 if colocated.
        simulated_rate: requests per second of the users of a closed loop in simulation; None for
            their mean by Little's law, and without users.
    """

    server: Server
    batch: int
    prefill_server: Server | None
    prefill_busy: float
    chips: int
    transfer_s: float
    simulated_rate: float | None = None

    @property
    def job(self) -> Serve:
        return self.server.job

    def at_rate(self, rate: float) -> Candidate:
        """The same deployment for requests that arrive at a rate, per second."""
        servers = {
            name: replace(server, job=replace(server.job, rate=rate, users=None))
            for name in ("server", "prefill_server")
            if (server := getattr(self, name))
        }
        return replace(self, **servers)

    @property
    def n_prefill(self) -> int:
        """Number of prefill engines; 0 if colocated."""
        return self.prefill_server.count if self.prefill_server else 0

    @functools.cached_property
    def steady(self) -> SteadyState:
        """Means of one decode engine under steady traffic."""
        if self.prefill_server:
            return decode_only(self.server.engine, self.job, self.batch)
        return colocated(self.server.engine, self.job, self.batch)

    @property
    def tpot_s(self) -> float:
        """TPOT: mean seconds between two tokens of a sequence."""
        return float(self.steady.tpot_s)

    @property
    def first_token_delay_s(self) -> float:
        """Seconds by which the software delays the first token, see `EngineOverhead`."""
        overhead = self.server.rates.overhead
        ranks = 1 if self.prefill_server else self.server.layout.sizes["expert"]
        return float(overhead.first_token_s(self.tpot_s, self.batch, ranks))

    @property
    def ttft_s(self) -> float:
        """TTFT: mean seconds to the first token, including the server's overhead per request."""
        delay_s = self.first_token_delay_s
        if not self.prefill_server:
            return float(self.steady.ttft_s) + delay_s
        _, seconds = prefill_only(self.prefill_server.engine, self.job, self.prefill_busy)
        return float(seconds) + self.transfer_s + self.tpot_s + delay_s

    @property
    def most_requests_per_s(self) -> float:
        """Requests per second that the deployment completes when all engines are full."""
        decode_rate = self.server.count * float(self.steady.requests_per_s)
        if not self.prefill_server:
            return decode_rate
        engine_rate, _ = prefill_only(self.prefill_server.engine, self.job, self.prefill_busy)
        return min(decode_rate, self.prefill_server.count * float(engine_rate))

    @property
    def most_tokens_per_s(self) -> float:
        """Generated tokens per second when all engines are full."""
        if self.prefill_server and self.job.output:
            return self.most_requests_per_s * self.job.output
        return self.server.count * float(self.steady.tokens_per_s)

    @property
    def requests_per_s(self) -> float:
        """Requests per second: those of the job's load, or the maximum if it states none."""
        if self.job.users and self.simulated_rate:
            return self.simulated_rate
        rate = requested_rate(self.job, self.ttft_s, self.tpot_s)
        return self.most_requests_per_s if rate is None else float(rate)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second at `requests_per_s`."""
        if self.job.states_load and self.job.output:
            return self.requests_per_s * self.job.output
        return self.most_tokens_per_s
