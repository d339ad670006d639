"""What a search for a request rate tries in turn, before it refuses.

A job that states a load but not both bounds gets usual ones, so that its requests do not queue for
minutes on the fewest chips; if no deployment keeps them, looser ones, and at last none but its own.
Means are pessimistic where engines are not full: where they refuse, requests are simulated all the
same on deployments whose means are near enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.errors import DoesNotFit, NoPlan, NoStrategy, TooManyChips
from shardwise.plan.schema.traffic import TrafficEstimate
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.most_users import users_refusal
from shardwise.plan.serving.refusals import rank_or_explain
from shardwise.plan.serving.traffic import CAPACITY_STEP, estimate
from shardwise.plan.serving.traffic_search import (
    N_CANDIDATES,
    at_largest_rate,
    led_by,
    under_traffic,
)
from shardwise.search.serving.rank import Ranking, Request, rank
from shardwise.search.serving.rule import SIMULATED_SLACK, USUAL_TPOT_S, USUAL_TTFT_S
from shardwise.workload import Serve

LOOSER = 4.0  # factor of the usual bounds in the second attempt


def searched(
    request: Request, n_candidates: int, arrivals: Arrivals | None, *, largest: bool
) -> tuple[Request, Ranking, TrafficEstimate | None]:
    """The request with the bounds that were kept, its ranking, and metrics of simulated requests.

    Args:
        n_candidates: number of deployments to keep.
        arrivals: requests to simulate, or None.
        largest: also find the highest request rate that meets the bounds.

    Raises:
        TooManyChips: the rate needs more chips than machines have; nothing is simulated.
        NoStrategy, DoesNotFit: as `rank_or_explain`, and if no simulated deployment meets the
            bounds.
    """
    attempts = list(_attempts(request))
    *relaxable, last = attempts
    for attempt in relaxable:
        try:
            return _once(*attempt, n_candidates, arrivals, largest=largest)
        except TooManyChips:
            raise
        except NoStrategy:
            continue
        except DoesNotFit as refusal:  # looser bounds take as much memory
            raise _explained(request, refusal) from None
    try:
        return _once(*last, n_candidates, arrivals, largest=largest)
    except TooManyChips:
        raise
    except NoPlan as refusal:
        if request.job.users and request.machine_is_given and isinstance(refusal, NoStrategy):
            raise users_refusal([attempt[:2] for attempt in attempts], arrivals) from None
        raise _explained(last[0], refusal) from None


def _explained(request: Request, refusal: NoPlan) -> NoPlan:
    """The refusal with what would work, where means refuse, too."""
    try:
        rank_or_explain(request, 0)
    except NoStrategy as explained:
        return NoStrategy(*dict.fromkeys((*refusal.problems, *explained.problems)))
    except DoesNotFit as explained:
        return explained
    return refusal


def _attempts(request: Request) -> Iterator[tuple[Request, tuple[str, ...], tuple[str, ...]]]:
    """Requests to try, each with the names of the bounds that it adds, and of those not kept."""
    job = request.job
    missing = {"ttft_s": USUAL_TTFT_S, "tpot_s": USUAL_TPOT_S}
    usual = {name: bound for name, bound in missing.items() if getattr(job, name) is None}
    unmet: tuple[str, ...] = ()
    if job.states_load and usual:
        names = tuple(name.removesuffix("_s") for name in usual)
        for factor in (1.0, LOOSER):
            bounds = {name: factor * bound for name, bound in usual.items()}
            jobs = [_bounded(j, bounds) for j in request.jobs]
            yield replace(request, jobs=jobs), names, unmet
            unmet = names
    yield request, (), unmet


def _bounded(job: Serve, bounds: dict[str, float]) -> Serve:
    return replace(job, **bounds)  # type: ignore[arg-type]


def _once(
    request: Request,
    usual: tuple[str, ...],
    unmet: tuple[str, ...],
    n_candidates: int,
    arrivals: Arrivals | None,
    *,
    largest: bool,
) -> tuple[Request, Ranking, TrafficEstimate | None]:
    """One attempt, see `_attempts`. The result is that of `searched`."""
    traffic = None
    if arrivals is None:
        ranking = rank(request, n_candidates)
    else:
        n_ranked = max(n_candidates, N_CANDIDATES)
        if largest and not request.job.rate and request.machine_is_given:
            ranking, traffic = _of_whole_machine(request, n_ranked, arrivals)
        else:
            ranking, traffic = _simulated(request, n_ranked, arrivals, largest=largest)
    return request, replace(ranking, rule=replace(ranking.rule, usual=usual, unmet=unmet)), traffic


def _simulated(
    request: Request, n_candidates: int, arrivals: Arrivals, *, largest: bool, fewest: bool = True
) -> tuple[Ranking, TrafficEstimate]:
    """The ranking led by the deployment that meets the bounds in simulation, and its metrics.

    Means that miss the bounds by little are no refusal: those deployments are simulated, too, if
    the machine has no room for more engines.
    """
    ranking = None
    try:
        ranking = rank(request, n_candidates, each_prefill=True)
        kept = under_traffic(request, ranking, arrivals, largest=largest, fewest=fewest)
        if fewest and request.job.states_load and arrivals.trace is None:
            return _on_fewer_chips(request, kept, n_candidates, arrivals, largest=largest)
        return kept
    except TooManyChips:
        raise
    except NoStrategy:
        if not request.job.states_load or (ranking and not request.machine_is_given):
            raise
    try:
        ranking = _near(request, n_candidates)
        return under_traffic(request, ranking, arrivals, largest=largest, fewest=fewest)
    except NoStrategy:
        at_capacity = None
        if ranking and fewest:  # means that miss the bounds by little
            at_capacity = _below_capacity(request, n_candidates, arrivals)
        if not at_capacity:
            raise
        return at_capacity


def _near(request: Request, n_candidates: int) -> Ranking:
    """The ranking that includes deployments whose means miss the bounds by little."""
    return rank(replace(request, slack=SIMULATED_SLACK), n_candidates, each_prefill=True)


def _below_capacity(
    request: Request, n_candidates: int, arrivals: Arrivals
) -> tuple[Ranking, TrafficEstimate] | None:
    """Ranking and metrics of the deployment with a machine's highest rate, at the requested one.

    None if that is higher, or if requests are recorded.
    """
    rate, ttft_s = request.job.rate, request.job.ttft_s
    if not (rate and ttft_s and request.machine_is_given) or arrivals.trace:
        return None
    unrated = replace(request, jobs=[replace(job, rate=None) for job in request.jobs])
    try:
        ranking, highest = _of_whole_machine(unrated, n_candidates, arrivals)
    except NoPlan:
        return None
    if highest.rate < rate:
        return None
    best = ranking.candidates[0].at_rate(rate)
    traffic = estimate(best, arrivals, rate)
    return (led_by(best, ranking), traffic) if traffic.holds else None


def _on_fewer_chips(
    request: Request,
    kept: tuple[Ranking, TrafficEstimate],
    n_candidates: int,
    arrivals: Arrivals,
    *,
    largest: bool,
) -> tuple[Ranking, TrafficEstimate]:
    """Ranking and metrics of a deployment on fewer chips whose means miss the bounds by little.

    They stay those of `kept` if none meets the bounds in simulation.
    """
    n_chips = kept[0].candidates[0].chips
    near = _near(request, n_candidates)
    fewer = [candidate for candidate in near.candidates if candidate.chips < n_chips]
    if not fewer:
        return kept
    near = replace(near, candidates=fewer)
    try:
        near, traffic = under_traffic(request, near, arrivals, largest=largest, most=n_chips - 1)
    except NoStrategy:
        return kept
    return led_by(near.candidates[0], kept[0]), traffic


def _of_whole_machine(
    request: Request, n_candidates: int, arrivals: Arrivals
) -> tuple[Ranking, TrafficEstimate]:
    """The ranking led by the deployment with the highest rate of the machine, and its metrics.

    The deployment that is best by means is not always that. From its highest rate on, a higher one
    is searched as if it were stated, until the search finds nothing that serves it.
    """
    ranking, traffic = _simulated(request, n_candidates, arrivals, largest=True)
    while traffic.capacity:
        rate = traffic.capacity.rate * (1 + CAPACITY_STEP)
        at_rate = replace(request, jobs=[replace(job, rate=rate) for job in request.jobs])
        try:
            searched, _ = _simulated(at_rate, n_candidates, arrivals, largest=False, fewest=False)
        except NoStrategy:
            break
        best, higher = at_largest_rate(searched.candidates[0], arrivals)
        if higher.rate <= traffic.rate:
            break
        ranking = led_by(best, ranking)
        traffic = higher
    return ranking, traffic
