"""The records of a training run for the live tab, read from its metrics.jsonl as it grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardwise.errors import BadFile

METRICS = "metrics.jsonl"
MOST_BYTES = 4_000_000  # of the file that one answer reads
MOST_POINTS = 2_000  # of a curve in a frozen page
SHOWN = (
    *("step", "steps", "loss", "step_s", "lower", "upper", "tokens_per_s", "mfu"),
    *("grad_norm", "memory_bytes", "bad", "eta_s"),
)  # keys of a record


def find_metrics(path: str) -> Path:
    """The metrics.jsonl of a run: the file itself, or the one in its folder.

    Raises:
        BadFile: there is none.
    """
    file = Path(path)
    if file.is_dir():
        file = file / METRICS
    if not file.is_file():
        raise BadFile(f"{path} has no {METRICS}: name the folder of a run, or that file.")
    return file


def read_run(path: Path, start: int = 0) -> dict[str, Any]:
    """The records from byte `start` on, and the byte from which the next ones are read.

    A last line without its end is left for the next time. Lines that are not records of steps are
    skipped. A file that has become shorter is read from its beginning.

    Raises:
        BadFile: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            restarted = start > size
            file.seek(0 if restarted else start)
            data = file.read(MOST_BYTES)
    except OSError as error:
        raise BadFile(f"the run's {METRICS}: {error.strerror}.") from None
    complete = data[: data.rfind(b"\n") + 1]
    first = 0 if restarted else start
    records = [record for line in complete.splitlines() if (record := _record(line))]
    return {
        "records": records,
        "next": first + len(complete),
        "restarted": restarted,
        "more": first + len(data) < size,
    }


def whole_run(path: Path) -> list[dict[str, Any]]:
    """All records of a run, thinned to what a frozen page can draw.

    Raises:
        BadFile: the file cannot be read, or has no record of a step.
    """
    records: list[dict[str, Any]] = []
    start, is_longer = 0, True
    while is_longer:
        part = read_run(path, start)
        records += part["records"]
        is_longer = bool(part["more"]) and part["next"] > start
        start = part["next"]
    if not records:
        raise BadFile(f"{path} has no record of a step.")
    stride = -(-len(records) // MOST_POINTS)
    return [*records[:-1:stride], records[-1]]


def _record(line: bytes) -> dict[str, Any] | None:
    """The shown numbers of a line; None if it is no record of a step."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    if not isinstance(document, dict) or not _is_number(document.get("step")):
        return None
    return {
        name: value
        for name in SHOWN
        if isinstance(value := document.get(name), bool) or _is_number(value)
    }


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == value and abs(value) != float("inf")
