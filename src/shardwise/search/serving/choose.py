"""Choice among deployments: the best that meets the latency bounds, and the Pareto front."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwise import units
from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.estimate.serving.steady_state import requested_rate
from shardwise.search.serving.deployments import Points
from shardwise.search.serving.rule import NO_SLACK, USUAL_TPOT_S, Aim, Rule, Slack
from shardwise.workload import Serve

# Numbers that agree in this many significant digits count as equal: sums of the same terms in
# another order differ by rounding.
DIGITS = 9
# Separate prefill engines add transfers and a second pool to operate: of deployments with as many
# chips, one that has them is chosen if this share of TPOT is saved.
CLEAR_GAIN = 0.1


def per_chip(points: Points, job: Serve) -> Num:
    """Output tokens per second per chip of each deployment.

    Where the job states a load, tokens beyond that load do not count.
    """
    import numpy as np

    tokens_per_s = points.tokens_per_s
    rate = requested_rate(job, points.ttft_s, points.tpot_s)
    if rate is not None and job.output:
        tokens_per_s = np.minimum(tokens_per_s, rate * job.output)
    return tokens_per_s / points.chips


def within(points: Points, job: Serve, slack: Slack = NO_SLACK) -> Num:
    """Whether the mean TTFT and TPOT of each deployment meet the job's bounds."""
    meets_bounds = points.chips > 0
    if job.tpot_s:
        meets_bounds = meets_bounds & (points.tpot_s <= job.tpot_s * slack.tpot)
    if job.ttft_s:
        meets_bounds = meets_bounds & (points.ttft_s <= job.ttft_s * slack.ttft)
    return meets_bounds


def ordered(
    points: Points,
    job: Serve,
    *,
    machine_is_given: bool,
    name: Callable[[int], str] = str,
    slack: Slack = NO_SLACK,
) -> tuple[Num, Rule]:
    """Order the deployments that meet the bounds.

    Args:
        machine_is_given: whether the search is on one machine, where using fewer chips saves
            nothing.
        name: function from an index of `points` to a short description, for error messages.
        slack: how far means may miss the bounds.

    Returns:
        Indices of the deployments that meet the bounds, best first, and the rule of this order.

    Raises:
        NoStrategy: no deployment meets the bounds.
    """
    import numpy as np

    rows = within(points, job, slack).nonzero()[0]
    if not len(rows):
        raise NoStrategy(*unmet(points, job, name))
    legal = points.take(rows)
    throughput = _rounded(per_chip(legal, job))
    tpot = _rounded(legal.tpot_s)
    rule = Rule(
        aim="chips",
        rate=job.rate,
        users=job.users,
        ttft_s=job.ttft_s,
        tpot_s=job.tpot_s,
        batch=job.batch,
        any_machine=not machine_is_given,
    )
    if job.states_load:
        handicap = np.where(legal.n_prefill > 0, 1 / (1 - CLEAR_GAIN), 1.0)
        order = np.lexsort((legal.ttft_s, tpot * handicap, legal.chips))
        return rows[order], rule
    if job.tpot_s or job.ttft_s:
        chips = legal.chips
        if machine_is_given:
            chips = np.zeros(len(legal))
            rule = replace(rule, aim="throughput")
        order = np.lexsort((legal.ttft_s, tpot, -throughput, chips))
        return rows[order], rule
    is_slow = legal.tpot_s > USUAL_TPOT_S
    value: Num = np.where(is_slow, _rounded(throughput / tpot), throughput)
    order = np.lexsort((legal.ttft_s, legal.chips, tpot, -value, is_slow))
    aim: Aim = "knee" if is_slow.all() else "cheapest"
    return rows[order], replace(rule, aim=aim, tpot_s=USUAL_TPOT_S)


def front(points: Points, job: Serve) -> Num:
    """Indices of the deployments on the Pareto front of TPOT and tokens/s/chip, by rising TPOT.

    Only deployments that meet the TTFT bound count, or all if no deployment meets it.
    """
    import numpy as np

    rows = (points.ttft_s <= (job.ttft_s or np.inf)).nonzero()[0]
    if not len(rows):
        rows = np.arange(len(points))
    throughput = _rounded(per_chip(points, job))[rows]
    tpot = _rounded(points.tpot_s)[rows]
    order = np.lexsort((points.ttft_s[rows], -throughput, tpot))
    if not len(order):
        return order
    best = np.maximum.accumulate(throughput[order])
    return rows[order[np.r_[True, best[1:] > best[:-1]]]]


def unmet(points: Points, job: Serve, name: Callable[[int], str]) -> list[str]:
    """Messages about latency bounds that no deployment meets, each with the nearest deployment."""
    problems = []
    ms = units.show_seconds
    if job.tpot_s and not (points.tpot_s <= job.tpot_s).any():
        problems.append(
            f"no deployment meets --tpot {ms(job.tpot_s)}: the fastest takes "
            f"{ms(float(points.tpot_s.min()))} a token ({name(int(points.tpot_s.argmin()))})."
        )
    if job.ttft_s and not (points.ttft_s <= job.ttft_s).any():
        problems.append(
            f"no deployment meets --ttft {ms(job.ttft_s)}: the first token takes at least "
            f"{ms(float(points.ttft_s.min()))} ({name(int(points.ttft_s.argmin()))})."
        )
    if not problems and job.tpot_s and job.ttft_s:
        tpot_s = float(points.tpot_s[points.ttft_s <= job.ttft_s].min())
        ttft_s = float(points.ttft_s[points.tpot_s <= job.tpot_s].min())
        problems.append(
            f"no deployment meets both bounds: within --ttft {ms(job.ttft_s)} a token takes "
            f"{ms(tpot_s)}, within --tpot {ms(job.tpot_s)} the first {ms(ttft_s)}."
        )
    return problems


def _rounded(values: Num) -> Num:
    """Values rounded to `DIGITS` significant digits."""
    import numpy as np

    with np.errstate(divide="ignore"):
        scale = 10.0 ** (DIGITS - np.ceil(np.log10(np.maximum(values, 1e-30))))
    return np.round(values * scale) / scale
