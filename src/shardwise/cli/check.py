"""`shardwise check PLAN.json` and `shardwise check module:function --on v5e:4x4`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

import shardwise as sw
from shardwise import units
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.inputs import Inputs, parse_word
from shardwise.errors import BadInput
from shardwise.runtime.program import COLLECTIVES

if TYPE_CHECKING:
    from shardwise.check.options import CompileOptions
    from shardwise.plan.schema.json_io import AnyPlan

FAILED = 4


def run(
    subject: Annotated[
        str,
        typer.Argument(metavar="PLAN.json | MODULE:FUNCTION", help="a saved plan, or a function"),
    ],
    on: Annotated[
        str,
        typer.Option(
            metavar="HARDWARE",
            help="of a function: its machine, v5e:4x4; of a plan: a smaller one, by fewer data",
        ),
    ] = "",
    args: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="of a function: what returns its arguments  [default: FUNCTION_args beside it]",
        ),
    ] = "",
    layers: Annotated[
        str,
        typer.Option(
            metavar="N,M", help="compile so many layers of each kind, extrapolate the rest: 1,2"
        ),
    ] = "",
    collectives: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help=f"who chooses those of a training step: {' or '.join(COLLECTIVES)} "
            "(XLA's partitioner)",
        ),
    ] = "plan",
    fix: Annotated[
        bool,
        typer.Option("--fix", help="where the plan fails, look for one that passes (3 compiles)"),
    ] = False,
    save: Annotated[
        str, typer.Option(metavar="FILE", help="with --fix: save the plan that passed")
    ] = "",
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="write the timeline, for Perfetto; .gz compresses")
    ] = "",
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="compile again what was compiled before")
    ] = False,
    json: Json = False,
) -> Answer:
    """Compile a plan's step for its machine (of serving: a token for each sequence, and a prompt),
    and hold memory, FLOPs, collectives and seconds of the compiled program against the plan; or
    report the same of a function of your own. Exit code 4 where it does not hold."""
    inputs = Inputs()
    named = ":" in subject and not subject.endswith(".json")
    if named:
        by_other = collectives != COLLECTIVES[0]
        given = {"--layers": layers, "--collectives": by_other, "--fix": fix, "--save": save}
        other = [name for name, value in given.items() if value]
        if other:
            inputs.refuse(f"{', '.join(other)} is for plans, and {subject} is a function.")
        if not on:
            inputs.refuse(f"{subject} is compiled for a machine. Add --on, as --on v5e:4x4.")
    elif args:
        inputs.refuse("--args is for a function of yours: shardwise check MODULE:FUNCTION.")
    if save and not fix and not named:
        inputs.refuse("--save keeps the plan that --fix found. Add --fix.")
    if on:
        inputs.read(sw.hardware, on)
    inputs.read(parse_word, collectives, "chooser of collectives", COLLECTIVES)
    depths = inputs.read(_depths, layers) if layers else ()
    loaded = None if named else inputs.read(sw.load, subject)
    inputs.done()
    if loaded is None:
        return _told(lambda how: _function(subject, args, on, how, trace, json), no_cache)
    plan = loaded
    return _told(
        lambda how: _plan(plan, on, depths, how, trace, fix, save, json), no_cache, collectives
    )


def _told(
    answer: Callable[[CompileOptions], Answer], no_cache: bool, collectives: str = "plan"
) -> Answer:
    """The answer, with the stage of each compile shown on a terminal."""
    from shardwise.check.options import CompileOptions

    stages = _Stages()
    try:
        shown = stages if sys.stderr.isatty() else None
        return answer(CompileOptions(cache=not no_cache, on_stage=shown, collectives=collectives))
    finally:
        stages.done()


def _plan(
    plan: AnyPlan,
    on: str,
    depths: tuple[int, ...],
    how: CompileOptions,
    trace: str,
    fix: bool,
    save: str,
    as_json: bool,
) -> Answer:
    from shardwise.check.fix import fix as look
    from shardwise.check.serving import ServingVerdict
    from shardwise.check.verdict import Verdict
    from shardwise.report.check.plan import blocks as of_step
    from shardwise.report.check.serving import blocks as of_serving

    verdict = sw.check(
        plan,
        on=on,
        layers=depths,
        trace=trace or None,
        cache=how.cache,
        on_stage=how.on_stage,
        collectives=how.collectives,
    )
    if fix and isinstance(plan, sw.Plan) and isinstance(verdict, Verdict) and not verdict.passed:
        found = look(plan, verdict, how)
        verdict = replace(verdict, proposals=found.proposals)
        if save and found.plan:
            found.plan.save(save)
    return Answer(
        document=lambda: verdict,
        blocks=of_serving(verdict) if isinstance(verdict, ServingVerdict) else of_step(verdict),
        as_json=as_json,
        exit_code=0 if verdict.passed else FAILED,
    )


def _function(
    name: str, args: str, on: str, how: CompileOptions, trace: str, as_json: bool
) -> Answer:
    from shardwise.check.user.function import check_named_function
    from shardwise.report.check import function as report

    found = check_named_function(name, args, on, how, trace or None)
    return Answer(
        document=lambda: found,
        blocks=report.blocks(found),
        as_json=as_json,
        exit_code=0 if found.passed else FAILED,
    )


def _depths(text: str) -> tuple[int, ...]:
    """`1,2` -> two depths.

    Raises:
        BadInput: not two whole numbers, the smaller first.
    """
    found = tuple(units.parse_whole(part.strip(), "--layers") for part in text.split(","))
    if len(found) != 2 or not 1 <= found[0] < found[1]:
        raise BadInput(f"--layers {text}: write two numbers of layers, the smaller first, as 1,2.")
    return found


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
