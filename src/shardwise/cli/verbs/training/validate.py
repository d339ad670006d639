"""`shardwise validate`: published training runs, predicted, and the errors of the predictions."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.cli.answer import Answer
from shardwise.cli.progress import progress
from shardwise.cli.published import error_cells, frequent_kinds, from_source, nothing_predicted
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import counted, percent, signed_percent
from shardwise.validate import Run, load
from shardwise.validate.training.predict import Prediction, predict
from shardwise.validate.training.score import Errors, Validation, validate

MAX_SOURCES = 12  # rows of sources on a screen


def answer(data: str, source: str, worst: int, as_json: bool) -> Answer:
    """The errors by source, and the `worst` rows.

    Args:
        data: file of other runs; empty for the published ones of this package.
        source: a word that the source of a run contains; empty for all sources.
        worst: number of rows with the largest errors to list.
    """
    runs = from_source(load(data or None), source)
    with progress(f"predicting {len(runs):,} runs", quiet=as_json):
        validation = validate(runs)
    if validation is None:
        results = [predict(run) if isinstance(run, Run) else run for run in runs]
        raise nothing_predicted(results)
    return Answer(document=lambda: validation, blocks=_blocks(validation, worst), as_json=as_json)


def _blocks(validation: Validation, worst: int) -> Iterator[Block]:
    overall = validation.overall
    yield strong(
        f"Median error {percent(overall.median_abs_err)} over {overall.n:,} published runs, "
        f"mean {percent(overall.mean_abs_err)}, bias {signed_percent(overall.bias)}."
    )
    yield labelled(_errors(validation))
    yield table(
        ["source", ">runs", ">median", ">mean", ">bias", "others' median"],
        map(_source, validation.sources[:MAX_SOURCES]),
    )
    n_hidden = len(validation.sources) - MAX_SOURCES
    if n_hidden > 0:
        yield quiet(f"and {n_hidden} more sources (--json lists them)")
    if worst:
        rows = sorted(validation.scored, key=lambda row: -abs(row.err))
        yield strong("Worst rows")
        yield table(["row", ">predicted", ">measured", ">error"], map(_row, rows[:worst]))
    if overall.underivable:
        counts = frequent_kinds(overall.underivable)
        rows_missing = counted(len(overall.underivable), "row")
        yield f"{rows_missing} not predicted: {counts} (--json says why of each)"
    yield quiet(
        "error = predicted / measured - 1 of the step time, bias its median; core rows of quality "
        "A and B"
    )


def _errors(validation: Validation) -> Iterator[tuple[str, str]]:
    overall = validation.overall
    yield "90 %", f"of the rows are within {percent(overall.p90_abs_err)}"
    left_out = overall.left_out
    if left_out:
        yield (
            "left out",
            f"median {percent(left_out.median_abs_err)}, mean {percent(left_out.mean_abs_err)}, "
            f"90 % within {percent(left_out.p90_abs_err)}, if the rates are fitted without the "
            "group of a row (its source, model and chip)",
        )
    if overall.specified:
        yield (
            "",
            f"median {percent(overall.specified.median_abs_err)} of the {overall.specified.n:,} of "
            "them for which nothing had to be assumed",
        )
    coverage = percent(left_out.interval_coverage if left_out else overall.interval_coverage)
    yield "interval", f"of four in five holds {coverage} of the measured times"
    if overall.order_right is not None and overall.regret_interval and overall.regret is not None:
        lower, upper = map(percent, overall.regret_interval)
        yield (
            "layouts",
            f"of one job: {percent(overall.order_right)} of the pairs in the measured order; "
            f"choosing by prediction costs {percent(overall.regret)} over the best ({lower} to "
            f"{upper} in four of five bootstrap samples of {counted(overall.n_jobs, 'job')})",
        )
    memory = validation.memory
    if memory:
        yield (
            "memory",
            f"median error {percent(memory.median_abs_err)} over the {memory.n:,} runs that state "
            f"their peak, bias {signed_percent(memory.bias)}",
        )
    others = validation.others
    if others:
        yield (
            "others",
            f"median {percent(others.median_abs_err)}, mean {percent(others.mean_abs_err)} of the "
            f"{others.n:,} rows of other tiers and qualities, which are not scored",
        )


def _source(errors: Errors) -> list[str]:
    peers = ", ".join(f"{name} {percent(error)}" for name, error in errors.peers.items())
    return [errors.source, *error_cells(errors), signed_percent(errors.bias), peers]


def _row(row: Prediction) -> list[str]:
    return [
        row.id,
        units.show_seconds(row.predicted),
        units.show_seconds(row.measured),
        signed_percent(row.err),
    ]
