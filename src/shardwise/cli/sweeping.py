"""What the sweeps of training and of serving share: options with many values, and their answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

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

ALL = "all"
FROM_ZERO = ("zero", "drafted")


def read_numbers(inputs: Inputs, **texts: str) -> dict[str, tuple[int, ...]]:
    """The values of each option that was typed, `1,2,4` or `8-512*2`."""
    values = {}
    for name, text in texts.items():
        if text:
            low = 0 if name in FROM_ZERO else 1
            values[name] = inputs.read(parse_values, text, name.replace("_", " "), low)
    return values


def read_words(
    inputs: Inputs, **options: tuple[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The words of each option that was typed, `none,full` or `all`.

    Args:
        options: what was typed, and the words that it may be.
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
    """The rows of a sweep, as a screen or in a format; exit code 3 where no row has a plan."""
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
