"""The criterion by which a search for serving chooses, which a plan records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Bound on the TPOT of a job that states none: 20 tokens/s for a reader. MLPerf Inference 5.1 asks
# for 30 to 80 ms in its interactive scenarios.
USUAL_TPOT_S = 0.05

Aim = Literal["chips", "throughput", "cheapest", "knee"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The criterion by which a search chose among the deployments that meet the bounds.

    Args:
        aim: "chips" for the fewest chips; "throughput" for the highest tokens/s/chip. If the job
            has no bound and no rate: "cheapest" for the highest tokens/s/chip, which is the lowest
            price of a token, within `USUAL_TPOT_S`; "knee" for the highest product of
            tokens/s/chip and tokens/s of one sequence if no deployment is within it.
        rate: requests per second of the job, or None.
        ttft_s: bound on the time to first token, or None.
        tpot_s: bound on the time per output token, or None.
        percentile: share of the requests that must meet the bounds; None if the bounds apply to
            the means.
        any_machine: whether the search chose the machine, and with it the number of chips.
    """

    aim: Aim
    rate: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    percentile: float | None = None
    any_machine: bool = False
