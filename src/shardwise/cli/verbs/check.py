"""`shardwise check PLAN.json`, or `shardwise check module:function --on v5e:4x4`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, load_plan, names_of_set_options, parse_word
from shardwise.cli.options import argument, output, workload
from shardwise.cli.progress import ProgressLine
from shardwise.errors import BadInput, CheckFailed
from shardwise.runtime.program import COLLECTIVES

if TYPE_CHECKING:
    from shardwise.check.compiling.process import Limits
    from shardwise.check.options import CompileOptions
    from shardwise.plan.schema.json_io import AnyPlan


def run(
    subject: Annotated[str, argument("PLAN.json | MODULE:FUNCTION", "a saved plan, or a function")],
    args: Annotated[
        str,
        workload(
            "--args MODULE:FUNCTION",
            "returns the arguments of a function  [default: FUNCTION_args beside it]",
        ),
    ] = "",
    layers: Annotated[
        str,
        workload("--layers N,M", "layers of each kind to compile, and extrapolate from: 1,2"),
    ] = "",
    collectives: options.Collectives = "plan",
    on: options.TargetHardware = "",
    timeout: Annotated[
        str, workload("--timeout TIME", "limit of the time of a compile  [default: 15min]")
    ] = "",
    memory: Annotated[
        str, workload("--memory SIZE", "limit of the memory of a compile  [default: 16GiB]")
    ] = "",
    fix: Annotated[
        bool, output("--fix", "if the plan does not fit, look for one that does (3 compiles)")
    ] = False,
    save: Annotated[str, output("--save FILE", "with --fix: save the plan that fits")] = "",
    trace: Annotated[
        str, output("--trace FILE", "write the timeline for Perfetto; .gz compresses")
    ] = "",
    no_cache: Annotated[
        bool, output("--no-cache", "compile again what was compiled before")
    ] = False,
    json: options.Json = False,
) -> Answer:
    """Compile a plan's step for its machine (of serving: a token for each sequence, and a prompt),
    and compare memory, FLOPs, collectives and seconds of the compiled program with the plan; or
    report the same of your own function, for the machine of --on. With a plan, --on gives a
    smaller machine. Exit code 4: the plan does not hold; 5: the compiler gave no answer."""
    inputs = Inputs()
    is_function = ":" in subject and not subject.endswith(".json")
    if subject.endswith(".py"):
        raise BadInput(f"{subject} is a file of functions. Name one: {subject}:FUNCTION.")
    if is_function:
        plan_options = {
            "--layers": layers,
            "--collectives": collectives != COLLECTIVES[0],
            "--fix": fix,
            "--save": save,
        }
        names = names_of_set_options(plan_options)
        if names:
            inputs.refuse(f"{names} is for plans, and {subject} is a function.")
        if not on:
            inputs.refuse(f"{subject} is compiled for a machine. Add --on, as --on v5e:4x4.")
    elif args:
        inputs.refuse("--args is for a function of yours: shardwise check MODULE:FUNCTION.")
    if save and not fix and not is_function:
        inputs.refuse("--save saves the plan of --fix. Add --fix.")
    if save and not Path(save).parent.is_dir():
        inputs.refuse(f"--save {save}: there is no folder {Path(save).parent}.")
    wall_s = inputs.optional(units.parse_seconds, timeout, "--timeout")
    memory_bytes = inputs.optional(units.parse_bytes, memory, "--memory")
    inputs.optional(sw.hardware, on)
    inputs.read(parse_word, collectives, "chooser of collectives", COLLECTIVES)
    layer_counts = inputs.optional(_layer_counts, layers) or ()
    plan = None
    if not is_function:
        plan = inputs.read(load_plan, subject)
    if fix and isinstance(plan, sw.ServingPlan):
        inputs.refuse(
            "--fix is for training plans, and this is a serving plan. Plan again with a smaller "
            "--batch or --context, or with --dtype int8."
        )
    inputs.done()
    limits = _limits(wall_s, memory_bytes)
    with _compile_options(no_cache, collectives, limits, quiet=json) as compile_options:
        if plan is None:
            return _function_answer(subject, args, on, compile_options, trace, json)
        return _plan_answer(plan, on, layer_counts, compile_options, trace, fix, save, json)


def _limits(wall_s: float | None, memory_bytes: float | None) -> Limits:
    """Limits of a compile; those not given are the defaults."""
    from shardwise.check.compiling.process import Limits

    limits = Limits()
    if wall_s is not None:
        limits = replace(limits, wall_s=wall_s)
    if memory_bytes is not None:
        limits = replace(limits, rss_bytes=int(memory_bytes))
    return limits


@contextmanager
def _compile_options(
    no_cache: bool, collectives: str, limits: Limits, *, quiet: bool
) -> Iterator[CompileOptions]:
    """Options whose `on_stage` shows the stages of a compilation."""
    from shardwise.check.options import CompileOptions

    line = ProgressLine(quiet=quiet)

    def show(stage: str, seconds: float) -> None:
        line.show(f"{stage}, {seconds:.0f} s (a minute or two is normal)")

    try:
        yield CompileOptions(
            limits=limits, cache=not no_cache, on_stage=show, collectives=collectives
        )
    finally:
        line.clear()


def _plan_answer(
    plan: AnyPlan,
    on: str,
    layer_counts: tuple[int, ...],
    compile_options: CompileOptions,
    trace: str,
    fix: bool,
    save: str,
    as_json: bool,
) -> Answer:
    from shardwise.check.verdict import Verdict
    from shardwise.report.check import plan as report

    verdict = sw.check(
        plan,
        on=on,
        layers=layer_counts,
        trace=trace or None,
        limits=compile_options.limits,
        cache=compile_options.cache,
        on_stage=compile_options.on_stage,
        collectives=compile_options.collectives,
    )
    if (
        fix
        and isinstance(plan, sw.Plan)
        and isinstance(verdict, Verdict)
        and verdict.verdict == "does not fit"
    ):
        from shardwise.check.fix import fix as search_for_plan

        repair = search_for_plan(plan, verdict, compile_options)
        verdict = replace(verdict, proposals=repair.proposals)
        if save and repair.plan:
            from shardwise.report.document import save as write_plan

            write_plan(repair.plan, save)
    if isinstance(verdict, Verdict):
        blocks = report.blocks(verdict)
    else:
        blocks = report.serving_blocks(verdict)
    return Answer(
        document=lambda: verdict,
        blocks=blocks,
        as_json=as_json,
        exit_code=0 if verdict.passed else CheckFailed.exit_code,
    )


def _function_answer(
    name: str, args: str, on: str, compile_options: CompileOptions, trace: str, as_json: bool
) -> Answer:
    from shardwise.check.user.function import check_named_function
    from shardwise.report.check import function as report

    verdict = check_named_function(name, args, on, compile_options, trace or None)
    return Answer(
        document=lambda: verdict,
        blocks=report.blocks(verdict),
        as_json=as_json,
        exit_code=0 if verdict.passed else CheckFailed.exit_code,
    )


def _layer_counts(text: str) -> tuple[int, ...]:
    """Parse --layers, two numbers of layers: `1,2`.

    Raises:
        BadInput: not two whole numbers, the smaller first.
    """
    counts = tuple(units.parse_whole(number.strip(), "--layers") for number in text.split(","))
    if len(counts) != 2 or not 1 <= counts[0] < counts[1]:
        raise BadInput(f"--layers {text}: write two numbers of layers, the smaller first, as 1,2.")
    return counts
