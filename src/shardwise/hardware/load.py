"""A chip's TOML file -> Chip. Everything wrong with the file is told at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from shardwise.errors import BadFile, BadInput, nearest, raise_all
from shardwise.hardware.chip import MARKETS, Chip, Ici, Node, ScaleOut
from shardwise.hardware.figure import DTYPES, FIELDS, GROUPS, Figure, Value, parse_value, unit_of
from shardwise.hardware.shape import Shape, show_shape

KINDS = ("tpu", "gpu", "other", "cpu")
WRAPS = ("cubes_of_4", "length_16", "full_pod")

_ABOUT = ("name", "title", "vendor", "kind", "as_of")
_TOP = (*_ABOUT, "market", "aliases", "note", "quoted", *GROUPS)
_FIGURE_KEYS = ("value", "source", "as_of", "confirmed", "note", "also")
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
_OWNERS = {"ici": (Ici, ("axes", "wrap")), "node": (Node, ("gpus",)), "scale_out": (ScaleOut, ())}


def load_chip(path: Path) -> Chip:
    """Read a chip from a TOML file.

    Raises:
        BadFile: missing, unreadable, not TOML, or a figure without unit, source or date.
    """
    return build_chip(_read(path), str(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise BadFile(f"no file {path}.") from None
    except IsADirectoryError:
        raise BadFile(f"{path} is a folder; a chip is one TOML file.") from None
    except (OSError, ValueError) as error:
        # tomllib's own errors and undecodable bytes are ValueErrors.
        reason = getattr(error, "strerror", None) or str(error)
        raise BadFile(f"{path} cannot be read as TOML: {reason}.") from None


def build_chip(data: Mapping[str, Any], where: str) -> Chip:
    """A chip from the decoded content of a file; `where` names the file in errors.

    Raises:
        BadFile: one line for every problem.
    """
    problems: list[str] = []
    about = _about(data, problems)
    figures: dict[str, Figure] = {}
    for group in (key for key in data if key in GROUPS):
        for path, raw in _entries({group: data[group]}, problems):
            figure = _figure(path, raw, problems)
            if figure:
                figures[path] = figure
    quotes = _quotes(data.get("quoted", {}), problems)
    problems += _inconsistent(data, figures, quotes)
    raise_all(BadFile, [f"{where}: {problem}" for problem in problems])
    values = {path: figure.value for path, figure in figures.items()}
    return Chip(**about, **_attributes(values), sourced=figures, quotes=quotes)


def _inconsistent(
    data: Mapping[str, Any],
    figures: Mapping[str, Figure],
    quotes: Mapping[str, Mapping[str, Figure]],
) -> list[str]:
    problems = [
        f"{owner}.{key} is missing; [{owner}] needs it."
        for owner, (_, required) in _OWNERS.items()
        for key in required
        if isinstance(data.get(owner), dict) and key not in data[owner]
    ]
    problems += [
        f"quoted.{document} has {path}, and there is no [{owner}]."
        for document, quote in quotes.items()
        for path in quote
        if (owner := path.split(".")[0]) in ("ici", "node") and owner not in data
    ]
    axes = figures["ici.axes"].value if "ici.axes" in figures else None
    for path in ("ici.pod", "ici.host", "ici.slices"):
        if path in figures and axes is not None:
            value = figures[path].value
            shapes = cast("tuple[Shape, ...]", value if path == "ici.slices" else (value,))
            problems += [
                f"{path} has {show_shape(shape)}, and ici.axes is {axes}."
                for shape in shapes
                if len(shape) != axes
            ]
    return problems


def _about(data: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    problems += [f'unknown key "{key}". {nearest(key, _TOP)}' for key in data if key not in _TOP]
    for key in _ABOUT:
        if not (isinstance(data.get(key), str) and data[key]):
            problems.append(f'{key} is missing. Write {key} = "...".')
    kind, as_of = data.get("kind"), data.get("as_of")
    if isinstance(kind, str) and kind not in KINDS:
        problems.append(f'kind is "{kind}". One of: {", ".join(KINDS)}.')
    market = data.get("market", MARKETS[0])
    if market not in MARKETS:
        problems.append(f'market is "{market}". One of: {", ".join(MARKETS)}.')
    if isinstance(as_of, str) and not _MONTH.fullmatch(as_of):
        problems.append(f'as_of is "{as_of}". Write a month: YYYY-MM.')
    aliases = data.get("aliases", [])
    if not (isinstance(aliases, list) and all(isinstance(alias, str) for alias in aliases)):
        problems.append('aliases is not a list of names. Write ["...", "..."].')
        aliases = []
    if not isinstance(data.get("note", ""), str):
        problems.append("note is not text.")
    about = {key: data.get(key, "") for key in (*_ABOUT, "note")}
    return about | {"market": market, "aliases": tuple(aliases)}


def _entries(groups: Mapping[str, Any], problems: list[str]) -> list[tuple[str, Any]]:
    found = []
    for group, table in groups.items():
        if not isinstance(table, dict):
            problems.append(f"{group} is not a table. Write [{group}] and its figures below it.")
            continue
        for key, raw in table.items():
            path = f"{group}.{key}"
            if unit_of(path) is not None:
                found.append((path, raw))
            elif group == "peak":
                problems.append(f'unknown dtype "{key}" in [peak]. {nearest(key, DTYPES)}')
            else:
                problems.append(f'unknown figure "{path}". {nearest(path, FIELDS)}')
    return found


def _figure(path: str, raw: Any, problems: list[str]) -> Figure | None:
    if not isinstance(raw, dict):
        problems.append(
            f'{path} has no source. Write {{ value = "...", source = "...", as_of = "YYYY-MM" }}.'
        )
        return None
    before = len(problems)
    problems += [
        f'unknown key "{key}" in {path}. {nearest(key, _FIGURE_KEYS)}'
        for key in raw
        if key not in _FIGURE_KEYS
    ]
    if "value" not in raw:
        problems.append(f"{path} has no value.")
    if not (isinstance(raw.get("source"), str) and raw["source"]):
        problems.append(f"{path} has no source. Name the public document that states it.")
    as_of = raw.get("as_of")
    if not (isinstance(as_of, str) and _MONTH.fullmatch(as_of)):
        problems.append(f'{path} has no date. Write as_of = "YYYY-MM".')
    if not isinstance(raw.get("confirmed", True), bool) or not isinstance(raw.get("note", ""), str):
        problems.append(f"{path}: confirmed is true or false, note is text.")
    value = _value(path, raw["value"], problems) if "value" in raw else None
    also = _also(path, raw.get("also", []), problems)
    if len(problems) > before or value is None:
        return None
    return Figure(
        value=value,
        unit=unit_of(path) or "",
        source=raw["source"],
        as_of=raw["as_of"],
        confirmed=raw.get("confirmed", True),
        note=raw.get("note", ""),
        also=also,
    )


def _value(path: str, raw: Any, problems: list[str]) -> Value | None:
    try:
        value = parse_value(raw, unit_of(path) or "", path)
    except BadInput as error:
        problems += error.problems
        return None
    if path == "ici.wrap" and value not in WRAPS:
        problems.append(f'ici.wrap is "{value}". One of: {", ".join(WRAPS)}.')
        return None
    return value


def _also(path: str, raw: Any, problems: list[str]) -> tuple[tuple[Value, str], ...]:
    pairs = raw if isinstance(raw, list) else [raw]
    found = []
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str)):
            problems.append(f'{path}: also is a list of ["VALUE", "SOURCE"] pairs.')
            continue
        value = _value(path, pair[0], problems)
        if value is not None:
            found.append((value, pair[1]))
    return tuple(found)


def _quotes(raw: Any, problems: list[str]) -> dict[str, dict[str, Figure]]:
    quotes: dict[str, dict[str, Figure]] = {}
    if not isinstance(raw, dict) or not all(isinstance(table, dict) for table in raw.values()):
        problems.append("quoted is not a table of documents. Write [quoted.NAME].")
        return quotes
    for document, table in raw.items():
        facts = {"source": table.get("source"), "as_of": table.get("as_of")}
        groups = {key: value for key, value in table.items() if key not in facts}
        problems += [
            f'unknown key "{key}" in quoted.{document}. {nearest(key, GROUPS)}'
            for key in groups
            if key not in GROUPS
        ]
        known = {key: value for key, value in groups.items() if key in GROUPS}
        figures = {
            path: _figure(path, {"value": value, **facts}, problems)
            for path, value in _entries(known, problems)
        }
        quotes[document] = {path: figure for path, figure in figures.items() if figure}
    return quotes


def _attributes(values: Mapping[str, Value]) -> dict[str, Any]:
    attributes: dict[str, Any] = {"peak_flops_per_s": {}}
    for path, value in values.items():
        group, _, key = path.partition(".")
        if group == "peak":
            attributes["peak_flops_per_s"][key] = value
            continue
        owner, _, attribute = FIELDS[path].attribute.rpartition(".")
        target = attributes.setdefault(owner, {}) if owner else attributes
        target[attribute] = value
    for owner, (build, _) in _OWNERS.items():
        if owner in attributes:
            attributes[owner] = build(**attributes[owner])
    return attributes
