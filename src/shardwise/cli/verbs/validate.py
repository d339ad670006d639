"""`shardwise validate [--serve] [--data FILE] [--source NAME]`: published runs, predicted."""

from __future__ import annotations

from typing import Annotated

from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.options import output, workload

MAX_ROWS = 1000  # of --worst


def run(
    serve: options.Serving = False,
    data: Annotated[str, workload("--data FILE", "runs of your own, in the same schema")] = "",
    source: Annotated[str, workload("--source WORD", "rows whose source contains it")] = "",
    every: Annotated[
        bool, workload("--all", "with --serve: count doubtful rows and repeats too")
    ] = False,
    worst: Annotated[str, output("--worst N", "list the N worst rows")] = "5",
    json: options.Json = False,
) -> Answer:
    """Published runs predicted by these formulas, and the errors of the predictions."""
    count = min(units.parse_whole(worst, "--worst", low=0), MAX_ROWS)
    if serve:
        from shardwise.cli.verbs.serving.validate import answer as answer_serving

        return answer_serving(data, source, count, every, json)
    from shardwise.cli.verbs.training.validate import answer

    return answer(data, source, count, json)
