"""The carried rows, read once, and one good record to break."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardwise.validate import Run, SkippedRecord, load
from shardwise.validate.records.files import DATA


@pytest.fixture(scope="session")
def rows() -> list[Run | SkippedRecord]:
    return load()


@pytest.fixture(scope="session")
def runs(rows: list[Run | SkippedRecord]) -> dict[str, Run]:
    return {row.id: row for row in rows if isinstance(row, Run)}


@pytest.fixture(scope="session")
def refused(rows: list[Run | SkippedRecord]) -> dict[str, SkippedRecord]:
    return {row.id: row for row in rows if isinstance(row, SkippedRecord)}


@pytest.fixture(scope="session")
def records() -> dict[str, dict[str, Any]]:
    published: list[dict[str, Any]] = json.loads((DATA / "published.json").read_text("utf-8"))
    return {record["id"]: record for record in published}
