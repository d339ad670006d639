"""The options of every verb in one table: kept as text, and one help text for each name.

`python -m tests.unit.cli.test_options` writes the table anew.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from pathlib import Path

import pytest

from shardwise.cli import TWO_FORM_VERBS, VERBS, locate
from shardwise.cli.command import command_of
from shardwise.report.tables import FORMATS
from tests.golden.terminal import run

TABLE = Path(__file__).parent / "options.txt"

# Names that mean different things in different verbs, and how many: `--fix` of `check` is a flag,
# `--rate` of `train` is the learning rate, a batch of training has a length; `import` and `ui`
# take both.
HOMONYMS = {
    "--all": 2,
    "--batch": 4,
    "--capacity": 2,
    "--chat": 2,
    "--context": 4,
    "--data": 3,
    "--draft": 2,
    "--dtype": 6,
    "--fix": 2,
    "--from": 3,
    "--kv": 2,
    "--kv-dtype": 2,
    "--max": 3,
    "--mesh": 2,
    "--output": 3,
    "--rate": 2,
    "--schedule": 2,
    "--seed": 3,
    "--traffic": 2,
    "--out": 2,
    "--warmup": 2,
    "-o": 2,
}


def forms() -> list[tuple[str, str]]:
    """Every verb, those of both wings twice, with its module."""
    serving = [locate(verb, ["--serve"]) for verb in TWO_FORM_VERBS]
    return sorted([locate(verb, []) for verb in VERBS] + serving)


def options(module: str) -> dict[str, str]:
    """The names of the options of a verb, each with its help text."""
    command = command_of(importlib.import_module(module).run)
    texts = {}
    for param in command.params:
        if param.param_type_name == "option":
            for name in (*param.opts, *param.secondary_opts):
                texts[name] = param.help
    return texts


def verbs_by_text() -> dict[str, dict[str, list[str]]]:
    """Name of an option -> its help texts -> the verbs that show the text."""
    table: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for verb, module in forms():
        for name, text in options(module).items():
            table[name][text].append(verb)
    return table


def table() -> str:
    """A line for each name, and below it one for each meaning, with its verbs."""
    lines = []
    for name, meanings in sorted(verbs_by_text().items()):
        for text, verbs in meanings.items():
            lines.append(f"{name:20} {text}\n{'':20} {', '.join(verbs)}\n")
    return "".join(lines)


def test_the_options_of_all_verbs() -> None:
    assert table() == TABLE.read_text(encoding="utf-8")


def test_a_name_has_one_help_text() -> None:
    meanings = {name: len(texts) for name, texts in verbs_by_text().items()}
    assert {name: count for name, count in meanings.items() if count > 1} == HOMONYMS


@pytest.mark.parametrize(("verb", "module"), forms())
def test_every_option_is_in_the_help(verb: str, module: str) -> None:
    text = run(*verb.split(), "--help").out
    for name, help_text in options(module).items():
        assert re.search(rf"(^|[\s,/]){name}\b", text), name
        assert help_text, name


def test_formats_are_those_of_the_report() -> None:
    text = options("shardwise.cli.verbs.training.sweep")["--output"]
    assert all(name in text for name in FORMATS)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
