"""`hw measure` finds every rate that a plan of serving needs."""

from __future__ import annotations

import pytest

from shardwise.hardware.figure import FIELDS
from shardwise.serve.measure import measure_serving, rates, server

pytestmark = pytest.mark.oracle


def test_every_figure_of_serving_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "N_TRIALS", 1)
    monkeypatch.setattr(rates, "TRIAL_S", 0.0)
    monkeypatch.setattr(rates, "N_BLOCKS", 1)
    monkeypatch.setattr(rates, "PRODUCT_ROWS", (1, 16))
    monkeypatch.setattr(server, "REQUESTS", 16)
    found = measure_serving()
    assert {path for path in FIELDS if path.startswith("serving.")} <= set(found)
    assert {"products.fp32_1", "products.bf16_16", "products.int8_1"} <= set(found)
    assert all(value > 0 for value in found.values())
    assert set(found) <= set(FIELDS)
