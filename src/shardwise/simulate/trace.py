"""Recorded traffic, read from a .csv or .jsonl file with one request per line.

Columns are `arrival` (seconds), `prompt` and `output` (tokens). Prompts that start with the same
text also have `prefix` (a name of that text) and `shared` (its length in tokens). Published traces
are read as they are, see `trace_formats`. Requests are sorted by arrival, and arrivals shifted so
that the first is at 0.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardwise.errors import BadFile, raise_all
from shardwise.simulate.request import PrefixBlocks
from shardwise.simulate.trace_formats import REQUIRED, TraceFormat, format_of
from shardwise.simulate.traffic import Traffic

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
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte-order mark
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
    rows = sorted(_with_common_blocks(rows), key=lambda row: row.arrival_s)
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
    trace_format = _checked_format(f"{file}, line 1", [name.strip() for name in names])
    for fields in table:
        row = {(name or "").strip(): value for name, value in fields.items()}
        missing = [name for name in trace_format.required if row.get(name) is None]
        if missing:
            raise BadFile(
                f"{file}, line {table.line_num}: the row is too short, it has no "
                f"{', no '.join(missing)}."
            )
        yield table.line_num, trace_format.translate(row)


def _parse_object(location: str, line: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadFile(f"{location}: not JSON ({error.msg}, column {error.colno}).") from None
    if not isinstance(fields, dict):
        raise BadFile(f'{location}: not an object. Write {{"arrival": 0.5, "prompt": 1, ...}}.')
    return _checked_format(location, fields).translate(fields)


def _checked_format(location: str, names: Iterable[str]) -> TraceFormat:
    """The format of the columns.

    Raises:
        BadFile: columns that the format lacks or does not know.
    """
    given = list(names)
    trace_format = format_of(given)
    columns = trace_format.columns
    problems = [f"no column {name}" for name in trace_format.required if name not in given]
    problems += [f'unknown column "{name}"' for name in given if name not in columns]
    if problems:
        raise BadFile(f"{location}: {', '.join(problems)}. Columns: {', '.join(columns)}.")
    return trace_format


class _Row(NamedTuple):
    arrival_s: float
    prompt: int
    output: int
    prefix: Hashable
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
    prefix: Hashable = fields.get("prefix")
    if not isinstance(prefix, PrefixBlocks):
        prefix = None if prefix in (None, "") else str(prefix)
    shared = 0
    if fields.get("shared") not in (None, ""):
        shared = _tokens(location, "shared", fields["shared"], 0, problems)
    if shared > prompt >= 1:
        problems.append(f"{location}: shared {shared:,} is more than the prompt {prompt:,}.")
    return _Row(arrival_s, prompt, output, prefix, shared)


def _with_common_blocks(rows: Sequence[_Row]) -> Iterator[_Row]:
    """The requests, sharing those first blocks of their prompts that other requests have too.

    A block that one request has alone is found in no cache, and would take time to simulate.
    """
    counts = Counter(
        block_id
        for row in rows
        if isinstance(row.prefix, PrefixBlocks)
        for block_id in row.prefix.ids
    )
    common = {block_id for block_id, count in counts.items() if count > 1}
    for row in rows:
        if isinstance(row.prefix, PrefixBlocks):
            shared = min(row.shared, row.prefix.first_tokens_in(common))
            n_blocks = -(-shared // row.prefix.block_tokens)
            prefix = row.prefix._replace(ids=row.prefix.ids[:n_blocks])
            row = row._replace(prefix=prefix if shared else None, shared=shared)
        yield row


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
