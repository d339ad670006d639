"""Load a chip from its TOML file; all problems of the file are reported together."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from shardwise.errors import BadFile, BadInput, nearest, raise_all
from shardwise.hardware.chip import MARKETS, Chip, Ici, Node, ScaleOut, Serving
from shardwise.hardware.figure import DTYPES, FIELDS, GROUPS, Figure, Value, parse_value, unit_of
from shardwise.hardware.shape import Shape, show_shape

KINDS = ("tpu", "gpu", "other", "cpu")
WRAPS = ("cubes_of_4", "length_16", "full_pod")

_ABOUT = ("name", "title", "vendor", "kind", "as_of")  # required keys outside tables
_TOP = (*_ABOUT, "market", "aliases", "note", "quoted", *GROUPS)
_FIGURE_KEYS = ("value", "source", "as_of", "confirmed", "note", "also")
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
# Table of a network -> (its class, required keys).
_OWNERS = {
    "ici": (Ici, ("axes", "wrap")),
    "node": (Node, ("gpus",)),
    "scale_out": (ScaleOut, ()),
    "serving": (Serving, tuple(p.removeprefix("serving.") for p in FIELDS if "serving." in p)),
}


def load_chip(path: Path) -> Chip:
    """Read a chip from a TOML file.

    Raises:
        BadFile: the file is missing, unreadable or not TOML, or its content is invalid, for
            instance a figure without unit, source or date.
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
    """Build a chip from the parsed content of a TOML file.

    Args:
        where: name of the file, for messages.

    Raises:
        BadFile: the content is invalid; the message has one line per problem.
    """
    problems: list[str] = []
    about = _about(data, problems)
    groups = {key: table for key, table in data.items() if key in GROUPS}
    figures = _figures(groups, problems)
    quotes = _quotes(data.get("quoted", {}), problems)
    problems += _joint_problems(data, figures, quotes)
    raise_all(BadFile, [f"{where}: {problem}" for problem in problems])
    values = {path: figure.value for path, figure in figures.items()}
    return Chip(**about, **_attributes(values), sourced=figures, quotes=quotes)


def _joint_problems(
    data: Mapping[str, Any],
    figures: Mapping[str, Figure],
    quotes: Mapping[str, Mapping[str, Figure]],
) -> list[str]:
    """Problems that concern several figures: missing ones, networks that the chip does not have."""
    problems = []
    for owner, (_, required_keys) in _OWNERS.items():
        for key in required_keys:
            if isinstance(data.get(owner), dict) and key not in data[owner]:
                problems.append(f"{owner}.{key} is missing; [{owner}] needs it.")
    for document, quote in quotes.items():
        for path in quote:
            owner = path.split(".")[0]
            if owner in ("ici", "node") and owner not in data:
                problems.append(f"quoted.{document} has {path}, and there is no [{owner}].")
    if "ici.axes" in figures:
        problems += _shape_problems(figures, figures["ici.axes"].value)
    return problems


def _shape_problems(figures: Mapping[str, Figure], n_axes: Value) -> list[str]:
    """Problems of torus shapes that do not have `n_axes` dimensions."""
    problems = []
    for path in ("ici.pod", "ici.host", "ici.slices"):
        if path not in figures:
            continue
        shapes = figures[path].value
        if path != "ici.slices":
            shapes = (cast("Shape", shapes),)
        for shape in cast("tuple[Shape, ...]", shapes):
            if len(shape) != n_axes:
                problems.append(f"{path} has {show_shape(shape)}, and ici.axes is {n_axes}.")
    return problems


