"""An engine that chooses a pass before the one that runs has ended, as that of `serve`."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.simulate import AffineTimes, Limits, Pool, Traffic, simulate

TIMES = AffineTimes(fixed_s=1.0)  # of each pass


def first_tokens(traffic: Traffic, passes_ahead: int) -> list[float]:
    pool = Pool(times=TIMES, limits=Limits(n_blocks=100, passes_ahead=passes_ahead))
    fast, slow = (simulate(traffic, pool, fast_forward=f).columns for f in (True, False))
    assert fast["first_s"].tolist() == pytest.approx(slow["first_s"].tolist())
    return list(fast["first_s"].tolist())


@pytest.mark.parametrize(("passes_ahead", "first_s"), [(0, 3.0), (1, 4.0)])
def test_a_request_is_not_in_the_pass_that_was_chosen_before_it_came(
    passes_ahead: int, first_s: float
) -> None:
    """The third pass, from 2 s to 3 s, is chosen when the second one starts, at 1 s."""
    traffic = Traffic(
        arrival_s=np.array([0.0, 1.5]), prompt=np.array([4, 4]), output=np.array([20, 2])
    )
    assert first_tokens(traffic, passes_ahead) == [1.0, first_s]


def test_an_idle_engine_starts_at_once() -> None:
    traffic = Traffic(
        arrival_s=np.array([0.0, 7.25]), prompt=np.array([4, 4]), output=np.array([2, 2])
    )
    assert first_tokens(traffic, 1) == [1.0, 8.25]


def test_prompts_of_a_pass_are_computed_one_after_another() -> None:
    traffic = Traffic(arrival_s=np.zeros(4), prompt=np.full(4, 4), output=np.full(4, 2))
    assert first_tokens(traffic, 1) == [0.25, 0.5, 0.75, 1.0]


def test_users_wait_for_the_pass_that_runs_and_for_the_next() -> None:
    """An answer ends at 2 s. The passes until 3 s and 4 s are chosen before its user asks again."""
    traffic = Traffic(users=2, prompt=np.array([4, 4, 4]), output=np.array([2, 30, 2]))
    assert first_tokens(traffic, 1)[2] == 5.0
