"""`shardwise fit MODEL CHIP [--serve | --train]`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_word, parse_words
from shardwise.cli.machines import has_size
from shardwise.cli.options import argument
from shardwise.errors import DoesNotFit
from shardwise.report import fit as report
from shardwise.report.fit import FitResult, Need, Room
from shardwise.search.fit import machine_sizes
from shardwise.workload import OPTIMIZER_MOMENTS, state_dtypes

Job = sw.Train | sw.Serve
ChipAndSystem = tuple[sw.Chip, sw.System | None]  # no system if the command names a chip alone

CONTEXT = "8192"  # tokens of a sequence, unless --context says otherwise


def run(
    model: options.Model,
    hardware: Annotated[str, argument("CHIP", "v5e: the smallest machine; v5e:4x4: this one")],
    train: options.Training = False,
    serve: options.Serving = False,
    dtype: options.WeightDtypes = "bf16",
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
    dtypes = inputs.read(parse_words, dtype, "dtype", units.BYTES_PER_ELEMENT) or ()
    inputs.optional(parse_word, kv_dtype, "dtype", units.BYTES_PER_ELEMENT)
    length = inputs.read(units.parse_whole, context or CONTEXT, "context")
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
    parameters = sw.parameters(config).total
    if train:
        result = FitResult(
            model=config.name,
            hardware=hardware,
            kind="train",
            n_parameters=parameters,
            context=None,
            batch=None,
            optimizer=optimizer,
            needs=needs,
        )
    else:
        result = FitResult(
            model=config.name,
            hardware=hardware,
            kind="serve",
            n_parameters=parameters,
            context=length,
            batch=sequences,
            optimizer=None,
            needs=needs,
        )
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
    return sw.Serve(context=context, batch=batch, weights=dtype, kv=kv_dtype or dtype)


def _training(dtype: str, precision: str, optimizer: str) -> sw.Train:
    """A job whose training state is measured; its batch does not matter."""
    dtypes = state_dtypes(precision, dtype)
    return sw.Train(batch=1, seq=1, **dtypes, compute=dtype, optimizer=optimizer)  # type: ignore[arg-type]


def _need(config: sw.ModelConfig, machine: ChipAndSystem, job: Job) -> Need:
    """The memory of a job, and the machine: the given one, or the smallest that holds the job."""
    chip, system = machine
    if system:
        system_name = system.name
        n_chips = system.n_chips
    else:
        system_name, n_chips = _smallest(config, chip, job)
    capacities = {"documented": chip.need("hbm_bytes")}
    if chip.hbm_usable_bytes is not None:
        capacities["usable"] = chip.hbm_usable_bytes
    fits = {}
    for capacity, hbm_bytes in capacities.items():
        fits[capacity] = _fit_of_size(config, chip, job, n_chips, hbm_bytes)
    documented = fits["documented"]
    kv_dtype = job.kv if isinstance(job, sw.Serve) else None
    return Need(
        dtype=job.weights,
        kv_dtype=kv_dtype,
        held=documented.held,
        bytes_per_parameter=_bytes_per_parameter(job),
        kv_bytes_per_token=_kv_bytes_per_token(config, job),
        kv_bytes_per_sequence=documented.kv_bytes_per_sequence,
        system=system_name,
        n_chips=n_chips,
        rooms=tuple(
            _room(fit, capacity, capacities[capacity], n_chips) for capacity, fit in fits.items()
        ),
    )


def _smallest(config: sw.ModelConfig, chip: sw.Chip, job: Job) -> tuple[str, int]:
    """Name and chips of the smallest machine that holds the job, or else of the largest machine."""
    return _holder(config, chip, job) or list(machine_sizes(chip))[-1]


def _holder(config: sw.ModelConfig, chip: sw.Chip, job: Job) -> tuple[str, int] | None:
    """Name and chips of the smallest machine that holds the job, or None."""
    try:
        fit = sw.fit(config, chip, job)
    except DoesNotFit:
        return None
    return fit.system, fit.n_chips


def _fit_of_size(
    config: sw.ModelConfig, chip: sw.Chip, job: Job, n_chips: int, hbm_bytes: float
) -> sw.Fit:
    """The fit on a machine of `n_chips` chips, which need not be the smallest that holds the job.

    The machine is passed to `sw.fit` as a single chip with the memory of all of them. A fit on two
    such chips means that the machine does not hold the job.
    """
    pooled_chip = dataclasses.replace(chip, hbm_bytes=hbm_bytes * n_chips, ici=None, node=None)
    return sw.fit(config, pooled_chip, job)


def _room(fit: sw.Fit, capacity: str, hbm_bytes: float, n_chips: int) -> Room:
    """The memory left on a machine of `n_chips` chips.

    Args:
        fit: of the machine as a single chip.
        hbm_bytes: memory of one chip.
    """
    left_bytes = hbm_bytes * n_chips - fit.held_bytes
    sequences = None
    tokens_per_chip = None
    if left_bytes >= 0:
        sequences = fit.sequences
        if fit.tokens_per_chip is not None:
            tokens_per_chip = fit.tokens_per_chip // n_chips
    return Room(
        capacity=capacity,
        hbm_bytes_per_chip=hbm_bytes,
        hbm_bytes=hbm_bytes * n_chips,
        fits=left_bytes >= 0,
        left_bytes=left_bytes,
        sequences=sequences,
        tokens_per_chip=tokens_per_chip,
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
        room = need.rooms[0]
        held_parts = " + ".join(
            f"{part} {units.show_bytes(n_bytes)}" for part, n_bytes in need.held.items()
        )
        problems.append(
            f"does not fit: {config.name} in {need.dtype} holds {held_parts}, more than the "
            f"{units.show_bytes(room.hbm_bytes)} of {need.system} "
            f"(×{need.held_bytes / room.hbm_bytes:.2f})."
        )
    chip, system = machine
    if system is None:
        return problems
    offers = []
    for job in jobs:
        holder = _holder(config, chip, job)
        if holder:
            offers.append(f"{job.weights} {holder[0]} ({holder[1]:,} chips)")
    if offers:
        problems.append(f"Smallest that fit: {', '.join(offers)}.")
    else:
        problems.append(f"No machine of {chip.name} holds it; a chip with more HBM may.")
    return problems
