"""`shardwise models [MODEL] [--kv | --flops]`."""

from __future__ import annotations

from typing import Annotated

import typer

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.inputs import Inputs, parse_words
from shardwise.report import model_costs as costs
from shardwise.report import models as report
from shardwise.units import BYTES_PER_ELEMENT, parse_whole

CONTEXT = "8192"


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[[show] MODEL]", help="a preset or config.json; nothing lists all"),
    ] = None,
    kv: Annotated[bool, typer.Option("--kv", help="KV cache bytes by dtype")] = False,
    flops: Annotated[bool, typer.Option("--flops", help="FLOPs a token by part")] = False,
    seq: Annotated[str, typer.Option(metavar="N", help="tokens of a sequence")] = CONTEXT,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE,...", help="of the KV cache")
    ] = "bf16,int8,int4",
    json: Json = False,
) -> Answer:
    """Models, their parameters, FLOPs and cache bytes by part."""
    found = words or []
    if found[:1] == ["show"]:
        found = found[1:] or [""]
    inputs = Inputs()
    length = inputs.read(parse_whole, seq, "seq")
    dtypes = inputs.read(parse_words, dtype, "dtype", BYTES_PER_ELEMENT)
    if kv and flops:
        inputs.refuse("--kv and --flops are two tables. Ask for one of them.")
    if len(found) > 1:
        inputs.refuse(f"models takes one model, and not {len(found)}.")
    if (kv or flops) and not found:
        inputs.refuse("--kv and --flops need a model: shardwise models llama3-70b --kv.")
    config = inputs.read(sw.model, found[0]) if found else None
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
