"""`shardwise fit MODEL CHIP [--serve | --train]`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

import shardwise as sw
from shardwise import units
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json, Model
from shardwise.cli.inputs import Inputs, is_sized, parse_word, parse_words
from shardwise.errors import DoesNotFit
from shardwise.report import fit as report
from shardwise.report.fit import FitResult, Need, Room
from shardwise.search.fit import sizes
from shardwise.workload import OPTIMIZER_MOMENTS, held_in

Job = sw.Train | sw.Serve
Machine = tuple[sw.Chip, sw.System | None]


def run(
    model: Model,
    hardware: Annotated[
        str, typer.Argument(metavar="CHIP", help="v5e: the smallest machine. v5e:4x4: this one")
    ],
    train: Annotated[bool, typer.Option("--train", help="weights, gradients, optimizer")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="weights and KV cache (default)")] = False,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE,...", help="of the weights: bf16,int8,int4")
    ] = "bf16",
    kv_dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="of the KV cache [default: that of the weights]")
    ] = "",
    context: Annotated[str, typer.Option(metavar="N", help="tokens of a sequence")] = "8192",
    batch: Annotated[str, typer.Option(metavar="N", help="sequences that must fit")] = "1",
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help=", ".join(OPTIMIZER_MOMENTS))
    ] = "adamw",
    json: Json = False,
) -> Answer:
    """The smallest machine that holds a model, and what is left on it."""
    inputs = Inputs()
    if train and serve:
        inputs.refuse("--train and --serve hold different things. Ask for one of them.")
    config = inputs.read(sw.model, model)
    machine = inputs.read(_machine, hardware)
    dtypes = inputs.read(parse_words, dtype, "dtype", units.BYTES_PER_ELEMENT) or ()
    if kv_dtype:
        inputs.read(parse_word, kv_dtype, "dtype", units.BYTES_PER_ELEMENT)
    length = inputs.read(units.parse_whole, context, "context")
    sequences = inputs.read(units.parse_whole, batch, "batch")
    inputs.read(parse_word, optimizer, "optimizer", OPTIMIZER_MOMENTS)
    if train and len(dtypes) > 1:
        inputs.refuse(f"--train takes one dtype; {dtype} are {len(dtypes)}.")
    inputs.done()
    jobs = [
        _training(name, optimizer) if train else _serving(name, kv_dtype, length, sequences)
        for name in dtypes
    ]
    needs = tuple(_need(config, machine, job) for job in jobs)
    if not any(need.fits for need in needs):
        raise DoesNotFit(*_refusal(config, machine, jobs, needs))
    result = FitResult(
        model=config.name,
        hardware=hardware,
        kind="train" if train else "serve",
        n_parameters=sw.parameters(config).total,
        context=None if train else length,
        batch=None if train else sequences,
        optimizer=optimizer if train else None,
        needs=needs,
    )
    return Answer(
        document=lambda: report.document(result), blocks=report.blocks(result), as_json=json
    )


def _machine(text: str) -> Machine:
    """The chip, and the machine where the text gives its size."""
    if not is_sized(text):
        return sw.chip(text), None
    system = sw.hardware(text)
    return system.chip, system


def _serving(dtype: str, kv_dtype: str, context: int, batch: int) -> sw.Serve:
    return sw.Serve(context=context, batch=batch, weights=dtype, kv=kv_dtype or dtype)


def _training(dtype: str, optimizer: str) -> sw.Train:
    """A step whose state is asked for; its batch does not matter."""
    return sw.Train(batch=1, seq=1, weights=held_in(dtype), compute=dtype, optimizer=optimizer)


def _need(config: sw.ModelConfig, machine: Machine, job: Job) -> Need:
    chip, system = machine
    name, n_chips = (system.name, system.n_chips) if system else _smallest(config, chip, job)
    capacities = {"documented": chip.need("hbm_bytes")}
    if chip.hbm_usable_bytes is not None:
        capacities["usable"] = chip.hbm_usable_bytes
    fits = {kind: _pooled(config, chip, job, n_chips, hbm) for kind, hbm in capacities.items()}
    held = fits["documented"].held
    return Need(
        dtype=job.weights,
        kv_dtype=job.kv if isinstance(job, sw.Serve) else None,
        held=held,
        bytes_per_parameter=_bytes_per_parameter(job),
        kv_bytes_per_token=_kv_bytes_per_token(config, job),
        kv_bytes_per_sequence=fits["documented"].kv_bytes_per_sequence,
        system=name,
        n_chips=n_chips,
        rooms=tuple(_room(fit, kind, capacities[kind], n_chips) for kind, fit in fits.items()),
    )


def _smallest(config: sw.ModelConfig, chip: sw.Chip, job: Job) -> tuple[str, int]:
    """The smallest machine that holds the job, else the largest there is."""
    return _holder(config, chip, job) or list(sizes(chip))[-1]


def _holder(config: sw.ModelConfig, chip: sw.Chip, job: Job) -> tuple[str, int] | None:
    """The smallest machine that holds the job, or None."""
    try:
        found = sw.fit(config, chip, job)
    except DoesNotFit:
        return None
    return found.system, found.n_chips


def _pooled(config: sw.ModelConfig, chip: sw.Chip, job: Job, n_chips: int, hbm: float) -> sw.Fit:
    """The fit on a machine of a given size: one chip that has all of its memory.

    Two such chips in the answer mean that one was not enough.
    """
    whole = dataclasses.replace(chip, hbm_bytes=hbm * n_chips, ici=None, node=None)
    return sw.fit(config, whole, job)


def _room(fit: sw.Fit, kind: str, hbm: float, n_chips: int) -> Room:
    left = hbm * n_chips - fit.held_bytes
    fits = left >= 0
    per_chip = fit.tokens_per_chip
    return Room(
        capacity=kind,
        hbm_bytes_per_chip=hbm,
        hbm_bytes=hbm * n_chips,
        fits=fits,
        left_bytes=left,
        sequences=fit.sequences if fits else None,
        tokens_per_chip=per_chip // n_chips if fits and per_chip is not None else None,
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
    return float(sw.kv_bytes_per_token(config, job.kv)) if isinstance(job, sw.Serve) else None


def _refusal(
    config: sw.ModelConfig, machine: Machine, jobs: list[Job], needs: tuple[Need, ...]
) -> list[str]:
    """What is too large for the machine, and the machines that hold it."""
    problems = []
    for need in needs:
        room = need.rooms[0]
        parts = " + ".join(f"{k} {units.show_bytes(v)}" for k, v in need.held.items())
        problems.append(
            f"does not fit: {config.name} in {need.dtype} holds {parts}, more than the "
            f"{units.show_bytes(room.hbm_bytes)} of {need.system} "
            f"(×{need.held_bytes / room.hbm_bytes:.2f})."
        )
    if machine[1] is not None:
        found = {job.weights: _holder(config, machine[0], job) for job in jobs}
        offers = [f"{dtype} {at[0]} ({at[1]:,} chips)" for dtype, at in found.items() if at]
        if offers:
            problems.append(f"Smallest that fit: {', '.join(offers)}.")
        else:
            problems.append(f"No machine of {machine[0].name} holds it; a chip with more HBM may.")
    return problems
