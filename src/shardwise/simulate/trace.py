"""Recorded traffic: a table as .csv or .jsonl with one request a line.

Columns `arrival` (seconds), `prompt` and `output` (tokens), and if prompts share a text also
`prefix` (its name) and `shared` (tokens of it). Requests are sorted by arrival; the first is at 0.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import BadFile, raise_all
from shardwise.simulate.traffic import Traffic

NEEDED = ("arrival", "prompt", "output")
COLUMNS = (*NEEDED, "prefix", "shared")
MOST_TOLD = 5  # problems told of one file
LARGEST_TOKENS = 2**31 - 1


def read_trace(path: str | Path) -> Traffic:
    """The traffic of a file.

    Raises:
        BadFile: it cannot be read; or, with line, column and value, what is wrong in it.
    """
    import numpy as np

    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f'cannot read "{path}": {error}.') from None
    lines = list(_lines(file, text))
    if not lines:
        raise BadFile(f'"{path}" holds no requests. Write one a line: {", ".join(NEEDED)}.')
    problems: list[str] = []
    rows = [_row(f"{path}, line {number}", fields, problems) for number, fields in lines]
    more = [f"... and {len(problems) - MOST_TOLD:,} more."] if len(problems) > MOST_TOLD else []
    raise_all(BadFile, problems[:MOST_TOLD] + more)
    rows.sort(key=lambda row: row[0])
    arrival, prompt, output, prefix, shared = zip(*rows, strict=True)
    return Traffic(
        arrival_s=np.array(arrival) - arrival[0],
        prompt=np.array(prompt),
        output=np.array(output),
        prefix=prefix if any(name is not None for name in prefix) else None,
        shared=np.array(shared) if any(shared) else None,
    )


def _lines(file: Path, text: str) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Every line that holds a request, with its number."""
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield number, _object(f"{file}, line {number}", line)
        return
    if file.suffix != ".csv":
        raise BadFile(f'"{file}" is neither .csv nor .jsonl.')
    table = csv.DictReader(text.splitlines())
    names = table.fieldnames or ()
    _check_names(f"{file}, line 1", [name.strip() for name in names])
    for fields in table:
        yield table.line_num, {(k or "").strip(): v for k, v in fields.items()}


def _object(where: str, line: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadFile(f"{where}: not JSON ({error.msg}, column {error.colno}).") from None
    if not isinstance(fields, dict):
        raise BadFile(f'{where}: not an object. Write {{"arrival": 0.5, "prompt": 1, ...}}.')
    _check_names(where, fields)
    return fields


def _check_names(where: str, names: Iterable[str]) -> None:
    given = list(names)
    missing = [name for name in NEEDED if name not in given]
    unknown = [name for name in given if name not in COLUMNS]
    if missing or unknown:
        told = [f"no column {name}" for name in missing]
        told += [f'unknown column "{name}"' for name in unknown]
        raise BadFile(f"{where}: {', '.join(told)}. Columns: {', '.join(COLUMNS)}.")


def _row(
    where: str, fields: Mapping[str, Any], problems: list[str]
) -> tuple[float, int, int, str | None, int]:
    arrival = _number(where, "arrival", fields.get("arrival"), problems)
    prompt = _whole(where, "prompt", fields.get("prompt"), 1, problems)
    output = _whole(where, "output", fields.get("output"), 1, problems)
    name = fields.get("prefix")
    given = fields.get("shared")
    shared = 0 if given in (None, "") else _whole(where, "shared", given, 0, problems)
    if shared > prompt >= 1:
        problems.append(f"{where}: shared {shared:,} is more than the prompt {prompt:,}.")
    return arrival, prompt, output, None if name in (None, "") else str(name), shared


def _number(where: str, column: str, value: object, problems: list[str]) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        problems.append(f'{where}: {column} "{value}" is not a number of seconds.')
    return number


def _whole(where: str, column: str, value: object, low: int, problems: list[str]) -> int:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= LARGEST_TOKENS or number != int(number):
        problems.append(
            f'{where}: {column} "{value}" is not a whole number of tokens, at least {low}.'
        )
        return low
    return int(number)
