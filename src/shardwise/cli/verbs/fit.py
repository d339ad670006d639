"""`shardwise fit MODEL CHIP [--serve | --train]`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_word, parse_words, plain_dtypes
from shardwise.cli.machines import has_size
from shardwise.cli.options import argument
from shardwise.errors import DoesNotFit
from shardwise.report import fit as report
from shardwise.report.fit import FitResult, Need, Room
from shardwise.search.fit import fit_on
from shardwise.search.machines import machines_of
from shardwise.workload import OPTIMIZER_MOMENTS, cache_dtype_for, state_dtypes

Job = sw.Train | sw.Serve
ChipAndSystem = tuple[sw.Chip, sw.System | None]  # no system if the command names a chip alone

SEQ = int(options.CONTEXT)  # tokens of a sequence in training


def run(
    model: options.Model,
    hardware: Annotated[str, argument("CHIP", "v5e: the smallest machine; v5e:4x4: this one")],
    train: options.Training = False,
    serve: options.Serving = False,
    dtype: options.WeightDtypes = "",
    kv_dtype: options.KvDtype = "",
    context: options.ContextLength = "",
    batch: options.SequenceCount = "1",
    optimizer: options.Optimizer = "adamw",
    precision: options.Precision = "",
    json: options.Json = False,
) -> Answer:
    """The smallest machine that holds a model, and what is left on it: weights and KV cache, or
    with --train weights, gradients and optimizer state. Several dtypes (bf16,int8) give a row
    each."""
    inputs = Inputs()
    if train and serve:
        inputs.refuse("--train and --serve hold different things. Ask for one of them.")
    config = inputs.read(sw.model, model)
    machine = inputs.read(_chip_and_system, hardware)
    published = config.checkpoint_dtype if config and not train else "bf16"
    dtype, kv_dtype = map(plain_dtypes, (dtype, kv_dtype))
    dtypes = inputs.read(parse_words, dtype or published, "dtype", units.BYTES_PER_ELEMENT) or ()
    inputs.optional(parse_word, kv_dtype, "dtype", units.BYTES_PER_ELEMENT)
    length = inputs.read(units.parse_length, context or options.CONTEXT, "context")
    sequences = inputs.read(units.parse_whole, batch, "batch")
    inputs.read(parse_word, optimizer, "optimizer", OPTIMIZER_MOMENTS)
    if train and len(dtypes) > 1:
        inputs.refuse(f"--train takes one dtype; {dtype} are {len(dtypes)}.")
    if precision and not train:
        inputs.refuse("--precision is of the training state. Add --train, or leave it out.")
    elif dtypes:
        inputs.read(state_dtypes, precision, dtypes[0])
    inputs.done()
    jobs: list[Job] = []
    for weight_dtype in dtypes:
        if train:
            jobs.append(_training(weight_dtype, precision, optimizer))
        else:
            jobs.append(_serving(weight_dtype, kv_dtype, length, sequences))
    needs = tuple(_need(config, machine, job) for job in jobs)
    if not any(need.fits for need in needs):
        raise DoesNotFit(*_refusal(config, machine, jobs, needs))
    result = FitResult(
        model=config.name,
        hardware=hardware,
        kind="serve",
        n_parameters=sw.parameters(config).total,
        context=length,
        batch=sequences,
        optimizer=None,
        needs=needs,
    )
    if train:
        result = replace(result, kind="train", context=SEQ, batch=None, optimizer=optimizer)
    return Answer(
        document=lambda: report.document(result), blocks=report.blocks(result), as_json=json
    )


def _chip_and_system(text: str) -> ChipAndSystem:
    """Parse a chip, or a machine and its chip."""
    if not has_size(text):
        return sw.chip(text), None
    system = sw.hardware(text)
    return system.chip, system


def _serving(dtype: str, kv_dtype: str, context: int, batch: int) -> sw.Serve:
    return sw.Serve(
        context=context, batch=batch, weights=dtype, kv=kv_dtype or cache_dtype_for(dtype)
    )


def _training(dtype: str, precision: str, optimizer: str) -> sw.Train:
    """A job whose training state is measured; its batch does not matter."""
    dtypes = state_dtypes(precision, dtype)
    return sw.Train(batch=1, seq=SEQ, **dtypes, compute=dtype, optimizer=optimizer)  # type: ignore[arg-type]


def _need(config: sw.ModelConfig, machine: ChipAndSystem, job: Job) -> Need:
    """The memory of a job, and the machine: the given one, or the smallest that holds the job."""
    chip, system = machine
    if system:
        fit = fit_on(config, system, job)
    else:
        fit = _smallest(config, chip, job) or fit_on(config, list(machines_of(chip))[-1], job)
    kv_dtype = job.kv if isinstance(job, sw.Serve) else None
    return Need(
        dtype=job.weights,
        kv_dtype=kv_dtype,
        held=fit.state,
        bytes_per_parameter=_bytes_per_parameter(job),
        kv_bytes_per_token=_kv_bytes_per_token(config, job),
        kv_bytes_per_sequence=fit.kv_bytes_per_sequence,
        system=fit.system,
        n_chips=fit.n_chips,
        batch=fit.batch,
        rooms=(_bare_room(chip, fit), _planned_room(fit)),
    )


def _smallest(config: sw.ModelConfig, chip: sw.Chip, job: Job) -> sw.Fit | None:
    """The smallest machine that holds the job, or None."""
    try:
        return sw.fit(config, chip, job)
    except DoesNotFit:
        return None


def _bare_room(chip: sw.Chip, fit: sw.Fit) -> Room:
    """What the weights alone leave of the documented memory, as the book counts."""
    hbm_bytes = chip.need("hbm_bytes") * fit.n_chips
    left_bytes = hbm_bytes - fit.state_bytes
    sequences = None
    if fit.kv_bytes_per_sequence is not None:
        free = hbm_bytes - fit.state["weights"]
        sequences = max(0, int(free // fit.kv_bytes_per_sequence))
    return Room(
        capacity="documented",
        hbm_bytes_per_chip=hbm_bytes / fit.n_chips,
        hbm_bytes=hbm_bytes,
        fits=left_bytes >= 0,
        left_bytes=left_bytes,
        sequences=sequences,
    )


def _planned_room(fit: sw.Fit) -> Room:
    """What a plan leaves of the memory that programs see."""
    return Room(
        capacity="planned",
        hbm_bytes_per_chip=fit.hbm_bytes / fit.n_chips,
        hbm_bytes=fit.hbm_bytes,
        fits=fit.fits,
        left_bytes=fit.left_bytes,
        sequences=fit.sequences,
    )


def _bytes_per_parameter(job: Job) -> dict[str, float]:
    if isinstance(job, sw.Serve):
        return {"weights": units.bytes_per_element(job.weights)}
    return {
        "weights": job.weight_bytes,
        "gradients": units.bytes_per_element(job.gradients),
        "optimizer": job.optimizer_bytes,
    }


def _kv_bytes_per_token(config: sw.ModelConfig, job: Job) -> float | None:
    if isinstance(job, sw.Serve):
        return float(sw.kv_bytes_per_token(config, job.kv))
    return None


def _refusal(
    config: sw.ModelConfig, machine: ChipAndSystem, jobs: list[Job], needs: tuple[Need, ...]
) -> list[str]:
    """The problems of a model that fits in no dtype, and the machines that would hold it."""
    problems = []
    for need in needs:
        held_parts = " + ".join(
            f"{part} {units.show_bytes(n_bytes)}" for part, n_bytes in need.held.items()
        )
        hbm_bytes = need.rooms[1].hbm_bytes
        problem = (
            f"does not fit: {config.name} in {need.dtype} holds {held_parts}, of "
            f"{units.show_bytes(hbm_bytes)} on {need.system}"
        )
        if need.held_bytes > hbm_bytes:
            problems.append(f"{problem} (×{need.held_bytes / hbm_bytes:.2f}).")
        else:
            problems.append(f"{problem}: too little is left for activations and copies.")
    chip, system = machine
    if system is None:
        problems.append(
            f"{needs[0].system} is the largest machine of {chip.name} that can be built, or whose "
            "links have a figure."
        )
        return problems
    offers = []
    for job in jobs:
        smallest = _smallest(config, chip, job)
        if smallest:
            offers.append(f"{job.weights} {smallest.system} ({smallest.n_chips:,} chips)")
    if offers:
        problems.append(f"Smallest that fit: {', '.join(offers)}.")
    else:
        problems.append(f"No machine of {chip.name} holds it; a chip with more HBM may.")
    return problems
