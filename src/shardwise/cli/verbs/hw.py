"""`shardwise hw [CHIP | SYSTEM | diff A B | measure N]`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_chip_file
from shardwise.cli.machines import has_size, parse_chip
from shardwise.cli.options import argument, output
from shardwise.cli.progress import progress_of_parts
from shardwise.errors import BadInput
from shardwise.hardware import catalog_chip, chip_names, diff, legal_slices
from shardwise.report import hardware as report
from shardwise.report import system as system_report
from shardwise.report.words import counted

if TYPE_CHECKING:
    from shardwise.measure.rates import MeasuredRates

MAX_DEVICES = 64  # each has its arrays and threads: more take minutes and gigabytes


def run(
    words: Annotated[
        list[str] | None,
        argument(
            "[CHIP | SYSTEM | diff A B | measure N]",
            "v5p, v5p:4x4x4, h100:64, ./mychip.toml; without it all chips; measure: N GPUs or "
            "TPUs of this machine, or its CPU as N devices",
        ),
    ] = None,
    slices: Annotated[bool, output("--slices", "the slices of a TPU chip")] = False,
    file: options.OutputFile = "",
    json: options.Json = False,
) -> Answer:
    """Chips, slices and systems, every figure with its source. -o saves what measure found."""
    arguments = words or []
    if arguments[:1] == ["diff"]:
        return _difference(arguments[1:], json)
    if arguments[:1] == ["measure"]:
        return _measurement(arguments[1:], file, json)
    if file:
        raise BadInput("-o saves a measured chip: shardwise hw measure 2 -o host.toml.")
    if len(arguments) > 1:
        raise BadInput(f"hw takes one chip or system, or diff A B, not {len(arguments)} words.")
    if slices:
        return _slices(arguments, json)
    if not arguments:
        return _list(json)
    if has_size(arguments[0]):
        system = sw.hardware(arguments[0])
        return Answer(
            document=lambda: system_report.document(system),
            blocks=system_report.blocks(system),
            as_json=json,
        )
    chip = sw.chip(arguments[0])
    return Answer(
        document=lambda: report.chip_document(chip), blocks=report.chip_blocks(chip), as_json=json
    )


def _list(as_json: bool) -> Answer:
    catalog = [catalog_chip(chip_name) for chip_name in chip_names()]
    return Answer(
        document=lambda: report.list_document(catalog),
        blocks=report.list_blocks(catalog),
        as_json=as_json,
    )


def _difference(names: list[str], as_json: bool) -> Answer:
    if len(names) != 2:
        raise BadInput(f"hw diff compares two chips, and {len(names)} are given: hw diff v5p h100.")
    inputs = Inputs()
    first_chip = inputs.read(parse_chip, names[0])
    second_chip = inputs.read(parse_chip, names[1])
    inputs.done()
    differences = diff(first_chip, second_chip)
    document = {"a": first_chip.name, "b": second_chip.name, "differences": differences}
    blocks = report.diff_blocks(first_chip, second_chip, differences)
    return Answer(document=lambda: document, blocks=blocks, as_json=as_json)


def _slices(names: list[str], as_json: bool) -> Answer:
    if not names:
        raise BadInput("--slices needs a chip: shardwise hw v5e --slices.")
    chip = parse_chip(names[0])
    slices = legal_slices(chip)
    return Answer(
        document=lambda: report.slices_document(chip, slices),
        blocks=report.slices_blocks(chip, slices),
        as_json=as_json,
    )


def _measurement(words: list[str], file: str, as_json: bool) -> Answer:
    from shardwise import units
    from shardwise.measure.chip_file import write_chip
    from shardwise.report import measured as measured_report

    if len(words) != 1:
        raise BadInput("hw measure takes the number of devices: shardwise hw measure 2.")
    inputs = Inputs()
    n_devices = inputs.read(units.parse_whole, words[0], "number of devices")
    if n_devices and n_devices > MAX_DEVICES:
        inputs.refuse(
            f"{n_devices:,} devices: a CPU is measured as at most {MAX_DEVICES}. Take a number "
            f"that its {os.cpu_count()} cores can share."
        )
    if n_devices and n_devices > 1 and n_devices % 2:
        inputs.refuse(
            f"{n_devices:,} devices: collectives are measured in groups of 2, 4, 8, ... of them. "
            f"Take {n_devices - 1:,} or {n_devices + 1:,}."
        )
    inputs.optional(parse_chip_file, file)
    inputs.done()
    measured_chip = _measured(n_devices, quiet=as_json)
    if file:
        write_chip(measured_chip, file)
    return Answer(
        document=lambda: measured_chip,
        blocks=measured_report.blocks(measured_chip, file),
        as_json=as_json,
    )


def _measured(n_devices: int, *, quiet: bool) -> MeasuredRates:
    """The rates of this machine; a line of progress for each part of the measurement."""
    from shardwise.measure import machine

    with progress_of_parts(f"measuring {counted(n_devices, 'device')}", quiet=quiet) as begin:
        return machine.measure(n_devices, begin, serving=True)
