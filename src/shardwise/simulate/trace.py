"""Recorded traffic, read from a .csv or .jsonl file with one request per line.

Columns are `arrival` (seconds), `prompt` and `output` (tokens). Prompts that start with the same
text also have `prefix` (a name of that text) and `shared` (its length in tokens). Requests are
sorted by arrival, and arrivals shifted so that the first is at 0.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shardwise.errors import BadFile, raise_all
from shardwise.simulate.traffic import Traffic

REQUIRED = ("arrival", "prompt", "output")
COLUMNS = (*REQUIRED, "prefix", "shared")
MAX_PROBLEMS = 5  # most problems of a file that an error lists
LARGEST_TOKENS = 2**31 - 1


def read_trace(path: str | Path) -> Traffic:
    """Read recorded traffic.

    Raises:
        BadFile: the file cannot be read, or has invalid values; lists line, column and value.
    """
    import numpy as np

    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f'cannot read "{path}": {error}.') from None
    lines = list(_lines(file, text))
    if not lines:
        raise BadFile(f'"{path}" has no requests. Write one per line: {", ".join(REQUIRED)}.')
    problems: list[str] = []
    rows = [_parse_row(f"{path}, line {number}", fields, problems) for number, fields in lines]
    reported = problems[:MAX_PROBLEMS]
    if len(problems) > MAX_PROBLEMS:
        reported.append(f"... and {len(problems) - MAX_PROBLEMS:,} more.")
    raise_all(BadFile, reported)
    rows.sort(key=lambda row: row.arrival_s)
    prefixes = [row.prefix for row in rows]
    shared = np.array([row.shared for row in rows])
    has_prefixes = any(prefix is not None for prefix in prefixes)
    return Traffic(
        arrival_s=np.array([row.arrival_s for row in rows]) - rows[0].arrival_s,
        prompt=np.array([row.prompt for row in rows]),
        output=np.array([row.output for row in rows]),
        prefix=prefixes if has_prefixes else None,
        shared=shared if shared.any() else None,
    )


def _lines(file: Path, text: str) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Yield the number of each line that has a request, and its values by column."""
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield number, _parse_object(f"{file}, line {number}", line)
        return
    if file.suffix != ".csv":
        raise BadFile(f'"{file}" is neither .csv nor .jsonl.')
    table = csv.DictReader(text.splitlines())
    names = table.fieldnames or ()
    _check_names(f"{file}, line 1", [name.strip() for name in names])
    for fields in table:
        yield table.line_num, {(name or "").strip(): value for name, value in fields.items()}


def _parse_object(location: str, line: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadFile(f"{location}: not JSON ({error.msg}, column {error.colno}).") from None
    if not isinstance(fields, dict):
        raise BadFile(f'{location}: not an object. Write {{"arrival": 0.5, "prompt": 1, ...}}.')
    _check_names(location, fields)
    return fields


def _check_names(location: str, names: Iterable[str]) -> None:
    columns = list(names)
    problems = [f"no column {name}" for name in REQUIRED if name not in columns]
    problems += [f'unknown column "{name}"' for name in columns if name not in COLUMNS]
    if problems:
        raise BadFile(f"{location}: {', '.join(problems)}. Columns: {', '.join(COLUMNS)}.")


class _Row(NamedTuple):
    arrival_s: float
    prompt: int
    output: int
    prefix: str | None
    shared: int


def _parse_row(location: str, fields: Mapping[str, Any], problems: list[str]) -> _Row:
    """Parse one request; append a message to `problems` for each invalid value."""
    arrival_s = _number(fields.get("arrival"))
    if not math.isfinite(arrival_s):
        problems.append(
            f'{location}: arrival "{fields.get("arrival")}" is not a number of seconds.'
        )
    prompt = _tokens(location, "prompt", fields.get("prompt"), 1, problems)
    output = _tokens(location, "output", fields.get("output"), 1, problems)
    prefix = fields.get("prefix")
    prefix = None if prefix in (None, "") else str(prefix)
    shared = 0
    if fields.get("shared") not in (None, ""):
        shared = _tokens(location, "shared", fields["shared"], 0, problems)
    if shared > prompt >= 1:
        problems.append(f"{location}: shared {shared:,} is more than the prompt {prompt:,}.")
    return _Row(arrival_s, prompt, output, prefix, shared)


def _number(value: object) -> float:
    """Convert a value to a number, or to NaN if it is not a number."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def _tokens(location: str, column: str, value: object, minimum: int, problems: list[str]) -> int:
    number = _number(value)
    if not minimum <= number <= LARGEST_TOKENS or number != int(number):
        problems.append(
            f'{location}: {column} "{value}" is not a whole number of tokens, at least {minimum}.'
        )
        return minimum
    return int(number)
