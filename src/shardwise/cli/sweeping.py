"""Parsers of options with several values, and the answer, of training and serving sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from shardwise import units
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_words
from shardwise.cli.ranges import parse_values
from shardwise.errors import NoPlan
from shardwise.report.tables import rows_text

if TYPE_CHECKING:
    from shardwise.plan.serving.sweep import ServingSweep
    from shardwise.plan.training.sweep import Sweep
    from shardwise.report.style import Block

Result = TypeVar("Result", "Sweep", "ServingSweep")

ALL = "all"  # stands for all words of an option
MAY_BE_ZERO = ("zero", "drafted", "mtp_layers")  # options of numbers; the others are at least 1


def read_numbers(inputs: Inputs, **texts: str) -> dict[str, tuple[int, ...]]:
    """The values of each option, `1,2,4` or `8-512*2`, whose text is not empty."""
    values = {}
    for name, text in texts.items():
        if text:
            low = 0 if name in MAY_BE_ZERO else 1
            values[name] = inputs.read(parse_values, text, name.replace("_", " "), low)
    return values


def read_lengths(inputs: Inputs, **texts: str) -> dict[str, tuple[int, ...]]:
    """The values of each option of tokens, `4k,8k` or `4k-32k*2`, whose text is not empty."""
    return {
        name: inputs.read(parse_values, text, name, parser=units.parse_length)
        for name, text in texts.items()
        if text
    }


def read_words(
    inputs: Inputs, **options: tuple[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The words of each option, `none,full` or `all`, whose text is not empty.

    `all` leaves out `auto` of remat, which chooses among the others, and `none` of other options.

    Args:
        options: name -> the text, and the words that are allowed in it.
    """
    values = {}
    for name, (text, choices) in options.items():
        if text == ALL and name == "remat":
            values[name] = tuple(word for word in choices if word != "auto")
        elif text == ALL:
            values[name] = tuple(word for word in choices if word != "none")
        elif text:
            values[name] = inputs.read(parse_words, text, name.replace("_", " "), choices)
    return values


def sweep_answer(
    result: Result,
    blocks: Callable[[Result], Iterable[Block]],
    as_markdown: Callable[[Result], str],
    format_name: str,
    *,
    as_json: bool,
) -> Answer:
    """The answer of a sweep; its exit code is 3 if no row has a plan.

    Args:
        blocks: lays out the rows for a screen.
        table: returns the rows as text in a format.
        format_name: md, csv or jsonl; empty for a screen.
    """
    exit_code = NoPlan.exit_code
    if any(row.step_s for row in result.rows):
        exit_code = 0
    if format_name:
        return Answer(
            document=lambda: result,
            blocks=(),
            raw=_raw(result, as_markdown, format_name),
            as_json=as_json,
            exit_code=exit_code,
        )
    return Answer(
        document=lambda: result, blocks=blocks(result), as_json=as_json, exit_code=exit_code
    )


def _raw(result: Result, as_markdown: Callable[[Result], str], format_name: str) -> str:
    """All rows as Markdown, CSV or JSON lines; csv and jsonl in SI units."""
    if format_name == "md":
        return as_markdown(result)
    return rows_text(result.to_dicts(), format_name)
