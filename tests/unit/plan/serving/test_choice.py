"""The chip for a workload is the cheapest whose deployment keeps the bounds."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from rich.console import Console

import shardwise as sw
from shardwise.errors import NoPlan
from shardwise.plan.serving import build
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.choice import choose
from shardwise.report.machine_choice import serving_blocks
from shardwise.report.style import Block
from shardwise.search.serving.rule import Rule


def plain_text(blocks: Iterable[Block]) -> str:
    """A screen as one line of words."""
    console = Console(width=80, file=io.StringIO())
    for block in blocks:
        console.print(block)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


MODEL = sw.model("llama3-8b")
CHIPS = [sw.chip("h100"), sw.chip("v5e"), sw.chip("v6e")]


def jobs(
    *, ttft_s: float = 0.5, tpot_s: float = 0.03, rate: float | None = 20.0
) -> Sequence[sw.Serve]:
    return [sw.Serve(prompt=2048, output=512, rate=rate, ttft_s=ttft_s, tpot_s=tpot_s)]


def test_each_chip_has_the_plan_of_its_own_search() -> None:
    choice = choose(MODEL, CHIPS, lambda chip: jobs())
    assert [row.cost for row in choice.machines] == sorted(row.cost for row in choice.machines)
    assert {row.chip for row in choice.machines} == {"h100", "v5e", "v6e"}
    for row in choice.machines:
        plan = build.search(MODEL, sw.chip(row.chip), jobs(), {}, 1)[0]
        assert row.usd_per_hour == row.cost == pytest.approx(plan.estimate.usd_per_hour)
        assert row.tpot_s == pytest.approx(plan.estimate.tpot_s)
    assert choice.chosen.hardware.chip == choice.machines[0].chip


def test_without_a_rate_the_cheapest_token_wins() -> None:
    choice = choose(MODEL, CHIPS, lambda chip: jobs(rate=None))
    assert [row.cost for row in choice.machines] == [
        row.usd_per_million_tokens for row in choice.machines
    ]


def test_the_choice_meets_the_bounds_when_requests_are_simulated() -> None:
    choice = choose(MODEL, CHIPS, lambda chip: jobs(), arrivals=Arrivals())
    traffic = choice.chosen.estimate.traffic
    assert traffic is not None
    assert traffic.within >= 0.99
    costs = {row.chip: row.cost for row in choice.machines}
    assert costs[choice.chosen.hardware.chip] == min(costs.values())


def test_all_rows_are_simulated_alike() -> None:
    """By means v5p is the fastest with 12 chips, on which too few requests meet the bounds."""
    job = sw.Serve(prompt=3000, output=400, rate=8.0, ttft_s=0.8, tpot_s=0.04, engine="vllm")
    model, chips = sw.model("qwen3-32b"), [sw.chip("v6e"), sw.chip("v5p")]
    by_means = choose(model, chips, lambda chip: [job])
    choice = choose(model, chips, lambda chip: [job], arrivals=Arrivals())
    assert {row.chip: row.n_chips for row in by_means.machines}["v5p"] == 12
    for row in choice.machines:
        assert row.simulated
        alone = build.search(model, sw.chip(row.chip), job, {}, 1, arrivals=Arrivals())[0]
        assert row.n_chips == alone.strategy.n_chips > 0


def test_bounds_that_no_chip_keeps_say_why_of_some() -> None:
    with pytest.raises(NoPlan) as caught:
        choose(MODEL, CHIPS, lambda chip: jobs(tpot_s=1e-6))
    first, *reasons = caught.value.problems
    assert first == "none of 3 chips with a price serves llama3-8b so."
    assert [reason.split(":")[0] for reason in reasons] == ["h100", "v5e", "v6e"]
    assert "--tpot 1.00 us" in reasons[0]


def test_nodes_are_divided_evenly() -> None:
    """Unasked, no search proposes engines that leave GPUs of a node idle; asked, it does."""
    model = sw.model("qwen3-32b")
    job = sw.Serve(prompt=2048, output=512, rate=4.0)
    plans = build.search(model, sw.hardware("h100:8"), job, {}, 5, disaggregate=False)
    assert {plan.strategy.mesh["pipe"] for plan in plans} <= {1, 2, 4, 8}
    best = plans[0]
    assert (best.strategy.mesh["tensor"], best.strategy.mesh["pipe"]) == (4, 1)
    asked = build.search(model, sw.hardware("h100:8"), job, {"pipe": 3}, 1)[0]
    assert asked.strategy.mesh["pipe"] == 3


def test_the_screen_says_the_bound_that_decides() -> None:
    """Without a bound, rows are the cheapest tokens within a usual one, and none is the fastest."""
    job = sw.Serve(context=4096)
    choice = choose(sw.model("llama3-70b"), [sw.chip("gb200"), sw.chip("v6e")], lambda chip: [job])
    screen = plain_text(serving_blocks(choice))
    assert "rule of each chip: cheapest token on any number of chips with TPOT ≤ 50.0 ms" in screen
    assert "TPOT mean" in screen
    assert "Fastest" not in screen
    assert "front no other row both costs less for a token and has a shorter TPOT" in screen


def test_chips_with_other_rules_are_named() -> None:
    choice = choose(MODEL, CHIPS, lambda chip: [sw.Serve(context=8192)])
    rules = {**choice.rules, "v5e": Rule(aim="knee", tpot_s=0.05, any_machine=True)}
    screen = plain_text(serving_blocks(replace(choice, rules=rules)))
    assert "and h100: cheapest token" in screen or "and v6e: cheapest token" in screen
    assert "of v5e: knee of throughput and speed" in screen


def test_a_context_beyond_the_models_is_a_warning() -> None:
    choice = choose(MODEL, CHIPS, lambda chip: [sw.Serve(context=16384)])
    assert "warning Sequences of 16,384 tokens exceed" in plain_text(serving_blocks(choice))


def test_the_screen_marks_unconfirmed_prices_and_says_why_chips_lack() -> None:
    choice = choose(MODEL, [*CHIPS, sw.chip("mi300x"), sw.chip("l4")], lambda chip: jobs())
    choice = replace(choice, unable={"v5e": "no deployment meets --tpot 1.00 ms."})
    screen = plain_text(serving_blocks(choice))
    for row in choice.machines:
        mark = "" if choice.prices[row.chip].confirmed else "~"
        assert f"{mark}${row.usd_per_hour:,.2f}" in screen
    assert not choice.prices[choice.machines[0].chip].confirmed
    assert "At confirmed prices: " in screen
    assert "no plan on v5e (-v says why)" in screen
    verbose = plain_text(serving_blocks(choice, verbose=True))
    assert "no plan v5e: no deployment meets --tpot 1.00 ms." in verbose
