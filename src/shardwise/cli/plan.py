"""`shardwise plan MODEL HARDWARE --train --batch 1120x4096`; `--serve` is in `plan_serve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer

import shardwise as sw
from shardwise import units
from shardwise.cli.answer import Answer
from shardwise.cli.command import RATES, SPLIT, TOLD, WORK, Hardware, Json, Model
from shardwise.cli.inputs import Inputs, parse_fixed, parse_mesh, parse_word, roles, split_of
from shardwise.cli.jobs import read_job
from shardwise.cli.progress import progress
from shardwise.errors import BadInput, NoPlan
from shardwise.report.training import plan as report
from shardwise.search.given import Choices
from shardwise.vocabulary import CHOSEN_OFFLOADS, CHOSEN_OVERLAPS, REMAT_WORDS
from shardwise.workload import OPTIMIZER_MOMENTS

FRONTS = ("memory", "chips")
MOST = 100  # plans that one command lists


def choose(name: str, args: Sequence[str]) -> tuple[str, Callable[..., Answer | None]]:
    """The verb as its help calls it, and the function with its options: of training or serving."""
    if "--serve" in args and "--train" not in args:
        from shardwise.cli import plan_serve

        return f"{name} --serve", plan_serve.run
    return name, run


def run(
    model: Model,
    hardware: Hardware,
    train: Annotated[
        bool, typer.Option("--train", help="plan a training step", rich_help_panel=WORK)
    ] = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="plan serving: shardwise plan --serve --help", rich_help_panel=WORK
        ),
    ] = False,
    batch: Annotated[
        str,
        typer.Option(
            metavar="NxT",
            help="the global batch: sequences x length, 1120x4096",
            rich_help_panel=WORK,
        ),
    ] = "",
    tokens: Annotated[
        str, typer.Option(metavar="N", help="tokens of the whole run: 15T", rich_help_panel=WORK)
    ] = "",
    mesh: Annotated[
        str,
        typer.Option(
            metavar="ROLE=N,...",
            help="take this split: tensor=8,fsdp=32,zero=1",
            rich_help_panel=SPLIT,
        ),
    ] = "",
    fix: Annotated[
        str,
        typer.Option(
            metavar="WHAT=...",
            help="search with these: tensor=8,zero=1,schedule=1f1b,virtual=2",
            rich_help_panel=SPLIT,
        ),
    ] = "",
    most: Annotated[
        str,
        typer.Option(
            "--max",
            metavar="ROLE=N,...",
            help="search up to these: tensor=8,pipe=4",
            rich_help_panel=SPLIT,
        ),
    ] = "",
    remat: Annotated[
        str, typer.Option(metavar="WORD", help=", ".join(REMAT_WORDS), rich_help_panel=SPLIT)
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(metavar="DTYPE", help="of the arithmetic: bf16, fp8", rich_help_panel=WORK),
    ] = "bf16",
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help=", ".join(OPTIMIZER_MOMENTS), rich_help_panel=WORK)
    ] = "adamw",
    reduce: Annotated[
        str,
        typer.Option(metavar="DTYPE", help="gradients are sent in it: int8", rich_help_panel=WORK),
    ] = "",
    overlap: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help=f"also hidden: {', '.join(CHOSEN_OVERLAPS)}",
            rich_help_panel=SPLIT,
        ),
    ] = "",
    offload: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help=f"in host memory: {', '.join(CHOSEN_OFFLOADS)}",
            rich_help_panel=SPLIT,
        ),
    ] = "",
    peak: Annotated[
        bool,
        typer.Option("--peak", help="expect peak rates, as the book does", rich_help_panel=RATES),
    ] = False,
    mtbf: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="between failures of one chip: 50000h", rich_help_panel=RATES
        ),
    ] = "",
    restart: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="from a failure to new steps  [default: 10min]",
            rich_help_panel=RATES,
        ),
    ] = "",
    pareto: Annotated[
        str,
        typer.Option(
            metavar="WHAT", help="step time against memory, or against chips", rich_help_panel=TOLD
        ),
    ] = "",
    top: Annotated[
        str, typer.Option(metavar="N", help="list the N best splits", rich_help_panel=TOLD)
    ] = "1",
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="save the plan as JSON", rich_help_panel=TOLD
        ),
    ] = "",
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="show all tables", rich_help_panel=TOLD)
    ] = False,
    json: Json = False,
) -> Answer:
    """How to split a training step over a machine, with time, memory, cost and reasons."""
    inputs = Inputs()
    if serve:
        inputs.refuse("--train and --serve are different work. Ask for one of them.")
    elif not train:
        inputs.refuse("what to plan is not said. Add --train or --serve.")
    if mesh and (fix or most):
        inputs.refuse("--mesh gives the whole split, --fix and --max a part of it. Use one.")
    config = inputs.read(sw.model, model)
    system = inputs.read(sw.hardware, hardware)
    job = inputs.read(read_job, batch, tokens, dtype, optimizer, remat, reduce, overlap, offload)
    whole = inputs.read(parse_fixed, mesh) if mesh else {}
    fixed = inputs.read(parse_fixed, fix) if fix else {}
    limits = inputs.read(parse_mesh, most, roles()) if most else {}
    n = inputs.read(parse_count, top)
    between = inputs.read(_time, mtbf, "--mtbf") if mtbf else None
    again = inputs.read(_time, restart, "--restart") if restart else None
    if pareto:
        inputs.read(parse_word, pareto, "front", FRONTS)
        given = {"--mesh": mesh, "-o": output, "--mtbf": mtbf, "--top": "" if n == 1 else top}
        other = [name for name, value in given.items() if value]
        if other:
            inputs.refuse(f"--pareto lists many plans; {', '.join(other)} is for one.")
    if restart and not mtbf:
        inputs.refuse("--restart needs --mtbf, the time between failures of one chip.")
    inputs.done()
    if pareto:
        return _front(config, system, job, fixed, limits, pareto, peak, verbose, json)
    with progress(f"searching splits of {system.n_chips:,} chips"):
        if mesh:
            split, words = split_of(whole)
            plans = [sw.evaluate(config, system, job, split, words, peak=peak)]
        else:
            plans = sw.search(config, system, job, fixed, n, most=limits, peak=peak)
    if between:
        from shardwise.plan.training.failures import RESTART_S, with_failures

        plans = [with_failures(plan, between, again or RESTART_S) for plan in plans]
    return _answer(plans, output, verbose=verbose, as_json=json)


def _front(
    config: sw.ModelConfig,
    system: sw.System,
    job: sw.Train,
    fixed: Choices,
    limits: Mapping[str, int],
    against: str,
    peak: bool,
    verbose: bool,
    as_json: bool,
) -> Answer:
    """The front against memory or chips."""
    from shardwise.plan.training.pareto import chips_front, memory_front
    from shardwise.report.training import pareto as fronts

    find = memory_front if against == "memory" else chips_front
    with progress(f"searching every split of {system.n_chips:,} chips"):
        front = find(config, system, job, fixed, most=limits, peak=peak)
    return Answer(
        document=lambda: front,
        blocks=fronts.blocks(front, verbose=verbose),
        as_json=as_json,
    )


def _answer(plans: list[sw.Plan], output: str, *, verbose: bool, as_json: bool) -> Answer:
    best = plans[0]
    if output:
        best.save(output)
    blocks = [*report.blocks(best, verbose=verbose, saved=output)]
    if len(plans) > 1:
        blocks = [*blocks, "", report.ranked(plans)]
    fits = best.memory.total + best.memory.margin <= best.memory.capacity
    return Answer(
        document=lambda: best if len(plans) == 1 else {"plans": plans},
        blocks=blocks,
        as_json=as_json,
        exit_code=0 if fits else NoPlan.exit_code,
    )


def parse_count(text: str) -> int:
    """How many plans to list.

    Raises:
        BadInput: more than can be read.
    """
    n = units.parse_whole(text, "--top")
    if n > MOST:
        raise BadInput(f"--top {n:,} is more than {MOST}, which is as many as can be read.")
    return n


def _time(text: str, what: str) -> float:
    seconds = units.parse_seconds(text, what)
    if not seconds:
        raise BadInput(f"{what} {text} is no time: above 0.")
    return seconds
