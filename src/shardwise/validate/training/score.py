"""How far predictions are from what was measured: by source, over all, and in order."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.strategy.layout import Layout
from shardwise.validate.records.files import Underivable
from shardwise.validate.records.scoring import scored, spread_of
from shardwise.validate.training.memory import MemoryCheck, check_memory
from shardwise.validate.training.predict import Prediction, predict
from shardwise.validate.training.runs import Run

TIMES = ("predicted", "measured")
SAME = 0.02  # runs whose times differ by less are in no order: repeats of one run differ as much


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of some rows: predicted / measured - 1.

    Args:
        peers: other predictors' median absolute error on the rows that they predict too.
    """

    source: str
    n: int
    median_abs_err: float
    mean_abs_err: float
    p90_abs_err: float
    bias: float
    peers: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overall:
    """Errors of all core rows of quality A and B, and the order of rows that differ in layout.

    Args:
        underivable: rows that no prediction exists for, each with the reason.
        order_right: of the pairs of layouts of one job, the share put in the measured order.
        regret: what choosing the layout by prediction costs over the best one, mean.
        interval_coverage: share of rows measured between `lower` and `upper`.
    """

    n: int
    underivable: tuple[Underivable, ...]
    median_abs_err: float
    mean_abs_err: float
    p90_abs_err: float
    bias: float
    order_right: float | None
    regret: float | None
    interval_coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The document of `shardwise validate --json`."""

    overall: Overall
    sources: tuple[Errors, ...]
    rows: tuple[Prediction, ...]
    memory: MemoryCheck | None

    @property
    def scored(self) -> list[Prediction]:
        """The rows that the errors are of."""
        return scored(self.rows)


def validate(runs: Sequence[Run | Underivable]) -> Validation | None:
    """Predict every run and compare; None when no row can be predicted.

    The errors are of core rows of quality A and B; a source with neither counts all its rows.
    """
    rows: list[Prediction] = []
    missing: list[Underivable] = []
    jobs: dict[str, Job] = {}
    for run in runs:
        found = run if isinstance(run, Underivable) else predict(run)
        if isinstance(found, Underivable):
            missing.append(found)
        elif isinstance(run, Run):
            rows.append(found)
            jobs[run.id] = Job.of(run)
    counted = scored(rows)
    if not counted:
        return None
    by_source: dict[str, list[Prediction]] = defaultdict(list)
    for row in counted:
        by_source[row.source].append(row)
    whole = errors("all", counted)
    order_right, regret = _order(counted, jobs)
    inside = sum(r.lower <= r.measured <= r.upper for r in counted)
    overall = Overall(
        n=whole.n,
        underivable=tuple(missing),
        median_abs_err=whole.median_abs_err,
        mean_abs_err=whole.mean_abs_err,
        p90_abs_err=whole.p90_abs_err,
        bias=whole.bias,
        order_right=order_right,
        regret=regret,
        interval_coverage=inside / len(counted),
    )
    sources = sorted((errors(s, r) for s, r in by_source.items()), key=lambda e: -e.n)
    return Validation(
        overall=overall, sources=tuple(sources), rows=tuple(rows), memory=check_memory(runs)
    )


def errors(source: str, rows: Sequence[Prediction]) -> Errors:
    """Median, mean, 90th percentile and bias (the median with its sign) of some rows."""
    peers: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, seconds in row.peers.items():
            peers[name].append(abs(seconds / row.measured - 1))
    return Errors(
        source=source,
        n=len(rows),
        peers={name: statistics.median(found) for name, found in peers.items()},
        **spread_of([r.err for r in rows]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What two rows must share to differ in nothing but their layout, and the layout.

    Args:
        key: group, model, chips, work, precision and date; a later date is another software.
        layout: how it was split.
    """

    key: str
    layout: Layout

    @classmethod
    def of(cls, run: Run) -> Job:
        """The job of a run. The model goes by name: layouts pad its vocabulary differently."""
        model = (run.config.name, run.config.n_layers, run.config.d_model, run.mtp_layers)
        shared = (model, run.system.n_chips, run.job, run.precision)
        return cls(key=repr((run.group, run.date, *shared)), layout=run.layout)


def _order(
    rows: Iterable[Prediction], jobs: Mapping[str, Job]
) -> tuple[float | None, float | None]:
    """(share of pairs of layouts in the right order, mean regret) over jobs in several layouts.

    Rows of one layout are repeats of one run: their median stands for them.
    """
    same: dict[str, dict[Layout, list[Prediction]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        same[jobs[row.id].key][jobs[row.id].layout].append(row)
    right = pairs = 0
    regrets = []
    for layouts in (found for found in same.values() if len(found) > 1):
        times = [
            tuple(statistics.median(getattr(r, name) for r in found) for name in TIMES)
            for found in layouts.values()
        ]
        for a, b in itertools.combinations(times, 2):
            if abs(a[1] / b[1] - 1) > SAME:
                pairs += 1
                right += (a[0] < b[0]) == (a[1] < b[1])
        regrets.append(min(times)[1] / min(measured for _, measured in times) - 1)
    order = right / pairs if pairs else None
    return order, statistics.mean(regrets) if regrets else None
