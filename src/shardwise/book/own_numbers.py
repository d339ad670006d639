"""A case with other given numbers: `B=2048,chip=v5p` in place of the book's."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from shardwise import units
from shardwise.book.case import Case
from shardwise.errors import BadInput, BadSharding, Problems, UnknownName
from shardwise.hardware import Chip, find_chip
from shardwise.ops.notation import parse_array

_CHIP = "chip"
_BRACKETS = {"[": 1, "]": -1}


def with_numbers(case: Case, text: str) -> dict[str, Any]:
    """The given numbers of a case, some replaced.

    A chip also replaces its figures among the given ones, unless they are replaced too. The letter
    of a dim stands for its size in `shape`, and `model.L` for L in `model`.

    Args:
        text: `NAME=VALUE,...`; a list is `[1,2,4]`.

    Raises:
        BadInput: a name is none of the case's, or a value is not of its kind.
    """
    numbers: dict[str, Any] = copy.deepcopy(dict(case.given))
    problems = Problems()
    values = problems.read(_parts, text) or {}
    if _CHIP in values:
        chip = values.pop(_CHIP)
        numbers.update(problems.read(_chip_figures, case, chip, values) or {})
    for name, value in values.items():
        problems.read(_replace, case, numbers, name, value)
    problems.done()
    return numbers


def changes(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given numbers that differ from the book's."""
    return {name: value for name, value in given.items() if value != case.given.get(name)}


