"""The largest rate at which promises are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.errors import BadInput, NoPlan
from shardwise.simulate.deployment import Pool, simulate
from shardwise.simulate.mean_field import mean_field
from shardwise.simulate.metrics import Slo, Summary
from shardwise.simulate.traffic import Traffic

MOST_DOUBLINGS = 20  # from the first rate that is tried, up or down


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The largest rate that meets an SLO.

    Args:
        rate: requests a second.
        summary: the run at that rate.
        tried: rates that were simulated, and the share of requests within the bounds at each.
        mean_field_rate: the largest rate at which balance alone (see `mean_field`) keeps the mean
            time between tokens within its bound; it knows no queues, so no bound on the first
            token. None for prefill and decode on engines of their own.
    """

    rate: float
    summary: Summary
    tried: tuple[tuple[float, float], ...]
    mean_field_rate: float | None

    @property
    def of_mean_field(self) -> float | None:
        """What variation leaves of the closed form: the ratio of both rates."""
        return None if not self.mean_field_rate else self.rate / self.mean_field_rate


def capacity(
    traffic: Traffic,
    pool: Pool,
    slo: Slo,
    decode: Pool | None = None,
    transfer_s_per_token: float = 0.0,
    tolerance: float = 0.01,
    warm_up: float = 0.1,
) -> Capacity:
    """The largest rate at which `slo.share` of the requests meet both bounds.

    The same requests arrive at every rate, with all distances scaled (common random numbers), so
    that rates differ by nothing else. A queue that grows for ever breaks a bound only in a run that
    is long against it: give traffic of many times `slo.ttft_s`.

    Args:
        traffic: requests with arrivals; their own rate is the first one tried.
        pool, decode, transfer_s_per_token: see `simulate`.
        slo: the promise.
        tolerance: the answer is at most this share below a rate that fails.
        warm_up: share of the duration of the arrivals whose requests are not judged.

    Raises:
        BadInput: a closed loop; or traffic so short that every rate meets the bounds.
        NoPlan: no rate meets the bounds: a single request does not.
    """
    if not 0 < tolerance < 1 or not 0 <= warm_up < 1:
        raise BadInput(f"tolerance {tolerance} and warm_up {warm_up} are shares below 1.")
    tried: dict[float, tuple[float, Summary]] = {}

    def met(rate: float) -> bool:
        scaled = traffic.at_rate(rate)
        after_s = warm_up * len(traffic) / rate
        found = simulate(scaled, pool, decode, transfer_s_per_token)
        summary = found.summary(slo, after_s)
        tried[rate] = (summary.within, summary)
        return summary.within >= slo.share

    low, high = _bracket(met, traffic.rate)
    while high > low * (1 + tolerance):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if met(middle) else (low, middle)
    return Capacity(
        rate=low,
        summary=tried[low][1],
        tried=tuple((rate, tried[rate][0]) for rate in sorted(tried)),
        mean_field_rate=None if decode else _balanced(traffic, pool, slo),
    )


def _bracket(met: Callable[[float], bool], start: float) -> tuple[float, float]:
    """A rate that meets the bounds and one, twice as high, that does not."""
    rate = start
    if met(rate):
        for _ in range(MOST_DOUBLINGS):
            if not met(2 * rate):
                return rate, 2 * rate
            rate *= 2
        raise BadInput("the traffic is so short that every rate meets the bounds. Give more of it.")
    for _ in range(MOST_DOUBLINGS):
        rate /= 2
        if met(rate):
            return rate, 2 * rate
    raise NoPlan(
        f"no rate meets the bounds: not even {rate:.3g} requests a second. Relax them, or make "
        "passes faster."
    )


def _balanced(traffic: Traffic, pool: Pool, slo: Slo) -> float:
    """The largest rate of the closed form, all engines together."""
    prompt, output = float(traffic.prompt.mean()), float(traffic.output.mean())

    def at(rate: float) -> tuple[float, float]:
        state = mean_field(pool.times, pool.limits, prompt, output, rate)
        return state.tpot_s, state.largest_rate

    high = at(traffic.rate)[1]
    if at(high)[0] <= slo.tpot_s:
        return high * pool.replicas
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle)[0] <= slo.tpot_s else (low, middle)
    return low * pool.replicas
