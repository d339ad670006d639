"""Goodput: against a simulation of failures, a published run, and what must always hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.formulas import goodput as g
from shardwise.units import DAY, HOUR, MINUTE, TB

between = st.floats(10, 1e8)
interval = st.floats(1, 1e6)
cost = st.floats(0, 1e5)


def simulated(mtbf: float, interval: float, write: float, restart: float) -> np.ndarray:
    """Shares of steps, writing, redone and restarting over 400,000 failures drawn by chance.

    Every time between two failures begins with a restart; then intervals follow that count only
    when their checkpoint is complete.
    """
    times = np.random.default_rng(1974).exponential(mtbf, 400_000)
    restarting = np.minimum(times, restart)
    running = times - restarting
    complete = np.floor(running / (interval + write))
    steps, writing = complete * interval, complete * write
    redone = running - steps - writing
    return np.array([part.sum() for part in (steps, writing, redone, restarting)]) / times.sum()


@pytest.mark.parametrize(
    ("mtbf", "interval", "write", "restart"),
    [
        (3 * HOUR, 10 * MINUTE, 30.0, 10 * MINUTE),
        (3 * HOUR, 2 * HOUR, 30.0, 10 * MINUTE),  # far too rare
        (3 * HOUR, 30.0, 30.0, 0.0),  # far too often
        (1 * DAY, 1 * HOUR, 0.0, 5 * MINUTE),
        (20 * MINUTE, 10 * MINUTE, 5 * MINUTE, 30 * MINUTE),  # hardly gets on
    ],
)
def test_shares_are_those_of_a_simulation(
    mtbf: float, interval: float, write: float, restart: float
) -> None:
    found = g.goodput(mtbf, interval, write, restart)
    shares = [found.steps, found.writing, found.redone, found.restarting]
    # 400,000 exponential times have a mean with a standard error of 0.16 %; this is three of them.
    assert shares == pytest.approx(simulated(mtbf, interval, write, restart), abs=0.005)


def test_a_simulation_finds_no_better_interval() -> None:
    mtbf, write, restart = 3 * HOUR, 60.0, 300.0
    best = g.best_interval_s(mtbf, write)
    tried = [simulated(mtbf, factor * best, write, restart)[0] for factor in (0.5, 1.0, 2.0)]
    assert tried.index(max(tried)) == 1


# Llama 3 405B, arXiv 2407.21783, section 3.3.4: 54 days, 466 interruptions, 419 unexpected, more
# than 90 % of the time effective. Section 3.3.1: the storage takes 2 TB/s. What a checkpoint holds
# is assumed: fp32 weights and Adam's two moments.
CHIPS, DAYS, UNEXPECTED, ALL = 16_384, 54, 419, 466
WRITE = g.checkpoint_write_s(405e9 * (4 + 8), 2 * TB)


def llama3(interruptions: int) -> float:
    """Seconds between interruptions of the run."""
    return float(g.mtbf_of_run(CHIPS * DAYS * DAY / interruptions, CHIPS))


def test_llama3_was_interrupted_every_three_hours() -> None:
    assert llama3(UNEXPECTED) == pytest.approx(54 * 24 * HOUR / 419)
    assert llama3(UNEXPECTED) / HOUR == pytest.approx(3.1, abs=0.05)


@pytest.mark.parametrize("interruptions", [UNEXPECTED, ALL])
def test_llama3_reaches_its_90_percent(interruptions: int) -> None:
    """The report gives no time to restart. 12 minutes agree with it, an hour would not.

    Nearly all restarts were automated, so minutes are what to expect.
    """
    mtbf = llama3(interruptions)
    best = g.best_interval_s(mtbf, WRITE)
    assert 2 * MINUTE < best < 10 * MINUTE
    assert g.goodput(mtbf, best, WRITE, 1 * MINUTE).steps > 0.95
    assert g.goodput(mtbf, best, WRITE, 12 * MINUTE).steps > 0.90
    assert g.goodput(mtbf, best, WRITE, 60 * MINUTE).steps < 0.80
    # Nor does it agree with a checkpoint an hour, even if restarting took no time at all.
    assert g.goodput(mtbf, 1 * HOUR, WRITE, 0.0).steps < 0.90


@pytest.mark.parametrize(
    ("mtbf", "told"), [(24 * HOUR, 117 * MINUTE), (6 * HOUR, 57 * MINUTE), (15 * MINUTE, 546)]
)
def test_intervals_that_daly_printed(mtbf: float, told: float) -> None:
    """Figures 3 to 5 of Daly (2006): 117, 57 and 9.1 minutes for a write of 5 minutes."""
    assert g.best_interval_s(mtbf, 5 * MINUTE) == pytest.approx(told, rel=0.006)


@given(mtbf=between, ratio=st.floats(1e-6, 10), other=st.floats(0.01, 100), restart=cost)
def test_no_interval_is_better(mtbf: float, ratio: float, other: float, restart: float) -> None:
    write = ratio * mtbf
    best = g.best_interval_s(mtbf, write)
    most = g.goodput(mtbf, best, write, restart).steps
    # The series is cut after x^2: at worst, delta just under 2 M, that costs 0.2 % of the goodput.
    loss = 1e-6 if ratio < 0.25 else 2e-3
    assert g.goodput(mtbf, other * best, write, restart).steps <= most * (1 + loss)


@pytest.mark.parametrize("ratio", [1e-6, 1e-3, 0.1, 1.0, 5.0])
def test_the_best_interval_is_a_minimum_of_what_is_lost(ratio: float) -> None:
    best = g.best_interval_s(1.0, ratio)
    lost = [1 - g.goodput(1.0, f * best, ratio, 0.0).steps for f in (0.7, 1.0, 1.4)]
    assert lost[1] < min(lost[0], lost[2])


def test_the_first_order_is_the_limit_of_rare_failures() -> None:
    assert g.first_order_interval_s(1e8, 50.0) == 1e5
    assert g.best_interval_s(1e8, 50.0) == pytest.approx(1e5, rel=1e-3)
    assert g.best_interval_s(100.0, 200.0) == 100.0


@given(mtbf=between, more=st.floats(1, 1e3), interval=interval, write=cost, restart=cost)
def test_more_failures_never_raise_goodput(
    mtbf: float, more: float, interval: float, write: float, restart: float
) -> None:
    often = g.goodput(mtbf / more, interval, write, restart).steps
    assert often <= g.goodput(mtbf, interval, write, restart).steps * (1 + 1e-12)


@given(between, interval, cost, cost, st.floats(0, 1e5), st.sampled_from(["write_s", "restart_s"]))
def test_longer_writes_and_restarts_never_raise_it(
    mtbf: float, interval: float, write: float, restart: float, extra: float, which: str
) -> None:
    times = {"write_s": write, "restart_s": restart}
    short = g.goodput(mtbf, interval, **times).steps
    long = g.goodput(mtbf, interval, **{**times, which: times[which] + extra}).steps
    assert long <= short * (1 + 1e-12)


@given(between, interval, cost, cost)
def test_shares_add_up(mtbf: float, interval: float, write: float, restart: float) -> None:
    found = g.goodput(mtbf, interval, write, restart)
    shares = (found.steps, found.writing, found.redone, found.restarting)
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1, rel=1e-12)
    assert found.writing == pytest.approx(found.steps * write / interval)


@given(interval=interval, write=cost)
def test_a_failure_costs_half_an_interval(interval: float, write: float) -> None:
    segment = interval + write
    mtbf = 1e4 * segment
    lost_per_failure = g.goodput(mtbf, interval, write, 0.0).redone * mtbf
    assert lost_per_failure == pytest.approx(segment / 2, rel=1e-3)


def test_without_failures_only_writing_costs() -> None:
    found = g.goodput(math.inf, 90.0, 10.0, 600.0)
    assert (found.steps, found.writing, found.redone, found.restarting) == (0.9, 0.1, 0, 0)


def test_a_hopeless_run_is_a_number() -> None:
    found = g.goodput(1.0, 1e6, 1e6, 1e6)
    assert 0 <= found.steps < 1e-100
    assert found.restarting == 1


def test_rates() -> None:
    assert g.mtbf_of_run(500 * DAY, 1000) == DAY / 2
    assert g.checkpoint_write_s(6 * TB, 2 * TB) == 3


def test_arrays_give_what_numbers_give() -> None:
    mtbf = np.array([1e3, 1e4, math.inf, 1.0])
    write = np.array([10.0, 20.0, 30.0, 4.0])
    best = g.best_interval_s(mtbf[:2], write[:2])
    assert best.tolist() == [g.best_interval_s(1e3, 10.0), g.best_interval_s(1e4, 20.0)]
    assert g.best_interval_s(np.array([1.0]), np.array([4.0])).tolist() == [1.0]
    found = g.goodput(mtbf, 100.0, write, 60.0)
    one = [g.goodput(float(m), 100.0, float(w), 60.0) for m, w in zip(mtbf, write, strict=True)]
    for share in ("steps", "writing", "redone", "restarting"):
        assert getattr(found, share).tolist() == pytest.approx([getattr(o, share) for o in one])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: g.goodput(0.0, 1.0, 1.0, 1.0), "between failures must be above 0, not 0.0"),
        (lambda: g.goodput(1.0, 0.0, 1.0, 1.0), "interval must be above 0 and finite, not 0.0"),
        (
            lambda: g.goodput(1.0, math.inf, 1.0, 1.0),
            "interval must be above 0 and finite, not inf",
        ),
        (lambda: g.goodput(1.0, 1.0, -1.0, 1.0), "to write a checkpoint must be 0 or above"),
        (
            lambda: g.goodput(1.0, 1.0, 1.0, math.nan),
            "restart must be 0 or above, and finite, not nan",
        ),
        (
            lambda: g.goodput(np.array([1.0, -1.0]), 1.0, 1.0, 1.0),
            r"must be above 0, not \[ 1\. -1\.\]",
        ),
        (lambda: g.best_interval_s(1.0, 0.0), "write a checkpoint must be above 0 and finite"),
        (lambda: g.best_interval_s(math.nan, 1.0), "between failures must be above 0, not nan"),
    ],
)
def test_times_that_cannot_be(call: Callable[[], object], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        call()
