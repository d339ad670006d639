"""`shardwise validate --serve`: published serving runs, predicted, and the errors."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.cli.answer import Answer
from shardwise.cli.progress import progress
from shardwise.cli.published import error_cells, frequent_kinds, from_source, nothing_predicted
from shardwise.report.style import Block, quiet, strong, table
from shardwise.report.words import percent, signed_percent
from shardwise.validate import SkippedRecord, load_serving
from shardwise.validate.serving import predict
from shardwise.validate.serving.kinds import RATES
from shardwise.validate.serving.score import (
    Checked,
    ServeErrors,
    ServeValidation,
    validate_serving,
)

# Metric of a published figure -> its name in the tables.
METRIC_LABELS = {
    "ttft_s": "TTFT", "tpot_s": "TPOT", "latency_s": "latency", "prefill_s": "prefill",
    "tokens_per_s": "tokens/s", "total_tokens_per_s": "tokens/s in+out",
    "tokens_per_s_per_user": "tokens/s/user", "memory_bytes": "memory",
}  # fmt: skip
MAX_SOURCES = 16  # rows of sources on a screen


def answer(data: str, source: str, worst: int, every: bool, as_json: bool) -> Answer:
    """The errors by kind of figure and by source, and the `worst` figures.

    Args:
        data: file of other runs; empty for the published ones of this package.
        source: a word that the source of a run contains; empty for all sources.
        worst: number of figures with the largest errors to list.
        every: also count doubtful and repeated rows.
    """
    runs = from_source(load_serving(data or None), source)
    with progress(f"predicting {len(runs):,} runs", quiet=as_json):
        validation = validate_serving(runs, predict.predict, every)
    if validation is None:
        raise nothing_predicted(run for run in runs if isinstance(run, SkippedRecord))
    return Answer(
        document=lambda: validation, blocks=_blocks(validation, worst, every), as_json=as_json
    )


def _blocks(validation: ServeValidation, worst: int, every: bool) -> Iterator[Block]:
    n_runs = len(validation.counted)
    n_figures = sum(errors.n for errors in validation.kinds)
    yield strong(
        f"{n_figures:,} figures of {n_runs:,} published serving runs, by what they measure"
    )
    held_back = {errors.name: percent(errors.median_abs_err) for errors in validation.held_back}
    yield table(
        ["", ">figures", ">median", ">mean", ">90 %", ">bias", ">interval", ">held back"],
        ([*_kind(errors), held_back.get(errors.name, "")] for errors in validation.kinds),
    )
    yield table(
        ["source", "figure", ">n", ">median", ">mean", ">bias"],
        map(_source, validation.sources[:MAX_SOURCES]),
    )
    n_hidden = len(validation.sources) - MAX_SOURCES
    if n_hidden > 0:
        yield quiet(f"and {n_hidden} more (--json lists them)")
    if worst:
        yield strong("Worst figures")
        yield table(
            ["row", "figure", ">predicted", ">measured", ">error"],
            map(_figure, validation.worst(worst)),
        )
    if validation.underivable:
        counts = frequent_kinds(validation.underivable)
        n_missing = len(validation.underivable)
        yield f"{n_missing:,} rows or figures not predicted: {counts} (--json says why of each)"
    rows_counted = "core rows of quality A and B (--all counts every row)"
    if every:
        rows_counted = "all rows"
    yield quiet(
        f"error = predicted / measured - 1 of seconds, a rate by those of a token; {rows_counted}"
    )


def _kind(errors: ServeErrors) -> list[str]:
    return [
        errors.name,
        *error_cells(errors),
        percent(errors.p90_abs_err),
        signed_percent(errors.bias),
        percent(errors.interval_coverage),
    ]


def _source(errors: ServeErrors) -> list[str]:
    label = METRIC_LABELS[errors.metric]
    return [errors.name, label, *error_cells(errors), signed_percent(errors.bias)]


def _figure(row: Checked) -> list[str]:
    return [
        row.id,
        METRIC_LABELS[row.metric],
        _value(row.metric, row.predicted),
        _value(row.metric, row.measured),
        signed_percent(row.err),
    ]


def _value(metric: str, value: float) -> str:
    if metric in RATES:
        return f"{units.show_count(value)}/s"
    if metric == "memory_bytes":
        return units.show_bytes(value)
    return units.show_seconds(value)
