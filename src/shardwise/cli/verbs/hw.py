"""`shardwise hw [CHIP | SYSTEM | diff A B | measure N]`."""

from __future__ import annotations

from typing import Annotated

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs
from shardwise.cli.machines import has_size, parse_chip
from shardwise.cli.options import argument, output
from shardwise.cli.progress import progress
from shardwise.errors import BadInput
from shardwise.hardware import catalog_chip, chip_names, diff, legal_slices
from shardwise.report import hardware as report
from shardwise.report import measured_cpu
from shardwise.report import system as system_report


def run(
    words: Annotated[
        list[str] | None,
        argument(
            "[CHIP | SYSTEM | diff A B | measure N]",
            "v5p, v5p:4x4x4, h100:64, ./mychip.toml; without it all chips; measure: this CPU as N "
            "devices",
        ),
    ] = None,
    slices: Annotated[bool, output("--slices", "the slices of a TPU chip")] = False,
    file: options.OutputFile = "",
    json: options.Json = False,
) -> Answer:
    """Chips, slices and systems, every figure with its source. -o saves what measure found."""
    names = words or []
    if names[:1] == ["diff"]:
        return _difference(names[1:], json)
    if names[:1] == ["measure"]:
        return _measurement(names[1:], file, json)
    if file:
        raise BadInput("-o saves a measured chip: shardwise hw measure 2 -o host.toml.")
    if len(names) > 1:
        raise BadInput(f"hw takes one chip or system, or diff A B, not {len(names)} words.")
    if slices:
        return _slices(names, json)
    if not names:
        return _list(json)
    if has_size(names[0]):
        system = sw.hardware(names[0])
        return Answer(
            document=lambda: system_report.document(system),
            blocks=system_report.blocks(system),
            as_json=json,
        )
    chip = sw.chip(names[0])
    return Answer(
        document=lambda: report.chip_document(chip), blocks=report.chip_blocks(chip), as_json=json
    )


def _list(as_json: bool) -> Answer:
    chips = [catalog_chip(name) for name in chip_names()]
    return Answer(
        document=lambda: report.list_document(chips),
        blocks=report.list_blocks(chips),
        as_json=as_json,
    )


def _difference(names: list[str], as_json: bool) -> Answer:
    if len(names) != 2:
        raise BadInput(f"hw diff compares two chips, and {len(names)} are given: hw diff v5p h100.")
    inputs = Inputs()
    first = inputs.read(parse_chip, names[0])
    second = inputs.read(parse_chip, names[1])
    inputs.done()
    rows = diff(first, second)
    document = {"a": first.name, "b": second.name, "differences": rows}
    blocks = report.diff_blocks(first, second, rows)
    return Answer(document=lambda: document, blocks=blocks, as_json=as_json)


def _slices(names: list[str], as_json: bool) -> Answer:
    if not names:
        raise BadInput("--slices needs a chip: shardwise hw v5e --slices.")
    chip = parse_chip(names[0])
    shapes = legal_slices(chip)
    return Answer(
        document=lambda: report.slices_document(chip, shapes),
        blocks=report.slices_blocks(chip, shapes),
        as_json=as_json,
    )


def _measurement(words: list[str], file: str, as_json: bool) -> Answer:
    from shardwise import units
    from shardwise.train import measure

    if len(words) != 1:
        raise BadInput("hw measure takes the number of devices: shardwise hw measure 2.")
    n_devices = units.parse_whole(words[0], "number of devices")
    with progress(f"measuring this CPU as {n_devices} devices"):
        chip = measure.measure(n_devices)
    if file:
        measure.write_chip(chip, file)
    return Answer(document=lambda: chip, blocks=measured_cpu.blocks(chip, file), as_json=as_json)
