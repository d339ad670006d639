"""The documentation site builds without a warning, and every page is in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"]
    done = subprocess.run(
        [*command, str(root / "docs"), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built(root: Path, site: Path) -> None:
    pages = {path.relative_to(root / "docs") for path in (root / "docs").rglob("*.md")}
    assert [page for page in pages if not (site / page.with_suffix(".html")).exists()] == []


def test_docstrings_and_root_pages_are_in_it(site: Path) -> None:
    reference = (site / "reference.html").read_text(encoding="utf-8")
    assert 'id="shardwise.plan"' in reference
    assert "Raises" in reference
    architecture = (site / "architecture.html").read_text(encoding="utf-8")
    assert "How a training plan is derived" in architecture


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert 'src="http' not in text, page.name
        assert 'rel="stylesheet" href="http' not in text, page.name
