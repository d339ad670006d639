"""Errors of predicted step times, by source and in all, and of the predicted order of layouts."""

from __future__ import annotations

import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.strategy.layout import Layout
from shardwise.validate.records.files import SkippedRecord
from shardwise.validate.records.scoring import error_statistics, scored
from shardwise.validate.training.memory import MemoryCheck, check_memory
from shardwise.validate.training.predict import Prediction, predict
from shardwise.validate.training.runs import Run

# Layouts whose measured times differ by a smaller share are not compared: repeats of one run
# differ as much.
MIN_DIFFERENCE = 0.02
SAMPLES = 1000  # of the bootstrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Statistics of the errors, predicted / measured - 1, of the rows of one source.

    Args:
        source: name of the source.
        median_abs_err, mean_abs_err, p90_abs_err: statistics of the absolute errors.
        bias: median error with its sign.
        peers: other predictor -> its median absolute error, on the rows that it predicts.
    """

    source: str
    n: int
    median_abs_err: float
    mean_abs_err: float
    p90_abs_err: float
    bias: float
    peers: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Statistics of the errors of rows when rates are fitted without the group of each.

    Args:
        interval_coverage: share of the rows whose measured time is within the spread.
    """

    n: int
    median_abs_err: float
    mean_abs_err: float
    p90_abs_err: float
    bias: float
    interval_coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overall:
    """Statistics of the errors of all scored rows, and of the predicted order of layouts.

    Args:
        n: number of scored rows.
        underivable: records without a prediction, each with the reason.
        median_abs_err, mean_abs_err, p90_abs_err: statistics of the absolute errors.
        bias: median error with its sign.
        order_right: of all pairs of layouts of the same job, the share that predictions order as
            measurements do; None without such pairs.
        regret: measured time of the layout with the best prediction over that of the best layout,
            minus 1; mean over all jobs with several layouts, None if there are none.
        regret_interval: 10th and 90th percentile of `regret` over bootstrap samples of the jobs.
        n_jobs: number of jobs with several layouts.
        interval_coverage: share of the rows whose measured time is between `lower` and `upper`.
        left_out: the same with rates fitted without the group of each row; None if no row was
            fitted.
        specified: as `left_out`, of the rows for which nothing had to be assumed.
    """

    n: int
    underivable: tuple[SkippedRecord, ...]
    median_abs_err: float
    mean_abs_err: float
    p90_abs_err: float
    bias: float
    order_right: float | None
    regret: float | None
    regret_interval: tuple[float, float] | None
    n_jobs: int
    interval_coverage: float
    left_out: LeftOut | None
    specified: LeftOut | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The document that `shardwise validate --json` prints.

    Args:
        overall: statistics of all scored rows.
        sources: statistics by source, the largest source first.
        rows: all rows, scored or not.
        memory: errors of predicted peak memory; None if no record has a peak.
        others: statistics of the rows that are predicted, but not scored; None if all are scored.
    """

    overall: Overall
    sources: tuple[Errors, ...]
    rows: tuple[Prediction, ...]
    memory: MemoryCheck | None
    others: Errors | None = None

    @property
    def scored(self) -> list[Prediction]:
        """The rows that the statistics are computed from."""
        return scored(self.rows)


def validate(runs: Sequence[Run | SkippedRecord]) -> Validation | None:
    """Compare the predictions of all runs with the measurements; None if no run can be predicted.

    Statistics are computed from core rows of quality A and B, or from all rows if there are none.
    """
    rows: list[Prediction] = []
    skipped: list[SkippedRecord] = []
    jobs: dict[str, JobLayout] = {}
    for run in runs:
        if isinstance(run, SkippedRecord):
            skipped.append(run)
            continue
        prediction = predict(run)
        if isinstance(prediction, SkippedRecord):
            skipped.append(prediction)
        else:
            rows.append(prediction)
            jobs[run.id] = JobLayout.of(run)
    specified_ids = {run.id for run in runs if isinstance(run, Run) and not run.assumed}
    counted = scored(rows)
    if not counted:
        return None
    by_source: dict[str, list[Prediction]] = defaultdict(list)
    for row in counted:
        by_source[row.source].append(row)
    total = errors("all", counted)
    order_right, regrets = _order_statistics(counted, jobs)
    inside = sum(row.lower <= row.measured <= row.upper for row in counted)
    overall = Overall(
        n=total.n,
        underivable=tuple(skipped),
        median_abs_err=total.median_abs_err,
        mean_abs_err=total.mean_abs_err,
        p90_abs_err=total.p90_abs_err,
        bias=total.bias,
        order_right=order_right,
        regret=statistics.mean(regrets) if regrets else None,
        regret_interval=_bootstrap_interval(regrets) if regrets else None,
        n_jobs=len(regrets),
        interval_coverage=inside / len(counted),
        left_out=_left_out(counted),
        specified=_left_out([row for row in counted if row.id in specified_ids]),
    )
    sources = [errors(source, source_rows) for source, source_rows in by_source.items()]
    sources.sort(key=lambda source: -source.n)
    scored_ids = {row.id for row in counted}
    others = [row for row in rows if row.id not in scored_ids]
    return Validation(
        overall=overall,
        sources=tuple(sources),
        rows=tuple(rows),
        memory=check_memory(runs),
        others=errors("others", others) if others else None,
    )


def _left_out(rows: Sequence[Prediction]) -> LeftOut | None:
    """Return `Overall.left_out`."""
    fitted = [row for row in rows if row.left_out_err is not None]
    if not fitted:
        return None
    left_out_errs = [row.left_out_err or 0.0 for row in fitted]
    widths = [row.upper / row.predicted for row in fitted]
    inside = sum(
        1 / width <= 1 + err <= width for err, width in zip(left_out_errs, widths, strict=True)
    )
    return LeftOut(
        n=len(fitted),
        interval_coverage=inside / len(fitted),
        **error_statistics(left_out_errs),
    )


def errors(source: str, rows: Sequence[Prediction]) -> Errors:
    """Return the statistics of the errors of one or more rows."""
    peers: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, seconds in row.peers.items():
            peers[name].append(abs(seconds / row.measured - 1))
    return Errors(
        source=source,
        n=len(rows),
        peers={name: statistics.median(errs) for name, errs in peers.items()},
        **error_statistics([row.err for row in rows]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLayout:
    """Job and layout of a row. Rows whose jobs have equal keys differ in their layout only.

    Args:
        key: text of group, date, model, number of chips, batch and precision. The date is included
            since software changes.
    """

    key: str
    layout: Layout

    @classmethod
    def of(cls, run: Run) -> JobLayout:
        """Return the job of a run.

        The key has the model's name and size, not its configuration: the padding of the vocabulary
        differs between layouts.
        """
        model = (run.config.name, run.config.n_layers, run.config.d_model)
        shared = (model, run.system.n_chips, run.job, run.precision)
        return cls(key=repr((run.group, run.date, *shared)), layout=run.layout)


def _order_statistics(
    rows: Iterable[Prediction], jobs: Mapping[str, JobLayout]
) -> tuple[float | None, list[float]]:
    """Return `Overall.order_right`, and the regret of each job with several layouts.

    Rows of one job with the same layout are repeats of a run, whose median counts.
    """
    rows_by_job: dict[str, dict[Layout, list[Prediction]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        job = jobs[row.id]
        rows_by_job[job.key][job.layout].append(row)
    n_right = 0
    n_pairs = 0
    regrets = []
    for rows_by_layout in rows_by_job.values():
        if len(rows_by_layout) == 1:
            continue
        times = [_median_times(repeats) for repeats in rows_by_layout.values()]
        for (predicted_a, measured_a), (predicted_b, measured_b) in itertools.combinations(
            times, 2
        ):
            if abs(measured_a / measured_b - 1) > MIN_DIFFERENCE:
                n_pairs += 1
                n_right += (predicted_a < predicted_b) == (measured_a < measured_b)
        _, chosen_s = min(times)
        best_s = min(measured for _, measured in times)
        regrets.append(chosen_s / best_s - 1)
    order_right = n_right / n_pairs if n_pairs else None
    return order_right, regrets


def _bootstrap_interval(regrets: Sequence[float]) -> tuple[float, float]:
    """10th and 90th percentile of the mean over samples of the jobs with replacement."""
    generator = random.Random(0)
    means = sorted(
        statistics.fmean(generator.choices(regrets, k=len(regrets))) for _ in range(SAMPLES)
    )
    return means[SAMPLES // 10], means[9 * SAMPLES // 10]


def _median_times(repeats: Sequence[Prediction]) -> tuple[float, float]:
    """Return the medians of the predicted and of the measured seconds of repeats of one run."""
    predicted = statistics.median(row.predicted for row in repeats)
    return predicted, statistics.median(row.measured for row in repeats)
