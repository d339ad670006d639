"""Latencies and throughput of a finished load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from shardwise.serve.load.prediction import Prediction
from shardwise.serve.load.reply import Reply
from shardwise.serve.load.schedule import Replies
from shardwise.simulate import Slo, Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Measured latencies and throughput divided by the simulated ones."""

    ttft: Spread
    tpot: Spread
    latency: Spread
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Statistics of the answered requests of a load; times are in seconds.

    Args:
        rate: requests per second that were asked for; None for a closed loop, and for a recording
            that is sent as it is.
        users: number of users of a closed loop; 0 for an open loop.
        achieved_rate: requests per second that were sent, until the last one was.
        requests: number of requests that were answered completely.
        errors: kind of error -> number of requests that ended in it.
        messages: kind of error -> what the first such answer said.
        duration_s: time from the start to the end of the last answer.
        prompt_tokens, output_tokens, cached_tokens: all answered requests together, as the server
            counts them; cached tokens were in its prefix cache.
        short_outputs: number of outputs with fewer tokens than were requested.
        ttft_s: time from sending a request to its first token.
        tpot_s: mean time between two tokens of a request, for requests of at least two tokens.
        itl_s: times between two tokens, or groups of tokens that the server sends together.
        latency_s: time from sending a request to its end.
        requests_per_s, output_tokens_per_s, total_tokens_per_s: means over `duration_s`; the total
            includes the tokens of prompts.
        within: share of all requests that meet both bounds; a failed request does not.
        goodput: requests per second that meet the bounds.
        late_s: time from the arrival of a request to its sending: how far this client was behind.
        lag_s: time by which this client's event loop resumed a waiting task too late.
        prediction: the same requests under a plan; None without a plan.
        ratios: measured over simulated values; None without a plan.
    """

    rate: float | None
    users: int
    achieved_rate: float
    requests: int
    errors: dict[str, int]
    messages: dict[str, str]
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    short_outputs: int
    ttft_s: Spread
    tpot_s: Spread
    itl_s: Spread
    latency_s: Spread
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    within: float
    goodput: float
    late_s: Spread
    lag_s: Spread
    prediction: Prediction | None = None
    ratios: Ratios | None = None

    def beside(self, prediction: Prediction | None) -> Measurement:
        """Add a prediction, and the ratios to it."""
        if prediction is None:
            return self
        simulated = prediction.simulated
        ratios = Ratios(
            ttft=_ratio(self.ttft_s, simulated.ttft_s),
            tpot=_ratio(self.tpot_s, simulated.tpot_s),
            latency=_ratio(self.latency_s, simulated.latency_s),
            output_tokens_per_s=self.output_tokens_per_s / simulated.output_tokens_per_s,
        )
        return replace(self, prediction=prediction, ratios=ratios)

    @property
    def n_errors(self) -> int:
        """Number of requests that ended in an error."""
        return sum(self.errors.values())


def measure(replies: Replies, slo: Slo, rate: float | None = None, users: int = 0) -> Measurement:
    """Compute the statistics of all replies.

    Args:
        slo: bounds for `within` and `goodput`.
        rate, users: what was asked for, of `Measurement`.
    """
    answered = [reply for reply in replies.replies if not reply.error]
    failed = [reply for reply in replies.replies if reply.error]
    ttft_s = [reply.token_s[0] - reply.send_s for reply in answered]
    tpot_s = [_tpot_s(reply) for reply in answered]
    n_good = sum(
        first_s <= slo.ttft_s and token_s <= slo.tpot_s
        for first_s, token_s in zip(ttft_s, tpot_s, strict=True)
    )
    duration_s = max((reply.end_s for reply in replies.replies), default=0.0)
    wall_s = max(duration_s, 1e-9)
    last_send_s = max((reply.send_s for reply in replies.replies), default=0.0)
    sending_s = wall_s if users else max(last_send_s, 1e-9)
    prompt_tokens = sum(reply.prompt_tokens for reply in answered)
    output_tokens = sum(reply.output_tokens for reply in answered)
    return Measurement(
        rate=rate,
        users=users,
        achieved_rate=len(replies.replies) / sending_s,
        requests=len(answered),
        errors=dict(Counter(reply.error for reply in failed)),
        messages={reply.error: reply.message for reply in reversed(failed)},
        duration_s=duration_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=sum(reply.cached_tokens for reply in answered),
        short_outputs=sum(reply.output_tokens < reply.expected_tokens for reply in answered),
        ttft_s=_spread(ttft_s),
        tpot_s=_spread(
            seconds
            for seconds, reply in zip(tpot_s, answered, strict=True)
            if reply.output_tokens > 1
        ),
        itl_s=_spread(_gaps_s(answered)),
        latency_s=_spread(reply.end_s - reply.send_s for reply in answered),
        requests_per_s=len(answered) / wall_s,
        output_tokens_per_s=output_tokens / wall_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) / wall_s,
        within=n_good / max(1, len(replies.replies)),
        goodput=n_good / wall_s,
        late_s=_spread(replies.late_s),
        lag_s=_spread(replies.lag_s),
    )


def pareto(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements that no other beats in both throughput and median TPOT, fastest first."""
    front: list[Measurement] = []
    for row in sorted(measurements, key=lambda row: (row.tpot_s.p50, -row.output_tokens_per_s)):
        is_better = not front or row.output_tokens_per_s > front[-1].output_tokens_per_s
        if row.requests and is_better:
            front.append(row)
    return front


def _tpot_s(reply: Reply) -> float:
    """Mean seconds between two tokens of an output; 0 for an output of one token."""
    return (reply.end_s - reply.token_s[0]) / max(reply.output_tokens - 1, 1)


def _gaps_s(replies: Iterable[Reply]) -> Iterable[float]:
    for reply in replies:
        for before_s, after_s in zip(reply.token_s, reply.token_s[1:], strict=False):
            yield after_s - before_s


def _ratio(measured: Spread, simulated: Spread) -> Spread:
    """Divide the mean and each percentile; 0 where nothing was simulated."""
    ratios = {}
    for field in fields(Spread):
        seconds = getattr(simulated, field.name)
        ratios[field.name] = getattr(measured, field.name) / seconds if seconds else 0.0
    return Spread(**ratios)


def _spread(values: Iterable[float]) -> Spread:
    import numpy as np

    return Spread.of(np.array([*values], dtype=float))
