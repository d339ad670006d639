"""`shardwise explain PLAN.json`, or `shardwise explain MODEL HARDWARE --batch 1120x4096`."""

from __future__ import annotations

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.explanation import explain, parse_changes, read_model, read_saved
from shardwise.cli.inputs import Inputs, parse_fixed, split_settings
from shardwise.cli.progress import progress
from shardwise.cli.verbs.training.workload import read_job


def run(
    plan: options.PlanOrModel,
    hardware: options.MachineOfModel = "",
    serve: options.Serving = False,
    batch: options.GlobalBatch = "",
    tokens: options.TrainingTokens = "",
    dtype: options.TrainingDtype = "bf16",
    precision: options.Precision = "",
    optimizer: options.Optimizer = "adamw",
    mtp: options.MtpLayers = "",
    mesh: options.WholeStrategy = "",
    fix: options.FixedSettings = "",
    remat: options.RematPolicy = "auto",
    framework: options.TrainingFramework = "",
    kernels: options.KernelSettings = "",
    peak: options.PeakRates = False,
    what_if: options.WhatIfFactors = "",
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> Answer:
    """What binds a plan and by how much, what it depends on, and what would change the answer.
    For serving: shardwise explain --serve --help."""
    inputs = Inputs()
    factors = inputs.optional(parse_changes, what_if) or {}
    if not hardware:
        saved_plan = read_saved(inputs, plan)
        return explain(saved_plan, factors, verbose=verbose, as_json=json)
    if mesh and fix:
        inputs.refuse("--mesh gives the whole split, --fix a part of it. Use one.")
    config = inputs.read(read_model, plan)
    system = inputs.read(sw.hardware, hardware)
    job = inputs.read(
        read_job,
        batch,
        tokens,
        dtype,
        optimizer,
        remat,
        precision=precision,
        framework=framework,
        kernels=kernels,
        mtp=mtp,
    )
    whole_strategy = inputs.optional(parse_fixed, mesh)
    fixed = inputs.optional(parse_fixed, fix) or {}
    inputs.done()
    with progress(f"searching splits of {system.n_chips:,} chips", quiet=json):
        if whole_strategy:
            sizes, other_settings = split_settings(whole_strategy)
            best_plan = sw.evaluate(config, system, job, sizes, other_settings, peak=peak)
        else:
            best_plan = sw.plan(config, system, job, fixed, peak=peak)
    return explain(best_plan, factors, verbose=verbose, as_json=json)
