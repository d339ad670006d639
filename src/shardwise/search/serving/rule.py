"""The criterion by which a search for serving chooses, which a plan records; what it may miss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Bound on the TPOT of a job that states none: 20 tokens/s for a reader. MLPerf Inference 5.1 asks
# for 30 to 80 ms in its interactive scenarios.
USUAL_TPOT_S = 0.05
# Bound on the TTFT of a job that states a request rate and none: that of the server scenarios of
# MLPerf Inference 5.1 with Llama 2 70B, Llama 3.1 8B and DeepSeek-R1. Without one, requests may
# queue for minutes on the fewest chips.
USUAL_TTFT_S = 2.0

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
        users: users of the job in a closed loop, or None.
        ttft_s: bound on the time to first token, or None.
        tpot_s: bound on the time per output token, or None.
        percentile: share of the requests that must meet the bounds; None if the bounds apply to
            the means.
        usual: names of the bounds ("ttft", "tpot") that are usual ones, as the job states none.
        unmet: names of the bounds whose usual values no deployment was found to keep. They were
            loosened, or left out if they are not in `usual`.
        batch: sequences of the job, if it fixes them.
        any_machine: whether the search chose the machine, and with it the number of chips.
    """

    aim: Aim
    rate: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    percentile: float | None = None
    usual: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    batch: int | None = None
    any_machine: bool = False
    users: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """How far means may miss what is asked, as factors, where requests will be simulated.

    Args:
        load: of the share of an engine's request rate that a plan uses, see `deployments.max_load`.
        tpot, ttft: of the bounds.
    """

    load: float = 1.0
    tpot: float = 1.0
    ttft: float = 1.0


NO_SLACK = Slack()
# Of means, where requests are simulated before a refusal. In simulation, TPOT at a rate is up to a
# third below its mean at a full batch, and prompts queue less than the formula for a busy engine
# says.
SIMULATED_SLACK = Slack(load=1.4, tpot=1.5, ttft=4.0)
