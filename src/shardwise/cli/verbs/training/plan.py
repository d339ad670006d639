"""`shardwise plan MODEL HARDWARE --train --batch 1120x4096`."""

from __future__ import annotations

from typing import Annotated, Any

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import (
    Inputs,
    names_of_set_options,
    parse_fixed,
    parse_mesh,
    parse_output_file,
    parse_top,
    parse_word,
    roles,
    split_settings,
)
from shardwise.cli.machines import compared_chips, refuse_with_many
from shardwise.cli.options import output, rates, workload
from shardwise.cli.progress import progress
from shardwise.cli.verbs.training.workload import check_workload, read_job
from shardwise.errors import BadInput, NoPlan
from shardwise.plan.training.choice import choose, chosen_system
from shardwise.report import machine_choice as choice_report
from shardwise.report.document import plans_document, save
from shardwise.report.training import plan as report

PARETO_AXES = ("memory", "chips")
USUAL_BATCH = "1024x4096"  # of a run whose machine is chosen: 4M tokens, as of LLaMA 3's start


def run(
    model: options.Model,
    hardware: options.MachineOrAny,
    train: options.Training = False,
    serve: options.Serving = False,
    batch: options.GlobalBatch = "",
    tokens: options.TrainingTokens = "",
    within: Annotated[
        str, workload("--within TIME", "the longest run, for the choice of a machine: 30d")
    ] = "",
    budget: Annotated[
        str, workload("--budget USD", "the dearest run, for the choice of a machine: 50M")
    ] = "",
    dtype: options.TrainingDtype = "bf16",
    precision: options.Precision = "",
    optimizer: options.Optimizer = "adamw",
    mtp: options.MtpLayers = "",
    reduce: options.ReductionDtype = "",
    mesh: options.WholeStrategy = "",
    fix: options.FixedSettings = "",
    most: options.SizeLimits = "",
    any_layout: options.AnyLayout = False,
    remat: options.RematPolicy = "auto",
    overlap: options.ChosenOverlap = "",
    offload: options.OffloadedState = "",
    framework: options.TrainingFramework = "",
    kernels: options.KernelSettings = "",
    peak: options.PeakRates = False,
    mtbf: Annotated[str, rates("--mtbf TIME", "between failures of one chip: 50000h")] = "",
    restart: Annotated[
        str, rates("--restart TIME", "from a failure to new steps  [default: 10min]")
    ] = "",
    pareto: Annotated[
        str, output("--pareto AXIS", "step time against memory, or against chips")
    ] = "",
    top: options.PlanCount = "1",
    file: options.OutputFile = "",
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> Answer:
    """How to split a training step over a machine, with time, memory, cost and reasons. --mesh
    and --fix also take zero=1,schedule=1f1b,virtual=2. For serving: shardwise plan --serve
    --help."""
    inputs = Inputs()
    check_workload(inputs, train, serve)
    if mesh and (fix or most):
        inputs.refuse("--mesh gives the whole split, --fix and --max a part of it. Use one.")
    if mesh and any_layout:
        inputs.refuse("--mesh gives the split, --any-layout searches for one. Use one.")
    config = inputs.read(sw.model, model)
    chips = inputs.read(compared_chips, hardware, with_one=bool(tokens))
    system = None
    if chips == []:
        system = inputs.read(sw.hardware, hardware)
    if chips and not batch:
        batch = USUAL_BATCH
    job = inputs.read(
        read_job,
        batch,
        tokens,
        dtype,
        optimizer,
        remat,
        reduce,
        overlap,
        offload,
        precision,
        framework,
        kernels,
        mtp,
    )
    whole_strategy = inputs.optional(parse_fixed, mesh)
    fixed = inputs.optional(parse_fixed, fix) or {}
    limits = inputs.optional(parse_mesh, most, roles()) or {}
    plan_count = inputs.read(parse_top, top)
    inputs.optional(parse_output_file, file)
    chip_mtbf_s = inputs.optional(_parse_duration, mtbf, "--mtbf")
    restart_s = inputs.optional(_parse_duration, restart, "--restart")
    if pareto:
        inputs.read(parse_word, pareto, "front", PARETO_AXES)
        single_plan_options = {
            "--mesh": mesh,
            "-o": file,
            "--mtbf": mtbf,
            "--top": plan_count != 1,
        }
        names = names_of_set_options(single_plan_options)
        if names:
            inputs.refuse(f"--pareto lists many plans; {names} is for one.")
    if restart and not mtbf:
        inputs.refuse("--restart needs --mtbf, the time between failures of one chip.")
    within_s = inputs.optional(_parse_duration, within, "--within")
    budget_usd = inputs.optional(units.parse_count, budget.lstrip("$"), "--budget")
    if chips:
        one_machine = {
            "--mesh": mesh,
            "--fix": fix,
            "--max": most,
            "--any-layout": any_layout,
            "--mtbf": mtbf,
            "--pareto": pareto,
            "--top": plan_count != 1,
        }
        refuse_with_many(inputs, hardware, one_machine)
    elif within or budget:
        inputs.refuse("--within and --budget choose a machine: give any, or h100,v5p.")
    inputs.done()
    if system is None:
        with progress(f"comparing machines of {len(chips)} chips", quiet=json):
            choice = choose(config, chips, job, within_s=within_s, budget_usd=budget_usd, peak=peak)
        if file:
            save(sw.plan(config, chosen_system(choice, chips), job, peak=peak), file)
        return Answer(
            document=lambda: choice,
            blocks=choice_report.training_blocks(choice, verbose=verbose, saved=file),
            as_json=json,
        )
    search_options: dict[str, Any] = {"most": limits, "any_layout": any_layout, "peak": peak}
    if pareto:
        from shardwise.plan.training.pareto import chips_front, memory_front
        from shardwise.report.training import pareto as front_report

        searches = {"memory": memory_front, "chips": chips_front}
        with progress(f"searching every split of {system.n_chips:,} chips", quiet=json):
            front = searches[pareto](config, system, job, fixed, **search_options)
        return Answer(
            document=lambda: front,
            blocks=front_report.blocks(front, verbose=verbose),
            as_json=json,
        )
    with progress(f"searching splits of {system.n_chips:,} chips", quiet=json):
        if whole_strategy:
            sizes, other_settings = split_settings(whole_strategy)
            plans = [sw.evaluate(config, system, job, sizes, other_settings, peak=peak)]
        else:
            plans = sw.search(config, system, job, fixed, plan_count, **search_options)
    if chip_mtbf_s:
        from shardwise.plan.training.failures import RESTART_S, with_failures

        restart_s = restart_s or RESTART_S
        plans = [with_failures(plan, chip_mtbf_s, restart_s) for plan in plans]
    return _answer(plans, file, verbose=verbose, as_json=json)


def _answer(plans: list[sw.Plan], file: str, *, verbose: bool, as_json: bool) -> Answer:
    best_plan = plans[0]
    if file:
        save(best_plan, file)
    blocks = [*report.blocks(best_plan, verbose=verbose, saved=file)]
    if len(plans) > 1:
        blocks = [*blocks, "", report.ranked(plans)]
    return Answer(
        document=lambda: plans_document(plans),
        blocks=blocks,
        as_json=as_json,
        exit_code=0 if best_plan.memory.left >= 0 else NoPlan.exit_code,
    )


def _parse_duration(text: str, option: str) -> float:
    """Parse a time above 0 to seconds."""
    seconds = units.parse_seconds(text, option)
    if not seconds:
        raise BadInput(f"{option} {text} must be a time above 0.")
    return seconds
