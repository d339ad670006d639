"""Arrivals and lengths have the rate, the spread and the seed that they are given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.simulate import Pool, Request, Traffic, simulate, traffic
from shardwise.simulate.limits import Limits
from tests.simulate.cases import TIMES

N = 40_000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_constant_arrivals() -> None:
    assert traffic.constant(4, 2.0).tolist() == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("variation", [0.5, 1.0, 3.0])
def test_gamma_arrivals_have_their_variation(variation: float) -> None:
    gaps = np.diff(traffic.gamma(N, 5.0, variation, rng()))
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_poisson_arrivals_know_nothing_of_each_other() -> None:
    counts = np.bincount(traffic.poisson(N, 5.0, rng()).astype(int))[:-1]
    assert counts.mean() == pytest.approx(5.0, rel=0.03)
    assert counts.var() == pytest.approx(5.0, rel=0.05)


def test_lengths() -> None:
    assert set(traffic.fixed(3, 7).tolist()) == {7}
    assert set(traffic.uniform(N, 3, 5, rng()).tolist()) == {3, 4, 5}
    long = traffic.lognormal(N, 500, 1.2, rng())
    assert long.mean() == pytest.approx(500, rel=0.03)
    assert long.std() / long.mean() == pytest.approx(1.2, rel=0.1)
    assert traffic.lognormal(N, 500, 1.2, rng(), maximum=900).max() == 900
    assert traffic.lognormal(N, 1, 3.0, rng()).min() == 1


@given(st.integers(0, 5), st.sampled_from([0.5, 1.0, 2.0]))
def test_seeds_reproduce(seed: int, variation: float) -> None:
    def run(seed: int) -> list[float]:
        chance = rng(seed)
        asked = Traffic(
            arrival_s=traffic.gamma(50, 20.0, variation, chance),
            prompt=traffic.lognormal(50, 30, 1.0, chance, maximum=200),
            output=traffic.uniform(50, 1, 30, chance),
        )
        found = simulate(asked, Pool(times=TIMES, limits=Limits(n_blocks=60, max_sequences=9)))
        return [float(x) for x in found.columns["end_s"]]

    assert run(seed) == run(seed)
    assert run(seed) != run(seed + 1)


def test_requests_come_as_rows() -> None:
    asked = Traffic(
        arrival_s=np.array([0.5, 1.0]), prompt=np.array([3, 4]), output=np.array([1, 2]),
        prefix=["a", None], shared=np.array([2, 0]),
    )  # fmt: skip
    assert list(asked) == [Request(0, 0.5, 3, 1, "a", 2), Request(1, 1.0, 4, 2, None, 0)]
    assert asked.rate == 2.0
    assert asked.at_rate(4.0).arrival_s.tolist() == [0.25, 0.5]


GOOD = {"arrival_s": np.array([0.0, 1.0]), "prompt": np.array([3, 4]), "output": np.array([1, 2])}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"output": np.array([1])}, "output has 1 values, prompt 2"),
        ({"prompt": np.array([3, 0])}, "prompt of request 1 is 0; it must be at least 1"),
        ({"prompt": np.array([3.0, 4.5])}, "prompt must have an integer dtype"),
        ({"arrival_s": np.array([0.0, np.nan])}, "arrival_s of request 1 is nan"),
        ({"arrival_s": np.array([0.0, np.inf])}, "arrival_s of request 1 is inf"),
        ({"think_s": -1.0}, "think_s must not be negative"),
        ({"arrival_s": np.array([1.0, 0.5])}, "arrival_s of request 1 is before"),
        ({"shared": np.array([4, 4])}, "shared of request 0 is 4, its prompt 3"),
        ({"users": 2}, "either arrival_s or at least 1 user"),
        ({"arrival_s": None}, "either arrival_s or at least 1 user"),
    ],
)
def test_traffic_that_cannot_be(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        Traffic(**{**GOOD, **wrong})


def test_chance_that_cannot_be() -> None:
    for call in (
        lambda: traffic.constant(3, 0.0),
        lambda: traffic.gamma(3, 1.0, -1.0, rng()),
        lambda: traffic.uniform(3, 5, 4, rng()),
        lambda: Traffic(users=1, prompt=GOOD["prompt"], output=GOOD["output"]).at_rate(2.0),
        lambda: Traffic(**{**GOOD, "arrival_s": np.zeros(2)}).at_rate(2.0),
    ):
        with pytest.raises(BadInput):
            call()
