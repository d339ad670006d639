"""Imports point only downwards (the contracts stand in pyproject.toml)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.arch import fresh
from tests.conftest import ROOT

LINT = (
    "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
)


def test_contracts_are_kept() -> None:
    code, text = fresh.run("-c", LINT, cwd=ROOT)
    assert code == 0, text


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("errors.py", "import shardwise.plan", "Imports point only downwards BROKEN"),
        ("workload.py", "import shardwise.hardware", "Imports point only downwards BROKEN"),
        ("units.py", "import rich", "The core knows neither JAX nor the terminal BROKEN"),
    ],
)
def test_a_planted_import_breaks_them(tmp_path: Path, module: str, line: str, broken: str) -> None:
    src = fresh.copy_of_package(tmp_path)
    fresh.spoil(src, module, line)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    code, text = fresh.run("-c", LINT, src=src, cwd=tmp_path)
    assert code == 1, text
    assert broken in text


def test_a_room_without_a_level_breaks_them(tmp_path: Path) -> None:
    src = fresh.copy_of_package(tmp_path)
    (src / "shardwise" / "attic.py").write_text("")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    code, text = fresh.run("-c", LINT, src=src, cwd=tmp_path)
    assert code == 1, text
    assert "attic" in text
