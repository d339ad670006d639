"""The machine for a run is the cheapest or fastest that keeps the bounds, as an exhaustive search
finds it.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import math
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

import shardwise as sw
from shardwise.errors import BadInput, NoPlan
from shardwise.plan.machine_front import catalog_chips, pareto_front
from shardwise.plan.training.choice import TrainingChoice, choose, chosen_system
from shardwise.report.machine_choice import training_blocks
from shardwise.search.machines import doubling_machines
from shardwise.search.training import rank
from tests.unit.plan.serving.test_choice import plain_text

DAY = 86400.0
MODEL = sw.model("llama3-8b")
JOB = sw.Train(batch=256, seq=4096, tokens=1e12)
CHIPS = [sw.chip("h100"), sw.chip("v5p")]


@pytest.fixture(scope="module", autouse=True)
def _each_machine_is_searched_once() -> Iterator[None]:
    """Choices within other bounds are among the same machines, more than the search keeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank, "_rank", functools.cache(rank._rank.__wrapped__))
        yield


@pytest.fixture(scope="module")
def unbounded() -> TrainingChoice:
    return choose(MODEL, CHIPS, JOB)


def test_no_machine_of_the_front_is_dominated(unbounded: TrainingChoice) -> None:
    assert len(unbounded.front) > 3
    for cheaper, faster in itertools.pairwise(unbounded.front):
        assert cheaper.usd < faster.usd
        assert cheaper.run_s > faster.run_s


def test_machines_that_are_skipped_are_dominated(unbounded: TrainingChoice) -> None:
    """Every power of two of H100s, planned by itself, is no better than the front."""
    for n_chips in (8, 64, 512, 4096):
        plan = sw.plan(MODEL, sw.hardware(f"h100:{n_chips}"), JOB)
        assert plan.estimate.run_s is not None
        assert plan.estimate.usd is not None
        usd = plan.estimate.usd * (1 + 1e-9)
        run_s = plan.estimate.run_s * (1 + 1e-9)
        assert any(row.usd <= usd and row.run_s <= run_s for row in unbounded.front)


def test_a_row_has_the_figures_of_its_plan(unbounded: TrainingChoice) -> None:
    row = next(row for row in unbounded.front if row.chip == "v5p")
    plan = sw.plan(MODEL, sw.hardware(row.hardware), JOB)
    assert row.run_s == pytest.approx(plan.estimate.run_s)
    assert row.usd == pytest.approx(plan.estimate.usd)
    assert row.mfu == pytest.approx(plan.estimate.mfu)


