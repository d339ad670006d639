"""`shardwise check PLAN.json`: the machine's own compiler says whether a plan holds."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import shardwise as sw
from shardwise.check.serve import ServingVerdict
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.inputs import Inputs
from shardwise.report.check import blocks as of_step
from shardwise.report.check_serve import blocks as of_serving

FAILED = 4


def run(
    plan: Annotated[str, typer.Argument(metavar="PLAN.json", help="a saved plan")],
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="write the timeline, for Perfetto; .gz compresses")
    ] = "",
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="compile again what was compiled before")
    ] = False,
    json: Json = False,
) -> Answer:
    """Compile a plan's step for its machine (of serving: a token for each sequence, and a prompt),
    and hold memory, FLOPs, collectives and seconds of the compiled program against the plan. Exit
    code 4 where it does not hold."""
    inputs = Inputs()
    loaded = inputs.read(sw.load, plan)
    inputs.done()
    stages = _Stages()
    try:
        shown = stages if sys.stderr.isatty() else None
        verdict = sw.check(loaded, trace=trace or None, cache=not no_cache, on_stage=shown)
    finally:
        stages.done()
    return Answer(
        document=lambda: verdict,
        blocks=of_serving(verdict) if isinstance(verdict, ServingVerdict) else of_step(verdict),
        as_json=json,
        exit_code=0 if verdict.passed else FAILED,
    )


class _Stages:
    """Stage and seconds of a compile on one line of a terminal's stderr."""

    shown = 0

    def __call__(self, stage: str, seconds: float) -> None:
        line = f"{stage}, {seconds:.0f} s (a minute or two is normal)"
        sys.stderr.write("\r" + line.ljust(self.shown))
        sys.stderr.flush()
        self.shown = len(line)

    def done(self) -> None:
        """Take the line away."""
        if self.shown:
            sys.stderr.write("\r" + " " * self.shown + "\r")
            sys.stderr.flush()
