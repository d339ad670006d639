"""Run time, energy and money."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.formulas import cost
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
    with pytest.raises(BadInput, match=r"PUE must be at least 1, not"):
        cost.energy_j(1.0, 1, power, pue)


def test_money() -> None:
    rate = cost.rate_per_price(1.97e14, 1.2)
    assert cost.flops_per_usd(1.97e14, 1.2) == pytest.approx(3600 * rate)
    # 1000 tokens/s for a dollar an hour are 3.6M tokens a dollar.
    assert cost.usd_per_million_tokens(1000, 1.0) == pytest.approx(1 / 3.6)
