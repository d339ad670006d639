"""Measured rates as a chip file, for `shardwise plan MODEL ./FILE.toml:N`.

The file of a GPU or a TPU is that of the catalog with measured figures in place of published ones.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from shardwise.errors import file_error
from shardwise.hardware import find_chip
from shardwise.hardware.catalog import catalog_file, is_chip
from shardwise.hardware.figure import unit_of
from shardwise.measure.rates import MeasuredRates

# What JAX calls a device whose name in the catalog is another.
CATALOG_NAMES = {"TPU v5": "v5p"}
PER_SECOND = ("FLOP/s", "B/s")  # units of rates, which the devices of a chip have together
OF_THE_CATALOG = ("hbm.capacity", "node.gpus")  # JAX may use a part of the memory alone


def as_toml(rates: MeasuredRates) -> str:
    """Return the rates as a chip file."""
    name = CATALOG_NAMES.get(rates.device_kind, rates.device_kind)
    if rates.kind != "cpu" and is_chip(name):
        return _of_catalog(rates, find_chip(name).name)
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
    tables = _tables(rates, rates.figures)
    return "\n".join([*lines, *_written(tables)]) + "\n"


def _of_catalog(rates: MeasuredRates, name: str) -> str:
    """The chip of the catalog with measured figures.

    Its name is another, so that what published runs reach of the peaks is not counted again.
    """
    text = catalog_file(name).read_text(encoding="utf-8")
    n_devices = find_chip(name).n_devices or 1
    figures = {
        path: value * (n_devices if unit_of(path) in PER_SECOND else 1)
        for path, value in rates.figures.items()
        if path not in OF_THE_CATALOG
    }
    measured = _tables(rates, figures)
    lines = []
    table = ""
    for line in text.splitlines():
        key = line.split(" = ")[0]
        if line.startswith("["):
            table = line.strip("[]")
            lines += [line, *measured.pop(table, {}).values()]
        elif (table, key) == ("", "name"):
            lines.append(f'name = "{name}-measured"')
        elif f"{table}.{key}" not in figures:
            lines.append(line)
    return "\n".join([*lines, *_written(measured)]) + "\n"


def _note(rates: MeasuredRates) -> str:
    """What was measured, and what disturbed it."""
    devices = f"{rates.n_devices} devices" if rates.n_devices > 1 else "one device"
    note = f"{os.cpu_count() or 1} cores as {devices}, all busy during each measurement."
    if rates.is_busy:
        load = f"other programs used {rates.other_load or 0.0:.0%} of the processors"
        note += f" The machine was busy: {load}, and its speed varied by {rates.drift:.0%}."
    return note


def _tables(rates: MeasuredRates, figures: Mapping[str, float]) -> dict[str, dict[str, str]]:
    """Table -> key -> line of a figure."""
    today = datetime.date.today()
    measured = f"measured on this machine, {today.isoformat()}"
    tables: dict[str, dict[str, str]] = {}
    for path, figure in figures.items():
        table, _, key = path.partition(".")
        how = rates.sources.get(path)
        source = f"{measured}: {how}" if how else measured
        value = _value(figure, unit_of(path) or "")
        line = f'{key} = {{ value = {value}, source = "{source}", as_of = "{today:%Y-%m}" }}'
        tables.setdefault(table, {})[key] = line
    return tables


def _written(tables: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """The lines of tables, by their names."""
    for table, lines in sorted(tables.items()):
        yield ""
        yield f"[{table}]"
        yield from lines.values()


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
