"""How far predictions of serving are from what was measured: by kind, by source and metric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.validate.records.files import Underivable
from shardwise.validate.records.scoring import chosen_on, scored, spread_of
from shardwise.validate.serving.predict import Predicted
from shardwise.validate.serving.runs import ServeRun

Predict = Callable[[ServeRun], Mapping[str, Predicted]]

# What a metric tells, where it does not depend on the run.
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
    """One figure of a run: predicted and measured.

    Args:
        kind: One of `KINDS`.
        chosen: Constants may be chosen on its group; the other half is held back.
        err: predicted / measured - 1, of a rate that of the seconds of a token: above 0 is slow.
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
    """Errors of some figures.

    Args:
        name: The source, or the kind of figures.
        metric: The metric, "" where several are counted together.
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
        chosen, held_back: the same of the groups that constants may be chosen on, and of the rest.
        sources: errors by source and metric.
        counted: ids of the runs that the errors are of.
        underivable: rows, or figures of rows, that no prediction exists for, with the reason.
    """

    kinds: tuple[ServeErrors, ...]
    chosen: tuple[ServeErrors, ...]
    held_back: tuple[ServeErrors, ...]
    sources: tuple[ServeErrors, ...]
    counted: tuple[str, ...]
    rows: tuple[Checked, ...]
    underivable: tuple[Underivable, ...]

    def worst(self, n: int) -> list[Checked]:
        """The figures furthest off of those counted."""
        counted = set(self.counted)
        return sorted((r for r in self.rows if r.id in counted), key=lambda r: -abs(r.err))[:n]


def kind_of(run: ServeRun, metric: str) -> str:
    """Which of `KINDS` a figure belongs to.

    A rate of steps alone tells of decoding, the rate of one fixed batch of whole requests of their
    latency, and any other rate of throughput.
    """
    if metric in _KINDS:
        return _KINDS[metric]
    if run.phase == "decode":
        return "decode"
    return "latency" if metric == "total_tokens_per_s" and run.batch else "throughput"


def validate_serving(
    runs: Sequence[ServeRun | Underivable], predict: Predict, everything: bool = False
) -> ServeValidation | None:
    """Predict every run and compare; None when no figure can be predicted.

    Args:
        runs: Published runs.
        predict: What predicts one of them; a ShardwiseError says that it cannot.
        everything: Count every row; else core rows of quality A and B, if there are any.
    """
    rows: list[Checked] = []
    missing: list[Underivable] = []
    for run in runs:
        if isinstance(run, Underivable):
            missing.append(run)
            continue
        try:
            told = predict(run)
        except ShardwiseError as error:
            missing.append(_not(run, " ".join(error.problems)))
            continue
        for metric, measured in run.measured.items():
            if metric in told:
                rows.append(_checked(run, metric, told[metric], measured))
            else:
                missing.append(_not(run, f"no prediction of a metric: {metric}."))
    counted = rows if everything else scored(rows)
    if not counted:
        return None
    by_source: dict[tuple[str, str], list[Checked]] = defaultdict(list)
    for row in counted:
        by_source[row.source, row.metric].append(row)
    largest = sorted(by_source.items(), key=lambda item: -len(item[1]))
    return ServeValidation(
        kinds=_by_kind(counted),
        chosen=_by_kind([row for row in counted if row.chosen]),
        held_back=_by_kind([row for row in counted if not row.chosen]),
        sources=tuple(serve_errors(*names, found) for names, found in largest),
        counted=tuple(dict.fromkeys(row.id for row in counted)),
        rows=tuple(rows),
        underivable=tuple(missing),
    )


def serve_errors(name: str, metric: str, rows: Sequence[Checked]) -> ServeErrors:
    """Errors of some figures, one at least."""
    inside = sum(row.lower <= row.measured <= row.upper for row in rows)
    return ServeErrors(
        name=name,
        metric=metric,
        n=len(rows),
        interval_coverage=inside / len(rows),
        **spread_of([row.err for row in rows]),
    )


def _by_kind(rows: Sequence[Checked]) -> tuple[ServeErrors, ...]:
    found = {kind: [row for row in rows if row.kind == kind] for kind in KINDS}
    return tuple(serve_errors(kind, "", same) for kind, same in found.items() if same)


def _checked(run: ServeRun, metric: str, told: Predicted, measured: float) -> Checked:
    ratio = told.expected / measured
    return Checked(
        id=run.id,
        source=run.source,
        group=run.group,
        quality=run.quality,
        tier=run.tier,
        metric=metric,
        kind=kind_of(run, metric),
        chosen=chosen_on(run.group),
        predicted=told.expected,
        lower=told.lower,
        upper=told.upper,
        measured=measured,
        err=(1 / ratio if metric in RATES else ratio) - 1,
    )


def _not(run: ServeRun, reason: str) -> Underivable:
    return Underivable(id=run.id, source=run.source, reason=reason)
