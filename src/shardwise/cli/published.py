"""Published runs for `validate` of training and of serving: selection, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from shardwise.errors import NoPlan, UnknownName
from shardwise.report.words import counted
from shardwise.validate import Run, ServeRun, SkippedRecord

MAX_REASONS = 6  # the most frequent ones are listed

PublishedRun = TypeVar("PublishedRun", Run | SkippedRecord, ServeRun | SkippedRecord)


def from_source(runs: list[PublishedRun], source: str) -> list[PublishedRun]:
    """The runs whose source contains the word `source`, in any case; all runs if it is empty.

    Raises:
        UnknownName: no run has such a source.
    """
    rows = [run for run in runs if source.lower() in run.source.lower()]
    if source and not rows:
        raise UnknownName("source", source, {run.source for run in runs})
    return rows


def nothing_predicted(results: Iterable[object]) -> NoPlan:
    """The error for results without a single prediction, with their most frequent reasons."""
    reasons: Counter[str] = Counter()
    for result in results:
        if isinstance(result, SkippedRecord):
            reasons[result.reason] += 1
    frequent = reasons.most_common(MAX_REASONS)
    return NoPlan(
        "no row can be predicted.",
        *(f"{counted(count, 'row')}: {reason}" for reason, count in frequent),
    )
