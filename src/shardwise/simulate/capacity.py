"""Search for the highest request rate that meets an SLO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.errors import BadInput, NoPlan
from shardwise.simulate.deployment import Pool, simulate
from shardwise.simulate.mean_field import MeanField, mean_field
from shardwise.simulate.metrics import Slo, Summary
from shardwise.simulate.traffic import Traffic

FIRST_FACTOR = 1.1  # between the first rate and the next; each further factor is its square
MAX_FACTORS = 7  # together a factor of 180,000
HALVINGS = 50  # bisection steps in the closed form


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest rate that meets an SLO.

    Args:
        rate: the highest request rate, in requests per second.
        summary: statistics of the simulation at that rate.
        trials: (rate, share of the requests within the bounds) of each simulation.
        mean_field_rate: the highest rate that meets the bound on the time between tokens by the
            closed form `mean_field`, which has no queues and thus no time to the first token. None
            with separate prefill and decode engines.
    """

    rate: float
    summary: Summary
    trials: tuple[tuple[float, float], ...]
    mean_field_rate: float | None


def capacity(
    traffic: Traffic,
    pool: Pool,
    slo: Slo,
    decode: Pool | None = None,
    transfer_s_per_token: float = 0.0,
    tolerance: float = 0.01,
    warm_up: float = 0.1,
) -> Capacity:
    """Find the highest rate at which `slo.share` of the requests meet both bounds.

    Every rate is simulated with the same requests and with the same arrivals scaled in time (common
    random numbers). Above its capacity an engine has a queue that grows without bound, which
    violates the SLO only if the run is long enough: pass traffic of many times `slo.ttft_s`.

    Args:
        traffic: requests with arrival times; the search starts at their rate.
        pool, decode, transfer_s_per_token: see `simulate`.
        slo: bounds, and the share of requests that must meet them.
        tolerance: relative accuracy of the result: a rate higher by this share fails.
        warm_up: requests that arrive in this first share of the run do not count.

    Raises:
        BadInput: the traffic is a closed loop, or so short that every rate meets the bounds.
        NoPlan: no rate meets the bounds.
    """
    if not 0 < tolerance < 1 or not 0 <= warm_up < 1:
        raise BadInput(
            f"tolerance must be in (0, 1) and warm_up in [0, 1), not {tolerance} and {warm_up}."
        )
    summaries: dict[float, Summary] = {}

    def meets(rate: float) -> bool:
        result = simulate(traffic.at_rate(rate), pool, decode, transfer_s_per_token)
        summary = result.summary(slo, warm_up * len(traffic) / rate)
        summaries[rate] = summary
        return summary.within >= slo.share

    highest = highest_rate(meets, traffic.rate, tolerance)
    mean_field_rate = None
    if decode is None:
        mean_field_rate = _mean_field_rate(traffic, pool, slo)
    return Capacity(
        rate=highest,
        summary=summaries[highest],
        trials=tuple((rate, summaries[rate].within) for rate in sorted(summaries)),
        mean_field_rate=mean_field_rate,
    )


def highest_rate(meets: Callable[[float], bool], start: float, tolerance: float) -> float:
    """Return a rate that meets the bounds, while a rate higher by `tolerance` does not.

    Raises:
        BadInput: every rate meets the bounds.
        NoPlan: no rate meets the bounds.
    """
    low, high = _bracket(meets, start)
    while high > low * (1 + tolerance):
        middle = (low * high) ** 0.5
        if meets(middle):
            low = middle
        else:
            high = middle
    return low


def _bracket(meets: Callable[[float], bool], start: float) -> tuple[float, float]:
    """Return two rates, of which the lower one meets the bounds and the higher one does not."""
    rate = start
    factor = FIRST_FACTOR
    if meets(rate):
        for _ in range(MAX_FACTORS):
            if not meets(factor * rate):
                return rate, factor * rate
            rate *= factor
            factor *= factor
        raise BadInput("the traffic is so short that every rate meets the bounds. Make it longer.")
    for _ in range(MAX_FACTORS):
        rate /= factor
        if meets(rate):
            return rate, factor * rate
        factor *= factor
    raise NoPlan(
        f"no rate meets the bounds: not even {rate:.3g} requests per second. Relax them, or make "
        "passes faster."
    )


def _mean_field_rate(traffic: Traffic, pool: Pool, slo: Slo) -> float:
    """Return the highest rate by the closed form, for all engines of the pool together."""
    prompt = float(traffic.prompt.mean())
    output = float(traffic.output.mean())

    def state(rate: float) -> MeanField:
        return mean_field(pool.times, pool.limits, prompt, output, rate)

    high = state(traffic.rate).largest_rate
    if state(high).tpot_s <= slo.tpot_s:
        return high * pool.replicas
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if state(middle).tpot_s <= slo.tpot_s:
            low = middle
        else:
            high = middle
    return low * pool.replicas
