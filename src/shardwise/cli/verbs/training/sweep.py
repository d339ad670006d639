"""`shardwise sweep MODEL HARDWARE --train --batch 512-2048*2x4096 --tensor 1,2,4,8`."""

from __future__ import annotations

from typing import Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_word, plain_dtypes
from shardwise.cli.machines import parse_systems
from shardwise.cli.options import strategy
from shardwise.cli.progress import counting
from shardwise.cli.ranges import parse_batches
from shardwise.cli.sweeping import read_numbers, read_words, sweep_answer
from shardwise.cli.verbs.training.workload import check_workload, parse_choices
from shardwise.errors import BadShape
from shardwise.report.tables import FORMATS
from shardwise.report.training import sweep as report
from shardwise.search.training.forms import words
from shardwise.vocabulary import FRAMEWORKS, OPTIONAL_OFFLOADS, OPTIONAL_OVERLAPS, REMAT_WORDS
from shardwise.workload import OPTIMIZER_MOMENTS, PRECISIONS

CHOICES = words()  # option of the strategy -> the words that are allowed as its value


def run(
    model: options.Model,
    hardware: options.Machines,
    train: options.Training = False,
    serve: options.Serving = False,
    batch: options.GlobalBatch = "",
    tokens: options.TrainingTokens = "",
    dtype: options.TrainingDtype = "bf16",
    precision: options.Precision = "",
    optimizer: options.Optimizer = "adamw",
    mtp: options.MtpLayers = "",
    reduce: options.ReductionDtype = "",
    tensor: options.TensorAxis = "",
    context: Annotated[str, strategy("--context N", "size of the context axis")] = "",
    expert: options.ExpertAxis = "",
    fsdp: options.FsdpAxis = "",
    data: options.DataAxis = "",
    pipe: options.PipeAxis = "",
    microbatches: Annotated[str, strategy("--microbatches N", "microbatches per step")] = "",
    micro_batch: Annotated[str, strategy("--micro-batch N", "sequences per microbatch")] = "",
    virtual: Annotated[str, strategy("--virtual N", "chunks per interleaved stage")] = "",
    zero: Annotated[str, strategy("--zero STAGE", "stages of ZeRO: 0,1,2,3")] = "",
    schedule: Annotated[
        str, strategy("--schedule WORD", f"of the pipeline: {', '.join(CHOICES['schedule'])}")
    ] = "",
    context_kind: Annotated[
        str,
        strategy(
            "--context-kind WORD", f"context parallelism: {', '.join(CHOICES['context_kind'])}"
        ),
    ] = "",
    remat: options.RematPolicy = "auto",
    overlap: options.ChosenOverlap = "",
    offload: options.OffloadedState = "",
    framework: options.TrainingFramework = "",
    peak: options.PeakRates = False,
    output: options.TableFormat = "",
    json: options.Json = False,
) -> Answer:
    """The best plan for every combination of options. Any number can be a list or a range, as
    --tensor 1,2,4 or --batch 512-2048*2x4096; any word a list, or all: --schedule all. For
    serving: shardwise sweep --serve --help."""
    inputs = Inputs()
    check_workload(inputs, train, serve)
    config = inputs.read(sw.model, model)
    systems = inputs.read(parse_systems, hardware)
    batch_options = inputs.read(_batch_options, batch)
    number_options = read_numbers(
        inputs,
        tensor=tensor,
        context=context,
        expert=expert,
        fsdp=fsdp,
        data=data,
        pipe=pipe,
        n_microbatches=microbatches,
        micro_batch=micro_batch,
        virtual=virtual,
        zero=zero,
        mtp_layers=mtp,
    )
    dtypes = tuple(units.BYTES_PER_ELEMENT)
    word_options = read_words(
        inputs,
        schedule=(schedule, CHOICES["schedule"]),
        context_kind=(context_kind, CHOICES["context_kind"]),
        remat=(remat, REMAT_WORDS),
        optimizer=(optimizer, tuple(OPTIMIZER_MOMENTS)),
        dtype=(plain_dtypes(dtype), dtypes),
        precision=(precision, tuple(PRECISIONS)),
        reduce=(reduce, dtypes),
        framework=(framework.lower(), FRAMEWORKS),
    )
    total_tokens = inputs.optional(units.parse_count, tokens, "tokens")
    overlaps = inputs.read(parse_choices, overlap, "overlap", OPTIONAL_OVERLAPS)
    offloads = inputs.read(parse_choices, offload, "offload", OPTIONAL_OFFLOADS)
    inputs.optional(parse_word, output, "format", FORMATS)
    inputs.done()
    job = sw.Train(batch=1, seq=1, tokens=total_tokens, overlap=overlaps, offload=offloads)
    with counting("plans", quiet=json) as progress:
        result = sw.sweep(
            config,
            systems,
            job,
            peak=peak,
            progress=progress,
            **batch_options,
            **number_options,
            **word_options,
        )
    return sweep_answer(result, report.blocks, report.as_markdown, output, as_json=json)


def _batch_options(text: str) -> dict[str, tuple[int, ...]]:
    """Parse --batch to the sweep's options of sequences and of lengths, which it combines."""
    if not text:
        raise BadShape(
            "no batch is given. Add --batch SEQUENCESxLENGTH, as --batch 512-2048*2x4096."
        )
    sequences, lengths = zip(*parse_batches(text), strict=True)
    return {"batch": tuple(dict.fromkeys(sequences)), "seq": tuple(dict.fromkeys(lengths))}
