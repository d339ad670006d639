"""The folder of compiled programs: where it is, and what it keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardwise.cache_folder import cache_folder, shrink


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHARDWISE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "shardwise"
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_the_least_recently_used_entries_go(tmp_path: Path) -> None:
    for i, name in enumerate(("oldest-cache", "old-cache", "new-cache", "other")):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (i, i))
    shrink(tmp_path, "*-cache", 25)
    assert {path.name for path in tmp_path.iterdir()} == {"old-cache", "new-cache", "other"}