def _about(data: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Read the keys outside tables (name, title, ...); append their problems to `problems`."""
    for key in data:
        if key not in _TOP:
            problems.append(f'unknown key "{key}". {nearest(key, _TOP)}')
    for key in _ABOUT:
        if not (isinstance(data.get(key), str) and data[key]):
            problems.append(f'{key} is missing. Write {key} = "...".')
    kind = data.get("kind")
    if isinstance(kind, str) and kind not in KINDS:
        problems.append(f'kind is "{kind}". One of: {", ".join(KINDS)}.')
    market = data.get("market", MARKETS[0])
    if market not in MARKETS:
        problems.append(f'market is "{market}". One of: {", ".join(MARKETS)}.')
    as_of = data.get("as_of")
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
    """(name of a figure, its raw value) for all tables; append unknown names to `problems`."""
    entries = []
    for group, table in groups.items():
        if not isinstance(table, dict):
            problems.append(f"{group} is not a table. Write [{group}] and its figures below it.")
            continue
        for key, raw in table.items():
            path = f"{group}.{key}"
            if unit_of(path) is not None:
                entries.append((path, raw))
            elif group == "peak":
                problems.append(f'unknown dtype "{key}" in [peak]. {nearest(key, DTYPES)}')
            else:
                problems.append(f'unknown figure "{path}". {nearest(path, FIELDS)}')
    return entries


def _figures(groups: Mapping[str, Any], problems: list[str]) -> dict[str, Figure]:
    figures = {}
    for path, raw in _entries(groups, problems):
        figure = _figure(path, raw, problems)
        if figure:
            figures[path] = figure
    return figures


def _figure(path: str, raw: Any, problems: list[str]) -> Figure | None:
    """Read one figure; if it is invalid, append its problems to `problems` and return None."""
    if not isinstance(raw, dict):
        problems.append(
            f'{path} has no source. Write {{ value = "...", source = "...", as_of = "YYYY-MM" }}.'
        )
        return None
    n_earlier = len(problems)
    for key in raw:
        if key not in _FIGURE_KEYS:
            problems.append(f'unknown key "{key}" in {path}. {nearest(key, _FIGURE_KEYS)}')
    if "value" not in raw:
        problems.append(f"{path} has no value.")
    if not (isinstance(raw.get("source"), str) and raw["source"]):
        problems.append(f"{path} has no source. Name the public document that states it.")
    as_of = raw.get("as_of")
    if not (isinstance(as_of, str) and _MONTH.fullmatch(as_of)):
        problems.append(f'{path} has no date. Write as_of = "YYYY-MM".')
    if not isinstance(raw.get("confirmed", True), bool) or not isinstance(raw.get("note", ""), str):
        problems.append(f"{path}: confirmed is true or false, note is text.")
    value = None
    if "value" in raw:
        value = _value(path, raw["value"], problems)
    also = _also(path, raw.get("also", []), problems)
    if len(problems) > n_earlier or value is None:
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
    """Read the other published values of a figure: one (value, source) pair or a list of them."""
    if not isinstance(raw, list):
        raw = [raw]
    alternatives = []
    for pair in raw:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str)):
            problems.append(f'{path}: also is a list of ["VALUE", "SOURCE"] pairs.')
            continue
        value = _value(path, pair[0], problems)
        if value is not None:
            alternatives.append((value, pair[1]))
    return tuple(alternatives)


def _quotes(raw: Any, problems: list[str]) -> dict[str, dict[str, Figure]]:
    """Read the tables [quoted.DOCUMENT]: document -> name of a figure -> the document's value."""
    quotes: dict[str, dict[str, Figure]] = {}
    if not isinstance(raw, dict) or not all(isinstance(table, dict) for table in raw.values()):
        problems.append("quoted is not a table of documents. Write [quoted.NAME].")
        return quotes
    for document, table in raw.items():
        origin = {"source": table.get("source"), "as_of": table.get("as_of")}
        groups = {}
        for key, values in table.items():
            if key in GROUPS:
                groups[key] = values
            elif key not in origin:
                problems.append(f'unknown key "{key}" in quoted.{document}. {nearest(key, GROUPS)}')
        quotes[document] = {}
        for path, value in _entries(groups, problems):
            figure = _figure(path, {"value": value, **origin}, problems)
            if figure:
                quotes[document][path] = figure
    return quotes


def _attributes(values: Mapping[str, Value]) -> dict[str, Any]:
    """The arguments of `Chip` for the values of its figures, with `Ici`, `Node` and `ScaleOut`."""
    attributes: dict[str, Any] = {"peak_flops_per_s": {}}
    for path, value in values.items():
        group, _, key = path.partition(".")
        if group == "peak":
            attributes["peak_flops_per_s"][key] = value
            continue
        owner, _, attribute = FIELDS[path].attribute.rpartition(".")
        target = attributes
        if owner:
            target = attributes.setdefault(owner, {})
        target[attribute] = value
    for owner, (build, _) in _OWNERS.items():
        if owner in attributes:
            attributes[owner] = build(**attributes[owner])
    return attributes
