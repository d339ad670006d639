"""The options of serving -> the work in each dtype, with every problem told at once."""

from __future__ import annotations

import re
from collections.abc import Mapping

import shardwise as sw
from shardwise import units
from shardwise.cli.inputs import Inputs, parse_given, parse_word, parse_words, roles
from shardwise.errors import BadInput
from shardwise.plan.serving.time_parts import usual_compute

CONTEXT = "8192"  # tokens of a sequence where no length is given, as in `fit`
_RATE = re.compile(r"\s*(?P<n>[^/\s]+)\s*/\s*(?P<per>[a-z]+)\s*")
_PER = {"s": 1.0, "min": units.MINUTE, "h": units.HOUR}


def read_requests(
    words: Mapping[str, str], dtypes: tuple[str, str, str], chip: sw.Chip | None
) -> tuple[sw.Serve, ...]:
    """The work, once for each dtype of the weights.

    Args:
        words: what was typed, by the name of the option.
        dtypes: of weights (several), KV cache, compute; nothing for the default.
        chip: whose peaks the compute dtype is taken from.

    Raises:
        BadInput: with every word that is wrong.
    """
    inputs = Inputs()
    weights, kv, compute = dtypes
    names = inputs.read(parse_words, weights, "dtype", units.BYTES_PER_ELEMENT) or ()
    for other in (kv, compute):
        if other:
            inputs.read(parse_word, other, "dtype", units.BYTES_PER_ELEMENT)
    if words["context"] and (words["prompt"] or words["output"]):
        inputs.refuse("--context is --prompt and --output together. Give it, or those two.")
    if bool(words["prompt"]) != bool(words["output"]):
        inputs.refuse("--prompt and --output belong together: give both, or --context alone.")
    if words["rate"] and not words["output"]:
        inputs.refuse("--rate needs the length of requests: --prompt N --output N.")
    for name in ("acceptance", "draft-cost"):
        if words[name] and not words["draft"]:
            inputs.refuse(f"--{name} needs --draft, the tokens that are drafted for each pass.")
    lengths = {name: words[name] for name in ("prompt", "output", "batch") if words[name]}
    if not (words["prompt"] or words["output"]):
        lengths["context"] = words["context"] or CONTEXT
    asked: dict[str, int | float | None] = {
        name: inputs.read(units.parse_whole, text, f"--{name}") for name, text in lengths.items()
    }
    for name in ("ttft", "tpot"):
        if words[name]:
            asked[f"{name}_s"] = inputs.read(units.parse_seconds, words[name], f"--{name}")
    if words["rate"]:
        asked["rate"] = inputs.read(parse_requests_rate, words["rate"])
    if words["draft"]:
        asked["drafted"] = inputs.read(units.parse_whole, words["draft"], "--draft")
    for option, field in (
        ("cached", "cached"),
        ("acceptance", "acceptance"),
        ("draft-cost", "draft_cost"),
    ):
        if words[option]:
            asked[field] = inputs.read(parse_share, words[option], f"--{option}")
    inputs.done()
    return tuple(
        sw.Serve(
            weights=name,
            kv=kv or name,
            compute=compute or usual_compute(name, chip),
            **asked,  # type: ignore[arg-type]
        )
        for name in names
    )


def parse_requests_rate(text: str) -> float:
    """`20/s`, `600/min` -> requests per second.

    >>> parse_requests_rate("600/min")
    10.0

    Raises:
        BadInput: no number, or no unit.
    """
    match = _RATE.fullmatch(text)
    if not match or match["per"] not in _PER:
        raise BadInput(f'--rate "{text}" has no unit. Write requests per time: 20/s, 600/min.')
    return units.parse_count(match["n"], "--rate") / _PER[match["per"]]


def parse_share(text: str, what: str) -> float:
    """`50%` or `0.5` -> 0.5.

    Raises:
        BadInput: not between 0 and 1.
    """
    number = text.strip().removesuffix("%").strip()
    try:
        share = float(number) / (100 if "%" in text else 1)
    except ValueError:
        raise BadInput(f'{what} "{text}" is not a share. Write 50% or 0.5.') from None
    if not 0 <= share <= 1:
        raise BadInput(f"{what} {text} is not between 0 and 1 (100%).")
    return share


def parse_serving(text: str) -> dict[str, int | str]:
    """`tensor=8,kv=batch` -> what is given of an engine.

    Raises:
        BadInput: with every part that is wrong.
    """
    from shardwise.search.serving.layouts import NUMBERS, WORDS

    return parse_given(text, WORDS, (*roles(), *NUMBERS, *WORDS))
