"""The machine for serving: the cheapest of several chips that keep the bounds.

Each chip is searched over all its sizes, for the deployment that `Rule` names. Under traffic,
requests are simulated on every chip, so that the rows are compared by figures of one kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.errors import NoPlan, ShardwiseError
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.plan.machine_front import ChipPrice, pareto_front, price_of, split_by_price
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving import build
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.search.serving.rule import Rule
from shardwise.workload import Serve

MAX_REFUSALS = 3  # of chips, in the error if none has a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMachine:
    """The deployment that a search chose for a chip.

    Args:
        n_chips: chips of all engines.
        tpot_s, ttft_s: medians of the simulated requests, or means.
        simulated: whether requests were simulated.
        cost: dollars an hour if the job states a load, else dollars for a million output tokens.
        rates: chip of the runs from which the rates come; another one's are borrowed.
    """

    hardware: str
    chip: str
    n_chips: int
    tpot_s: float
    ttft_s: float
    usd_per_hour: float
    usd_per_million_tokens: float
    cost: float
    rates: str
    simulated: bool = False

    @property
    def seconds(self) -> float:
        """Time of an output token."""
        return self.tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingChoice:
    """Deployments on several chips.

    Args:
        rate: requests per second, or None.
        users: users in a closed loop, or None.
        machines: the best deployment of each chip that keeps the bounds, cheapest first.
        front: names of the machines than which no other is both cheaper and has a shorter TPOT.
        chosen: the plan of the cheapest one.
        rules: chip -> the rule that chose its deployment.
        prices: chip -> its price.
        without_price: chips that have no price, and are not compared.
        unable: chip -> why it has no plan.
    """

    model: str
    rate: float | None
    machines: tuple[ServingMachine, ...]
    front: tuple[str, ...]
    chosen: ServingPlan
    rules: dict[str, Rule]
    prices: dict[str, ChipPrice]
    without_price: tuple[str, ...]
    unable: dict[str, str]
    users: int | None = None


def choose(
    model: ModelConfig,
    chips: Sequence[Chip],
    jobs_on: Callable[[Chip], Sequence[Serve]],
    *,
    peak: bool = False,
    disaggregate: bool | None = None,
    arrivals: Arrivals | None = None,
) -> ServingChoice:
    """Choose the chip and the deployment for a workload.

    Args:
        jobs_on: the workload on a chip, in each combination of dtypes to try.
        arrivals: requests to simulate.

    Other arguments are those of `shardwise.plan.api.plan`.

    Raises:
        BadInput: no chip has a price.
        NoPlan: no chip keeps the bounds.
    """
    priced, without_price = split_by_price(chips)
    plans: dict[str, ServingPlan] = {}
    unable: dict[str, str] = {}

    for chip in priced:
        jobs = [arrivals.mean_job(job) if arrivals else job for job in jobs_on(chip)]
        options = {"peak": peak, "disaggregate": disaggregate, "arrivals": arrivals}
        try:
            plans[chip.name] = build.search(model, chip, jobs, {}, 1, **options)[0]  # type: ignore[arg-type]
        except ShardwiseError as error:
            unable[chip.name] = error.problems[0]
    if not plans:
        reasons = list(unable.items())[:MAX_REFUSALS]
        raise NoPlan(
            f"none of {len(priced)} chips with a price serves {model.name} so.",
            *(f"{name}: {reason}" for name, reason in reasons),
        )
    machines = sorted(map(_machine, plans.values()), key=lambda row: row.cost)
    front = pareto_front(machines)
    chosen = plans[front[0].chip]
    return ServingChoice(
        model=model.name,
        rate=chosen.workload.rate,
        machines=tuple(machines),
        front=tuple(row.hardware for row in front),
        chosen=chosen,
        rules={name: plan.strategy.rule for name, plan in plans.items()},
        prices={chip.name: price_of(chip) for chip in priced if chip.name in plans},
        without_price=without_price,
        unable=unable,
        users=chosen.workload.users,
    )


def _machine(plan: ServingPlan) -> ServingMachine:
    estimate = plan.estimate
    prices = estimate.usd_per_million_tokens
    usd_per_million = prices.output if prices else 0.0
    usd_per_hour = estimate.usd_per_hour or 0.0
    traffic = estimate.traffic
    return ServingMachine(
        hardware=plan.hardware.name,
        chip=plan.hardware.chip,
        n_chips=round(estimate.tokens_per_s / estimate.tokens_per_s_per_chip),
        tpot_s=traffic.tpot_s.p50 if traffic else estimate.tpot_s,
        ttft_s=traffic.ttft_s.p50 if traffic else estimate.ttft_s,
        simulated=traffic is not None,
        usd_per_hour=usd_per_hour,
        usd_per_million_tokens=usd_per_million,
        cost=usd_per_hour if plan.workload.states_load else usd_per_million,
        rates=estimate.rates.name,
    )
