"""Errors of serving predictions by kind of figure, and by source and metric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.validate.records.files import SkippedRecord, skipped_run
from shardwise.validate.records.scoring import error_statistics, is_calibration_group, scored
from shardwise.validate.serving.predict import PredictedFigure
from shardwise.validate.serving.runs import ServeRun

Predict = Callable[[ServeRun], Mapping[str, PredictedFigure]]

# Metric -> kind, where it does not depend on the run.
_KINDS = {
    "tpot_s": "decode",
    "tokens_per_s_per_user": "decode",
    "ttft_s": "ttft",
    "prefill_s": "ttft",
    "latency_s": "latency",
    "memory_bytes": "memory",
}
KINDS = ("decode", "ttft", "latency", "throughput", "memory")
RATES = ("tokens_per_s", "total_tokens_per_s", "tokens_per_s_per_user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A figure of a run, predicted and measured.

    Args:
        kind: One of `KINDS`.
        chosen: Whether constants may be fitted on its group; the other half is held back.
        err: predicted / measured - 1 of times, for a rate of the seconds per token: predictions
            above 0 are slow.
    """

    id: str
    source: str
    group: str
    quality: str
    tier: str
    metric: str
    kind: str
    chosen: bool
    predicted: float
    lower: float
    upper: float
    measured: float
    err: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeErrors:
    """Errors of a group of figures.

    Args:
        name: The source, or the kind of the figures.
        metric: The metric, "" for all metrics of a kind.
        bias: the median error with its sign: above 0, predictions are slow.
        interval_coverage: share of figures measured between `lower` and `upper`.
    """

    name: str
    metric: str
    n: int
    median_abs_err: float
    mean_abs_err: float
    p90_abs_err: float
    bias: float
    interval_coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeValidation:
    """The document of `shardwise validate --serve --json`.

    Args:
        kinds: errors by kind over all sources.
        chosen, held_back: errors by kind of the groups for calibration, and of all other groups.
        sources: errors by source and metric.
        counted: ids of the runs that are scored.
        underivable: runs, or figures of runs, without a prediction, with the reason.
    """

    kinds: tuple[ServeErrors, ...]
    chosen: tuple[ServeErrors, ...]
    held_back: tuple[ServeErrors, ...]
    sources: tuple[ServeErrors, ...]
    counted: tuple[str, ...]
    rows: tuple[Checked, ...]
    underivable: tuple[SkippedRecord, ...]

    def worst(self, n: int) -> list[Checked]:
        """The `n` scored figures with the largest errors."""
        counted = set(self.counted)
        rows = [row for row in self.rows if row.id in counted]
        return sorted(rows, key=lambda row: -abs(row.err))[:n]


def kind_of(run: ServeRun, metric: str) -> str:
    """The kind of a figure, one of `KINDS`.

    A rate of decode steps counts as decode, the total rate of a fixed batch as latency, and any
    other rate as throughput.
    """
    if metric in _KINDS:
        return _KINDS[metric]
    if run.phase == "decode":
        return "decode"
    return "latency" if metric == "total_tokens_per_s" and run.batch else "throughput"


def validate_serving(
    runs: Sequence[ServeRun | SkippedRecord], predict: Predict, everything: bool = False
) -> ServeValidation | None:
    """Compare predictions with every run; None when no figure can be predicted.

    Args:
        runs: Published runs.
        predict: Predicts the metrics of a run; raises a ShardwiseError where it cannot.
        everything: Whether to score every row, not only core rows of quality A and B.
    """
    rows: list[Checked] = []
    skipped: list[SkippedRecord] = []
    for run in runs:
        if isinstance(run, SkippedRecord):
            skipped.append(run)
            continue
        try:
            predictions = predict(run)
        except ShardwiseError as error:
            skipped.append(skipped_run(run, " ".join(error.problems)))
            continue
        for metric, measured in run.measured.items():
            if metric in predictions:
                rows.append(_checked(run, metric, predictions[metric], measured))
            else:
                skipped.append(skipped_run(run, f"no prediction of a metric: {metric}."))
    counted = rows if everything else scored(rows)
    if not counted:
        return None
    by_source: dict[tuple[str, str], list[Checked]] = defaultdict(list)
    for row in counted:
        by_source[row.source, row.metric].append(row)
    sources = sorted(by_source.items(), key=lambda item: -len(item[1]))
    return ServeValidation(
        kinds=_by_kind(counted),
        chosen=_by_kind([row for row in counted if row.chosen]),
        held_back=_by_kind([row for row in counted if not row.chosen]),
        sources=tuple(serve_errors(*names, figures) for names, figures in sources),
        counted=tuple(dict.fromkeys(row.id for row in counted)),
        rows=tuple(rows),
        underivable=tuple(skipped),
    )


def serve_errors(name: str, metric: str, rows: Sequence[Checked]) -> ServeErrors:
    """Errors of one or more figures."""
    inside = sum(row.lower <= row.measured <= row.upper for row in rows)
    return ServeErrors(
        name=name,
        metric=metric,
        n=len(rows),
        interval_coverage=inside / len(rows),
        **error_statistics([row.err for row in rows]),
    )


def _by_kind(rows: Sequence[Checked]) -> tuple[ServeErrors, ...]:
    errors = []
    for kind in KINDS:
        figures = [row for row in rows if row.kind == kind]
        if figures:
            errors.append(serve_errors(kind, "", figures))
    return tuple(errors)


def _checked(run: ServeRun, metric: str, prediction: PredictedFigure, measured: float) -> Checked:
    ratio = prediction.expected / measured
    if metric in RATES:
        ratio = 1 / ratio
    return Checked(
        id=run.id,
        source=run.source,
        group=run.group,
        quality=run.quality,
        tier=run.tier,
        metric=metric,
        kind=kind_of(run, metric),
        chosen=is_calibration_group(run.group),
        predicted=prediction.expected,
        lower=prediction.lower,
        upper=prediction.upper,
        measured=measured,
        err=ratio - 1,
    )
