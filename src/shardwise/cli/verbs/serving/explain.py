"""`shardwise explain MODEL HARDWARE --serve --batch 32`, or `shardwise explain PLAN.json`."""

from __future__ import annotations

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.explanation import explain, parse_changes, read_model, read_saved
from shardwise.cli.inputs import Inputs
from shardwise.cli.machines import parse_machine
from shardwise.cli.progress import progress
from shardwise.cli.verbs.serving.traffic import read_traffic
from shardwise.cli.verbs.serving.workload import RequestOptions, parse_engine, read_jobs, weights_of
from shardwise.errors import BadInput
from shardwise.hardware import chip_of
from shardwise.plan.serving import build


def run(
    plan: options.PlanOrModel,
    hardware: options.MachineOfModel = "",
    serve: options.Serving = False,
    prompt: options.PromptLength = "",
    output: options.OutputLength = "",
    context: options.ContextLength = "",
    batch: options.SequenceCount = "",
    rate: options.RequestRate = "",
    users: options.UserCount = "",
    ttft: options.TtftBound = "",
    tpot: options.TpotBound = "",
    dtype: options.WeightDtypes = "",
    kv_dtype: options.KvDtype = "",
    compute: options.ComputeDtype = "",
    cached: options.CachedShare = "",
    draft: options.DraftedTokens = "",
    acceptance: options.AcceptedShare = "",
    engine: options.ServingEngine = "",
    disaggregate: options.Disaggregate = None,
    mesh: options.WholeStrategy = "",
    fix: options.FixedSettings = "",
    peak: options.PeakRates = False,
    what_if: options.WhatIfFactors = "",
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> Answer:
    """What binds a deployment at which batch, and what each change would gain. The deployment is
    that of plan with the same options."""
    inputs = Inputs()
    factors = inputs.optional(parse_changes, what_if) or {}
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
        engine=engine,
    )
    if not hardware:
        saved_plan = read_saved(inputs, plan)
        if not isinstance(saved_plan, sw.ServingPlan):
            raise BadInput(f"{plan} is a plan of training: leave --serve out.")
        return explain(saved_plan, factors, verbose=verbose, as_json=json)
    if mesh and fix:
        inputs.refuse("--mesh gives the whole engine, --fix a part of it. Use one.")
    config = inputs.read(read_model, plan)
    machine = inputs.read(parse_machine, hardware)
    chip = chip_of(machine) if machine else None
    dtypes = weights_of(config, dtype)
    jobs = inputs.read(read_jobs, requests, dtypes, kv_dtype, compute, chip)
    fixed = inputs.read(parse_engine, mesh, fix)
    arrivals = inputs.read(read_traffic, "", "", False, requests)
    inputs.done()
    with progress(f"searching engines of {hardware}", quiet=json):
        best_plan = build.plan(
            config,
            machine,
            jobs,
            fixed,
            peak=peak,
            disaggregate=disaggregate,
            arrivals=arrivals,
        )
    return explain(best_plan, factors, verbose=verbose, as_json=json)
