"""Every page shows what happens, and every link between pages leads somewhere."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwise.validate.serving import predict as serving
from shardwise.validate.training import score as training
from tests.conftest import ROOT
from tests.docs import pages

# Their examples compile programs for TPUs, and predict all published runs.
LONG = {f"docs/{name}.md" for name in ("check", "validate", "published_plans")}
PAGES = [str(path.relative_to(ROOT)) for path in pages.pages(ROOT)]
LINKING = [*PAGES, "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


@pytest.fixture(scope="module", autouse=True)
def _each_run_is_predicted_once() -> Iterator[None]:
    """Several pages show errors of predictions of the same published runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "predict", functools.cache(training.predict))
        patch.setattr(serving, "predict", functools.cache(serving.predict))
        yield


@pytest.mark.parametrize(
    "name",
    [pytest.param(page, marks=pytest.mark.oracle if page in LONG else ()) for page in PAGES],
)
def test_page_shows_what_happens(root: Path, tmp_path: Path, name: str) -> None:
    stale = [e for e in pages.run_page((root / name).read_text(), tmp_path) if not e.agrees]
    told = "\n".join(f"{name}:{example}" for example in stale)
    assert not stale, f"\n{told}\n(make docs-refresh writes what came out into the pages)"


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_no_failed_filter_and_no_bug(root: Path, name: str) -> None:
    """Code 1 is that of a `grep` that matches nothing, and of a bug; refreshing would keep it."""
    assert "[exit 1]" not in (root / name).read_text().splitlines()


@pytest.mark.parametrize("name", LINKING)
def test_links_lead_somewhere(root: Path, name: str) -> None:
    links = (match[1] for match in LINK.finditer((root / name).read_text()))
    near = [link for link in links if "://" not in link]
    assert [link for link in near if not (root / name).parent.joinpath(link).exists()] == []


def test_readme_counts_the_serving_runs_that_the_page_of_validation_shows(root: Path) -> None:
    """To predict them all takes longer than the rest of the page, and is for `make oracle`."""
    (counted,) = re.findall(
        r"[\d,]+ figures of [\d,]+ published serving runs", (root / "README.md").read_text()
    )
    assert f"\n{counted}, by what they measure\n" in (root / "docs/validate.md").read_text()


def test_readme_shows_the_command_line(root: Path) -> None:
    shown = [b for b in pages.blocks((root / "README.md").read_text()) if b.language == "console"]
    assert any(line.startswith("$ shardwise plan ") for block in shown for line in block.lines)
