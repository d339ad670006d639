"""Published runs for `validate` of training and of serving: selection, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from shardwise.errors import NoPlan, UnknownName
from shardwise.report.words import counted, percent
from shardwise.validate import Run, ServeRun, SkippedRecord
from shardwise.validate.serving.score import ServeErrors
from shardwise.validate.training.score import Errors

MAX_REASONS = 6  # the most frequent ones are listed

PublishedOrSkipped = TypeVar("PublishedOrSkipped", Run | SkippedRecord, ServeRun | SkippedRecord)


def from_source(runs: list[PublishedOrSkipped], source: str) -> list[PublishedOrSkipped]:
    """The runs whose source contains the word `source`, in any case; all runs if it is empty.

    Raises:
        UnknownName: no run has such a source.
    """
    rows = [run for run in runs if source.lower() in run.source.lower()]
    if source and not rows:
        raise UnknownName("source", source, {run.source for run in runs})
    return rows


def frequent_kinds(skipped: Iterable[SkippedRecord]) -> str:
    """The most frequent kinds of reasons, each with its number of records."""
    frequent = Counter(record.kind for record in skipped).most_common(MAX_REASONS)
    return ", ".join(f"{kind} {count}" for kind, count in frequent)


def error_cells(errors: Errors | ServeErrors) -> list[str]:
    """The cells of a table with the number of rows, their median and their mean error."""
    return [f"{errors.n:,}", percent(errors.median_abs_err), percent(errors.mean_abs_err)]


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
