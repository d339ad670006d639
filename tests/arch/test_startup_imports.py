"""`import shardwise` is nearly free: every heavier module waits until something asks for it."""

from __future__ import annotations

from tests.arch import fresh

HEAVY = {"numpy", "rich", "typer", "msgspec", "pydantic"}


def loaded_by(statement: str) -> set[str]:
    code, text = fresh.run("-c", f"{statement}\nimport sys\nprint(*sys.modules)")
    assert code == 0, text
    return set(text.split())


def test_import_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_by("import shardwise")


def test_the_check_can_fail() -> None:
    assert "numpy" in loaded_by("import shardwise, numpy")
