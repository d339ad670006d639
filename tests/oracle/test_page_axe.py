"""axe-core finds nothing on any view of the page that shuts somebody out."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.train.metrics import StepRecord
from tests.browser import Page
from tests.oracle.page_views import AXE, MARKS, SMALL, click, show, violations
from tests.page_server import server

pytestmark = [*MARKS, pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: page/axe.mjs")]

SERVED = "#model=llama3.2-1b&hardware=v5e:2x2&kind=serve&prompt=512&output=128"


@pytest.mark.parametrize("question", [SMALL, SERVED])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_plan(page: Page, address: str, question: str, dark: bool, width: int) -> None:
    page.size(width, 844)
    page.dark(on=dark)
    show(page, address + question)
    assert violations(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_an_error(page: Page, address: str, dark: bool) -> None:
    page.dark(on=dark)
    page.go(f"{address}#model=llama9&hardware=v5e:2x4&batch=16")
    page.wait("Boolean(document.querySelector('[role=alert]'))")
    assert violations(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_comparison(page: Page, address: str, dark: bool) -> None:
    page.dark(on=dark)
    show(page, address + SMALL)
    click(page, "Compare")
    page.wait("Boolean(document.querySelector('#compare button'))")
    click(page, "Keep this plan as the first")
    page.wait("document.querySelectorAll('#compare tbody tr').length > 2")
    assert violations(page) == []


def test_a_live_run(page: Page, tmp_path: Path) -> None:
    step = dict.fromkeys(StepRecord.__slots__, 0.1) | {"steps": 9, "bad": False, "step": 1}
    (tmp_path / "metrics.jsonl").write_text(f"{step}\n".replace("'", '"').replace("False", "false"))
    with server("--run", str(tmp_path)) as url:
        page.go(url)
        page.wait("document.querySelectorAll('#reasons .number').length > 0")
        click(page, "Live run")
        page.wait("document.querySelectorAll('#live .plot svg').length === 2")
        for dark in (False, True):
            page.dark(on=dark)
            assert violations(page) == []
