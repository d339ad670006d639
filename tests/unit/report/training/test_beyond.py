"""The line that warns of more MFU than any published run reached."""

from __future__ import annotations

import shardwise as sw
from shardwise.report.training.plan import _beyond_practice
from shardwise.search.training import practice


def lines(hardware: str, **options: bool) -> dict[str, str]:
    job = sw.Train(batch=1536, seq=2048, framework="" if options else "megatron")
    plan = sw.plan(sw.model("gpt3-175b"), sw.hardware(hardware), job, **options)
    best = practice.best_published_mfu(plan.hardware.chip, "bf16")
    assert bool(best and plan.estimate.mfu > best + 0.01) == (hardware == "a100:1024")
    return dict(_beyond_practice(plan))


def test_more_than_any_published_run_is_said() -> None:
    assert lines("a100:1024") == {"beyond": "the best published run on a100: MFU 62 %"}
    assert lines("h100:1024") == {}


def test_peak_rates_are_not_compared() -> None:
    assert lines("a100:1024", peak=True) == {}