def test_bounds_cut_the_front(unbounded: TrainingChoice) -> None:
    """Within bounds are the rows of the whole front that keep them."""
    middle = unbounded.front[len(unbounded.front) // 2]
    in_time = choose(MODEL, CHIPS, JOB, within_s=middle.run_s)
    assert in_time.cheapest == middle == in_time.chosen
    affordable = choose(MODEL, CHIPS, JOB, budget_usd=middle.usd)
    assert affordable.fastest == middle == affordable.chosen
    both = choose(MODEL, CHIPS, JOB, within_s=middle.run_s, budget_usd=middle.usd)
    assert both.front == (middle,)


@pytest.mark.oracle
def test_more_money_is_never_slower(unbounded: TrainingChoice) -> None:
    budgets = [row.usd * factor for row in unbounded.front[:4] for factor in (1, 1.1)]
    fastest = [choose(MODEL, CHIPS, JOB, budget_usd=usd).fastest.run_s for usd in sorted(budgets)]
    assert fastest == sorted(fastest, reverse=True)


def test_a_cheaper_chip_is_never_chosen_less(unbounded: TrainingChoice) -> None:
    free = choose(MODEL, [sw.chip("h100,price=0.01USD/h"), *CHIPS[1:]], JOB)
    assert free.cheapest.chip == "h100"
    assert chosen_system(free, [sw.chip("h100,price=0.01USD/h")]).chip.usd_per_chip_hour == 0.01


def test_chips_that_lose_have_their_cheapest_machine() -> None:
    chips = [sw.chip("h100,price=100USD/h"), sw.chip("l4,price=1USD/h"), sw.chip("v5p")]
    choice = choose(MODEL, chips, dataclasses.replace(JOB, compute="bf16"))
    assert {row.chip for row in choice.front} == {"v5p"}
    (h100,) = (row for row in choice.others if row.chip == "h100")
    assert any(row.usd <= h100.usd and row.run_s <= h100.run_s for row in choice.front)
    for n_chips in (8, 16, 32, 64):
        usd = sw.plan(MODEL, sw.hardware(f"h100:{n_chips},price=100USD/h"), JOB).estimate.usd
        assert usd is None or h100.usd <= usd * (1 + 1e-9)
    assert set(choice.prices) >= {"h100", "v5p"}
    names = [row.hardware for row in (*choice.front, *choice.others, *choice.beaten)]
    assert len(names) == len(set(names))
    assert len(choice.beaten) > 10
    for beaten in choice.beaten:
        late = any(
            row.usd <= beaten.least_usd * (1 + 1e-6)
            and row.run_s <= beaten.least_run_s * (1 + 1e-6)
            for row in (*choice.front, *choice.others)
        )
        assert late, beaten


def test_chips_that_cannot_run_say_why() -> None:
    job = dataclasses.replace(JOB, framework="megatron")
    choice = choose(MODEL, [sw.chip("h100"), sw.chip("v5p")], job)
    assert choice.unable == {"v5p": "dtype"}
    one = choose(MODEL, [sw.chip("h100"), sw.chip("mi300x")], JOB, within_s=30 * DAY)
    assert one.unable == {"mi300x": "fit"}


def test_the_screen_marks_waste_and_unconfirmed_prices() -> None:
    choice = choose(MODEL, [sw.chip("gb200"), sw.chip("h100")], JOB)
    assert not choice.prices["gb200"].confirmed
    wasteful = [row for row in choice.front if choice.is_wasteful(row)]
    best = max(row.mfu for row in choice.front)
    assert wasteful
    assert all(row.mfu < best / 2 for row in wasteful)
    assert choice.fastest_busy.mfu >= best / 2
    screen = plain_text(training_blocks(choice))
    assert f"Cheapest: {choice.cheapest.hardware}, " in screen
    assert f"At confirmed prices: {choice.cheapest_confirmed.hardware}, " in screen  # type: ignore[union-attr]
    assert "but at an MFU of" in screen
    assert f"of at least half the best MFU: {choice.fastest_busy.hardware}" in screen
    assert screen.count(" ↓ ") >= len(wasteful)
    assert "gb200 ~$4.54" in screen
    assert "lost h100:" in screen
    everything = plain_text(training_blocks(choice, verbose=True))
    assert all(row.hardware in everything for row in choice.beaten)


def test_machines_that_miss_a_bound_say_which() -> None:
    chips = [sw.chip("h100"), sw.chip("v5e")]
    for bounds, words in (
        ({"within_s": 20 * DAY}, "beyond the time"),
        ({"budget_usd": 2e6}, "beyond the budget"),
    ):
        choice = choose(MODEL, chips, JOB, **bounds)
        shown = plain_text(training_blocks(choice, verbose=True))
        n_late = sum(row.least_run_s >= bounds.get("within_s", math.inf) for row in choice.beaten)
        n_dear = sum(row.least_usd >= bounds.get("budget_usd", math.inf) for row in choice.beaten)
        assert shown.count(words) == n_late + n_dear > 0


def test_the_screen_of_all_chips_fits(unbounded: TrainingChoice) -> None:
    console = Console(width=80, file=io.StringIO())
    for block in training_blocks(unbounded):
        console.print(block)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= 28  # 12 rows
    assert max(map(len, lines)) <= 80


def test_bounds_that_no_machine_keeps_name_the_nearest() -> None:
    with pytest.raises(NoPlan) as caught:
        choose(MODEL, CHIPS, JOB, within_s=60.0, budget_usd=1000.0)
    problems = list(caught.value.problems)
    assert problems[0] == "no machine trains llama3-8b within 60.0 s for $1,000.00."
    assert [problem.split(":")[0] for problem in problems[1:]] == [
        "Cheapest of all",
        "Fastest of all",
    ]


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: choose(MODEL, CHIPS, sw.Train(batch=8, seq=512)), "needs its tokens"),
        (lambda: choose(MODEL, [sw.chip("l4")], JOB), "no price is known of l4. Give one: l4,pri"),
    ],
)
def test_a_run_without_tokens_or_prices_is_refused(
    attempt: Callable[[], object], message: str
) -> None:
    with pytest.raises(BadInput) as caught:
        attempt()
    assert message in str(caught.value)


def test_chips_without_a_price_are_named() -> None:
    choice = choose(MODEL, [sw.chip("l4"), sw.chip("v6e")], JOB)
    assert choice.without_price == ("l4",)
    assert set(choice.prices) == {"v6e"}


def test_the_catalogue_has_no_desktops() -> None:
    names = {chip.name for chip in catalog_chips()}
    assert {"h100", "b200", "v5e", "mi300x"} <= names
    assert not {"rtx-4090", "cpu", "groq"} & names


def test_a_front_keeps_one_of_equal_rows(unbounded: TrainingChoice) -> None:
    first = unbounded.front[0]
    assert pareto_front([first, first]) == [first]


def test_racks_are_also_used_in_part() -> None:
    sizes = {system.n_chips for system in doubling_machines(sw.chip("gb200"), 2048)}
    assert {144, 1152, 128, 1024, 2048} <= sizes
    part = next(s for s in doubling_machines(sw.chip("gb200"), 2048) if s.n_chips == 2048)
    assert part == sw.hardware("gb200:2048")


def test_chips_on_which_the_framework_does_not_run_are_left_out() -> None:
    job = dataclasses.replace(JOB, framework="megatron")
    assert set(choose(MODEL, CHIPS, job).prices) == {"h100"}
    with pytest.raises(BadInput, match="none of v5p trains in bf16 under megatron"):
        choose(MODEL, [sw.chip("v5p")], job)


def test_the_largest_machines_are_said() -> None:
    choice = choose(MODEL, [sw.chip("mi300x"), sw.chip("h100"), sw.chip("v6e")], JOB)
    assert choice.largest == {"mi300x": 8, "v6e": 256}
