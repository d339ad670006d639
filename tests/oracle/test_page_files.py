"""Frozen files open from disk without a request, and the live tab follows a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.train.metrics import StepRecord
from shardwise.units import show_gib
from tests.browser import Page
from tests.golden.terminal import run
from tests.oracle.page_views import AXE, CUT, MARKS, click, open_all, text, violations
from tests.page_server import server

pytestmark = MARKS

PLAN = "plan llama3.2-1b v5e:2x2 --train --batch 8x512 -o"
OTHER = "plan llama3.2-1b v5e:2x2 --train --batch 8x512 --fix remat=full -o"
SERVED = "plan llama3.2-1b v5e:2x2 --serve --prompt 512 --output 128 -o"
STEP = dict.fromkeys(StepRecord.__slots__, 0.1) | {"steps": 90, "bad": False, "memory_bytes": 9}
STEP |= {"step_s": 0.1, "tokens_per_s": 8 * 512 / 0.1}
MOST_BYTES = 1_000_000
LEAST_PAGES = 2
MEMORY_BARS = "[...document.querySelectorAll('figure:nth-child(2) dd:last-of-type svg')]"


def lines(first: int, last: int) -> str:
    """Records of steps, as a run writes them."""
    records = [{**STEP, "step": n, "loss": 4 / n} for n in range(first, last + 1)]
    return "".join(f"{json.dumps(record)}\n" for record in records)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frozen files of plans, of comparisons and of a run, as the command line writes them."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "other").mkdir()
    plans = (("plan", PLAN), ("served", SERVED), ("other/plan", OTHER))
    for name, command in plans:
        said = run(*command.split(), str(folder / f"{name}.json"))
        assert said.code == 0, said.err
    (folder / "run").mkdir()
    metrics = folder / "run" / "metrics.jsonl"
    metrics.write_text(lines(1, 60))
    compared = run("compare", str(folder / "plan.json"), str(metrics), "--json")
    assert compared.code == 0, compared.err
    (folder / "compared.json").write_text(compared.out)
    pair = run("compare", str(folder / "plan.json"), str(folder / "other/plan.json"), "--json")
    assert pair.code == 0, pair.err
    (folder / "pair.json").write_text(pair.out)
    for source in ("plan.json", "served.json", "compared.json", "pair.json", "run/metrics.jsonl"):
        frozen = folder / f"{Path(source).stem}.html"
        said = run("report", str(folder / source), "-o", str(frozen))
        assert said.code == 0, said.err
    return folder


DRAWN = {
    "plan": "#charts svg rect, #reasons .number, #inputs .curve circle",
    "served": "#charts svg rect, #reasons .number, #inputs .curve circle",
    "compared": "#compare svg rect, #compare td",
    "pair": "#compare svg rect, #compare td",
    "metrics": "#live .plot svg path, #live td",
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_frozen_file(page: Page, folder: Path, name: str) -> None:
    """It is drawn, asks for nothing but itself, is small, fits the screen, and prints."""
    file = folder / f"{name}.html"
    assert file.stat().st_size < MOST_BYTES
    page.go(file.as_uri())
    page.wait(f"location.href === {json.dumps(file.as_uri())}")
    page.wait("Boolean(document.querySelector('section'))")
    open_all(page)
    for part in DRAWN[name].split(", "):
        page.wait(f"document.querySelectorAll('{part}').length > 0")
    page.wait("[...document.querySelectorAll('.plot')].every(p => p.querySelector('svg'))")
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith("data:")] == [file.as_uri()]
    assert page.run("document.querySelectorAll('form, input').length") == 0
    for width in (390, 1280):
        page.size(width, 844)
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), width
        page.wait(f"{CUT}.length === 0")  # once plots are drawn again
    for dark in (False, True):
        page.dark(on=dark)
        assert not AXE.exists() or violations(page) == []
    page.dark(on=False)
    printed = page.pdf()
    assert printed.startswith(b"%PDF")
    least = LEAST_PAGES if name in ("plan", "served") else 1
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= least


def test_two_plans_are_told_apart_and_have_their_memory(page: Page, folder: Path) -> None:
    page.go((folder / "pair.html").as_uri())
    page.wait("Boolean(document.querySelector('#compare table'))")
    plans = {name: sw.load(folder / name) for name in ("plan.json", "other/plan.json")}
    for letter, (name, plan) in zip("AB", plans.items(), strict=True):
        assert f"{letter}: {folder / name}: {plan}" in text(page, "#compare")
        assert show_gib(plan.memory.total) in text(
            page, "#compare figure:nth-child(2) dd:last-of-type"
        )
    widths = page.run(f"{MEMORY_BARS}.map(e => e.getBoundingClientRect().width)")
    sizes = [plan.memory.total for plan in plans.values()]
    assert sizes[0] != sizes[1]
    assert widths[0] / widths[1] == pytest.approx(sizes[0] / sizes[1], rel=0.02)  # of pixels


def test_the_live_tab_follows_a_run(page: Page, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(lines(1, 3))
    with server("--run", str(tmp_path)) as url:
        page.go(url)
        page.wait("document.querySelectorAll('#reasons .number').length > 0")
        click(page, "Live run")
        page.wait("document.querySelector('#live-title')?.innerText.includes('step 3 of 90')")
        with metrics.open("a") as file:
            file.write(lines(4, 7) + lines(8, 8)[:20])
        page.wait("document.querySelector('#live-title').innerText.includes('step 7 of 90')")
        with metrics.open("a") as file:
            file.write(lines(8, 8)[20:])
        page.wait("document.querySelector('#live-title').innerText.includes('step 8 of 90')")
        assert page.run("document.querySelectorAll('#live .plot svg path').length") > 0
        assert "0.5000" in text(page, "#live .facts")
        metrics.write_text(lines(1, 2))
        page.wait("document.querySelector('#live-title').innerText.includes('step 2 of 90')")
    page.wait("Boolean(document.querySelector('#live .problem'))")
    assert "Start shardwise ui again" in text(page, "#live .problem")
