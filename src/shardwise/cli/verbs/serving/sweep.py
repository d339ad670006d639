"""`shardwise sweep MODEL HARDWARE --serve --batch 1-64*2 --dtype bf16,int8`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_word, plain_dtypes
from shardwise.cli.machines import parse_machine, parse_machines
from shardwise.cli.options import strategy
from shardwise.cli.progress import counting
from shardwise.cli.sweeping import read_lengths, read_numbers, read_words, sweep_answer
from shardwise.cli.verbs.serving.workload import (
    USERS_NEED_A_BOUND,
    check_lengths,
    parse_rate,
    parse_share,
    require_draft,
    weights_of,
)
from shardwise.estimate.serving.overhead import ENGINES
from shardwise.plan.serving import sweep
from shardwise.report.serving import sweep as report
from shardwise.report.tables import FORMATS
from shardwise.search.serving.layouts import WORD_OPTIONS


def run(
    model: options.Model,
    hardware: options.Machines,
    serve: options.Serving = False,
    batch: options.SequenceCount = "",
    context: options.ContextLength = "",
    prompt: options.PromptLength = "",
    output: options.OutputLength = "",
    dtype: options.WeightDtypes = "",
    kv_dtype: options.KvDtype = "",
    compute: options.ComputeDtype = "",
    rate: options.RequestRate = "",
    users: options.UserCount = "",
    ttft: options.TtftBound = "",
    tpot: options.TpotBound = "",
    cached: options.CachedShare = "",
    draft: options.DraftedTokens = "",
    acceptance: options.AcceptedShare = "",
    engine: options.ServingEngine = "",
    tensor: options.TensorAxis = "",
    expert: options.ExpertAxis = "",
    pipe: options.PipeAxis = "",
    fsdp: options.FsdpAxis = "",
    data: options.ReplicaAxis = "",
    weights: Annotated[
        str,
        strategy("--weights WORD", f"split of the weights: {', '.join(WORD_OPTIONS['weights'])}"),
    ] = "",
    kv: Annotated[
        str, strategy("--kv WORD", f"split of the KV cache: {', '.join(WORD_OPTIONS['kv'])}")
    ] = "",
    disaggregate: options.Disaggregate = None,
    peak: options.PeakRates = False,
    file: options.ServingTableFormat = "",
    json: options.Json = False,
) -> Answer:
    """The best deployment for every combination of options. Any number can be a list or a range,
    as --batch 1,8 or --batch 1-64*2; any word a list, or all: --kv all. Under a --rate
    or --users, requests are simulated as by plan; the times are their medians."""
    inputs = Inputs()
    check_lengths(inputs, prompt, output, context)
    for name, text in {"--rate": rate, "--users": users}.items():
        if text and not output:
            inputs.refuse(f"{name} needs the length of requests: --prompt N --output N.")
    if users and not (ttft or tpot):
        inputs.refuse(USERS_NEED_A_BOUND)
    require_draft(inputs, draft, acceptance=acceptance)
    config = inputs.read(sw.model, model)
    machines = inputs.read(parse_machines, hardware, parse_machine)
    if not (prompt or output):
        context = context or options.CONTEXT
    dtypes = tuple(units.BYTES_PER_ELEMENT)
    word_options = read_words(
        inputs,
        dtype=(plain_dtypes(weights_of(config, dtype)), dtypes),
        kv_dtype=(plain_dtypes(kv_dtype), dtypes),
        compute=(plain_dtypes(compute), dtypes),
        engine=(engine, tuple(ENGINES)),
        weights=(weights, WORD_OPTIONS["weights"]),
        kv=(kv, WORD_OPTIONS["kv"]),
    )
    length_options = read_lengths(inputs, context=context, prompt=prompt, output=output)
    number_options = read_numbers(
        inputs,
        batch=batch,
        drafted=draft,
        tensor=tensor,
        expert=expert,
        pipe=pipe,
        fsdp=fsdp,
        data=data,
        users=users,
    )
    quantities = {
        "rate": _quantities(inputs, rate, parse_rate),
        "ttft_s": _quantities(inputs, ttft, units.parse_seconds, "--ttft"),
        "tpot_s": _quantities(inputs, tpot, units.parse_seconds, "--tpot"),
        "cached": _quantities(inputs, cached, parse_share, "--cached"),
        "acceptance": _quantities(inputs, acceptance, parse_share, "--acceptance"),
    }
    inputs.optional(parse_word, file, "format", FORMATS)
    inputs.done()
    quantity_options = {name: values for name, values in quantities.items() if values}
    with counting("deployments", quiet=json) as progress:
        result = sweep.sweep(
            config,
            machines,
            sw.Serve(context=1),
            peak=peak,
            disaggregate=disaggregate,
            progress=progress,
            **word_options,
            **length_options,
            **number_options,
            **quantity_options,
        )
    return sweep_answer(result, report.blocks, report.as_markdown, file, as_json=json)


def _quantities(
    inputs: Inputs, text: str, parse: Callable[..., float], *option: str
) -> tuple[float, ...]:
    """Parse a list of rates, times or shares, each by `parse(part, *option)`."""
    if not text:
        return ()
    return tuple(inputs.read(parse, word, *option) for word in text.split(","))
