"""Metrics for Prometheus, under vLLM's names where they mean the same.

What the engine counts is read from it when the metrics are asked for; what only the server sees,
as times and statuses, is counted here.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwise.serve.request import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "shardwise"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

# Upper bounds in seconds, as of vLLM.
FIRST_TOKEN: tuple[float, ...] = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
)
FIRST_TOKEN += (10.0, 20.0, 40.0, 80.0, 160.0)
NEXT_TOKEN: tuple[float, ...] = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
)
NEXT_TOKEN += (1.0, 2.5, 5.0)
WHOLE: tuple[float, ...] = (
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    60.0,
    120.0,
)
WHOLE += (240.0, 480.0)


class EngineMetrics(Collector):
    """What an engine counts.

    Args:
        engine: that is asked.
        model: name of the served model.
    """

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """The engine's present metrics."""
        stats = self._engine.stats()
        used = stats.blocks_used / max(stats.blocks, 1)
        yield self._gauge("num_requests_running", "Sequences in the batch.", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences in the queue.", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", used)
        yield self._gauge("kv_cache_blocks_used", "KV blocks in use.", stats.blocks_used)
        yield self._gauge("kv_cache_blocks", "KV blocks.", stats.blocks)
        prompts, hits = stats.prompt_tokens, stats.cached_tokens
        yield self._counter("prompt_tokens", "Tokens of prompts.", prompts)
        yield self._counter(
            "prefix_cache_queries", "Tokens looked up in the prefix cache.", prompts
        )
        yield self._counter("prefix_cache_hits", "Tokens found in the prefix cache.", hits)
        yield self._counter("generation_tokens", "Generated tokens.", stats.generated_tokens)
        yield self._counter("spec_decode_num_draft_tokens", "Drafted tokens.", stats.drafted_tokens)
        yield self._counter(
            "spec_decode_num_accepted_tokens", "Accepted drafts.", stats.accepted_tokens
        )
        yield self._counter("num_preemptions", "Sequences put back for memory.", stats.preemptions)
        yield self._counter("engine_passes", "Forward passes.", stats.passes)
        yield self._counter("engine_finished", "Sequences that ended.", stats.finished)

    def _gauge(self, name: str, help: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{PREFIX}:{name}", help, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(f"{PREFIX}:{name}", help, labels=["model_name"])
        family.add_metric([self._model], value)
        return family


class Metrics:
    """All metrics of a server.

    Args:
        engine: whose counters are shown.
        model: name of the served model.
    """

    def __init__(self, engine: Engine, model: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineMetrics(engine, model))
        self._model = model
        self._requests = self._counts(
            "http_requests", "Answered requests.", ["handler", "method", "status"]
        )
        self._success = self._counts("request_success", "Ended outputs.", ["finished_reason"])
        self._first = self._times("time_to_first_token_seconds", FIRST_TOKEN)
        self._next = self._times("time_per_output_token_seconds", NEXT_TOKEN)
        self._whole = self._times("e2e_request_latency_seconds", WHOLE)

    def request(self, handler: str, method: str, status: int) -> None:
        """Count an answered request."""
        if method not in METHODS:
            method = "other"  # clients may invent methods, and each would be kept
        self._requests.labels(handler, method, str(status)).inc()

    def first_token(self, seconds: float) -> None:
        """Note the time from a request to its first token."""
        self._first.labels(self._model).observe(seconds)

    def output(self, finish: str, tokens: int, seconds: float, seconds_to_first: float) -> None:
        """Note an ended output.

        Args:
            finish: why it ended.
            tokens: of the output.
            seconds: from the request to the end.
            seconds_to_first: from the request to the output's first token.
        """
        self._success.labels(finish).inc()
        self._whole.labels(self._model).observe(seconds)
        if tokens > 1:
            self._next.labels(self._model).observe((seconds - seconds_to_first) / (tokens - 1))

    def text(self) -> bytes:
        """The metrics in Prometheus's format."""
        return generate_latest(self._registry)

    def _counts(self, name: str, help: str, labels: list[str]) -> Counter:
        return Counter(f"{PREFIX}:{name}", help, labels, registry=self._registry)

    def _times(self, name: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"{PREFIX}:{name}",
            f"{name.replace('_', ' ').capitalize()}.",
            ["model_name"],
            buckets=bounds,
            registry=self._registry,
        )
