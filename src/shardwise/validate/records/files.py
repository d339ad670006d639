"""Files of published records: the JSON lists that come with the package, or a user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise import units
from shardwise.errors import BadFile

DATA = Path(__file__).parents[1] / "data"
LARGEST_FILE = 256 * units.MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Underivable:
    """A row from which no run follows, and why.

    Args:
        id: Name of the row, or its place in the file.
        source: Repository or document, as far as it could be read.
        reason: In words; what comes before the colon is the kind.
    """

    id: str
    source: str
    reason: str

    @property
    def kind(self) -> str:
        """The reason without its particulars."""
        return self.reason.partition(":")[0]


def names_of(record: object, place: int) -> tuple[str, str]:
    """Name and source of a record that may be anything."""
    data: Mapping[str, Any] = record if isinstance(record, dict) else {}
    name, source = data.get("id"), data.get("source")
    if isinstance(source, dict):
        source = source.get("repo") or source.get("paper") or source.get("url")
    return (
        name if isinstance(name, str) and name else f"record {place + 1}",
        source if isinstance(source, str) else "not stated",
    )


def records_in(path: Path) -> list[object]:
    """The JSON list of a file.

    Raises:
        BadFile: no such file, one that is too large, or one that is not a JSON list.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise BadFile(f"{path} is larger than {units.show_bytes(LARGEST_FILE)}.")
        data = json.loads(path.read_text("utf-8"))
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
