"""Errors of serving predictions, by kind of metric, and by source and metric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.validate.records.files import SkippedRecord, skipped_run
from shardwise.validate.records.runs import Graded
from shardwise.validate.records.scoring import error_statistics, is_calibration_group, scored
from shardwise.validate.serving.kinds import KINDS, RATES, kind_of
from shardwise.validate.serving.predict import PredictedFigure
from shardwise.validate.serving.runs import ServeRun

Predict = Callable[[ServeRun], Mapping[str, PredictedFigure]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Graded):
    """Predicted and measured value of one metric of a run.

    Args:
        metric: Name of the metric, see `ServeRun.measured`.
        kind: Kind of the metric, one of `KINDS`.
        chosen: Whether constants may be fitted on the group of the run.
        predicted: Expected value.
        lower, upper: Interval that should contain four of five measured values.
        measured: Measured value.
        err: predicted / measured - 1, for a rate measured / predicted - 1. A value above 0 thus
            always means that the prediction is too slow (or the memory too large).
    """

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
    """Statistics of the errors of several predictions.

    Args:
        name: Source, or kind of the metrics.
        metric: Name of the metric; "" for all metrics of a kind.
        median_abs_err, mean_abs_err, p90_abs_err: Statistics of the absolute errors.
        bias: Median error with its sign; above 0, predictions are too slow.
        interval_coverage: Share of the measured values that are between `lower` and `upper`.
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
    """The document that `shardwise validate --serve --json` prints.

    Args:
        kinds: errors of all scored predictions, by kind.
        chosen: errors by kind of the groups on which constants may be fitted.
        held_back: errors by kind of all other groups.
        sources: errors by source and metric.
        counted: ids of the scored runs.
        rows: all predictions, scored or not.
        underivable: runs and metrics of runs without a prediction, each with the reason.
    """

    kinds: tuple[ServeErrors, ...]
    chosen: tuple[ServeErrors, ...]
    held_back: tuple[ServeErrors, ...]
    sources: tuple[ServeErrors, ...]
    counted: tuple[str, ...]
    rows: tuple[Checked, ...]
    underivable: tuple[SkippedRecord, ...]

    def worst(self, n: int) -> list[Checked]:
        """Return the `n` scored predictions with the largest errors."""
        counted = set(self.counted)
        rows = [row for row in self.rows if row.id in counted]
        return sorted(rows, key=lambda row: -abs(row.err))[:n]


def validate_serving(
    runs: Sequence[ServeRun | SkippedRecord], predict: Predict, everything: bool = False
) -> ServeValidation | None:
    """Compare the predictions for all runs with the measurements; None if none can be predicted.

    Args:
        runs: Published runs.
        predict: Function that predicts the metrics of a run, or raises a ShardwiseError.
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
    """Return the statistics of the errors of one or more predictions."""
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
