"""`shardwise validate [--serve] [--data FILE] [--source NAME]`: published runs, predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

import typer

from shardwise import units
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.progress import progress
from shardwise.cli.verbs.serving import validate as validate_serving
from shardwise.errors import BadInput, NoPlan, UnknownName
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import percent, signed_percent
from shardwise.validate import Run, ServeRun, Underivable, load, load_serving
from shardwise.validate.serving import predict as serving_predict
from shardwise.validate.serving.score import validate_serving as check_serving
from shardwise.validate.training.predict import predict
from shardwise.validate.training.score import Errors, Validation, validate

SHOWN_SOURCES = 12
SHOWN_REASONS = 6
MOST = 1000


R = TypeVar("R", Run | Underivable, ServeRun | Underivable)


def run(
    serve: Annotated[bool, typer.Option("--serve", help="runs that serve, not train")] = False,
    data: Annotated[str, typer.Option(metavar="FILE", help="runs of your own, same schema")] = "",
    source: Annotated[str, typer.Option(metavar="WORD", help="rows whose source has it")] = "",
    worst: Annotated[str, typer.Option(metavar="N", help="list the N worst rows")] = "5",
    every: Annotated[
        bool, typer.Option("--all", help="with --serve: count doubtful rows and repeats too")
    ] = False,
    json: Json = False,
) -> Answer:
    """Published runs predicted by these formulas, and how far they are off."""
    n = min(units.parse_whole(worst, "--worst", low=0), MOST)
    if serve:
        return _serving(data, source, n, every, json)
    if every:
        raise BadInput("--all goes with --serve; rows of training are counted by their quality.")
    runs = _of_source(load(data or None), source)
    with progress(f"predicting {len(runs):,} runs"):
        found = validate(runs)
    if found is None:
        raise _nothing(runs)
    return Answer(document=lambda: found, blocks=_blocks(found, min(n, MOST)), as_json=json)


def _serving(data: str, source: str, worst: int, every: bool, json: bool) -> Answer:
    runs = _of_source(load_serving(data or None), source)
    with progress(f"predicting {len(runs):,} runs"):
        found = check_serving(runs, serving_predict.predict, every)
    if found is None:
        raise _nothing(runs)
    shown = validate_serving.blocks(found, worst, every)
    return Answer(document=lambda: found, blocks=shown, as_json=json)


def _of_source(runs: list[R], source: str) -> list[R]:
    """Rows whose source has a word in it."""
    found = [run for run in runs if source.lower() in run.source.lower()]
    if source and not found:
        raise UnknownName("source", source, {run.source for run in runs})
    return found


def _nothing(runs: Sequence[Run | ServeRun | Underivable]) -> NoPlan:
    missing = (predict(run) if isinstance(run, Run) else run for run in runs)
    reasons = Counter(run.reason for run in missing if isinstance(run, Underivable))
    told = (f"{_rows(k)}: {why}" for why, k in reasons.most_common(SHOWN_REASONS))
    return NoPlan("no row can be predicted.", *told)


def _blocks(found: Validation, worst: int) -> Iterator[Block]:
    overall = found.overall
    yield strong(
        f"Median error {percent(overall.median_abs_err)} over {overall.n:,} published runs, "
        f"mean {percent(overall.mean_abs_err)}, bias {signed_percent(overall.bias)}."
    )
    rows = [("90 %", f"of the rows are within {percent(overall.p90_abs_err)}")]
    held = percent(overall.interval_coverage)
    rows.append(("interval", f"of four in five holds {held} of the measured times"))
    if overall.order_right is not None and overall.regret is not None:
        rows.append(
            (
                "layouts",
                f"of one job: {percent(overall.order_right)} of the pairs in the measured order; "
                f"choosing by prediction costs {percent(overall.regret)} over the best",
            )
        )
    if found.memory:
        rows.append(
            (
                "memory",
                f"median error {percent(found.memory.median_abs_err)} over the {found.memory.n:,} "
                f"runs that state their peak, bias {signed_percent(found.memory.bias)}",
            )
        )
    yield labelled(rows)
    yield table(
        ["source", ">runs", ">median", ">mean", ">bias", "others' median"],
        (_source(errors) for errors in found.sources[:SHOWN_SOURCES]),
    )
    if len(found.sources) > SHOWN_SOURCES:
        yield quiet(f"and {len(found.sources) - SHOWN_SOURCES} more sources (--json lists them)")
    if worst:
        off = sorted(found.scored, key=lambda row: -abs(row.err))[:worst]
        yield strong("Worst rows")
        yield table(
            ["row", ">predicted", ">measured", ">error"],
            (
                [
                    row.id,
                    units.show_seconds(row.predicted),
                    units.show_seconds(row.measured),
                    signed_percent(row.err),
                ]
                for row in off
            ),
        )
    if overall.underivable:
        kinds = Counter(run.kind for run in overall.underivable).most_common(SHOWN_REASONS)
        told = ", ".join(f"{kind} {n}" for kind, n in kinds)
        yield f"{_rows(len(overall.underivable))} not predicted: {told} (--json says why of each)"
    yield quiet("error = predicted / measured - 1 of the step time; core rows of quality A and B")


def _rows(n: int) -> str:
    return f"{n:,} row{'' if n == 1 else 's'}"


def _source(errors: Errors) -> list[str]:
    others = ", ".join(f"{name} {percent(e)}" for name, e in errors.peers.items())
    return [
        errors.source,
        f"{errors.n:,}",
        percent(errors.median_abs_err),
        percent(errors.mean_abs_err),
        signed_percent(errors.bias),
        others,
    ]
