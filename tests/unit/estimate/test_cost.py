"""Run time, money and MFU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.estimate import cost
from shardwise.units import DAY, HOUR

positive = st.floats(1e-3, 1e6)


def test_a_run() -> None:
    run = cost.run(2.0, 1e12, 4e6, 1000, 3.0)
    assert run.seconds == 500_000
    assert run.chip_hours == pytest.approx(500_000 * 1000 / 3600)
    assert run.usd == pytest.approx(3 * run.chip_hours)
    assert cost.run(2.0, 1e12, 4e6, 1000, None).usd is None


def test_energy() -> None:
    node = sw.hardware("h100:8")
    assert node.chip.power_w == 700
    assert cost.energy_j(HOUR, node.n_chips, node.chip.power_w) == 8 * 700 * 3600
    # 5.6 kWh an hour, and a quarter more for the building.
    assert cost.energy_j(HOUR, 8, 700.0, pue=1.25) == 1.25 * 5600 * HOUR


def test_energy_of_llama3_405b() -> None:
    """30.84M GPU-hours at 700 W (model card of Llama 3.1) are 21.6 GWh at most."""
    joules = cost.energy_j(30.84e6 * HOUR / 16_384, 16_384, sw.chip("h100").power_w)
    assert joules == pytest.approx(21.588e9 * HOUR)


def test_energy_is_unknown_where_power_is() -> None:
    assert sw.chip("v5p").power_w is None
    assert cost.energy_j(DAY, 8960, sw.chip("v5p").power_w) is None


@pytest.mark.parametrize("pue", [0.99, 0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("power", [700.0, None])
def test_no_building_draws_less_than_its_machines(pue: float, power: float | None) -> None:
    with pytest.raises(BadInput, match=r"PUE .* is not 1 or above"):
        cost.energy_j(1.0, 1, power, pue)


@given(positive, positive, st.integers(1, 10_000), positive)
def test_mfu_is_one_at_the_peak(flops: float, step: float, n: int, peak: float) -> None:
    ideal = flops / (n * peak)
    assert cost.mfu(flops, ideal, n, peak) == pytest.approx(1, rel=1e-12)
    assert cost.mfu(flops, 2 * ideal, n, peak) == pytest.approx(0.5, rel=1e-12)
    share = cost.mfu(flops, step, n, peak)
    assert cost.training_s(flops, n, peak, share) == pytest.approx(step, rel=1e-9)


def test_llama3_70b_in_44_days() -> None:
    """15T tokens on 8,960 v5p at 40 % take about 44 days. Book §6."""
    seconds = cost.training_s(6 * 70e9 * 15e12, 8960, 4.59e14, cost.REFERENCE_MFU)
    assert seconds / 86400 == pytest.approx(44.3, rel=1e-2)
