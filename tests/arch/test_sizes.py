"""A file is one idea: short as a rule, and never longer than 400 lines."""

from __future__ import annotations

import statistics
from pathlib import Path

LONGEST = 400
MEDIAN = 150


def lines_by_file(root: Path, *folders: str) -> dict[str, int]:
    return {
        str(path.relative_to(root)): len(path.read_text().splitlines())
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
    }


def test_no_file_is_long(root: Path) -> None:
    lines = lines_by_file(root, "src", "tests", "bench")
    assert not {name: n for name, n in lines.items() if n > LONGEST}


def test_most_source_files_are_short(root: Path) -> None:
    # Empty package files would only flatter the median.
    lines = [n for n in lines_by_file(root, "src").values() if n > 0]
    assert statistics.median(lines) <= MEDIAN
