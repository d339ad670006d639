"""What a user types is refused with a worded error: `assert` vanishes under `python -O`."""

from __future__ import annotations

import ast
from pathlib import Path


def asserts_in(source: str) -> list[int]:
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]


def test_no_assert_in_the_package(root: Path) -> None:
    found = [
        f"{path.relative_to(root)}:{line}"
        for path in sorted((root / "src").rglob("*.py"))
        for line in asserts_in(path.read_text())
    ]
    assert not found


def test_the_check_can_fail() -> None:
    assert asserts_in('x = 1\nassert x, "told"\n') == [2]
