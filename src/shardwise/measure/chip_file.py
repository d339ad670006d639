"""Measured rates as a chip file, for `shardwise plan MODEL ./FILE.toml:N`."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from shardwise.errors import file_error
from shardwise.hardware.figure import unit_of
from shardwise.measure.rates import MeasuredRates


def as_toml(rates: MeasuredRates) -> str:
    """Return the rates as a chip file."""
    month = f"{datetime.date.today():%Y-%m}"
    part = f"one of {rates.n_devices} devices of " if rates.n_devices > 1 else ""
    title = f"{part}this {_processor()}"
    lines = [
        'name = "host"',
        f'title = "{title}"',
        'vendor = "local"',
        f'kind = "{rates.kind}"',
        'market = "desktop"',
        f'as_of = "{month}"',
        f'note = "{_note(rates)}"',
    ]
    return "\n".join([*lines, *_tables(rates, month)]) + "\n"


def _note(rates: MeasuredRates) -> str:
    """What was measured, and what disturbed it."""
    devices = f"{rates.n_devices} devices" if rates.n_devices > 1 else "one device"
    note = f"{os.cpu_count() or 1} cores as {devices}, all busy during each measurement."
    if rates.is_busy:
        load = f"other programs used {rates.other_load or 0.0:.0%} of the processors"
        note += f" The machine was busy: {load}, and its speed varied by {rates.drift:.0%}."
    return note


def _tables(rates: MeasuredRates, month: str) -> Iterator[str]:
    """The lines of all figures."""
    measured = f"measured on this machine, {datetime.date.today().isoformat()}"
    group = ""
    for path in sorted(rates.figures, key=lambda path: path.split(".")[0]):
        table, _, key = path.partition(".")
        if table != group:
            yield ""
            yield f"[{table}]"
            group = table
        found = rates.sources.get(path)
        source = f"{measured}: {found}" if found else measured
        value = _value(rates.figures[path], unit_of(path) or "")
        yield f'{key} = {{ value = {value}, source = "{source}", as_of = "{month}" }}'


def _value(value: float, unit: str) -> str:
    """A value as a chip file has it."""
    if unit == "count":
        return str(round(value))
    if unit == "s":
        return f'"{value * 1e6:.4g} us"'
    return f'"{value:.4g} {unit}"'


def _processor() -> str:
    """`x86_64 CPU`."""
    return f"{platform.machine()} CPU"


def write_chip(rates: MeasuredRates, path: str) -> None:
    """Write the rates as a chip file.

    Raises:
        BadFile: the file cannot be written.
    """
    try:
        Path(path).write_text(as_toml(rates), encoding="utf-8")
    except OSError as error:
        raise file_error(path, error) from None
