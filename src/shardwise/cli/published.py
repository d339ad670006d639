"""What `validate` shares between training and serving: the rows of a source, and their reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from shardwise.errors import NoPlan, UnknownName
from shardwise.validate import Run, ServeRun, SkippedRecord

MAX_REASONS = 6

PublishedRun = TypeVar("PublishedRun", Run | SkippedRecord, ServeRun | SkippedRecord)


def from_source(runs: list[PublishedRun], source: str) -> list[PublishedRun]:
    """The rows whose source has a word in it.

    Raises:
        UnknownName: no row has.
    """
    rows = [run for run in runs if source.lower() in run.source.lower()]
    if source and not rows:
        raise UnknownName("source", source, {run.source for run in runs})
    return rows


def nothing_predicted(results: Iterable[object]) -> NoPlan:
    """The error where no row can be predicted, with the most frequent reasons."""
    reasons: Counter[str] = Counter()
    for result in results:
        if isinstance(result, SkippedRecord):
            reasons[result.reason] += 1
    frequent = reasons.most_common(MAX_REASONS)
    return NoPlan(
        "no row can be predicted.", *(f"{row_count(count)}: {why}" for why, count in frequent)
    )


def row_count(count: int) -> str:
    """`1 row`, `1,200 rows`."""
    plural = "" if count == 1 else "s"
    return f"{count:,} row{plural}"
