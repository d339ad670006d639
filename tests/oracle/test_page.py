"""The page in a real Chromium: panes, sliders, links, the frozen file, and no request elsewhere."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import CHROMIUM, Browser, Page, browser
from tests.golden.terminal import run

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

DRAWN = "document.querySelectorAll('.slider input').length > 5"
CALM = "document.body.dataset.curves"
HEADLINE = "document.querySelector('.headline').innerText"
PANES = ("inputs", "mesh", "charts", "reasons")
SMALL = "model=llama3.2-1b&hardware=v5e:2x4&batch=64&seq=2048&tokens=1e9"
SERVED = "model=llama3.2-1b&hardware=v5e:2x2&kind=serve"
WIDE, PHONE = (1280, 900), (390, 844)
RECORD = {"steps": 9, "step_s": 0.1, "lower": 0.05, "upper": 0.2, "tokens_per_s": 1e4, "mfu": 0.4}


@contextlib.contextmanager
def server(*words: str) -> Iterator[str]:
    """The page's server, as users start it; its address."""
    command = [sys.executable, "-m", "shardwise", "ui", *words, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            text = ""
            for line in process.stdout or ():
                text += line
                if text.rstrip().endswith("}"):
                    break
            yield json.loads(text)["url"]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server() as address:
        yield address


def opened(chromium: Browser, address: str, size: tuple[int, int] = WIDE) -> Page:
    """A new tab at an address, drawn."""
    page = chromium.page()
    page.size(*size)
    page.go(address)
    page.wait(DRAWN, 60)
    return page


def is_clean(page: Page, address: str) -> bool:
    """Whether a tab reported no problem, and asked nothing of another server."""
    assert page.problems == []
    return all(request.startswith((address, "data:")) for request in page.requests)


def press(page: Page, slider: str, key: str) -> None:
    """Move a slider by a stop, and wait for the answer."""
    answers = page.run("+(document.body.dataset.answers || 0)")
    page.run(f"document.getElementById('slider-{slider}').focus()")
    page.press(key)
    page.wait(f"+document.body.dataset.answers > {answers}")


def test_the_first_view_is_useful_without_a_click(
    chromium: Browser, url: str, tmp_path: Path
) -> None:
    page = opened(chromium, url)
    assert "llama3-70b on v5p:16x20x28" in page.run("document.querySelector('h1').innerText")
    assert page.run(HEADLINE).startswith("Compute-bound.")
    for pane in PANES:
        assert page.run(f"document.querySelector('#{pane}').innerText.length") > 100, pane
    assert page.run("document.querySelectorAll('#charts svg').length") >= 4
    page.wait(CALM, 60)
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert is_clean(page, url)


def test_a_slider_moves_every_pane_and_a_link_brings_it_back(chromium: Browser, url: str) -> None:
    page = opened(chromium, f"{url}#{SMALL}")
    before = [page.run(f"document.querySelector('#{pane}').innerHTML") for pane in PANES]
    headline = page.run(HEADLINE)
    press(page, "tensor", "ArrowRight")
    after = [page.run(f"document.querySelector('#{pane}').innerHTML") for pane in PANES]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False] * len(PANES)
    moved = page.run(HEADLINE)
    assert "tensor 2" in moved
    linked = opened(chromium, f"{url}{page.run('location.hash')}")
    assert linked.run(HEADLINE) == moved
    page.run("document.querySelector('form button').click()")
    page.wait(f"{HEADLINE} === {json.dumps(headline)}")


def test_serving_and_a_wrong_name(chromium: Browser, url: str) -> None:
    page = opened(chromium, f"{url}#{SERVED}")
    assert "TPOT" in page.run(HEADLINE)
    headline = page.run(HEADLINE)
    page.run("document.querySelector('input[name=model]').value = 'llama9'")
    page.run("document.querySelector('form button').click()")
    page.wait("Boolean(document.querySelector('[role=alert]'))")
    assert 'unknown model "llama9"' in page.run("document.querySelector('[role=alert]').innerText")
    assert page.run(HEADLINE) == headline


def test_every_number_opens_and_every_chart_has_a_table(chromium: Browser, url: str) -> None:
    page = opened(chromium, f"{url}#{SMALL}")
    numbers = page.run(
        "[...document.querySelectorAll('details.number')].map(d => { d.open = true;"
        " return [...d.querySelectorAll('dd')].map(e => e.innerText); })"
    )
    assert len(numbers) >= 8
    for formula, filled, section, code in numbers:
        assert all((formula, filled))
        assert section.startswith("§")
        assert code.startswith("shardwise/")
    tables = page.run(
        "[...document.querySelectorAll('details.twin')].map(t => t.querySelectorAll('tr').length)"
    )
    assert len(tables) >= 5
    assert min(tables) > 1


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_it_fits_the_window_in_both_colours(
    chromium: Browser, url: str, size: tuple[int, int]
) -> None:
    page = opened(chromium, f"{url}#{SMALL}", size)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.dark(on=True)
    assert page.run(ground) != light
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.run("document.querySelector('#inputs').offsetHeight") > 200
    tabs = set()
    for _ in range(60):
        page.press("Tab")
        tabs.add(page.run("document.activeElement.tagName"))
    assert {"INPUT", "BUTTON"} <= tabs


def test_a_live_run_grows(chromium: Browser, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 1, "loss": 3.0, **RECORD}) + "\n")
    with server("--run", str(tmp_path)) as address:
        page = opened(chromium, address)
        page.run("[...document.querySelectorAll('nav button')][1].click()")
        page.wait("document.querySelector('#live h2').innerText.includes('step 1 of 9')")
        with metrics.open("a") as file:
            file.write(json.dumps({"step": 2, "loss": 2.5, **RECORD}) + "\n")
        page.wait("document.querySelector('#live h2').innerText.includes('step 2 of 9')")
        assert is_clean(page, address)


def test_a_frozen_page_opens_from_disk_and_prints(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "plan llama3.2-1b v5e:2x4 --train --batch 64x2048 -o plan.json"
    assert run(*words.split()).code == 0
    assert run("report", "plan.json", "-o", "plan.html").code == 0
    page = chromium.page()
    page.size(*WIDE)
    address = (tmp_path / "plan.html").as_uri()
    page.go(address)
    page.wait("document.querySelectorAll('#charts svg').length >= 4")
    assert page.run("document.querySelectorAll('.curve circle').length") > 20
    printed: Any = page.send("Page.printToPDF")
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert is_clean(page, address)
