"""`hw measure 1` finds every rate that a plan of serving needs."""

from __future__ import annotations

import pytest

from shardwise.hardware.figure import FIELDS
from shardwise.measure import timing
from shardwise.measure.serving import rates, server

pytestmark = pytest.mark.oracle


def test_every_figure_of_serving_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_ROUNDS", 1)
    monkeypatch.setattr(timing, "TRIAL_S", 0.0)
    monkeypatch.setattr(rates, "N_BLOCKS", 1)
    monkeypatch.setattr(rates, "PRODUCT_ROWS", (1, 16))
    monkeypatch.setattr(server, "REQUESTS", 16)
    turns = timing.take_turns(list(rates.measure_rates()), lambda: None, lambda stage: None)
    found = server.measure_server()
    for part in turns.results:
        found |= part
    assert {path for path in FIELDS if path.startswith("serving.")} <= set(found)
    assert {"products.fp32_1", "products.bf16_16", "products.int8_1"} <= set(found)
    assert all(value > 0 for value in found.values())
    assert set(found) <= set(FIELDS)
