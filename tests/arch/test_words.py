"""The project reads the same on every machine: no path of somebody's own is written down in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# A path from the root of a file system, at the start of a word. "docs/home/x" is none.
LOCAL_PATH = re.compile(r"(?<![\w.*-])(?:/(?:home|tmp|root|work|Users|mnt|opt)/|[A-Z]:\\Users)")
FOLDERS = ("src", "docs", "tests", "bench", "requirements", ".ci")
SUFFIXES = {".py", ".md", ".toml", ".json", ".txt", ".in", ".cfg", ""}


def texts(root: Path) -> Iterator[tuple[str, str]]:
    files = [path for path in root.iterdir() if path.suffix in {".md", ".toml"}]
    files += [root / "Makefile"]
    for folder in FOLDERS:
        files += (root / folder).rglob("*")
    for path in sorted(files):
        if path.is_file() and path.suffix in SUFFIXES and "egg-info" not in str(path):
            yield str(path.relative_to(root)), path.read_text()


def test_no_local_path_is_named(root: Path) -> None:
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in texts(root)
        if name != "tests/arch/test_words.py"
        for number, line in enumerate(text.splitlines(), 1)
        if LOCAL_PATH.search(line)
    ]
    assert not found


@pytest.mark.parametrize("line", ["/tmp/plan.json", "open('/home/me/x')", '"/root/.cache"'])
def test_a_local_path_is_seen(line: str) -> None:
    assert LOCAL_PATH.search(line)


@pytest.mark.parametrize("line", ["docs/home/x.md", "bytes/opt/unit", "s/tmp/x"])
def test_other_slashes_are_let_be(line: str) -> None:
    assert not LOCAL_PATH.search(line)
