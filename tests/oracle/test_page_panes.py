"""The panes of the page: derivations, tables, keys alone, colours, and narrow screens."""

from __future__ import annotations

import math
import re

import pytest

from tests.browser import Page
from tests.oracle.page_views import MARKS, SMALL, click, open_all, show, text

pytestmark = MARKS

SERVED = "#model=llama3.2-1b&hardware=v5e:2x2&kind=serve&prompt=512&output=128"
ANSWERS = "[...document.querySelectorAll('#reasons .number')].map(n => [n.id, n.open,"
ANSWERS += " ...[...n.querySelectorAll('dd')].map(d => d.checkVisibility() && d.innerText)])"
TWINS = "[...document.querySelectorAll('figure')].map(f => [f.querySelector('h3').innerText,"
TWINS += (
    " f.querySelectorAll(f.querySelector('svg') ? 'details.twin tbody tr' : 'tbody tr').length])"
)
CURVES = """[...document.querySelectorAll('#inputs .curve')].map(curve =>
  [...curve.querySelectorAll('circle')].map(e => [e.cy.baseVal.value, e.textContent]))"""
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
CURVE_HEIGHT = 26  # from the lowest to the highest point
CONTROLS = "[...document.querySelectorAll('button, input, summary, [tabindex]')].filter(e =>"
CONTROLS += " e.checkVisibility())"
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"
GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize("question", [SMALL, SERVED])
def test_every_number_opens_its_derivation(page: Page, address: str, question: str) -> None:
    show(page, address + question)
    page.run("document.querySelectorAll('#reasons summary').forEach(s => s.click())")
    page.wait("document.querySelectorAll('#reasons .number:not([open])').length === 0")
    for name, is_open, *told in page.run(ANSWERS):
        assert is_open, name
        formula, numbers, section, code = told
        assert formula, name
        assert numbers, name
        assert section.startswith("§"), name
        assert code.startswith("shardwise/"), name
        assert code.rpartition(":")[2].isdigit(), name


def test_the_height_of_a_curve_is_a_factor_of_two_or_more(page: Page, address: str) -> None:
    show(page, address + SMALL)
    ratios = []
    for points in page.run(CURVES):
        texts = " ".join(text for _, text in points)
        times = re.findall(r": ([\d.]+) (\w+) of a chip per token", texts)
        values = [float(number) * UNITS[unit] for number, unit in times]
        assert len(values) == len(points)
        ratios.append(max(values) / min(values))
        height = max(y for y, _ in points) - min(y for y, _ in points)
        expected = math.log(ratios[-1]) / max(math.log(ratios[-1]), math.log(2))
        assert height / CURVE_HEIGHT == pytest.approx(expected, abs=0.02)  # of three digits
    assert any(1 < ratio < 1.1 for ratio in ratios)  # nearly flat
    assert max(ratios) > 2


def test_a_fact_of_the_answer_opens_its_derivation(page: Page, address: str) -> None:
    show(page, address + SMALL)
    page.run("document.querySelectorAll('.facts button')[2].click()")
    page.wait("document.activeElement.matches('#reasons .number[open] summary')")
    assert text(page, ".facts li:nth-child(3) span") in page.run("document.activeElement.innerText")


@pytest.mark.parametrize("question", [SMALL, SERVED])
def test_every_chart_has_a_table(page: Page, address: str, question: str) -> None:
    show(page, address + question)
    open_all(page)
    rows = dict(page.run(TWINS))
    assert len(rows) == 5
    assert min(rows.values()) > 0, rows
    assert page.run("document.querySelectorAll('#mesh tbody tr').length") > 5


def test_all_controls_are_reached_by_tab(page: Page, address: str) -> None:
    show(page, address + SMALL)
    count = page.run(f"{CONTROLS}.length")
    assert count > 40
    for _ in range(count + 2):
        page.press("Tab")
        page.run("document.activeElement.dataset.reached = 1")
    assert page.run(f"{CONTROLS}.filter(e => !e.dataset.reached).map(e => e.outerHTML)") == []


def test_arrow_keys_walk_over_the_chips(page: Page, address: str) -> None:
    show(page, address + SMALL)
    before = text(page, ".chip")
    page.run("document.querySelector('canvas').focus()")
    page.press("ArrowDown")
    page.wait(f"document.querySelector('.chip').innerText !== {before!r}")
    assert "y 1" in text(page, ".chip")


def test_dark_and_light(page: Page, address: str) -> None:
    show(page, address + SMALL)
    page.dark(on=False)
    light = page.run(GROUND)
    page.dark(on=True)
    assert page.run(GROUND) != light


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("question", [SMALL, SERVED, ""])
def test_nothing_is_wider_than_the_screen(
    page: Page, address: str, width: int, question: str
) -> None:
    page.size(width, 844)
    show(page, address + question)
    open_all(page)
    for view in ("Plan", "Live run", "Compare"):
        click(page, view)
        page.wait(f"document.querySelector('nav [aria-current]').innerText === '{view}'")
        wide, room = page.run(WIDTHS)
        assert wide <= room == width, view
        if view == "Compare":
            click(page, "Keep this plan as the first")
            page.wait("document.querySelectorAll('#compare tbody tr').length > 2")
            assert page.run(WIDTHS) == [width, width]


def test_a_phone_has_the_inputs(page: Page, address: str) -> None:
    page.size(390, 844)
    show(page, address)
    box = page.run("document.querySelector('#inputs').getBoundingClientRect().toJSON()")
    assert box["width"] > 300
    assert box["height"] > 500
    above = page.run("document.querySelector('nav').getBoundingClientRect().bottom")
    assert 0 <= box["top"] - above < 20  # right after the answer, before mesh and charts
    narrow = "[...document.querySelectorAll('#inputs input')].filter(e => e.clientWidth < 150)"
    assert page.run(f"{narrow}.map(e => e.outerHTML)") == []
