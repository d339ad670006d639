"""`shardwise ideal MODEL|PARAMETERS HARDWARE`: what rooflines alone allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_word
from shardwise.cli.machines import parse_machine
from shardwise.cli.options import argument, workload
from shardwise.errors import BadInput, DoesNotFit, UnknownFigure
from shardwise.formulas.envelope import Load, envelope, training_s
from shardwise.hardware import Chip, chip_of
from shardwise.models import count
from shardwise.report import ideal as report
from shardwise.report.ideal import Ideal
from shardwise.search.machines import machines_of


def run(
    model: Annotated[str, argument("MODEL|PARAMETERS", "a model, or a number of parameters: 70B")],
    hardware: Annotated[str, argument("HARDWARE", "a chip, v5e; or a machine, v5e:4x4")],
    dtype: options.WeightDtype = "bf16",
    kv_dtype: options.KvDtype = "",
    kv_bytes: Annotated[
        str, workload("--kv-bytes SIZE", "KV cache of a token, for PARAMETERS: 160kB")
    ] = "",
    context: options.ContextLength = "",
    tpot: options.TpotBound = "",
    tokens: options.TrainingTokens = "",
    json: options.Json = False,
) -> Answer:
    """The envelope of a model on chips, by the book's rooflines alone: the smallest machine, the
    largest batch, its time per token and throughput, and the days of a training run. No
    activations, communication or software are counted; shardwise plan counts them."""
    inputs = Inputs()
    machine = inputs.read(parse_machine, hardware)
    inputs.read(parse_word, dtype, "dtype", units.BYTES_PER_ELEMENT)
    inputs.optional(parse_word, kv_dtype, "dtype", units.BYTES_PER_ELEMENT)
    length = inputs.read(units.parse_length, context or options.CONTEXT, "context")
    limit_s = inputs.optional(units.parse_seconds, tpot, "--tpot")
    n_tokens = inputs.optional(units.parse_count, tokens, "--tokens")
    inputs.done()
    load = _load(model, dtype, kv_dtype or dtype, kv_bytes, length)
    chip = chip_of(machine)
    if not chip.hbm_bytes:
        raise UnknownFigure(f"{chip.name} has no figure for its memory. List: shardwise hw")
    smallest = _smallest(load, chip)
    chosen = machine if isinstance(machine, sw.System) else smallest
    if chosen is None:
        raise DoesNotFit(f"no machine of {chip.name} holds {_needs(load)}.")
    answer = Ideal(
        model=model,
        hardware=chosen.name,
        smallest=smallest.name if smallest else None,
        dtype=dtype,
        context=length,
        load=load,
        envelope=envelope(load, chip, chosen.n_chips, limit_s=limit_s),
        hbm_bytes=chosen.n_chips * (chip.hbm_bytes or 0.0),
    )
    if answer.envelope.max_batch == 0 and n_tokens is None:
        where = f" The smallest machine that does: {smallest.name}." if smallest else ""
        raise DoesNotFit(
            f"{chosen.name} has {units.show_bytes(answer.hbm_bytes)}; {_needs(load)} do not "
            f"fit.{where}"
        )
    if n_tokens:
        run_s = training_s(load.active, n_tokens, chip, chosen.n_chips)
        answer = replace(answer, tokens=n_tokens, run_s=run_s)
    return Answer(document=lambda: answer, blocks=report.blocks(answer), as_json=json)


def _load(model: str, dtype: str, kv_dtype: str, kv_bytes: str, length: int) -> Load:
    """The load of a model, or of a number of parameters with --kv-bytes.

    Raises:
        BadInput: it is neither, or lacks the bytes of its KV cache.
    """
    size = units.bytes_per_element(dtype)
    try:
        parameters = units.parse_count(model, "parameters")
    except BadInput:
        parameters = 0.0
    if not parameters:
        config = sw.model(model)
        if kv_bytes:
            raise BadInput(f"--kv-bytes is for a number of parameters; {config.name} has its own.")
        counted = sw.parameters(config)
        cached = float(count.kv_cache_bytes(config, length, kv_dtype))
        return Load(active=counted.active, weight_bytes=counted.total * size, kv_bytes=cached)
    if not kv_bytes:
        raise BadInput(
            f"{model} parameters alone do not say how large the KV cache is: add --kv-bytes SIZE "
            "of a token, as 160kB, or name a model."
        )
    cached = length * units.parse_bytes(kv_bytes, "--kv-bytes")
    if not cached:
        raise BadInput("--kv-bytes is 0: without a cache, every batch fits.")
    return Load(active=parameters, weight_bytes=parameters * size, kv_bytes=cached)


def _smallest(load: Load, chip: Chip) -> sw.System | None:
    """The smallest machine that holds the weights and one sequence."""
    need = load.weight_bytes + load.kv_bytes
    fitting = (s for s in machines_of(chip) if s.n_chips * (chip.hbm_bytes or 0.0) >= need)
    return min(fitting, key=lambda system: system.n_chips, default=None)


def _needs(load: Load) -> str:
    return (
        f"weights of {units.show_bytes(load.weight_bytes)} and a sequence's "
        f"{units.show_bytes(load.kv_bytes)} of KV cache"
    )
