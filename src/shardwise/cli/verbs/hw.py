"""`shardwise hw [CHIP | SYSTEM | diff A B | measure N]`."""

from __future__ import annotations

from typing import Annotated

import typer

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.inputs import Inputs, is_sized, parse_chip_of
from shardwise.cli.progress import progress
from shardwise.errors import BadInput
from shardwise.hardware import catalog_chip, chip_names, diff, legal_slices
from shardwise.report import hardware as report
from shardwise.report import measured_cpu
from shardwise.report import system as system_report


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHIP | SYSTEM | diff A B | measure N]",
            help="v5p, v5p:4x4x4, h100:64, ./mychip.toml; nothing lists all chips; measure: this "
            "CPU as N devices",
        ),
    ] = None,
    slices: Annotated[bool, typer.Option("--slices", help="the slices of a TPU chip")] = False,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="save what was measured")
    ] = "",
    json: Json = False,
) -> Answer:
    """Chips, slices and systems, every figure with its source."""
    found = words or []
    if found[:1] == ["diff"]:
        return _diff(found[1:], json)
    if found[:1] == ["measure"]:
        return _measured(found[1:], output, json)
    if output:
        raise BadInput("-o keeps what was measured: shardwise hw measure 2 -o host.toml.")
    if len(found) > 1:
        raise BadInput(f"hw takes one chip or system, or diff A B, and not {len(found)} words.")
    if slices:
        return _slices(found, json)
    if not found:
        listed = [catalog_chip(name) for name in chip_names()]
        return Answer(
            document=lambda: report.list_document(listed),
            blocks=report.list_blocks(listed),
            as_json=json,
        )
    if is_sized(found[0]):
        system = sw.hardware(found[0])
        return Answer(
            document=lambda: system_report.document(system),
            blocks=system_report.blocks(system),
            as_json=json,
        )
    chip = sw.chip(found[0])
    return Answer(
        document=lambda: report.chip_document(chip), blocks=report.chip_blocks(chip), as_json=json
    )


def _diff(names: list[str], as_json: bool) -> Answer:
    if len(names) != 2:
        raise BadInput(f"hw diff compares two chips, and {len(names)} are given: hw diff v5p h100.")
    inputs = Inputs()
    a, b = (inputs.read(parse_chip_of, name) for name in names)
    inputs.done()
    rows = diff(a, b)
    value = {"a": a.name, "b": b.name, "differences": rows}
    return Answer(document=lambda: value, blocks=report.diff_blocks(a, b, rows), as_json=as_json)


def _slices(words: list[str], as_json: bool) -> Answer:
    if not words:
        raise BadInput("--slices needs a chip: shardwise hw v5e --slices.")
    chip = parse_chip_of(words[0])
    found = legal_slices(chip)
    return Answer(
        document=lambda: report.slices_document(chip, found),
        blocks=report.slices_blocks(chip, found),
        as_json=as_json,
    )


def _measured(words: list[str], output: str, as_json: bool) -> Answer:
    from shardwise import units
    from shardwise.train import measure

    if len(words) != 1:
        raise BadInput("hw measure takes the number of devices: shardwise hw measure 2.")
    n = units.parse_whole(words[0], "number of devices")
    with progress(f"measuring this CPU as {n} devices"):
        found = measure.measure(n)
    if output:
        measure.write_chip(found, output)
    return Answer(
        document=lambda: found, blocks=measured_cpu.blocks(found, output), as_json=as_json
    )
