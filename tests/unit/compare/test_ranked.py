"""Causes in order: what a strategy does comes before what it brings about."""

from __future__ import annotations

from shardwise.compare import causes
from shardwise.compare.result import Cause


def order(*parts: tuple[str, float]) -> list[str]:
    found = [Cause(kind=kind, seconds=seconds) for kind, seconds in parts]
    return [cause.kind for cause in causes.ranked(found, 1.0)]


def test_a_small_batch_comes_before_its_copies() -> None:
    parts = (causes.COPIES, 0.5), (causes.SLOWER, 0.2), (causes.SMALL_BATCH, 0.15)
    assert order(*parts) == [causes.SMALL_BATCH, causes.COPIES, causes.SLOWER]


def test_a_larger_cause_of_another_kind_stays_first() -> None:
    parts = (causes.COPIES, 0.3), (causes.HOST_BOUND, 0.5), (causes.WEIGHTS_GATHERED, 0.15)
    assert order(*parts) == [causes.HOST_BOUND, causes.WEIGHTS_GATHERED, causes.COPIES]


def test_a_small_share_of_the_step_explains_nothing_else() -> None:
    assert order((causes.SMALL_BATCH, 0.05), (causes.COPIES, 0.3)) == [
        causes.COPIES,
        causes.SMALL_BATCH,
    ]
