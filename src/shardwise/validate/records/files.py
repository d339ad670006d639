"""Reading of files of records, and records that cannot be predicted."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shardwise import units
from shardwise.errors import BadFile, ShardwiseError
from shardwise.validate.records.runs import PublishedRun

DATA = Path(__file__).parents[1] / "data"
MAX_FILE_BYTES = 256 * units.MiB

Converted = TypeVar("Converted")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRecord:
    """A record without a prediction, because it lacks data or has something unknown.

    Args:
        id: Id of the record; `record N` if it has none, for the N-th in the file.
        source: Repository, paper or URL of the record; "not stated" if it has none.
        reason: A sentence `KIND: DETAILS` that says why.
    """

    id: str
    source: str
    reason: str

    @property
    def kind(self) -> str:
        """The reason without its details, to count reasons by kind."""
        return self.reason.partition(":")[0]


def skipped_run(run: PublishedRun, reason: str) -> SkippedRecord:
    """The record of a run that was read but cannot be predicted."""
    return SkippedRecord(id=run.id, source=run.source, reason=reason)


def read_record(
    record: object, position: int, to_run: Callable[[dict[str, Any]], Converted]
) -> Converted | SkippedRecord:
    """Convert a record, any JSON value, by `to_run`; `position` is its index in the file."""
    try:
        if not isinstance(record, dict):
            raise BadFile("broken record: it is not an object.")
        return to_run(record)
    except ShardwiseError as error:
        return _skipped(record, position, error)


def _skipped(record: object, position: int, error: ShardwiseError) -> SkippedRecord:
    """The record without a prediction, with `error` as the reason."""
    data: Mapping[str, Any] = record if isinstance(record, dict) else {}
    name = data.get("id")
    if not isinstance(name, str) or not name:
        name = f"record {position + 1}"
    source = data.get("source")
    if isinstance(source, dict):
        source = source.get("repo") or source.get("paper") or source.get("url")
    if not isinstance(source, str):
        source = "not stated"
    return SkippedRecord(id=name, source=source, reason=" ".join(error.problems))


@functools.cache
def bundled(name: str) -> Any:
    """The content of a JSON file of this package."""
    return json.loads((DATA / name).read_text("utf-8"))


def read_records(path: Path) -> list[object]:
    """Read a file of records, a JSON list.

    Raises:
        BadFile: the file is missing, too large, or not a JSON list.
    """
    try:
        with path.open("rb") as file:  # a device has no size: the bytes that come are counted
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise BadFile(f"{path} is larger than {units.show_bytes(MAX_FILE_BYTES)}.")
        data = json.loads(text.decode("utf-8"))
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is not JSON: {str(error) or 'nested too deep'}.") from None
    if not isinstance(data, list):
        raise BadFile(
            f"{path} is not a JSON list of records. Write [{{...}}, {{...}}] in the schema of "
            "the published runs."
        )
    return data