def _parts(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in _split(text):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value):
            raise BadInput(f'--set "{part}" is no NAME=VALUE. Write --set B=2048,chip=v5p.')
        if name in values:
            raise BadInput(f"--set {name} is given twice: {values[name]} and {value}.")
        values[name] = value
    return values


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are not in brackets."""
    depth, start = 0, 0
    for position, letter in enumerate(text):
        depth += _BRACKETS.get(letter, 0)
        if letter == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    if depth:
        raise BadInput(f'--set "{text}": a bracket has no other. Write --set shape=[1024,4096].')
    yield text[start:]


def _chip_figures(case: Case, name: str, replaced: Collection[str]) -> dict[str, Any]:
    """The given numbers that a chip replaces.

    Args:
        replaced: names of the numbers that the user sets beside the chip.

    Raises:
        UnknownName: the catalog has no such chip.
        BadInput: the case has no figure of a chip, or the chip has none of them, or no torus of as
            many axes as the case's mesh; or another figure would stay that of the book's chip.
    """
    chip = find_chip(name)
    mesh = case.given.get("mesh")
    if isinstance(mesh, Mapping) and chip.ici and len(mesh) > chip.ici.n_axes:
        figure = next((key for key in _figures(chip) if key in case.given), "")
        alone = f" Set its figure alone: --set {figure}=VALUE" if figure else ""
        raise BadInput(
            f"the mesh of {case.id} has {len(mesh)} axes, and the torus of {chip.name} "
            f"{chip.ici.n_axes}.{alone}"
        )
    figures = {key: value for key, value in _figures(chip).items() if key in case.given}
    if not figures and _CHIP not in case.given:
        raise BadInput(f"{case.id} has no figures of a chip. It has {_names(case.given)}.")
    rates = [key for key in case.given if _is_rate(key) and key not in {*figures, *replaced}]
    if rates:
        raise BadInput(
            f"{rates[0]} of {case.id} would stay that of the book's chip. Set it too: "
            f"--set chip={name},{rates[0]}=VALUE"
        )
    missing = [key for key, value in figures.items() if value is None and key not in replaced]
    if missing:
        raise BadInput(
            f"{chip.name} has no {', '.join(missing)}. Name it: --set {missing[0]}=VALUE"
        )
    wrong = [key for key in figures if isinstance(case.given[key], list)]
    if wrong:
        raise BadInput(f"{wrong[0]} of {case.id} is a list of several chips. Set it as [1,2].")
    if _CHIP in case.given:
        return {_CHIP: chip.name, **figures}
    return figures


def _figures(chip: Chip) -> dict[str, float | None]:
    """Names by which cases give the figures of a chip -> their values; None if it has none."""
    link = chip.ici.link_bytes_per_s_one_way if chip.ici else None
    peak = chip.peak("bf16")
    return {
        **dict.fromkeys(("peak_flops_per_s", "flops_per_s", "chip_flops_per_s", "bf16"), peak),
        **dict.fromkeys(("int8", "int8_peak", "peak_ops_per_s"), chip.peak_flops_per_s.get("int8")),
        "hbm_bytes_per_s": chip.hbm_bytes_per_s,
        "hbm_bytes": chip.hbm_bytes,
        "ici_bidi_bytes_per_s": 2 * link if link else None,
        **dict.fromkeys(("link_oneway_bytes_per_s", "link_bytes_per_s", "ici_bytes_per_s"), link),
    }


def _is_rate(name: str) -> bool:
    """Whether a given number is a rate of a chip."""
    return name.endswith("_per_s") or name in ("bf16", "int8", "int8_peak")


def _replace(case: Case, given: dict[str, Any], name: str, text: str) -> None:
    """Replace one number.

    Raises:
        UnknownName: the case has no number of this name.
        BadInput: the text is no value of its kind.
    """
    outer, _, inner = name.partition(".")
    if inner and isinstance(given.get(outer), dict):
        if inner not in given[outer]:
            raise UnknownName(f"number of {outer}", inner, given[outer])
        given[outer][inner] = _value(name, text, given[outer][inner])
    elif name in given:
        given[name] = _value(name, text, given[name])
    elif name in (dims := _dims(case)):
        position = dims.index(name)
        given["shape"][position] = _value(name, text, given["shape"][position])
    else:
        raise UnknownName(f"number of {case.id}", name, [*given, *dims])


def _dims(case: Case) -> list[str]:
    """The letters of the dims whose sizes are `shape`; empty if the case has no such array."""
    shape, text = case.given.get("shape"), case.given.get("sharding")
    if not isinstance(shape, list) or not isinstance(text, str):
        return []
    try:
        names = [*parse_array(text).names]
    except BadSharding:
        return []
    return names if len(names) == len(shape) else []


def _value(name: str, text: str, old: Any) -> Any:
    """A value of the kind of the old one.

    Raises:
        BadInput: it is none.
    """
    if isinstance(old, list):
        inside = text.removeprefix("[").removesuffix("]")
        if inside == text:
            inside = ",".join([text] * len(old))
        kind = old[0] if old else ""
        return [_value(name, part.strip(), kind) for part in _split(inside)]
    if isinstance(old, dict):
        raise BadInput(f"{name} has several numbers: set {name}.{next(iter(old))}=VALUE.")
    if isinstance(old, bool):
        if text not in ("true", "false"):
            raise BadInput(f'{name} "{text}" is neither true nor false.')
        return text == "true"
    if isinstance(old, str):
        return text
    number = _number(name, text)
    if isinstance(old, int) and text.endswith("k"):  # a length: 32k is 32,768
        return units.parse_length(text, name)
    if isinstance(old, int) and number.is_integer():
        return int(number)
    return number


def _number(name: str, text: str) -> float:
    """A number with or without a unit: 2048, 4.5e10, 15T, 45GB/s, 16GiB, 10us, 40%.

    Raises:
        BadInput: it is none, or not above 0.
    """
    number = _without_unit(text)
    if number is None:
        number = _with_unit(name, text)
    if not 0 < number < float("inf"):
        raise BadInput(f"{name} {text} is not above 0 and finite.")
    return number


def _without_unit(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _with_unit(name: str, text: str) -> float:
    if text.endswith("%"):
        return _number(name, text[:-1]) / 100
    if text.endswith("/s"):
        return units.parse_rate(text, name, "B" if text.endswith("B/s") else "FLOP")
    if text.endswith("B"):
        return units.parse_bytes(text, name)
    if text.endswith("s"):
        return units.parse_seconds(text, name)
    return units.parse_count(text, name)


def _names(given: Mapping[str, Any]) -> str:
    return ", ".join(given)
