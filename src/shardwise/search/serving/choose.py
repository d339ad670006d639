"""Which deployment to take: the cheapest within the bounds, else the knee; and the front."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from shardwise import units
from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.search.serving.deployments import Points
from shardwise.workload import Serve

DIGITS = 9  # values that differ by the order of their sums alone are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What the search chooses a deployment by, among those within the bounds.

    Args:
        aim: fewest chips, most tokens/s/chip, or the knee: most of tokens/s/chip times tokens/s of
            a sequence.
        percentile: share of the requests within the bounds; None where their means are.
    """

    aim: Literal["chips", "throughput", "knee"]
    rate: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    percentile: float | None = None


def per_chip(points: Points, job: Serve) -> Num:
    """Generated tokens per second and chip: as many as are asked for, or can be."""
    import numpy as np

    made = points.tokens_per_s
    if job.rate and job.output:
        made = np.minimum(made, job.rate * job.output)
    return made / points.chips


def within(points: Points, job: Serve) -> Num:
    """Whether the means meet the bounds of the job."""
    good = points.chips > 0
    if job.tpot_s:
        good = good & (points.tpot_s <= job.tpot_s)
    if job.ttft_s:
        good = good & (points.ttft_s <= job.ttft_s)
    return good


def ordered(
    points: Points, job: Serve, *, sized: bool, name: Callable[[int], str] = str
) -> tuple[Num, Rule]:
    """The deployments that meet the bounds, the one to take first, and the rule of the order.

    Args:
        sized: the machine is given.
        name: of a point, for the refusal.

    Raises:
        NoStrategy: none meets the bounds.
    """
    import numpy as np

    rows = within(points, job).nonzero()[0]
    if not len(rows):
        raise NoStrategy(*unmet(points, job, name))
    some = points.take(rows)
    each, tpot = _rounded(per_chip(some, job)), _rounded(some.tpot_s)
    fewest = Rule(aim="chips", rate=job.rate, ttft_s=job.ttft_s, tpot_s=job.tpot_s)
    if job.rate:
        order = np.lexsort((some.ttft_s, tpot, some.chips))
        return rows[order], fewest
    if job.tpot_s or job.ttft_s:
        first = np.zeros(len(some)) if sized else some.chips
        order = np.lexsort((some.ttft_s, tpot, -each, first))
        return rows[order], replace(fewest, aim="throughput") if sized else fewest
    order = np.lexsort((some.ttft_s, -_rounded(each / tpot)))
    _, firsts = np.unique(some.chips[order], return_index=True)
    knees = order[firsts]  # of every number of chips its knee, the one of most tokens/s/chip first
    knees = knees[np.lexsort((some.chips[knees], -each[knees]))]
    return rows[np.concatenate([knees, np.delete(order, firsts)])], Rule(aim="knee")


def front(points: Points, job: Serve) -> Num:
    """Deployments than which none has both less time per token and more tokens/s/chip.

    All that meet the bound on the first token, where some do.
    """
    import numpy as np

    rows = (points.ttft_s <= (job.ttft_s or np.inf)).nonzero()[0]
    if not len(rows):
        rows = np.arange(len(points))
    each, tpot = _rounded(per_chip(points, job))[rows], _rounded(points.tpot_s)[rows]
    order = np.lexsort((points.ttft_s[rows], -each, tpot))
    best = np.maximum.accumulate(each[order])
    return rows[order[np.r_[True, best[1:] > best[:-1]]]] if len(order) else order


def unmet(points: Points, job: Serve, name: Callable[[int], str]) -> list[str]:
    """Which bound fails, and what comes nearest."""
    told = []
    ms = units.show_seconds
    if job.tpot_s and not (points.tpot_s <= job.tpot_s).any():
        told.append(
            f"no deployment meets --tpot {ms(job.tpot_s)}: the fastest takes "
            f"{ms(float(points.tpot_s.min()))} a token ({name(int(points.tpot_s.argmin()))})."
        )
    if job.ttft_s and not (points.ttft_s <= job.ttft_s).any():
        told.append(
            f"no deployment meets --ttft {ms(job.ttft_s)}: the first token takes "
            f"{ms(float(points.ttft_s.min()))} at least ({name(int(points.ttft_s.argmin()))})."
        )
    if not told and job.tpot_s and job.ttft_s:
        soon = points.ttft_s <= job.ttft_s
        told.append(
            f"no deployment meets both bounds: within --ttft {ms(job.ttft_s)} a token takes "
            f"{ms(float(points.tpot_s[soon].min()))}, within --tpot {ms(job.tpot_s)} the first "
            f"{ms(float(points.ttft_s[points.tpot_s <= job.tpot_s].min()))}."
        )
    return told


def _rounded(values: Num) -> Num:
    import numpy as np

    with np.errstate(divide="ignore"):
        scale = 10.0 ** (DIGITS - np.ceil(np.log10(np.maximum(values, 1e-30))))
    return np.round(values * scale) / scale
