"""`shardwise plan MODEL HARDWARE --serve --prompt 2048 --output 512 --rate 20/s --tpot 30ms`."""

from __future__ import annotations

from typing import Annotated

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_mesh, parse_output_file, parse_top, roles
from shardwise.cli.machines import compared_chips, parse_machine, refuse_with_many
from shardwise.cli.options import workload
from shardwise.cli.progress import progress
from shardwise.cli.verbs.serving.traffic import read_traffic
from shardwise.cli.verbs.serving.workload import RequestOptions, parse_engine, read_jobs, weights_of
from shardwise.hardware import chip_of
from shardwise.plan.serving import build
from shardwise.plan.serving.arrivals import is_recording
from shardwise.plan.serving.choice import choose
from shardwise.report import machine_choice as choice_report
from shardwise.report.document import plans_document, save
from shardwise.report.serving import plan as report


def run(
    model: options.Model,
    hardware: options.MachineOrChip,
    serve: options.Serving = False,
    prompt: options.PromptLength = "",
    output: options.OutputLength = "",
    context: options.ContextLength = "",
    batch: options.SequenceCount = "",
    rate: options.RequestRate = "",
    users: options.UserCount = "",
    ttft: options.TtftBound = "",
    tpot: options.TpotBound = "",
    traffic: Annotated[
        str,
        workload(
            "--traffic KIND",
            "poisson, constant, bursty[:CV], or requests in a .csv or .jsonl; off: only means  "
            "[default: poisson under --rate]",
        ),
    ] = "",
    at: Annotated[
        str,
        workload("--at pN", "percentile of the requests that meet the bounds  [default: p99]"),
    ] = "",
    capacity: Annotated[
        bool, workload("--capacity", "find the highest rate that meets the bounds")
    ] = False,
    dtype: options.WeightDtypes = "",
    kv_dtype: options.KvDtype = "",
    compute: options.ComputeDtype = "",
    cached: options.CachedShare = "",
    draft: options.DraftedTokens = "",
    acceptance: options.AcceptedShare = "",
    draft_cost: Annotated[
        str,
        workload("--draft-cost SHARE", "small model's pass over the large one's  [default: 5%]"),
    ] = "",
    engine: options.ServingEngine = "",
    disaggregate: options.Disaggregate = None,
    mesh: options.WholeStrategy = "",
    fix: options.FixedSettings = "",
    most: options.SizeLimits = "",
    peak: options.PeakRates = False,
    top: options.PlanCount = "1",
    file: options.ServingOutputFile = "",
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> Answer:
    """How to serve a model: engines, batch, latency, throughput, cost and reasons. The best batch
    is searched unless --batch gives it; of several dtypes (bf16,fp8) the best is taken. --mesh
    and --fix also take weights=2d,kv=batch."""
    inputs = Inputs()
    if mesh and (fix or most):
        inputs.refuse("--mesh gives the whole engine, --fix and --max a part of it. Use one.")
    config = inputs.read(sw.model, model)
    chips = inputs.read(compared_chips, hardware)
    machine = None
    if chips == []:
        machine = inputs.read(parse_machine, hardware)
    requests = RequestOptions(
        prompt=prompt,
        output=output,
        context=context,
        batch=batch,
        rate=rate,
        users=users,
        ttft=ttft,
        tpot=tpot,
        cached=cached,
        draft=draft,
        acceptance=acceptance,
        draft_cost=draft_cost,
        engine=engine,
    )
    chip = chip_of(machine) if machine else None
    arrivals = inputs.read(read_traffic, traffic, at, capacity, requests)
    recorded = is_recording(traffic)
    dtypes = weights_of(config, dtype)

    def jobs_on(chip: sw.Chip | None) -> tuple[sw.Serve, ...]:
        return read_jobs(requests, dtypes, kv_dtype, compute, chip, recorded=recorded)

    jobs = inputs.read(jobs_on, chip)
    fixed = inputs.read(parse_engine, mesh, fix)
    limits = inputs.optional(parse_mesh, most, roles()) or {}
    plan_count = inputs.read(parse_top, top)
    inputs.optional(parse_output_file, file)
    if chips:
        one_machine = {
            "--mesh": mesh,
            "--fix": fix,
            "--max": most,
            "--capacity": capacity,
            "--top": plan_count != 1,
        }
        refuse_with_many(inputs, hardware, one_machine)
    inputs.done()
    if machine is None:
        with progress(f"searching engines of {len(chips)} chips", quiet=json):
            choice = choose(
                config, chips, jobs_on, peak=peak, disaggregate=disaggregate, arrivals=arrivals
            )
        if file:
            save(choice.chosen, file)
        return Answer(
            document=lambda: choice,
            blocks=choice_report.serving_blocks(choice, verbose=verbose, saved=file),
            as_json=json,
        )
    with progress(f"searching engines of {hardware}", quiet=json):
        plans = build.search(
            config,
            machine,
            jobs,
            fixed,
            plan_count,
            most=limits,
            peak=peak,
            disaggregate=disaggregate,
            arrivals=arrivals,
            largest=capacity,
        )
    best_plan = plans[0]
    if file:
        save(best_plan, file)
    blocks = [*report.blocks(best_plan, verbose=verbose, saved=file)]
    if plan_count > 1:
        blocks = [*blocks, "", report.ranked(plans)]
    return Answer(
        document=lambda: plans_document(plans),
        blocks=blocks,
        as_json=json,
    )
