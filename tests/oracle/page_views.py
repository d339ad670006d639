"""What the tests of the page do and read there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.browser import CHROMIUM, Page

MARKS = [
    pytest.mark.oracle,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]
SMALL = "#model=llama3.2-1b&hardware=v5e:2x4&batch=16&seq=2048"  # answered in no time
SLIDERS = "[...document.querySelectorAll('.slider')].map(e => [e.querySelector('label').innerText,"
SLIDERS += " e.querySelector('input').value])"
AXE = Path(sys.prefix) / "axe" / "axe.min.js"  # make oracle fetches it
VIOLATIONS = """axe.run(document, {resultTypes: ["violations"]}).then(result => result.violations
  .filter(v => ["serious", "critical"].includes(v.impact))
  .map(v => [v.id, v.nodes.length, v.nodes.slice(0, 3).map(n => [n.html, n.failureSummary])]))"""

CUT = """[...document.querySelectorAll('svg text, .bars dt, .bars dd > span')].filter(e => {
  const box = e.getBoundingClientRect(), room = e.closest('svg, .bars').getBoundingClientRect();
  return box.left < room.left - 1 || box.right > room.right + 1 ||
    (e.closest('.bars') && e.scrollWidth > e.clientWidth + 1);
}).map(e => e.textContent)"""  # labels of charts that are not seen in full


def violations(page: Page) -> list[Any]:
    """Serious and critical ones that axe-core sees, with all that can be opened open."""
    open_all(page)
    page.run(AXE.read_text("utf-8") + ";0")
    return list(page.run(VIOLATIONS))


def show(page: Page, address: str) -> None:
    """Open an address and wait until all is drawn, the curves too."""
    page.go(address)
    page.wait(f"location.href.startsWith({json.dumps(address.partition('#')[0])})")
    page.wait("document.querySelectorAll('#reasons .number').length > 0")
    page.wait("document.body.dataset.curves", 60)


def text(page: Page, selector: str) -> str:
    """The text of the first element that a selector finds, as it is seen."""
    return str(page.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))


def facts(page: Page) -> dict[str, Any]:
    """What a move of a slider changes: the answer, the charts, the strategies, the address."""
    return {
        "answer": text(page, ".headline") + text(page, "ul.facts"),
        "timeline": page.run("document.querySelector('#charts figure svg').outerHTML"),
        "strategies": text(page, "#charts .wide tbody"),
        "address": page.run("location.hash"),
        "sliders": page.run(SLIDERS),
    }


def open_all(page: Page) -> None:
    """Open all that can be opened, and wait for the tables, which are made then."""
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.wait("[...document.querySelectorAll('.twin')].every(d => d.querySelector('table'))")


def click(page: Page, label: str) -> None:
    """Press the button that reads `label`."""
    found = f"[...document.querySelectorAll('button')].find(b => b.innerText === '{label}')"
    page.run(f"{found}.click()")


def write(page: Page, field: str, words: str) -> None:
    """Write into a field of the form, and press Enter."""
    page.run(f"document.querySelector('form [name={field}]').select()")
    page.type(words)
    page.press("Enter")


def move(page: Page, slider: str, *keys: str) -> None:
    """Press keys on a slider, and wait until the last of them is answered and drawn."""
    for key in keys:
        before = facts(page)
        page.run(f"document.getElementById('slider-{slider}').focus()")
        page.press(key)
        page.wait(f"location.hash !== {json.dumps(before['address'])}")
        page.wait(
            f"document.querySelector('#charts figure svg').outerHTML !== "
            f"{json.dumps(before['timeline'])}"
        )
