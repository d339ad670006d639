"""`shardwise models [MODEL] [--kv | --flops]`."""

from __future__ import annotations

from typing import Annotated

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_words
from shardwise.cli.options import argument, output, workload
from shardwise.report import model_costs as costs
from shardwise.report import models as report
from shardwise.units import BYTES_PER_ELEMENT, parse_length


def run(
    words: Annotated[
        list[str] | None,
        argument("[[show] MODEL]", "a preset or config.json; without it all presets"),
    ] = None,
    seq: options.SequenceLength = "8192",
    dtype: Annotated[
        str, workload("--dtype DTYPE,...", "dtypes of the KV cache")
    ] = "bf16,int8,int4",
    kv: Annotated[bool, output("--kv", "KV cache bytes by dtype")] = False,
    flops: Annotated[bool, output("--flops", "FLOPs per token by part")] = False,
    json: options.Json = False,
) -> Answer:
    """Models, their parameters, FLOPs and cache bytes by part."""
    arguments = words or []
    if arguments[:1] == ["show"]:
        arguments = arguments[1:] or [""]
    inputs = Inputs()
    length = inputs.read(parse_length, seq, "seq")
    dtypes = inputs.read(parse_words, dtype, "dtype", BYTES_PER_ELEMENT)
    if kv and flops:
        inputs.refuse("--kv and --flops are two tables. Ask for one of them.")
    if len(arguments) > 1:
        inputs.refuse(f"models takes one model, not {len(arguments)}.")
    if (kv or flops) and not arguments:
        inputs.refuse("--kv and --flops need a model: shardwise models llama3-70b --kv.")
    config = inputs.read(sw.model, arguments[0]) if arguments else None
    inputs.done()
    if config is None:
        return _list(json)
    if kv:
        return Answer(
            document=lambda: costs.kv_document(config, length, dtypes),
            blocks=costs.kv_blocks(config, length, dtypes),
            as_json=json,
        )
    if flops:
        return Answer(
            document=lambda: costs.flops_document(config, length),
            blocks=costs.flops_blocks(config, length),
            as_json=json,
        )
    return Answer(
        document=lambda: report.document(config), blocks=report.blocks(config), as_json=json
    )


def _list(as_json: bool) -> Answer:
    from shardwise.models.catalog import catalog

    facts = catalog()
    return Answer(document=lambda: facts, blocks=report.list_blocks(facts), as_json=as_json)
